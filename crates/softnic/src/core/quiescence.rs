//! The ends of accesses on a NIC with other threads: an operation that ends some takes effect at once, and completes when no
//! thread still moves bytes of them.
//!
//! A copy unit may have a piece that was checked before, and an engine may be in a turn that began before. A [`Mark`] is a
//! moment in the sequence of pieces and of the keys' generations, and has passed when neither is so.
//!
//! A queue pair that is visited because it was rung is left alone while its requests are held, and is rung again.

use super::copy_units::CopyUnits;
use super::engines::Engines;
use super::objects::Core;
use super::queue_pair::{Current, Held, QueuePair};
use super::schedule::Visit;
use portcullis_memory::Bytes;
use portcullis_nic::QpId;
use std::collections::VecDeque;

/// A moment. It has passed when no piece that was posted before it still moves, and no engine is in a turn that began before
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    /// Number of pieces that were posted.
    posted: u64,
    /// The generation of keys that began.
    generation: u64,
}

/// Queue pairs that are rung when a moment has passed, earlier moments first.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaiting(VecDeque<(Mark, QpId)>);

impl Awaiting {
    fn ring_after(&mut self, mark: Mark, queue_pair: QpId) {
        debug_assert!(self.0.back().is_none_or(|&(last, _)| last <= mark), "moments are in order");
        self.0.push_back((mark, queue_pair));
    }
}

impl<M: Bytes> Core<M> {
    /// Notes which pieces have been moved, rings queue pairs whose wait is over, and moves clients to engines and back. Returns
    /// whether a queue pair waits for other threads: the owner must not sleep then.
    #[inline(never)]
    pub(super) fn look_after_threads(&mut self) -> bool {
        self.reap_pieces();
        self.ring_passed();
        self.move_clients();
        !self.awaiting.0.is_empty()
    }

    /// Rings the queue pairs whose moment has passed.
    fn ring_passed(&mut self) {
        while let Some(&(mark, queue_pair)) = self.awaiting.0.front()
            && self.has_passed(mark)
        {
            self.awaiting.0.pop_front();
            self.ring(queue_pair);
        }
    }

    /// Begins a generation of keys, and returns the moment after all that was checked before. `None`: nothing of that still
    /// moves.
    fn mark(&self) -> Option<Mark> {
        let is_moving = self.copy_units.as_ref().is_some_and(CopyUnits::is_moving);
        let is_turning = self.engines.as_ref().is_some_and(|engines| engines.mark().is_some());
        (is_moving || is_turning).then(|| Mark {
            posted: self.copy_units.as_ref().map_or(0, CopyUnits::posted),
            generation: self.engines.as_ref().map_or(0, Engines::generation),
        })
    }

    /// Waits until nothing moves that was checked before. For rare operations that end accesses and have no completion to
    /// hold.
    #[cold]
    pub(super) fn settle(&mut self) {
        if !self.has_threads {
            return;
        }
        if let Some(mark) = self.mark() {
            while !self.has_passed(mark) {
                self.copy_units.iter().for_each(CopyUnits::wait);
                self.engines.iter().for_each(Engines::wait);
            }
        }
        self.reap_pieces();
        self.ring_passed();
    }

    /// Holds the completion of a request that has ended accesses, if bytes of such accesses may still move. Returns
    /// whether it is held.
    #[inline]
    pub(super) fn hold(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: &Current,
        ended_access: bool,
    ) -> bool {
        self.has_threads && self.hold_for_threads(id, pair, current, ended_access)
    }

    #[inline(never)]
    fn hold_for_threads(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: &Current,
        ended_access: bool,
    ) -> bool {
        let last = pair.held.back().map(|held| held.until);
        let mark = if ended_access { self.mark() } else { None };
        // Completions keep their order.
        let Some(until) = mark.or(last) else { return false };
        if last != Some(until) && pair.polled.is_none() {
            self.awaiting.ring_after(until, id);
        }
        // The request is taken off its queue right after this.
        let retired = pair.send.taken() + 1;
        pair.held.push_back(Held { request: *current, retired, until });
        true
    }

    /// Completes the held requests whose wait is over, as far as there is room for their completions.
    pub(super) fn release_held(&mut self, pair: &mut QueuePair<M>) {
        while let Some(&Held { request, retired, until }) = pair.held.front() {
            if !self.has_passed(until) || !self.has_completion_room(pair.send_cq) {
                return;
            }
            pair.held.pop_front();
            self.succeed(pair, &request, retired);
        }
    }

    /// Returns the outcome of a visit to a queue pair with held requests.
    #[inline(never)]
    pub(super) fn outcome_with_held(&self, pair: &QueuePair<M>, visit: Visit) -> Visit {
        let waits = pair.held.front().is_some_and(|held| !self.has_passed(held.until));
        match visit {
            Visit::Again | Visit::Blocked => visit,
            // The queue pair is rung when the moment passes.
            Visit::Idle | Visit::Done | Visit::Moving if waits => Visit::Moving,
            // There is no room for a completion, or the moment has passed since the beginning of the visit.
            Visit::Idle | Visit::Done | Visit::Moving => Visit::Blocked,
        }
    }

    fn has_passed(&self, Mark { posted, generation }: Mark) -> bool {
        self.copy_units.as_ref().is_none_or(|units| units.has_passed(posted))
            && self.engines.as_ref().is_none_or(|engines| engines.has_passed(generation))
    }

    /// Ends the service of a queue pair by an engine, since it fails at one of its ends: on an engine the client goes home,
    /// and the NIC's thread takes home the client whose node's end fails.
    #[cold]
    pub(super) fn leave_engines(&mut self, pair: &QueuePair<M>) {
        if self.on_engine.is_some() {
            self.send_home(pair.send_cq);
        } else if let Some(peer) = pair.peer {
            self.take_home_client_of(peer);
        }
    }
}
