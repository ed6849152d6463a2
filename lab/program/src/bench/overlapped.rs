//! A session with many accesses in flight. They are posted in batches that share a doorbell and a completion.

use super::BenchError;
use super::pause::give_way;
use crate::samples::Samples;
use portcullis::{Access, ArenaMemory, Buffer, Operation, Outcome, Permission, Session};
use std::collections::VecDeque;
use std::time::Instant;

/// The accesses that a session makes.
pub trait Accesses {
    /// Prepares the next `count` accesses.
    fn prepare(&mut self, session: &mut Session, count: usize) -> Result<(), BenchError>;

    /// The access with this number among the prepared ones.
    fn access(&mut self, index: usize, buffer: Buffer<ArenaMemory>) -> Access<&'_ Permission, ArenaMemory>;

    /// Uses the bytes of an access that has ended.
    fn ended(&mut self, _buffer: &Buffer<ArenaMemory>) {}
}

/// A session with accesses in flight.
pub struct Overlapped {
    session: Session,
    buffers: Vec<Buffer<ArenaMemory>>,
    /// Time at which each batch was posted.
    batches: VecDeque<Instant>,
    batch: usize,
    /// Accesses that have ended since the last batch did.
    ended: usize,
    finished: Vec<(Operation, Outcome<ArenaMemory>)>,
    outstanding: usize,
}

impl Overlapped {
    /// Keeps up to `outstanding` accesses of `length` bytes each in flight, `batch` in a batch.
    pub fn new(session: Session, length: u32, outstanding: usize, batch: usize) -> Result<Self, BenchError> {
        let buffers = (0..outstanding).map(|_| session.buffer(length)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            session,
            buffers,
            batches: VecDeque::new(),
            batch,
            ended: 0,
            finished: Vec::with_capacity(outstanding),
            outstanding: 0,
        })
    }

    /// Takes the accesses that have ended and posts as many again. Adds the times of the batches that have ended to
    /// `samples`. Returns the number of accesses that have ended.
    pub fn turn(&mut self, accesses: &mut impl Accesses, samples: &mut Samples) -> Result<u64, BenchError> {
        let ended = self.take_ended(accesses, samples)?;
        while self.buffers.len() >= self.batch {
            self.post(accesses)?;
        }
        Ok(ended)
    }

    /// Waits until no access is in flight. Returns the number of accesses that have ended meanwhile.
    pub fn drain(&mut self, accesses: &mut impl Accesses, samples: &mut Samples) -> Result<u64, BenchError> {
        let mut ended = 0;
        while self.outstanding > 0 {
            ended += self.take_ended(accesses, samples)?;
        }
        self.batches.clear();
        self.ended = 0;
        Ok(ended)
    }

    fn take_ended(&mut self, accesses: &mut impl Accesses, samples: &mut Samples) -> Result<u64, BenchError> {
        self.session.poll();
        self.session.client().drain(&mut self.finished);
        let ended = self.finished.len();
        if ended == 0 {
            give_way();
        }
        for (_, outcome) in self.finished.drain(..) {
            outcome.result?;
            if let Some(buffer) = &outcome.buffer {
                accesses.ended(buffer);
            }
            self.buffers.extend(outcome.buffer);
        }
        self.outstanding -= ended;
        // Over UDP accesses end one by one: several turns end a batch.
        self.ended += ended;
        while self.ended >= self.batch {
            self.ended -= self.batch;
            if let Some(posted) = self.batches.pop_front() {
                samples.add(posted.elapsed());
            }
        }
        Ok(ended as u64)
    }

    fn post(&mut self, accesses: &mut impl Accesses) -> Result<(), BenchError> {
        let now = self.session.now();
        accesses.prepare(&mut self.session, self.batch)?;
        let mut batch = self.session.client().batch();
        for index in 0..self.batch {
            let Some(buffer) = self.buffers.pop() else { break };
            let added = batch.access(now, accesses.access(index, buffer));
            added.map_err(|rejected| rejected.error)?;
        }
        self.outstanding += batch.post();
        self.batches.push_back(Instant::now());
        Ok(())
    }
}
