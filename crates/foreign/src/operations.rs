//! Operations that a caller begins without waiting for them: each has a tag of the caller's, and ends as a completion.

use crate::Failure;
use portcullis::{
    Access, Answer, Ask, Begun, Buffer, Call, Client, Clock, ControlRequest, Endpoint, Entry, Error,
    Lifetime, Moment, NotBegun, Operation, Outcome, Permission, PermissionView, Refusal, Session,
    SessionEndpoint,
};
use std::collections::VecDeque;

/// The memory of a session's arena.
pub type Arena = <SessionEndpoint as Endpoint>::Memory;

/// The tag of operations that no caller waits for: they give no completions.
pub const NOBODY: u64 = u64::MAX;

/// Time after which an operation that found its queue full is posted again, if no other operation ends before.
const ROOM_WITHIN: Lifetime = Lifetime::millis(1);

/// A buffer of a session's arena.
pub type ArenaBuffer = Buffer<Arena>;

/// An access that moves bytes from or to a buffer of a session's arena.
pub type ArenaAccess<P> = Access<P, Arena>;

/// An access or a request that is to be begun.
pub type ArenaAsk = Ask<PermissionView, Arena>;

/// The result of an operation that succeeded.
#[derive(Debug)]
pub enum Ended {
    /// A read or a write: the bytes moved. An atomic: the word's value before.
    Value(u64),
    /// `allocate` or `acquire`.
    Granted(Box<Permission>),
    /// A request without another result, such as `revoke` or `extend`.
    Done,
    /// A look-up of a name, or a request for the next name.
    Entry(Box<Entry>),
    /// A request for the next name, if there is none.
    EndOfList,
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
    /// Operations that have not begun, with their tags.
    waiting: VecDeque<(u64, ArenaAsk)>,
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

    /// Adds an access or a request. The tag comes back with its completion. Bindings have no chunks: requests about them
    /// are refused.
    pub fn add(&mut self, tag: u64, ask: impl Into<ArenaAsk>) {
        use ControlRequest::{AllocateChunk, FreeChunk, JoinChunks};
        match ask.into() {
            Ask::Control(JoinChunks | AllocateChunk | FreeChunk(_)) => {
                self.end(tag, Err(Error::Refused(Refusal::NoChunks).into()), None);
            }
            ask => self.waiting.push_back((tag, ask)),
        }
    }

    /// Removes an operation that was added and has not begun. Has no effect if it has begun: its completion comes.
    pub fn withdraw(&mut self, tag: u64) {
        self.waiting.retain(|&(waiting, _)| waiting != tag);
    }

    /// Adds a revocation of a permission. `free` also frees its object.
    pub fn revoke(&mut self, tag: u64, permission: Permission, free: bool) {
        match permission.into_bare() {
            Some(permission) => self.add(tag, ControlRequest::Revoke { permission, free }),
            None => self.end(tag, Ok(Ended::Done), None),
        }
    }

    /// Adds a completion of an operation that failed before it could be added, so that the caller finds all results in
    /// one place.
    pub fn fail(&mut self, tag: u64, failure: Failure) {
        self.end(tag, Err(failure), None);
    }

    fn end(&mut self, tag: u64, result: Result<Ended, Failure>, buffer: Option<ArenaBuffer>) {
        if tag == NOBODY {
            return;
        }
        self.ended.push_back(Completion { tag, result, buffer });
    }

    /// Begins the operations that wait, as far as there is room, and revokes the permissions that were dropped.
    pub(crate) fn post(&mut self, session: &mut Session) {
        for permission in session.take_dropped() {
            self.add(NOBODY, ControlRequest::Revoke { permission, free: false });
        }
        if self.waiting.is_empty() {
            return;
        }
        let now = session.now();
        let mut batch = session.client().batch();
        while let Some((tag, ask)) = self.waiting.pop_front() {
            match batch.add(now, ask) {
                Ok(Begun::Operation(operation)) => self.begun(operation, tag),
                Ok(Begun::Call(call)) => self.calls.push((call, tag)),
                Err(NotBegun { ask, error: Error::QueueFull { .. } }) => {
                    self.waiting.push_front((tag, *ask));
                    break;
                }
                Err(NotBegun { ask, error }) => {
                    let buffer = match *ask {
                        Ask::Access(access) => access.into_buffer(),
                        Ask::Control(_) => None,
                    };
                    self.end(tag, Err(error.into()), buffer);
                }
            }
        }
        batch.post();
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
            // Room for the operations that wait may come without the end of another one.
            let by = if self.waiting.is_empty() { until } else { until.min(clock.now().after(ROOM_WITHIN)) };
            // The only error is the session's end, which also ends all operations: the next round finds their ends.
            let _ = session.wait_until_by(by, |client| {
                let goes_on = self.take_in(client) || clock.now() >= by;
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
        Answer::Entry(entry) => Ok(Ended::Entry(Box::new(entry))),
        Answer::EndOfList => Ok(Ended::EndOfList),
        Answer::Chunks(_) => unreachable!("requests about chunks are refused"),
    }
}
