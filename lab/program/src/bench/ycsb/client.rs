//! Clients of a loaded table, each with a session and a thread of its own.

use super::super::course::{Course, Length};
use super::super::rivals::Measured;
use super::super::side_by_side::{self, Clients};
use super::super::{BenchError, processors};
use super::BenchYcsbOptions;
use super::loaded::{self, Contents, fill, is_value_of, key};
use super::workload::{Choice, Drawn, Kind};
use crate::samples::Samples;
use portcullis_structures::Pipeline;
use portcullis_structures::table::Table;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Operations of a client before the measurement.
const WARM_UP: u64 = 200_000;
/// One in this many overlapping operations is timed: two readings of the clock take as long as a part of a read.
const TIMED_ONE_IN: u64 = 16;

/// The work of the clients in one turn.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    pub options: &'a BenchYcsbOptions,
    pub address: &'a str,
    pub contents: &'a Contents,
    /// Length for all clients together.
    pub length: Length,
    pub name: &'a str,
}

/// Runs all clients side by side, each on its own operations.
pub fn measure(turn: Turn<'_>, drawn: &[Vec<Drawn>]) -> Result<Measured, BenchError> {
    let clients = drawn.len();
    let each = Turn { length: turn.length.share(clients), ..turn };
    side_by_side::run(&Each { turn: each, drawn }, clients, turn.length, turn.name)
}

/// The clients of a turn.
struct Each<'a> {
    turn: Turn<'a>,
    /// The operations of each client.
    drawn: &'a [Vec<Drawn>],
}

impl<'a> Clients for Each<'a> {
    type Ready = (Rc<Pipeline>, Table, &'a [Drawn]);

    fn prepare(&self, number: usize) -> Result<Self::Ready, BenchError> {
        processors::pin_one_of_clients(number);
        let drawn = &self.drawn[number];
        let (pipeline, table) = warmed_up(self.turn, drawn)?;
        Ok((pipeline, table, drawn))
    }

    fn measure(&self, (pipeline, table, drawn): Self::Ready, course: Course) -> Result<Measured, BenchError> {
        count(self.turn, drawn, &pipeline, &table, course)
    }
}

/// Measures one client on a table that only the session that made it can read.
pub fn measure_own(
    turn: Turn<'_>,
    drawn: &[Drawn],
    pipeline: &Pipeline,
    table: &Table,
) -> Result<Measured, BenchError> {
    processors::pin_client();
    Work::new(turn, drawn, table, Course::warm_up_for(turn.length, WARM_UP)).run(pipeline)?;
    count(turn, drawn, pipeline, table, Course::of(turn.length, turn.name))
}

fn count(
    turn: Turn<'_>,
    drawn: &[Drawn],
    pipeline: &Pipeline,
    table: &Table,
    course: Course,
) -> Result<Measured, BenchError> {
    let work = Work::new(turn, drawn, table, course);
    work.run(pipeline)?;
    let elapsed = work.course.borrow().elapsed();
    Ok(Measured::new(work.done.get(), elapsed, work.times.into_inner()))
}

fn warmed_up(turn: Turn<'_>, drawn: &[Drawn]) -> Result<(Rc<Pipeline>, Table), BenchError> {
    let session = loaded::session(turn.options, turn.address)?;
    let (pipeline, table) = loaded::open(session, turn.contents.head)?;
    Work::new(turn, drawn, &table, Course::warm_up_for(turn.length, WARM_UP)).run(&pipeline)?;
    Ok((pipeline, table))
}

/// The operations of one client, several of them in flight at once.
struct Work<'a> {
    turn: Turn<'a>,
    drawn: &'a [Drawn],
    table: &'a Table,
    course: RefCell<Course>,
    begun: Cell<u64>,
    done: Cell<u64>,
    times: RefCell<Samples>,
}

impl<'a> Work<'a> {
    fn new(turn: Turn<'a>, drawn: &'a [Drawn], table: &'a Table, course: Course) -> Self {
        let (begun, done) = (Cell::new(0), Cell::new(0));
        Self {
            turn,
            drawn,
            table,
            course: RefCell::new(course),
            begun,
            done,
            times: RefCell::new(Samples::new()),
        }
    }

    fn run(&self, pipeline: &Pipeline) -> Result<(), BenchError> {
        let depth = self.turn.options.depth;
        let mut failed = None;
        pipeline.run(depth, (0..depth).map(|_| self.task()), |result: Result<(), BenchError>| {
            failed = failed.take().or(result.err());
        });
        failed.map_or(Ok(()), Err)
    }

    /// Runs one operation after another, until enough have begun.
    async fn task(&self) -> Result<(), BenchError> {
        let mut value = vec![0x5A; self.turn.contents.shape.value_bytes as usize];
        let timed_one_in = if self.turn.options.depth == 1 { 1 } else { TIMED_ONE_IN };
        while let Some(number) = self.next() {
            let place = usize::try_from(number).unwrap_or(usize::MAX) % self.drawn.len();
            let before = number.is_multiple_of(timed_one_in).then(Instant::now);
            self.carry_out(self.drawn[place], &mut value).await?;
            if let Some(before) = before {
                self.times.borrow_mut().add(before.elapsed());
            }
            self.done.set(self.done.get() + 1);
        }
        Ok(())
    }

    fn next(&self) -> Option<u64> {
        let number = self.begun.get();
        if self.course.borrow_mut().over(number) {
            return None;
        }
        self.begun.set(number + 1);
        Some(number)
    }

    async fn carry_out(&self, drawn: Drawn, value: &mut [u8]) -> Result<(), BenchError> {
        if drawn.kind == Kind::Insert {
            let number = self.turn.contents.keys.fetch_add(1, Ordering::Relaxed);
            fill(value, number);
            let is_new = self.table.insert(&key(number), value).await?;
            return if is_new { Ok(()) } else { Err(BenchError::Wrong { key: number }) };
        }
        let number = match drawn.choice {
            Choice::Loaded(number) => number,
            Choice::BeforeLatest(back) => {
                let keys = self.turn.contents.keys.load(Ordering::Relaxed);
                (keys - 1).saturating_sub(back)
            }
        };
        if matches!(drawn.kind, Kind::Read | Kind::ReadModifyWrite) {
            self.read(number).await?;
        }
        if matches!(drawn.kind, Kind::Update | Kind::ReadModifyWrite) {
            fill(value, number);
            if !self.table.update(&key(number), value).await? {
                return Err(BenchError::Wrong { key: number });
            }
        }
        Ok(())
    }

    async fn read(&self, number: u32) -> Result<(), BenchError> {
        let found = self.table.get(&key(number)).await?;
        let right = match &found {
            Some(value) => is_value_of(value, number, self.turn.contents.shape),
            // The key's insert may be in flight.
            None => number >= self.turn.options.keys,
        };
        if right { Ok(()) } else { Err(BenchError::Wrong { key: number }) }
    }
}
