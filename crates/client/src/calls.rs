//! Calls of the control path: what they wait for, and their results.

use crate::{Effect, Error, Lease, Permission, config::CALLS_MAX};
use portcullis_protocol::{ChunkTerms, Entry, Lifetime, Moment, RequestBody, Rights, Sharing};
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
    /// Done (of `revoke`, `free`, `free_chunk`, `keep_object`, `publish`, `unpublish`, `share` and `unshare`).
    Done,
    /// An entry of a directory (of `lookup` and `list_behind`).
    Entry(Entry),
    /// There is no further entry (of `list_behind`).
    EndOfList,
    /// What the client may ask the workers on the node's NIC for (of `join_chunks`).
    Chunks(ChunkTerms),
}

/// What is needed of an extension under way.
#[derive(Clone, Debug)]
pub(crate) struct Extending {
    pub(crate) lease: Arc<Lease>,
    /// The lifetime asked for.
    pub(crate) asked: Lifetime,
    /// The lifetime that the word was believed to hold.
    pub(crate) believed: Lifetime,
    /// Whether a CAS that found another value may be tried again.
    pub(crate) retry: bool,
}

/// What a call waits for.
#[derive(Clone, Debug)]
pub(crate) enum Awaited {
    Grant {
        requested_at: Moment,
        rights: Rights,
        sharing: Sharing,
        /// The object was allocated by the same request.
        is_new: bool,
    },
    Done,
    Entry,
    NextEntry,
    Extension(Extending),
    /// Workers.
    Chunks,
    /// A chunk of the node's CPU.
    Chunk,
    /// The answer of a worker.
    Worker,
}

impl Awaited {
    /// Whether the object of what is granted is nobody else's: it goes with a grant that comes too late.
    fn is_new(&self) -> bool {
        matches!(self, Self::Grant { is_new: true, .. } | Self::Chunk | Self::Worker)
    }
}

/// How a call is named where it is given up, and what may have come of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) what: &'static str,
    pub(crate) effect: Effect,
    /// For how long the node may let the request wait.
    pub(crate) wait: Lifetime,
}

impl Asked {
    /// A request to a worker on the node's NIC.
    pub(crate) const OF_A_WORKER: Self =
        Self { what: "a request to a worker on the node's NIC", effect: Effect::Perhaps, wait: Lifetime(0) };
    /// An extension by the lifetime word.
    pub(crate) const EXTENSION: Self =
        Self { what: "an extension of a permission", effect: Effect::Perhaps, wait: Lifetime(0) };

    /// The request of a message.
    pub(crate) fn of(body: &RequestBody) -> Self {
        let (what, effect) = match body {
            // What is granted too late is given back.
            RequestBody::Allocate { .. } => ("an allocation", Effect::Nothing),
            RequestBody::Acquire { .. } => ("a request for a permission", Effect::Nothing),
            RequestBody::AllocateChunk => ("an allocation of a chunk", Effect::Nothing),
            RequestBody::Lookup { .. } => ("a look-up of a name", Effect::Nothing),
            RequestBody::List { .. } => ("a look at the names", Effect::Nothing),
            RequestBody::Extend { .. } => return Self::EXTENSION,
            RequestBody::Revoke { .. } => ("the end of a permission", Effect::Perhaps),
            RequestBody::Free { .. } => ("the end of an object", Effect::Perhaps),
            RequestBody::Keep { .. } => ("a request to keep an object", Effect::Perhaps),
            RequestBody::Publish { .. } => ("the publication of a name", Effect::Perhaps),
            RequestBody::Unpublish { .. } => ("the end of a name", Effect::Perhaps),
            RequestBody::Share { .. } => ("a request to share an object", Effect::Perhaps),
            RequestBody::Unshare { .. } => ("a request to share an object no more", Effect::Perhaps),
            RequestBody::Include { .. } => ("a request to include an object", Effect::Perhaps),
            RequestBody::JoinChunks => ("a request for workers on the node's NIC", Effect::Perhaps),
            _ => ("a request to the node", Effect::Perhaps),
        };
        let wait = if let RequestBody::Acquire { wait, .. } = body { *wait } else { Lifetime(0) };
        Self { what, effect, wait }
    }
}

enum State {
    Waiting {
        awaited: Awaited,
        asked: Asked,
        /// The step of the limit at whose end it is given up.
        last_step: u64,
    },
    /// It was given up, or nobody wants its result. The answer is still to come.
    Late {
        awaited: Awaited,
        /// What the caller is told. `None`: it was, or it wants to know nothing.
        error: Option<Error>,
        is_given_up: bool,
    },
    Over(Result<Answer, Error>),
}

/// A permission that came too late for its caller, and whether its object goes with it.
pub(crate) type Unwanted = (Permission, bool);

/// All calls of a client. Ids are used once.
pub(crate) struct Calls {
    states: Slots<u64, State>,
    waiting: usize,
    /// How many have ended, and how many of them were counted.
    ended: usize,
    counted: usize,
    /// Permissions that nobody wants, to be given back.
    unwanted: Vec<Unwanted>,
    /// Calls that were given up, and to which no answer has come.
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

    /// Undoes [`Calls::begin`], as if the call had never been.
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
                self.unwanted.extend(granted(result).map(|permission| (permission, is_new)));
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

    /// Nobody takes the result of a call any more.
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
                    self.unwanted.extend(granted(result).map(|permission| (permission, false)));
                }
            }
            None => {}
        }
    }

    /// Gives up the calls whose last step is over.
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

    /// How many calls were given up and are not answered.
    pub(crate) fn given_up(&self) -> usize {
        self.given_up
    }

    /// Takes a permission that nobody wants.
    pub(crate) fn take_unwanted(&mut self) -> Option<Unwanted> {
        self.unwanted.pop()
    }

    /// Adds a permission that nobody wants.
    pub(crate) fn add_unwanted(&mut self, unwanted: Unwanted) {
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

    /// How many calls have ended.
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// Calls that have begun and not ended.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many calls have ended since this was last asked.
    pub(crate) fn count_ended(&mut self) -> usize {
        self.ended.wrapping_sub(std::mem::replace(&mut self.counted, self.ended))
    }
}

/// The permission that a call has brought.
fn granted(result: Result<Answer, Error>) -> Option<Permission> {
    match result {
        Ok(Answer::Granted(permission)) => Some(permission),
        _ => None,
    }
}
