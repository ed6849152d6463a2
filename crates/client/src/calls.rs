//! Calls of the control path: the answers that they await, and their results.

use crate::config::CALLS_MAX;
use crate::{ControlRequest, Effect, Error, Lease, Permission};
use portcullis_protocol::{
    Acquire, ChunkTerms, Entry, GrantRequest, Lifetime, Moment, NamedRequest, QueuePairRequest, RequestBody,
    Rights, Sharing,
};
use portcullis_slots::{Reuse, Slots};
use std::sync::Arc;

/// A call that has begun; [`Client::take_call`](crate::Client::take_call) exchanges it for its result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    pub(crate) id: u64,
}

/// The result of a call that the node agreed to.
#[derive(Debug)]
pub enum Answer {
    /// A permission (of `allocate`, `acquire` and `allocate_chunk`).
    Granted(Permission),
    /// The lifetime that the permission has now, from its start (of the extensions).
    Extended(Lifetime),
    /// The request was carried out (of all requests without another answer).
    Done,
    /// An entry of a directory (of look-ups and lists of names).
    Entry(Entry),
    /// The directory has no further entry (of lists of names).
    EndOfList,
    /// The terms on which workers on the node's NIC allocate chunks for the client (of `JoinChunks`).
    Chunks(ChunkTerms),
}

/// State of an extension under way.
#[derive(Clone, Debug)]
pub(crate) struct Extending {
    pub(crate) lease: Arc<Lease>,
    /// The requested lifetime.
    pub(crate) asked: Lifetime,
    /// The lifetime that the word was believed to hold.
    pub(crate) believed: Lifetime,
    /// Whether a CAS that found another value may be tried again.
    pub(crate) retry: bool,
}

/// The kind of answer that a call awaits.
#[derive(Clone, Debug)]
pub(crate) enum Awaited {
    Grant {
        requested_at: Moment,
        rights: Rights,
        sharing: Sharing,
        /// Whether the same request allocated the object.
        is_new: bool,
    },
    Done,
    Entry,
    NextEntry,
    Extension(Extending),
    /// The terms of workers.
    Chunks,
    /// A chunk that the node's CPU hands out.
    Chunk,
    /// The answer of a worker.
    Worker,
}

impl Awaited {
    /// Returns whether no other permission covers the granted object: a grant that arrives too late is given back with
    /// its object.
    fn is_new(&self) -> bool {
        matches!(self, Self::Grant { is_new: true, .. } | Self::Chunk | Self::Worker)
    }
}

/// Name of a call in the error of a time-out, and the effect that the request may have had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) what: &'static str,
    pub(crate) effect: Effect,
    /// The time for which the node may let the request wait.
    pub(crate) wait: Lifetime,
}

impl Asked {
    /// A request to a worker on the node's NIC.
    pub(crate) const OF_A_WORKER: Self =
        Self { what: "a request to a worker on the node's NIC", effect: Effect::Perhaps, wait: Lifetime(0) };
    /// An extension by the lifetime word.
    pub(crate) const EXTENSION: Self =
        Self { what: "an extension of a permission", effect: Effect::Perhaps, wait: Lifetime(0) };

