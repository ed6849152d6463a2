//! Looks blocks up and reads them: mostly at once, now and then too late.

use crate::catalogue::{Catalogue, Entry};
use crate::scene::{Reporter, connect_until};
use crate::{BLOCK_BYTES, BLOCKS, content};
use portcullis::{Acquire, Credential, Error, Lifetime, Session};
use std::collections::VecDeque;
use std::path::Path;

/// One look-up in so many is kept, to be used when it is old.
const KEPT_ONE_IN: u64 = 8;
/// Look-ups that are kept.
const KEPT_MAX: usize = 64;
/// One read in so many comes when its lease is over, from a reader that does not look at its clock.
const LATE_ONE_IN: u64 = 50;
/// The lease of such a read.
const SHORT_LEASE: Lifetime = Lifetime::millis(2);

struct Consumer<'a> {
    folder: &'a Path,
    reporter: Reporter,
    random: u64,
    /// Of nodes that are no more, too.
    old: VecDeque<Entry>,
}

pub fn run(folder: &Path, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let reporter = Reporter::start();
    let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut consumer = Consumer { folder, reporter, random, old: VecDeque::new() };
    while let Some(mut session) = connect_until(folder, || consumer.reporter.is_over()) {
        match consumer.consume(&mut session) {
            Ok(()) => break,
            Err(error) => consumer.reporter.report.told(&error.to_string()),
        }
    }
    consumer.reporter.end();
    Ok(())
}

impl Consumer<'_> {
    /// A number below `limit`, from a xorshift generator.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit
    }

    /// Goes on until it is over, or the session is.
    fn consume(&mut self, session: &mut Session) -> Result<(), Error> {
        while !self.reporter.is_over() {
            let Some(mut catalogue) = told_or(Catalogue::open(session, self.folder))?.flatten() else {
                continue;
            };
            while !self.reporter.is_over() {
                let place = self.below(BLOCKS);
                // A catalogue that is gone is looked for again.
                let Some(entry) = told_or(catalogue.look_up(session, place))? else { break };
                if let Some(entry) = entry {
                    self.use_entry(session, entry)?;
                }
            }
        }
        Ok(())
    }

    fn use_entry(&mut self, session: &mut Session, entry: Entry) -> Result<(), Error> {
        if self.below(KEPT_ONE_IN) == 0 {
            self.old.push_back(entry);
            if self.old.len() > KEPT_MAX
                && let Some(old) = self.old.pop_front()
            {
                return self.read(session, old);
            }
        }
        if self.below(LATE_ONE_IN) == 0 { self.read_late(session, entry) } else { self.read(session, entry) }
    }

    /// Reads a block under a lease of its own.
    fn read(&mut self, session: &mut Session, entry: Entry) -> Result<(), Error> {
        let read = |session: &mut Session| {
            let block =
                session.acquire(Acquire::object(entry.object).read_only().shared().wait(Lifetime(0)))?;
            let buffer = session.buffer(BLOCK_BYTES)?;
            let buffer = session.read_buffer(&block, 0, buffer)?;
            let right = content::is(entry.number, &buffer.bytes());
            session.revoke(block)?;
            Ok(right)
        };
        let result = read(session);
        self.note(result)
    }

    /// Reads a block when its lease is over, as a program does whose leases are timers that it forgets to look at.
    fn read_late(&mut self, session: &mut Session, entry: Entry) -> Result<(), Error> {
        let read = |session: &mut Session| {
            let ask =
                Acquire::object(entry.object).read_only().shared().wait(Lifetime(0)).lifetime(SHORT_LEASE);
            let block = session.acquire(ask)?;
            let deadline = block.lease().deadline();
            while session.now() <= deadline {
                session.poll();
                std::thread::yield_now();
            }
            let Credential::Keys { buffer: key, .. } = block.credential() else {
                return Err(Error::SessionLost);
            };
            let (now, buffer) = (session.now(), session.buffer(BLOCK_BYTES)?);
            let begun = session.client().dangerous_read(now, block.address(), key, buffer);
            let outcome = session.wait(begun.map_err(|rejected| rejected.error)?)?;
            outcome.result?;
            // Whoever is served must have been served with what it asked for.
            Ok(outcome.buffer.is_some_and(|buffer| content::is(entry.number, &buffer.bytes())))
        };
        let result = read(session);
        self.note(result)
    }

    /// Counts what came of a read. What a later one may do better is told and counted; what ends the session is not.
    fn note(&mut self, result: Result<bool, Error>) -> Result<(), Error> {
        self.reporter.count(|report| match &result {
            Ok(true) => report.read += 1,
            Ok(false) => report.wrong += 1,
            Err(error) => report.told(&error.to_string()),
        });
        told_or(result).map(|_| ())
    }
}

/// What a session survives is no reason to end it.
fn told_or<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (Error::NodeGone | Error::SessionLost | Error::Barred)) => Err(error),
        Err(_) => Ok(None),
    }
}
