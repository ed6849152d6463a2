//! Slots of operations: free slots, operations under way, and outcomes of operations that have ended.

use crate::access::Action;
use crate::limit::GIVEN_UP_AFTER;
use crate::{Buffer, Effect, Error};
use portcullis_nic::{Lkey, LocalSpan, Memory, Status};
use portcullis_planted::planted;
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;
use std::fmt;

/// Bytes of the word that each slot has in the arena for the result of an atomic.
pub(crate) const WORD_BYTES: u32 = 8;

/// An operation that has begun; [`Client::take`](crate::Client::take) exchanges it for its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operation {
    pub(crate) id: u64,
}

impl Operation {
    /// Returns the number that all work requests of the operation carry: for traces.
    #[must_use]
    pub fn number(self) -> u64 {
        self.id
    }

    /// Returns the operation's place among the client's operations, below
    /// [`ClientConfig::operations_max`](crate::ClientConfig). No other operation has this place until the outcome is
    /// taken.
    #[must_use]
    pub fn place(self) -> usize {
        slot_of(self.id)
    }
}

/// The outcome of an operation.
pub struct Outcome<M: Memory> {
    /// The buffer that the operation used. None for atomics, and for an operation that was given up: the NIC may still
    /// write to the buffer.
    pub buffer: Option<Buffer<M>>,
    /// For reads and writes the number of bytes moved, for atomics the word's old value.
    pub result: Result<u64, Error>,
}

impl<M: Memory> fmt::Debug for Outcome<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("buffer", &self.buffer).field("result", &self.result).finish()
    }
}

/// Receiver of an operation's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The caller, under a permission that was checked here and counts as dead from `deadline` on.
    Checked {
        /// The permission's deadline on the client's clock.
        deadline: Moment,
    },
    /// The caller, without checks.
    Unchecked,
    /// An extension of a lease.
    Extension {
        /// The id of its call.
        call: u64,
        /// The lease's deadline when the extension began.
        deadline: Moment,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Free,
    UnderWay,
    Done,
    /// The operation was given up, and its outcome was not taken. The NIC still has the slot's bytes.
    GivenUp,
    /// The operation was given up, and its outcome was taken. The NIC still has the slot's bytes.
    Forgotten,
}

/// Kind of an operation, for the error if it is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Read,
    Write,
    Atomic,
}

struct Slot<M: Memory> {
    generation: u32,
    phase: Phase,
    owner: Owner,
    /// Whether the operation failed. Its error is in [`Operations::errors`], so that a slot stays small enough to be
    /// quick.
    failed: bool,
    /// Whether the operation is carried out only if the one directly before it is.
    linked: bool,
    verb: Verb,
    /// The step of the limit in which the operation began, modulo 256.
    begun: u8,
    value: u64,
    buffer: Option<Buffer<M>>,
}

/// An atomic on a lifetime word that has ended.
pub(crate) struct Extended {
    pub(crate) call: u64,
    pub(crate) result: Result<u64, Error>,
}

/// All operation slots of a client.
pub(crate) struct Operations<M: Memory> {
    memory: M,
    key: Lkey,
    /// Offset of the slots' words in the arena.
    words: u64,
    slots: Vec<Slot<M>>,
    free: Vec<u32>,
    /// Ids in the order in which operations ended. The ids of outcomes that were taken one by one stay in the list
    /// until they reach its front.
    done: VecDeque<u64>,
    /// Errors of operations that failed and were not taken, by id.
    errors: Vec<(u64, Error)>,
    extended: Vec<Extended>,
    /// Number of operations that have ended, and how many of them [`Operations::count_ended`] has counted.
    ended: usize,
    counted: usize,
    under_way: usize,
    /// The present step of the limit, modulo 256.
    step: u8,
    /// Number of operations that were given up and that the NIC has not completed.
    given_up: usize,
}

pub(crate) fn slot_of(id: u64) -> usize {
    (id & 0xFFFF_FFFF) as usize
}

