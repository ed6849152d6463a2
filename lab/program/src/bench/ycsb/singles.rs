//! Operations of one client, one at a time: a bare read, a get, a get of several keys. They are measured right after
//! one another, so their ratios are of one moment.

use super::super::course::{Course, Length};
use super::super::latency::{hold_objects, read_once, renewed};
use super::super::rivals::{Figures, Measured, Rival};
use super::super::turns::{Round, Spread, in_turns};
use super::super::{BenchError, processors};
use super::BenchYcsbOptions;
use super::loaded::{self, Loaded, is_value_of, key};
use super::workload::{Choice, Workload, draw};
use crate::samples::Samples;
use portcullis::Session;
use portcullis_structures::Pipeline;
use portcullis_structures::table::Table;
use serde::Serialize;
use std::time::Instant;

/// Objects that bare reads use in turn, as in `read_lat`.
const OBJECTS: usize = 1024;
/// Bytes of a bare read.
const READ_BYTES: u32 = 64;
/// Keys of a get of several keys.
pub const KEYS_AT_ONCE: usize = 16;
const WARM_UP: u64 = 20_000;
/// The operations that are measured, in this order.
const WHAT: [&str; 3] = ["bare-read", "get", "multi-get"];

/// A row for an operation that is measured one at a time.
#[derive(Debug, Serialize)]
pub struct Single {
    pub what: &'static str,
    pub value_bytes: u32,
    pub grain: &'static str,
    pub blocks: &'static str,
    /// Keys of each operation.
    pub keys: usize,
    #[serde(flatten)]
    pub figures: Figures,
    /// The typical time, divided by that of a bare read of the same round.
    pub of_bare_read: Spread,
}

/// Measures all three operations for each mechanism.
pub fn run(options: &BenchYcsbOptions, rivals: &mut [Rival<Loaded>]) -> Result<Vec<Single>, BenchError> {
    let turns = in_turns(rivals, options.comparison.rounds, |rival, round| measure(options, rival, round))?;
    let of = |what: usize| -> Vec<Vec<&Measured>> {
        turns.iter().map(|own| own.iter().map(|turn| &turn[what]).collect()).collect()
    };
    let mut rows = Vec::new();
    for (what, name) in WHAT.into_iter().enumerate() {
        let (these, bare) = (of(what), of(0));
        let figures = Figures::of_all(rivals, &these);
        for (((figures, these), bare), rival) in figures.into_iter().zip(&these).zip(&bare).zip(&*rivals) {
            let shape = rival.state.contents.shape;
            rows.push(Single {
                what: name,
                value_bytes: shape.value_bytes,
                grain: loaded::grain_text(shape.grain),
                blocks: loaded::blocks_text(shape.blocks),
                keys: if name == "multi-get" { KEYS_AT_ONCE } else { 1 },
                figures,
                of_bare_read: Measured::times_of(these.iter().copied(), bare.iter().copied()),
            });
        }
    }
    Ok(rows)
}

fn measure(
    options: &BenchYcsbOptions,
    rival: &Rival<Loaded>,
    round: Round,
) -> Result<[Measured; 3], BenchError> {
    processors::pin_client();
    let name = format!("{round}: one at a time, {}", rival.mechanism);
    let length = options.comparison.turn().part(WHAT.len());
    let mut session = loaded::session(options, rival.address())?;
    let bare = bare_reads(&mut session, length, &name)?;
    let opened = match rival.state.own_table() {
        Some(_) => None,
        None => Some(loaded::open(session, rival.state.contents.head)?),
    };
    let own = rival.state.own_table().or(opened.as_ref().map(|(pipeline, table)| (pipeline, table)));
    let (pipeline, table) = own.expect("it was opened just now");
    let keys: Vec<u32> = draw(Workload::C, options.keys, u64::MAX, 0)
        .into_iter()
        .map(|drawn| match drawn.choice {
            Choice::Loaded(number) | Choice::BeforeLatest(number) => number,
        })
        .collect();
    let reads = Reads { rival, pipeline, table, keys, name };
    Ok([bare, reads.gets(length)?, reads.multi_gets(length)?])
}

fn bare_reads(session: &mut Session, length: Length, name: &str) -> Result<Measured, BenchError> {
    let mut objects = hold_objects(session, OBJECTS, READ_BYTES.into())?;
    let mut buffer = Some(session.buffer(READ_BYTES)?);
    let mut round = 0;
    timed(length, name, || {
        let object = renewed(session, &mut objects, round % OBJECTS, READ_BYTES.into())?;
        round += 1;
        let before = Instant::now();
        let held = buffer.take().expect("the last read gave it back");
        buffer = Some(read_once(session, (object, before), held)?);
        Ok(before)
    })
}

/// Measures the time from the `Instant` that `act` returns until `act` has returned.
fn timed(
    length: Length,
    name: &str,
    mut act: impl FnMut() -> Result<Instant, BenchError>,
) -> Result<Measured, BenchError> {
    let (mut warm_up, mut done) = (Course::warm_up_for(length, WARM_UP), 0);
    while !warm_up.over(done) {
        act()?;
        done += 1;
    }
    let (mut course, mut times) = (Course::of(length, name), Samples::new());
    done = 0;
    while !course.over(done) {
        times.add(act()?.elapsed());
        done += 1;
    }
    Ok(Measured::new(done, course.elapsed(), times))
}

struct Reads<'a> {
    rival: &'a Rival<Loaded>,
    pipeline: &'a Pipeline,
    table: &'a Table,
    keys: Vec<u32>,
    name: String,
}

impl Reads<'_> {
    fn gets(&self, length: Length) -> Result<Measured, BenchError> {
        let mut numbers = self.keys.iter().cycle();
        timed(length, &self.name, || {
            let number = *numbers.next().expect("it goes round");
            let before = Instant::now();
            let found = self.pipeline.block_on(self.table.get(&key(number)))?;
            self.check(number, found.as_deref())?;
            Ok(before)
        })
    }

    fn multi_gets(&self, length: Length) -> Result<Measured, BenchError> {
        let mut numbers = self.keys.iter().cycle();
        timed(length, &self.name, || {
            let numbers: [u32; KEYS_AT_ONCE] =
                std::array::from_fn(|_| *numbers.next().expect("it goes round"));
            let keys = numbers.map(key);
            let keys: [&[u8]; KEYS_AT_ONCE] = std::array::from_fn(|place| &keys[place][..]);
            let before = Instant::now();
            let found = self.pipeline.block_on(self.table.get_many(&keys))?;
            for (number, value) in numbers.into_iter().zip(found) {
                self.check(number, value.as_deref())?;
            }
            Ok(before)
        })
    }

    fn check(&self, number: u32, value: Option<&[u8]>) -> Result<(), BenchError> {
        let right = value.is_some_and(|value| is_value_of(value, number, self.rival.state.contents.shape));
        if right { Ok(()) } else { Err(BenchError::Wrong { key: number }) }
    }
}
