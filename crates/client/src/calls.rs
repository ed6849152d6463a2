//! Calls of the control path: what they wait for, and their results.

use crate::{Error, Lease, Permission, config::CALLS_MAX};
use portcullis_protocol::{ChunkTerms, Entry, Lifetime, Moment, Rights, Sharing};
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

enum State {
    Waiting(Awaited),
    Over(Result<Answer, Error>),
}

/// All calls of a client. Ids are used once.
pub(crate) struct Calls {
    states: Slots<u64, State>,
    waiting: usize,
    ended: usize,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self { states: Slots::new(Reuse::LatestFirst, CALLS_MAX), waiting: 0, ended: 0 }
    }

    pub(crate) fn begin(&mut self, awaited: Awaited) -> Result<u64, Error> {
        let id = self.states.try_insert(State::Waiting(awaited));
        let id = id.map_err(|_| Error::QueueFull { limit: CALLS_MAX.into() })?;
        self.waiting += 1;
        Ok(id)
    }

    /// Undoes [`Calls::begin`], as if the call had never been.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.waiting -= 1;
        self.states.remove(id);
    }

    pub(crate) fn awaited(&self, id: u64) -> Option<Awaited> {
        match self.states.get(id)? {
            State::Waiting(awaited) => Some(awaited.clone()),
            State::Over(_) => None,
        }
    }

    pub(crate) fn now_awaits(&mut self, id: u64, awaited: Awaited) {
        if let Some(state) = self.states.get_mut(id) {
            *state = State::Waiting(awaited);
        }
    }

    pub(crate) fn finish(&mut self, id: u64, result: Result<Answer, Error>) {
        if let Some(state @ State::Waiting(_)) = self.states.get_mut(id) {
            *state = State::Over(result);
            self.waiting -= 1;
            self.ended += 1;
        }
    }

    pub(crate) fn take(&mut self, call: Call) -> Option<Result<Answer, Error>> {
        match self.states.get(call.id)? {
            State::Waiting(_) => None,
            State::Over(_) => match self.states.remove(call.id) {
                Some(State::Over(result)) => Some(result),
                _ => unreachable!("the call was over just now"),
            },
        }
    }

    pub(crate) fn finish_all(&mut self, error: Error) {
        for (_, state) in self.states.iter_mut() {
            if matches!(state, State::Waiting(_)) {
                *state = State::Over(Err(error));
                self.waiting -= 1;
                self.ended += 1;
            }
        }
    }

    /// Calls that have begun and not ended.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many calls have ended since this was last asked.
    pub(crate) fn count_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }
}
