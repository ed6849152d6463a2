//! A client's reads from its mailbox: the lines of replies, and then the results that they name.

use super::mailbox::{HeapHalves, REPLIES_AT, REPLY_BYTES, RESULTS_AT};
use super::permissions::Permissions;
use super::sealed::{REPLY_WORDS, Turn, open_reply};
use super::server_clock::ServerClock;
use crate::ScopeRef;
use crate::channel::ends::{DEPTH, ReplyLine};
use crate::heap::Heap;
use portcullis::{Access, Buffer, Error, Operation, Outcome, Session};
use portcullis_memory::{ArenaMemory, Memory};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// The most bytes that one operation reads.
const PIECE_BYTES: u32 = 256 << 10;
/// Number of replies that one operation reads.
const LINES_MAX: u64 = 16;
/// Pause between two reads for a reply, as a part of the time that the client has waited, with a maximum: so there are
/// few reads, and no reply is read much too late.
const PAUSE_PART: u32 = 8;
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// A reply whose result has not been fetched completely yet.
#[derive(Debug)]
struct Arrived {
    line: ReplyLine,
    /// Pieces that are not requested yet: an offset in the heap, and a number of bytes.
    left: VecDeque<(u64, u32)>,
    /// Reads of pieces that are under way, with the pieces' offsets.
    under_way: VecDeque<(Operation, u64)>,
}

/// The outcome of an operation, if it was taken while waiting for the operation.
#[derive(Debug, Default)]
struct Ended(Option<(Operation, Outcome<ArenaMemory>)>);

impl Ended {
    /// Returns the outcome of an operation, if it has ended.
    fn take(&mut self, session: &mut Session, operation: Operation) -> Option<Outcome<ArenaMemory>> {
        match self.0.take_if(|(ended, _)| *ended == operation) {
            Some((_, outcome)) => Some(outcome),
            None => session.client().take(operation),
        }
    }
}

/// Reads replies, one after another, and fetches their results.
#[derive(Debug)]
pub(super) struct Incoming {
    halves: HeapHalves,
    results_max: u64,
    /// The turn of the next reply that has not been read.
    turn: Turn,
    look: Option<Operation>,
    /// The operation that was waited for, and its outcome.
    ended: Ended,
    arrived: VecDeque<Arrived>,
    /// Number of replies that have not been received yet.
    awaited: u64,
    clock: ServerClock,
    /// `since`: the time since which no reply has been received. `next`: the time of the next read.
    since: Instant,
    next: Instant,
}

impl Incoming {
    pub fn new(halves: HeapHalves, results_max: u64, clock: ServerClock, now: Instant) -> Self {
        let (turn, arrived, awaited) = (Turn::FIRST, VecDeque::new(), 0);
        Self {
            halves,
            results_max,
            turn,
            look: None,
            ended: Ended::default(),
            arrived,
            awaited,
            clock,
            since: now,
            next: now,
        }
    }

    /// Counts one more reply to wait for.
    pub fn await_one(&mut self, now: Instant) {
        self.awaited += 1;
        (self.since, self.next) = (now, now);
    }

    /// The estimate of the server's clock.
    pub fn clock(&self) -> ServerClock {
        self.clock
    }

    /// The event that must be waited for: an operation or a point in time. `None`: there is nothing to wait for.
    pub fn next(&self) -> Option<Result<Operation, Instant>> {
        let fetch = self.arrived.front().and_then(|it| it.under_way.front());
        let operation = fetch.map(|it| it.0).or(self.look);
        operation.map(Ok).or((self.awaited > 0).then_some(Err(self.next)))
    }

    /// Records the outcome of an operation that was waited for.
    pub fn has_ended(&mut self, operation: Operation, outcome: Outcome<ArenaMemory>) {
        self.ended.0 = Some((operation, outcome));
    }

