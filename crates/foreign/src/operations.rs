//! Operations that a caller begins without waiting for them: each has a tag of the caller's, and ends as a completion.

use crate::Failure;
use portcullis::{
    Acquire, Allocate, Answer, Buffer, Call, Client, Clock, Endpoint, Error, Lifetime, Moment, Operation,
    Outcome, OwnedBatch, Permission, Rejected, Session, SessionEndpoint, Started,
};
use std::collections::VecDeque;

type Arena = <SessionEndpoint as Endpoint>::Memory;

/// The tag of operations that no caller waits for: they give no completions.
pub const NOBODY: u64 = u64::MAX;

/// A buffer of a session's arena.
pub type ArenaBuffer = Buffer<Arena>;

/// The result of an operation that succeeded.
#[derive(Debug)]
pub enum Ended {
    /// A read or a write: the bytes moved. An atomic: the word's value before.
    Value(u64),
    /// `allocate` or `acquire`.
    Granted(Box<Permission>),
    /// `revoke` or `extend`.
    Done,
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The caller's tag.
    pub tag: u64,
    /// The operation's result.
    pub result: Result<Ended, Failure>,
    /// The buffer of a read or a write.
    pub buffer: Option<ArenaBuffer>,
}

/// The operations that were added and have not begun, those that are under way, and those that have ended.
#[derive(Debug, Default)]
pub struct Operations {
    waiting: OwnedBatch<Arena>,
    /// The tags of the operations in `waiting`, in the same order.
    waiting_tags: VecDeque<u64>,
    /// The tags of operations under way, indexed by their places.
    tags: Vec<u64>,
    accesses: usize,
    calls: Vec<(Call, u64)>,
    ended: VecDeque<Completion>,
    /// Answers that were taken from the node and are not yet completions.
    answered: Vec<(u64, Result<Answer, Error>)>,
    /// The outcomes of one round. It is empty between two calls, and keeps its memory.
    drained: Vec<(Operation, Outcome<Arena>)>,
}

