//! `portcullis-lab bench groups`: the cost of one window for each queue pair of a client, compared with one window for
//! all of them (OneSidedMW, «QP and MW Grouping»).

use super::course::Course;
use super::latency::{hold_objects, one, renewed};
use super::permissions::Lives;
use super::pingpong::RoundTrip;
use super::report::print_json;
use super::rivals::{Comparison, Figures, Measured, Rival, compare};
use super::{BenchError, Name, pingpong, processors};
use crate::output::say;
use crate::samples::Samples;
use clap::Args;
use portcullis::{ArenaMemory, Buffer, Permission, Session, connect_with};
use serde::Serialize;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  portcullis-lab bench groups  # 1, 2, 4 and 8 queue pairs
  portcullis-lab bench groups --spares 2 -D 10 --json

Each mechanism has a node of its own and takes turns with the others. `grant` is
an acquire and its revoke, many under way at once; `read` and `write` are 64
bytes, one at a time. Rates, times and ratios are medians of the rounds; ratios
are to the first mechanism in the same round.";

/// Bytes that a node lends.
const NODE_MEMORY: u64 = 256 << 20;
/// Bytes of an access and of an object.
const BYTES: u32 = 64;
const OBJECTS: usize = 16;

/// The measurement, and how it is done.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("protection", |arg| arg.default_value("memory-window,window-group")))]
pub struct BenchGroupsOptions {
    /// Spare queue pairs of a client, beside the one in use: one table for each number.
    #[arg(long, value_delimiter = ',', default_value = "0,1,3,7", value_name = "NUMBERS",
          value_parser = clap::value_parser!(u32).range(0..=7))]
    spares: Vec<u32>,
    #[command(flatten)]
    comparison: Comparison,
}

/// The operation that is measured.
#[derive(Clone, Copy, Debug)]
enum Work {
    Grant,
    Read,
    Write,
}

impl Work {
    const ALL: [Self; 3] = [Self::Grant, Self::Read, Self::Write];

    fn name(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    queue_pairs: u32,
    work: &'static str,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    nic: &'static str,
    rounds: usize,
    pingpong_rtt: RoundTrip,
    rows: Vec<Row>,
}

/// A client of one node.
struct Client {
    session: Session,
    lives: Lives,
    objects: Vec<Permission>,
    /// Absent while an access is in flight.
    buffer: Option<Buffer<ArenaMemory>>,
}

/// Runs `groups`.
pub fn run(options: &BenchGroupsOptions) -> Result<(), BenchError> {
    let BenchGroupsOptions { spares, comparison } = options;
    comparison.check()?;
    processors::pin_client();
    let mut report = Report {
        benchmark: "groups",
        nic: comparison.ends.nic.name(),
        rounds: comparison.rounds,
        pingpong_rtt: pingpong::round_trip(),
        rows: Vec::new(),
    };
    for &spares in spares {
        let spare_queue_pairs = ["--spare-queue-pairs".to_owned(), spares.to_string()];
        let mut rivals =
            comparison.rivals_with(NODE_MEMORY, &spare_queue_pairs, |address, _| options.client(address))?;
        for work in Work::ALL {
            let figures = compare(&mut rivals, comparison.rounds, |rival: &mut Rival<Client>, round| {
                let name = format!("{round}: {}, {} spares, {}", work.name(), spares, rival.mechanism);
                rival.state.measure(work, Course::of(comparison.turn(), &name))
            })?;
            let queue_pairs = 1 + spares;
            let row = |figures| Row { queue_pairs, work: work.name(), figures };
            report.rows.extend(figures.into_iter().map(row));
        }
    }
    if comparison.json {
        print_json(&report);
        return Ok(());
    }
    say(format_args!(
        "Permissions and accesses, medians of {} rounds; pingpong RTT {}",
        report.rounds, report.pingpong_rtt
    ));
    let rows =
        report.rows.iter().map(|row| ([row.queue_pairs.to_string(), row.work.to_owned()], &row.figures));
    say(Figures::table(["queue pairs", "work"], rows));
    Ok(())
}

impl BenchGroupsOptions {
    fn client(&self, address: &str) -> Result<Client, BenchError> {
        let mut session = connect_with(address, self.comparison.ends.session_options()?)?;
        let lives = Lives::over_new_objects(&mut session, BYTES.into())?;
        let objects = hold_objects(&mut session, OBJECTS, BYTES.into())?;
        let buffer = Some(session.buffer(BYTES)?);
        Ok(Client { session, lives, objects, buffer })
    }
}

impl Client {
    fn measure(&mut self, work: Work, course: Course) -> Result<Measured, BenchError> {
        match work {
            Work::Grant => self.grants(course),
            Work::Read => self.accesses(Name::ReadLat, course),
            Work::Write => self.accesses(Name::WriteLat, course),
        }
    }

    fn grants(&mut self, mut course: Course) -> Result<Measured, BenchError> {
        let Self { session, lives, .. } = self;
        let started = Instant::now();
        while !course.over(lives.ended()) {
            lives.turn(session)?;
        }
        let elapsed = started.elapsed();
        lives.drain(session)?;
        let (ended, samples) = lives.take_figures();
        Ok(Measured::new(ended, elapsed, samples))
    }

    fn accesses(&mut self, name: Name, mut course: Course) -> Result<Measured, BenchError> {
        let mut samples = Samples::new();
        let mut count = 0;
        let started = Instant::now();
        while !course.over(count) {
            let object = renewed(
                &mut self.session,
                &mut self.objects,
                usize::try_from(count).unwrap_or(0) % OBJECTS,
                BYTES.into(),
            )?;
            let begun = Instant::now();
            let buffer = self.buffer.take().expect("no access is under way");
            self.buffer = Some(one(&mut self.session, name, (object, begun), buffer)?);
            samples.add(begun.elapsed());
            count += 1;
        }
        Ok(Measured::new(count, started.elapsed(), samples))
    }
}