    /// Continues reading. Returns a reply that has been received with its result, which is in `heap`.
    ///
    /// # Errors
    /// An operation has failed.
    pub fn go_on(
        &mut self,
        session: &mut Session,
        permissions: &Permissions,
        heap: &Heap,
        now: Instant,
    ) -> Result<Option<ReplyLine>, Error> {
        if let Some(operation) = self.look
            && let Some(outcome) = self.ended.take(session, operation)
        {
            self.look = None;
            outcome.result?;
            self.hear(&outcome.buffer.ok_or(Error::SessionLost)?, now);
        }
        if self.look.is_none() && self.awaited > 0 && now >= self.next {
            self.look = self.begin_look(session, permissions)?;
        }
        for arrived in &mut self.arrived {
            arrived.go_on(session, permissions, heap, &mut self.ended)?;
        }
        let is_here = self.arrived.front().is_some_and(|it| it.left.is_empty() && it.under_way.is_empty());
        Ok(self.arrived.pop_front_if(|_| is_here).map(|it| it.line))
    }

    /// Processes the lines that were read.
    fn hear(&mut self, bytes: &Buffer<ArenaMemory>, now: Instant) {
        let bytes = bytes.bytes();
        let mut is_first = true;
        for line in bytes.chunks_exact(8 * REPLY_WORDS) {
            let words = <[u64; REPLY_WORDS]>::read_from_bytes(line).expect("it has that length");
            let Some((line, said)) = open_reply(self.turn, &words) else { break };
            self.turn = self.turn.next();
            self.awaited = self.awaited.saturating_sub(1);
            self.clock.hear(crate::channel::now(), said);
            self.arrived.push_back(Arrived {
                line,
                left: self.pieces(line.scope),
                under_way: VecDeque::new(),
            });
            is_first = false;
        }
        if is_first {
            self.next = now + (now.saturating_duration_since(self.since) / PAUSE_PART).min(PAUSE_MAX);
        } else {
            (self.since, self.next) = (now, now);
        }
    }

    fn begin_look(
        &self,
        session: &mut Session,
        permissions: &Permissions,
    ) -> Result<Option<Operation>, Error> {
        let index = self.turn.index();
        let lines = self.awaited.min(LINES_MAX).min(u64::from(DEPTH) - index);
        let length = u32::try_from(lines * REPLY_BYTES).unwrap_or(0);
        begin_read(session, permissions, REPLIES_AT + index * REPLY_BYTES, length)
    }

    /// The pieces of a result that are fetched. A result outside the heap, or too long, is not fetched: a caller that
    /// reads it gets an error.
    fn pieces(&self, scope: ScopeRef) -> VecDeque<(u64, u32)> {
        let ScopeRef { address, length } = scope;
        let offset = self.halves.results.offset(address, length).filter(|_| length <= self.results_max);
        let Some(offset) = offset else { return VecDeque::new() };
        let piece = |done| (offset + done, u32::try_from(length - done).unwrap_or(u32::MAX).min(PIECE_BYTES));
        (0..length).step_by(PIECE_BYTES as usize).map(piece).collect()
    }
}

impl Arrived {
    fn go_on(
        &mut self,
        session: &mut Session,
        permissions: &Permissions,
        heap: &Heap,
        ended: &mut Ended,
    ) -> Result<(), Error> {
        while let Some(&(offset, length)) = self.left.front() {
            let Some(operation) = begin_read(session, permissions, RESULTS_AT + offset, length)? else {
                break;
            };
            self.left.pop_front();
            self.under_way.push_back((operation, offset));
        }
        while let Some(&(operation, offset)) = self.under_way.front() {
            let Some(outcome) = ended.take(session, operation) else { break };
            self.under_way.pop_front();
            outcome.result?;
            heap.memory().write(offset, &outcome.buffer.ok_or(Error::SessionLost)?.bytes());
        }
        Ok(())
    }
}

/// Begins a read. `None`: there is no room for it until other operations have ended.
fn begin_read(
    session: &mut Session,
    permissions: &Permissions,
    at: u64,
    length: u32,
) -> Result<Option<Operation>, Error> {
    let now = session.now();
    let begun = session.buffer(length).and_then(|buffer| {
        let begun = session.client().access(now, Access::read(&permissions.reading, at, buffer));
        begun.map_err(Error::from)
    });
    match begun {
        Err(Error::QueueFull { .. } | Error::ArenaFull { .. }) if session.client().pending() > 0 => Ok(None),
        begun => begun.map(Some),
    }
}