impl Operations {
    /// Number of operations that were added and have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.waiting.len() + self.accesses + self.calls.len() + self.answered.len()
    }

    /// Number of completions that have not been taken.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Takes the next completion, in the order in which the operations ended.
    pub fn take(&mut self) -> Option<Completion> {
        self.ended.pop_front()
    }

    /// Adds a read of as many bytes as the buffer has.
    pub fn read(&mut self, tag: u64, permission: &Permission, offset: u64, buffer: ArenaBuffer) {
        let added = self.waiting.read(permission, offset, buffer);
        self.added(tag, added);
    }

    /// Adds a write of the buffer's bytes.
    pub fn write(&mut self, tag: u64, permission: &Permission, offset: u64, buffer: ArenaBuffer) {
        let added = self.waiting.write(permission, offset, buffer);
        self.added(tag, added);
    }

    /// Adds a COMPARE_AND_SWAP of the word at `offset`.
    pub fn compare_and_swap(
        &mut self,
        tag: u64,
        permission: &Permission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) {
        let added = self.waiting.compare_and_swap(permission, offset, compare, swap);
        self.added(tag, added);
    }

    /// Adds a FETCH_AND_ADD of the word at `offset`.
    pub fn fetch_and_add(&mut self, tag: u64, permission: &Permission, offset: u64, add: u64) {
        let added = self.waiting.fetch_and_add(permission, offset, add);
        self.added(tag, added);
    }

    /// Adds an allocation.
    pub fn allocate(&mut self, tag: u64, ask: Allocate) {
        self.waiting.allocate(ask);
        self.waiting_tags.push_back(tag);
    }

    /// Adds a request for a permission over an object that exists.
    pub fn acquire(&mut self, tag: u64, ask: Acquire) {
        self.waiting.acquire(ask);
        self.waiting_tags.push_back(tag);
    }

    /// Adds a revocation of a permission. `free` also frees its object.
    pub fn revoke(&mut self, tag: u64, permission: Permission, free: bool) {
        match permission.into_bare() {
            Some(bare) => {
                self.waiting.revoke(bare, free);
                self.waiting_tags.push_back(tag);
            }
            None => self.end(tag, Ok(Ended::Done), None),
        }
    }

    /// Adds an extension of a permission: it then ends `time` after the extension begins.
    pub fn extend(&mut self, tag: u64, permission: &Permission, time: Lifetime) {
        self.waiting.extend(permission, time);
        self.waiting_tags.push_back(tag);
    }

    /// Adds a completion of an operation that failed before it could be added, so that the caller finds all results in
    /// one place.
    pub fn fail(&mut self, tag: u64, failure: Failure) {
        self.end(tag, Err(failure), None);
    }

    fn added(&mut self, tag: u64, added: Result<(), Rejected<Arena>>) {
        match added {
            Ok(()) => self.waiting_tags.push_back(tag),
            Err(Rejected { buffer, error }) => self.end(tag, Err(error.into()), buffer),
        }
    }

    fn end(&mut self, tag: u64, result: Result<Ended, Failure>, buffer: Option<ArenaBuffer>) {
        if tag == NOBODY {
            return;
        }
        self.ended.push_back(Completion { tag, result, buffer });
    }

    /// Begins the operations that wait, as far as there is room, and revokes the permissions that were dropped.
    pub(crate) fn post(&mut self, session: &mut Session) {
        for dropped in session.take_dropped() {
            self.waiting.revoke(dropped, false);
            self.waiting_tags.push_back(NOBODY);
        }
        if self.waiting.is_empty() {
            return;
        }
        let now = session.now();
        for started in session.client().post(now, &mut self.waiting) {
            let tag = self.waiting_tags.pop_front().expect("each step has its tag");
            match started {
                Started::Operation(Ok(operation)) => self.begun(operation, tag),
                Started::Operation(Err(Rejected { buffer, error })) => {
                    self.end(tag, Err(error.into()), buffer)
                }
                Started::Call(Ok(call)) | Started::Revocation(Ok(call)) => self.calls.push((call, tag)),
                Started::Call(Err(error)) => self.end(tag, Err(error.into()), None),
                Started::Revocation(Err(refused)) => self.end(tag, Err(refused.into()), None),
            }
        }
    }

    fn begun(&mut self, operation: Operation, tag: u64) {
        let place = operation.place();
        if self.tags.len() <= place {
            self.tags.resize(place + 1, 0);
        }
        self.tags[place] = tag;
        self.accesses += 1;
    }

    pub(crate) fn poll(&mut self, session: &mut Session) -> usize {
        session.poll();
        self.take_in(session.client());
        self.settle(session);
        self.post(session);
        self.ended.len()
    }

    pub(crate) fn wait(&mut self, session: &mut Session, at_least: usize, time: Option<Lifetime>) -> usize {
        let clock = *session.clock();
        let until = time.map_or(Moment(u64::MAX), |time| clock.now().after(time));
        loop {
            let ended = self.poll(session);
            if ended >= at_least || self.pending() == 0 || clock.now() >= until {
                return ended;
            }
            // The only error is the session's end, which also ends all operations: the next round finds their ends.
            let _ = session.wait_until_by(until, |client| {
                let goes_on = self.take_in(client) || clock.now() >= until;
                goes_on.then_some(())
            });
        }
    }

    /// Takes the outcomes of operations that have ended. Returns whether there were any.
    fn take_in(&mut self, client: &mut Client<SessionEndpoint>) -> bool {
        let mut drained = std::mem::take(&mut self.drained);
        client.drain(&mut drained);
        let before = self.ended.len() + self.answered.len();
        for (operation, Outcome { buffer, result }) in drained.drain(..) {
            self.accesses -= 1;
            let tag = self.tags[operation.place()];
            self.end(tag, result.map(Ended::Value).map_err(Failure::from), buffer);
        }
        self.drained = drained;
        let answered = &mut self.answered;
        self.calls.retain(|&(call, tag)| match client.take_call(call) {
            Some(answer) => {
                answered.push((tag, answer));
                false
            }
            None => true,
        });
        self.ended.len() + self.answered.len() > before
    }

    /// Turns the node's answers into completions.
    fn settle(&mut self, session: &Session) {
        for (tag, answer) in std::mem::take(&mut self.answered) {
            let result = answer.and_then(|answer| ended(session, answer));
            self.end(tag, result.map_err(Failure::from), None);
        }
    }
}

fn ended(session: &Session, answer: Answer) -> Result<Ended, Error> {
    match answer {
        Answer::Granted(bare) => Ok(Ended::Granted(Box::new(session.hold(bare)))),
        Answer::Done | Answer::Extended(_) => Ok(Ended::Done),
        Answer::Entry(_) | Answer::EndOfList | Answer::Chunks(_) => Err(Error::SessionLost),
    }
}