    /// Describes the request of a message.
    pub(crate) fn of(body: &RequestBody) -> Self {
        let (what, effect) = match body {
            // A permission that is granted too late is given back.
            RequestBody::Grant(GrantRequest::Allocate(_)) => ("an allocation", Effect::Nothing),
            RequestBody::Grant(GrantRequest::Acquire(_)) => ("a request for a permission", Effect::Nothing),
            RequestBody::Grant(GrantRequest::AllocateChunk) => ("an allocation of a chunk", Effect::Nothing),
            RequestBody::Named(NamedRequest::Lookup { .. }) => ("a look-up of a name", Effect::Nothing),
            RequestBody::Named(NamedRequest::List { .. }) => ("a look at the names", Effect::Nothing),
            RequestBody::Grant(GrantRequest::Extend { .. }) => return Self::EXTENSION,
            RequestBody::Grant(GrantRequest::Revoke { .. }) => ("the end of a permission", Effect::Perhaps),
            RequestBody::Grant(GrantRequest::Free { .. }) => ("the end of an object", Effect::Perhaps),
            RequestBody::Grant(GrantRequest::Keep { .. }) => ("a request to keep an object", Effect::Perhaps),
            RequestBody::Named(NamedRequest::Publish { .. }) => {
                ("the publication of a name", Effect::Perhaps)
            }
            RequestBody::Named(NamedRequest::Unpublish { .. }) => ("the end of a name", Effect::Perhaps),
            RequestBody::Named(NamedRequest::Share { .. }) => {
                ("a request to share an object", Effect::Perhaps)
            }
            RequestBody::Named(NamedRequest::Unshare { .. }) => {
                ("a request to share an object no more", Effect::Perhaps)
            }
            RequestBody::Grant(GrantRequest::Include { .. }) => {
                ("a request to include an object", Effect::Perhaps)
            }
            RequestBody::QueuePair(QueuePairRequest::JoinChunks) => {
                ("a request for workers on the node's NIC", Effect::Perhaps)
            }
            _ => ("a request to the node", Effect::Perhaps),
        };
        let wait = if let RequestBody::Grant(GrantRequest::Acquire(Acquire { wait, .. })) = body {
            *wait
        } else {
            Lifetime(0)
        };
        Self { what, effect, wait }
    }
}

enum State {
    Waiting {
        awaited: Awaited,
        asked: Asked,
        /// The call is given up at the end of this step of the limit.
        last_step: u64,
    },
    /// The call was given up, or its caller has forgotten it. The answer has not arrived yet.
    Late {
        awaited: Awaited,
        /// The error for the caller. `None`: the caller has taken it, or has forgotten the call.
        error: Option<Error>,
        is_given_up: bool,
    },
    Over(Result<Answer, Error>),
}

