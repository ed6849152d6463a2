//! Looks blocks up and reads them: most of them at once, some of them on purpose too late.

use crate::catalogue::{Catalogue, Entry};
use crate::scene::{Reporter, connect_until};
use crate::{BLOCK_BYTES, BLOCKS, content};
use portcullis::{Access, Acquire, Error, Lifetime, Session, Unchecked};
use std::collections::VecDeque;
use std::path::Path;

/// One look-up in this many is kept and used later, when it is old.
const KEPT_ONE_IN: u64 = 8;
const KEPT_MAX: usize = 64;
/// One read in this many is sent after its lease has ended, as by a reader that does not check its clock.
const LATE_ONE_IN: u64 = 50;
/// The lease of such a late read.
const SHORT_LEASE: Lifetime = Lifetime::millis(2);

struct Consumer<'a> {
    folder: &'a Path,
    reporter: Reporter,
    random: u64,
    /// Kept look-ups, including those of earlier runs of the node.
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
    /// Returns a number below `limit`, from a xorshift generator.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit
    }

    /// Reads until the example is over or the session has ended.
    fn consume(&mut self, session: &mut Session) -> Result<(), Error> {
        while !self.reporter.is_over() {
            let Some(mut catalogue) = told_or(Catalogue::open(session, self.folder))?.flatten() else {
                continue;
            };
            while !self.reporter.is_over() {
                let place = self.below(BLOCKS);
                // If the catalogue is gone, the consumer opens it again.
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

    /// Reads a block under its own lease.
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

    /// Reads a block after its lease has ended, like a program that forgets to check its clock.
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
            let Some(key) = block.credential().buffer_key() else { return Err(Error::SessionLost) };
            let buffer = session.buffer(BLOCK_BYTES)?;
            let target = Unchecked::new(block.address(), key);
            let begun = session.client().dangerous_access(Access::read(target, 0, buffer));
            let outcome = session.wait(begun.map_err(|rejected| rejected.error)?)?;
            outcome.result?;
            // A read that succeeds must return the requested block.
            Ok(outcome.buffer.is_some_and(|buffer| content::is(entry.number, &buffer.bytes())))
        };
        let result = read(session);
        self.note(result)
    }

    /// Counts the result of a read. The session continues after an error that a later read may not meet. Returns an
    /// error that ends the session.
    fn note(&mut self, result: Result<bool, Error>) -> Result<(), Error> {
        self.reporter.count(|report| match &result {
            Ok(true) => report.read += 1,
            Ok(false) => report.wrong += 1,
            Err(error) => report.told(&error.to_string()),
        });
        told_or(result).map(|_| ())
    }
}

/// Returns `None` for an error that the session survives, and `Err` for one that ends the session.
fn told_or<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (Error::NodeGone | Error::SessionLost | Error::Barred)) => Err(error),
        Err(_) => Ok(None),
    }
}
