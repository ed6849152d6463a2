//! Calls of the control path: what they wait for and what came of them.

use crate::{Error, Lease, Permission, config::CALLS_MAX};
use portcullis_protocol::{Lifetime, Moment, Rights, Sharing};
use std::sync::Arc;

/// A call that has begun; [`Client::take_call`](crate::Client::take_call) exchanges it for its result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    pub(crate) id: u64,
}

/// What came of a call that the node agreed to.
#[derive(Debug)]
pub enum Answer {
    /// A permission (of `allocate` and `acquire`).
    Granted(Permission),
    /// The lifetime that the permission has now, from its start (of the extensions).
    Extended(Lifetime),
    /// Done (of `revoke` and `free`).
    Done,
}

/// What an extension needs to know while it is under way.
#[derive(Clone, Debug)]
pub(crate) struct Extending {
    pub(crate) lease: Arc<Lease>,
    /// The lifetime asked for.
    pub(crate) asked: Lifetime,
    /// The lifetime that the word was thought to hold.
    pub(crate) believed: Lifetime,
    /// Whether a CAS that found another value may be tried again.
    pub(crate) retry: bool,
}

/// What a call waits for.
#[derive(Clone, Debug)]
pub(crate) enum Awaited {
    Grant { requested_at: Moment, rights: Rights, sharing: Sharing },
    Done,
    Extension(Extending),
}

enum State {
    Free,
    Waiting(Awaited),
    Over(Result<Answer, Error>),
}

struct Slot {
    generation: u32,
    state: State,
}

/// All calls of a client.
pub(crate) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: usize,
    ended: usize,
}

fn slot_of(id: u64) -> usize {
    (id & 0xFFFF_FFFF) as usize
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), waiting: 0, ended: 0 }
    }

    pub(crate) fn begin(&mut self, awaited: Awaited) -> Result<u64, Error> {
        if self.free.is_empty() {
            let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            if self.slots.len() >= CALLS_MAX {
                return Err(Error::QueueFull { limit: CALLS_MAX as u64 });
            }
            self.slots.push(Slot { generation: 0, state: State::Free });
            self.free.push(index);
        }
        let index = self.free.pop().unwrap_or_default();
        let slot = &mut self.slots[index as usize];
        slot.state = State::Waiting(awaited);
        self.waiting += 1;
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Undoes [`Calls::begin`]: the call never was.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.waiting -= 1;
        self.release(id);
    }

    fn release(&mut self, id: u64) -> State {
        let slot = &mut self.slots[slot_of(id)];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push((id & 0xFFFF_FFFF) as u32);
        std::mem::replace(&mut slot.state, State::Free)
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        self.slots.get_mut(slot_of(id)).filter(|slot| u64::from(slot.generation) == id >> 32)
    }

    pub(crate) fn awaited(&self, id: u64) -> Option<Awaited> {
        let slot = self.slots.get(slot_of(id))?;
        match &slot.state {
            State::Waiting(awaited) if u64::from(slot.generation) == id >> 32 => Some(awaited.clone()),
            _ => None,
        }
    }

    pub(crate) fn now_awaits(&mut self, id: u64, awaited: Awaited) {
        if let Some(slot) = self.slot(id) {
            slot.state = State::Waiting(awaited);
        }
    }

    pub(crate) fn finish(&mut self, id: u64, result: Result<Answer, Error>) {
        if let Some(slot) = self.slot(id)
            && matches!(slot.state, State::Waiting(_))
        {
            slot.state = State::Over(result);
            self.waiting -= 1;
            self.ended += 1;
        }
    }

    pub(crate) fn take(&mut self, call: Call) -> Option<Result<Answer, Error>> {
        let slot = self.slot(call.id)?;
        if !matches!(slot.state, State::Over(_)) {
            return None;
        }
        match self.release(call.id) {
            State::Over(result) => Some(result),
            State::Free | State::Waiting(_) => None,
        }
    }

    pub(crate) fn finish_all(&mut self, error: Error) {
        for index in 0..self.slots.len() {
            let id = u64::from(self.slots[index].generation) << 32 | index as u64;
            self.finish(id, Err(error));
        }
    }

    /// Begun, and not ended yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many have ended since the last time this was asked.
    pub(crate) fn count_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }
}