/// All calls of a client. Ids are used once.
pub(crate) struct Calls {
    states: Slots<u64, State>,
    waiting: usize,
    /// Number of calls that have ended, and how many of them [`Calls::count_ended`] has counted.
    ended: usize,
    counted: usize,
    /// Requests that give permissions without a caller back.
    unwanted: Vec<ControlRequest>,
    /// Calls that were given up and whose answers have not arrived.
    given_up: usize,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            states: Slots::new(Reuse::LatestFirst, CALLS_MAX),
            waiting: 0,
            ended: 0,
            counted: 0,
            unwanted: Vec::new(),
            given_up: 0,
        }
    }

    pub(crate) fn begin(&mut self, awaited: Awaited, asked: Asked, last_step: u64) -> Result<u64, Error> {
        let id = self.states.try_insert(State::Waiting { awaited, asked, last_step });
        let id = id.map_err(|_| Error::QueueFull { limit: CALLS_MAX.into() })?;
        self.waiting += 1;
        Ok(id)
    }

    /// Undoes [`Calls::begin`], as if the call had never begun.
    pub(crate) fn cancel(&mut self, id: u64) {
        match self.states.remove(id) {
            Some(State::Waiting { .. }) => self.waiting -= 1,
            Some(State::Late { is_given_up, .. }) => self.given_up -= usize::from(is_given_up),
            Some(State::Over(_)) | None => {}
        }
    }

    pub(crate) fn awaited(&self, id: u64) -> Option<Awaited> {
        match self.states.get(id)? {
            State::Waiting { awaited, .. } | State::Late { awaited, .. } => Some(awaited.clone()),
            State::Over(_) => None,
        }
    }

    pub(crate) fn now_awaits(&mut self, id: u64, new: Awaited) {
        if let Some(State::Waiting { awaited, .. } | State::Late { awaited, .. }) = self.states.get_mut(id) {
            *awaited = new;
        }
    }

    pub(crate) fn finish(&mut self, id: u64, result: Result<Answer, Error>) {
        match self.states.get_mut(id) {
            Some(state @ State::Waiting { .. }) => {
                *state = State::Over(result);
                self.waiting -= 1;
                self.ended += 1;
            }
            Some(State::Late { awaited, error, is_given_up }) => {
                let (is_new, error) = (awaited.is_new(), error.take());
                self.given_up -= usize::from(*is_given_up);
                self.unwanted
                    .extend(granted(result).map(|permission| ControlRequest::give_back(permission, is_new)));
                match error {
                    Some(error) => {
                        *self.states.get_mut(id).expect("it was there just now") = State::Over(Err(error))
                    }
                    None => drop(self.states.remove(id)),
                }
            }
            Some(State::Over(_)) | None => {}
        }
    }

    pub(crate) fn take(&mut self, call: Call) -> Option<Result<Answer, Error>> {
        match self.states.get_mut(call.id)? {
            State::Waiting { .. } => None,
            State::Late { error, .. } => error.take().map(Err),
            State::Over(_) => match self.states.remove(call.id) {
                Some(State::Over(result)) => Some(result),
                _ => unreachable!("the call was over just now"),
            },
        }
    }

    /// Discards the result of a call, now or when it arrives.
    pub(crate) fn forget(&mut self, call: Call) {
        match self.states.get_mut(call.id) {
            Some(state @ State::Waiting { .. }) => {
                let State::Waiting { awaited, .. } = state else { return };
                *state = State::Late { awaited: awaited.clone(), error: None, is_given_up: false };
                self.waiting -= 1;
            }
            Some(State::Late { error, .. }) => *error = None,
            Some(State::Over(_)) => {
                if let Some(State::Over(result)) = self.states.remove(call.id) {
                    self.unwanted.extend(
                        granted(result).map(|permission| ControlRequest::give_back(permission, false)),
                    );
                }
            }
            None => {}
        }
    }

    /// Begins a step of the limit, and gives up the calls whose last step is over.
    pub(crate) fn begin_step(&mut self, step: u64, within: Lifetime) {
        for (_, state) in self.states.iter_mut() {
            let State::Waiting { awaited, asked, last_step } = state else { continue };
            if step < *last_step {
                continue;
            }
            let Asked { what, effect, wait } = *asked;
            let within = Lifetime(within.0.saturating_add(wait.0));
            let error = Some(Error::TimedOut { what, effect, within });
            *state = State::Late { awaited: awaited.clone(), error, is_given_up: true };
            self.given_up += 1;
            self.waiting -= 1;
            self.ended += 1;
        }
    }

    /// Number of calls that were given up and are not answered.
    pub(crate) fn given_up(&self) -> usize {
        self.given_up
    }

    /// Takes a request that gives a permission back.
    pub(crate) fn take_unwanted(&mut self) -> Option<ControlRequest> {
        self.unwanted.pop()
    }

    /// Adds a request that gives a permission back.
    pub(crate) fn add_unwanted(&mut self, unwanted: ControlRequest) {
        self.unwanted.push(unwanted);
    }

    pub(crate) fn has_unwanted(&self) -> bool {
        !self.unwanted.is_empty()
    }

    pub(crate) fn finish_all(&mut self, error: Error) {
        let under_way: Vec<u64> = self
            .states
            .iter_mut()
            .filter(|(_, state)| !matches!(state, State::Over(_)))
            .map(|(id, _)| id)
            .collect();
        for id in under_way {
            self.finish(id, Err(error));
        }
        self.unwanted.clear();
    }

    /// Number of calls that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// Returns how many calls can begin. A call has its place until its result is taken.
    pub(crate) fn room(&self) -> usize {
        CALLS_MAX as usize - self.states.len()
    }

    /// Returns whether no call can begin before the caller takes a result. A call that the caller has forgotten gives its
    /// place back when it is answered.
    pub(crate) fn must_be_taken(&self) -> bool {
        let is_forgotten = |(_, state): (_, &State)| matches!(state, State::Late { error: None, .. });
        self.room() == 0 && !self.states.iter().any(is_forgotten)
    }

    /// Calls that have begun and not ended.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns how many calls have ended since the last call of this function.
    pub(crate) fn count_ended(&mut self) -> usize {
        self.ended.wrapping_sub(std::mem::replace(&mut self.counted, self.ended))
    }
}

/// The permission in the result of a call, if it has one.
fn granted(result: Result<Answer, Error>) -> Option<Permission> {
    match result {
        Ok(Answer::Granted(permission)) => Some(permission),
        _ => None,
    }
}