impl<M: Memory> Operations<M> {
    pub(crate) fn new(memory: M, key: Lkey, words: u64, most: u32) -> Self {
        let slot = |_| Slot {
            generation: 0,
            phase: Phase::Free,
            owner: Owner::Unchecked,
            failed: false,
            linked: false,
            verb: Verb::Read,
            begun: 0,
            value: 0,
            buffer: None,
        };
        let slots: Vec<_> = (0..most).map(slot).collect();
        let done = VecDeque::with_capacity(slots.len() * 2);
        Self {
            memory,
            key,
            words,
            slots,
            free: (0..most).rev().collect(),
            done,
            errors: Vec::new(),
            extended: Vec::new(),
            ended: 0,
            counted: 0,
            under_way: 0,
            step: 0,
            given_up: 0,
        }
    }

    /// Takes a slot and keeps the buffer in it.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        owner: Owner,
        action: Action,
        buffer: Option<Buffer<M>>,
    ) -> Result<u64, Option<Buffer<M>>> {
        let Some(index) = self.free.pop() else { return Err(buffer) };
        let slot = &mut self.slots[index as usize];
        self.under_way += 1;
        slot.phase = Phase::UnderWay;
        slot.owner = owner;
        slot.verb = match action {
            Action::Read => Verb::Read,
            Action::Write => Verb::Write,
            Action::CompareAndSwap { .. } | Action::FetchAndAdd { .. } => Verb::Atomic,
        };
        slot.linked = false;
        slot.begun = self.step;
        slot.buffer = buffer;
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Links an operation that has just begun to the one directly before it on its queue pair.
    pub(crate) fn link(&mut self, id: u64) {
        self.slots[slot_of(id)].linked = true;
    }

    /// Returns whether an operation is carried out only if the one directly before it on its queue pair is.
    pub(crate) fn is_linked(&self, id: u64) -> bool {
        self.slots[slot_of(id)].linked && !planted!(LinkForgotten)
    }

    /// Undoes [`Operations::begin`], as if the operation had never begun. Does nothing if it has ended.
    pub(crate) fn cancel(&mut self, id: u64) -> Option<Buffer<M>> {
        let slot = &self.slots[slot_of(id)];
        if slot.phase != Phase::UnderWay || u64::from(slot.generation) != id >> 32 {
            self.finish_late(id);
            return None;
        }
        self.under_way -= 1;
        self.release(id).buffer
    }

    pub(crate) fn full(&self) -> Error {
        Error::QueueFull { limit: u64::try_from(self.slots.len()).unwrap_or(u64::MAX) }
    }

    /// The word in the arena for the result of an atomic.
    pub(crate) fn word(&self, id: u64) -> LocalSpan {
        LocalSpan { address: self.word_at(id), length: WORD_BYTES, lkey: self.key }
    }

    fn word_at(&self, id: u64) -> u64 {
        self.words + (id & 0xFFFF_FFFF) * u64::from(WORD_BYTES)
    }

    #[inline]
    pub(crate) fn succeed(&mut self, id: u64) {
        let word = self.word_at(id);
        let slot = &mut self.slots[slot_of(id)];
        let value = match &slot.buffer {
            Some(buffer) => u64::from(buffer.len()),
            None => self.memory.load(word),
        };
        if slot.phase == Phase::UnderWay
            && u64::from(slot.generation) == id >> 32
            && !matches!(slot.owner, Owner::Extension { .. })
        {
            slot.value = value;
            slot.failed = false;
            self.end(id);
        } else {
            self.finish(id, Ok(value));
        }
    }

    /// Notes that an operation of the caller has ended.
    #[inline]
    fn end(&mut self, id: u64) {
        self.slots[slot_of(id)].phase = Phase::Done;
        self.under_way -= 1;
        self.done.push_back(id);
        self.ended += 1;
    }

    /// Ends an operation with the NIC's `status`, whose meaning depends on the owner. Returns the error.
    pub(crate) fn fail(&mut self, id: u64, now: Moment, status: Status) -> Error {
        let error = match status {
            Status::RemoteAccessError => self.refused(id, now),
            Status::RemoteInvalidRequestError if self.slots[slot_of(id)].owner == Owner::Unchecked => {
                Error::Violation
            }
            Status::RetryExceededError | Status::RemoteOperationError => Error::Interrupted,
            Status::RnrRetryExceededError => Error::Unanswered,
            other => Error::LocalFault(other),
        };
        self.finish(id, Err(error));
        error
    }

    /// The error for an access whose permission the node or its NIC no longer knows.
    pub(crate) fn refused(&self, id: u64, now: Moment) -> Error {
        match self.slots[slot_of(id)].owner {
            Owner::Unchecked => Error::Violation,
            Owner::Checked { deadline } | Owner::Extension { deadline, .. } if now >= deadline => {
                Error::Expired
            }
            Owner::Checked { .. } | Owner::Extension { .. } => Error::Revoked,
        }
    }

    /// Returns whether an operation that was not posted to the NIC yet is to end without it: the operation was given
    /// up, or its permission has expired by the deadline known when the operation began.
    pub(crate) fn has_expired(&self, id: u64, now: Moment) -> bool {
        let slot = &self.slots[slot_of(id)];
        if matches!(slot.phase, Phase::GivenUp | Phase::Forgotten) {
            return true;
        }
        match slot.owner {
            Owner::Checked { deadline } | Owner::Extension { deadline, .. } => now >= deadline,
            Owner::Unchecked => false,
        }
    }

    pub(crate) fn finish(&mut self, id: u64, result: Result<u64, Error>) {
        let slot = &mut self.slots[slot_of(id)];
        if slot.phase != Phase::UnderWay || u64::from(slot.generation) != id >> 32 {
            return self.finish_late(id);
        }
        if let Owner::Extension { call, .. } = slot.owner {
            self.under_way -= 1;
            // The released slot holds nothing of use: an extension has no buffer, and its result is passed on below.
            let _ = self.release(id);
            self.extended.push(Extended { call, result });
            return;
        }
        match result {
            Ok(value) => {
                slot.failed = false;
                slot.value = value;
            }
            Err(error) => {
                slot.failed = true;
                self.errors.push((id, error));
            }
        }
        self.end(id);
    }

    /// Notes that the NIC has completed an operation that was given up.
    #[cold]
    fn finish_late(&mut self, id: u64) {
        let slot = &mut self.slots[slot_of(id)];
        if u64::from(slot.generation) != id >> 32 {
            return;
        }
        match slot.phase {
            Phase::GivenUp => slot.phase = Phase::Done,
            Phase::Forgotten => drop(self.free(id)),
            Phase::Free | Phase::UnderWay | Phase::Done => return,
        }
        self.given_up -= 1;
    }

    /// Begins a step of the limit, and gives up the operations that began too many steps ago. The slot of such an
    /// operation is not used again before the NIC has finished with its bytes. Extensions are skipped, because they end
    /// with their calls.
    pub(crate) fn begin_step(&mut self, step: u64, within: Lifetime) {
        self.step = (step & 0xFF) as u8;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let is_extension = matches!(slot.owner, Owner::Extension { .. });
            if slot.phase != Phase::UnderWay
                || is_extension
                || self.step.wrapping_sub(slot.begun) < GIVEN_UP_AFTER
            {
                continue;
            }
            let (what, effect) = match slot.verb {
                Verb::Read => ("a read", Effect::Nothing),
                Verb::Write => ("a write", Effect::Perhaps),
                Verb::Atomic => ("an atomic", Effect::Perhaps),
            };
            let id = u64::from(slot.generation) << 32 | index as u64;
            slot.phase = Phase::GivenUp;
            slot.failed = true;
            self.errors.push((id, Error::TimedOut { what, effect, within }));
            self.done.push_back(id);
            self.under_way -= 1;
            self.ended += 1;
            self.given_up += 1;
        }
    }

    #[inline]
    fn release(&mut self, id: u64) -> Outcome<M> {
        if self.slots[slot_of(id)].phase == Phase::GivenUp {
            self.slots[slot_of(id)].phase = Phase::Forgotten;
            return Outcome { buffer: None, result: self.take_error(id) };
        }
        let (buffer, value) = self.free(id);
        let result = if self.slots[slot_of(id)].failed { self.take_error(id) } else { Ok(value) };
        Outcome { buffer, result }
    }

    /// Frees a slot, and returns its buffer and its value.
    #[inline]
    fn free(&mut self, id: u64) -> (Option<Buffer<M>>, u64) {
        let slot = &mut self.slots[slot_of(id)];
        slot.phase = Phase::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push((id & 0xFFFF_FFFF) as u32);
        (slot.buffer.take(), slot.value)
    }

    #[cold]
    fn take_error(&mut self, id: u64) -> Result<u64, Error> {
        self.slots[slot_of(id)].failed = false;
        let at = self.errors.iter().position(|(failed, _)| *failed == id);
        Err(at.map_or(Error::SessionLost, |at| self.errors.swap_remove(at).1))
    }

    fn is_done(&self, id: u64) -> bool {
        let slot = &self.slots[slot_of(id)];
        matches!(slot.phase, Phase::Done | Phase::GivenUp) && u64::from(slot.generation) == id >> 32
    }

    /// Takes the buffer and the value of a successful operation that [`Operations::drain_ended`] has returned.
    #[inline]
    pub(crate) fn take_success(&mut self, operation: Operation) -> Option<(Option<Buffer<M>>, u64)> {
        let slot = self.slots.get(slot_of(operation.id))?;
        let is_success = slot.phase == Phase::Done && !slot.failed;
        (is_success && u64::from(slot.generation) == operation.id >> 32).then(|| self.free(operation.id))
    }

    pub(crate) fn take(&mut self, operation: Operation) -> Option<Outcome<M>> {
        if slot_of(operation.id) >= self.slots.len() || !self.is_done(operation.id) {
            return None;
        }
        let outcome = self.release(operation.id);
        while self.done.front().is_some_and(|&id| !self.is_done(id)) {
            self.done.pop_front();
        }
        // Bounds the list for callers that never take the oldest outcome.
        if self.done.len() >= self.slots.len().saturating_mul(2) {
            let mut done = std::mem::take(&mut self.done);
            done.retain(|&id| self.is_done(id));
            self.done = done;
        }
        Some(outcome)
    }

    #[inline]
    pub(crate) fn drain(&mut self, into: &mut Vec<(Operation, Outcome<M>)>) {
        while let Some(id) = self.done.pop_front() {
            if self.is_done(id) {
                let outcome = self.release(id);
                into.push((Operation { id }, outcome));
            }
        }
    }

    #[inline]
    pub(crate) fn drain_ended(&mut self, mut each: impl FnMut(Operation)) {
        while let Some(id) = self.done.pop_front() {
            if self.is_done(id) {
                let slot = &self.slots[slot_of(id)];
                if let (Phase::Done, Some(buffer)) = (slot.phase, &slot.buffer) {
                    buffer.prefetch();
                }
                each(Operation { id });
            }
        }
    }

    /// Ends all operations that are under way or were given up: the NIC reports no more completions.
    pub(crate) fn finish_all(&mut self, error: Error) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if !matches!(slot.phase, Phase::Free | Phase::Done) {
                let id = u64::from(slot.generation) << 32 | index as u64;
                self.finish(id, Err(error));
            }
        }
    }

    pub(crate) fn has_extended(&self) -> bool {
        !self.extended.is_empty()
    }

    pub(crate) fn next_extended(&mut self) -> Option<Extended> {
        self.extended.pop()
    }

    /// Returns how many operations have ended since the last call of this function.
    pub(crate) fn count_ended(&mut self) -> usize {
        self.ended.wrapping_sub(std::mem::replace(&mut self.counted, self.ended))
    }

    /// Number of operations that were given up and that the NIC has not completed.
    pub(crate) fn given_up(&self) -> usize {
        self.given_up
    }

    /// Number of operations that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.ended
    }

    /// Number of operations that have begun and not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }
}
