//! Rings in queue memory: one end posts, the other takes.
//!
//! An entry is valid when its last word holds the ring's present lap. One cache line therefore carries a request from
//! poster to taker, and neither end trusts an index of the other: each end counts for itself. If a peer writes
//! nonsense, nonsense is executed on the peer's own queue. The peer can neither make the taker read outside the ring
//! nor take an entry twice.

use super::inspect::QueueProgress;
use super::layout::{
    COMPLETION_BYTES, RECEIVE_BYTES, WORK_REQUEST_BYTES, decode_completion, decode_receive,
    encode_completion, encode_receive, encode_request, low,
};
use portcullis_memory::Bytes;
use portcullis_nic::{Completion, ReceiveRequest, WorkRequest};
use std::ops::Range;

/// The place of a ring: `depth` entries from `offset` on. The depth is a power of two.
#[derive(Clone, Debug)]
pub struct Ring<M> {
    memory: M,
    offset: u64,
    mask: u64,
    shift: u32,
}

impl<M: Bytes> Ring<M> {
    /// Makes a ring of `depth` entries at `offset`.
    ///
    /// # Panics
    /// The depth is not a power of two, or the ring does not lie in the memory on an entry's boundary.
    #[must_use]
    pub fn new(memory: M, offset: u64, depth: u32) -> Self {
        assert!(depth.is_power_of_two(), "a ring's depth is a power of two");
        assert!(offset.is_multiple_of(WORK_REQUEST_BYTES), "a ring starts on a cache line");
        assert!(offset + u64::from(depth) * RECEIVE_BYTES <= memory.length(), "a ring lies in its memory");
        Self { memory, offset, mask: u64::from(depth) - 1, shift: depth.trailing_zeros() }
    }

    fn depth(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the memory, and the range in it that the ring takes with entries of `bytes`.
    pub(crate) fn place(&self, bytes: u64) -> (M, Range<u64>) {
        (self.memory.clone(), self.offset..self.offset + self.depth() * bytes)
    }

    /// Checks that the memory has room for work requests, the longest entries: memory for another queue may be too
    /// short for them.
    fn holds_requests(&self) {
        let end = self.offset + self.depth() * WORK_REQUEST_BYTES;
        assert!(end <= self.memory.length(), "a send queue lies in its memory");
    }

    /// Returns the offset of entry `count` of a ring with entries of `bytes`, and the lap that makes the entry valid.
    fn slot(&self, count: u64, bytes: u64) -> (u64, u64) {
        (self.offset + (count & self.mask) * bytes, (count >> self.shift) + 1)
    }
}

/// The posting end of a send queue.
#[derive(Clone, Debug)]
pub struct SendPoster<M> {
    ring: Ring<M>,
    posted: u64,
    retired: u64,
}

impl<M: Bytes> SendPoster<M> {
    /// Makes the posting end of an empty queue.
    ///
    /// # Panics
    /// The ring's memory is too short for its number of requests.
    #[must_use]
    pub fn new(ring: Ring<M>) -> Self {
        ring.holds_requests();
        Self { ring, posted: 0, retired: 0 }
    }

    /// Number of requests that fit.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.ring.depth() - (self.posted - self.retired)
    }

    /// Posts as many of `requests` as fit and returns their number. The first is stored last, which is the doorbell:
    /// the NIC sees all of them or none.
    pub fn post(&mut self, requests: &[WorkRequest]) -> usize {
        let fit = usize::try_from(self.room()).map_or(requests.len(), |room| room.min(requests.len()));
        let Some((first, rest)) = requests[..fit].split_first() else { return 0 };
        for (count, request) in (self.posted + 1..).zip(rest) {
            self.put(count, request);
        }
        self.put(self.posted, first);
        self.posted += fit as u64;
        fit
    }

    fn put(&self, count: u64, request: &WorkRequest) {
        let (offset, lap) = self.ring.slot(count, WORK_REQUEST_BYTES);
        self.ring.memory.store_words(offset, encode_request(request));
        self.ring.memory.store(offset + 56, lap);
    }

    /// Frees slots after a completion, by which the NIC has taken requests up to `taken` (the lower half of their
    /// number).
    pub fn retire(&mut self, taken: u32) {
        let outstanding = low(self.posted).wrapping_sub(taken);
        // A NIC never takes more requests than were posted: any other number is from a completion before a reset.
        if u64::from(outstanding) <= self.posted - self.retired {
            self.retired = self.posted - u64::from(outstanding);
        }
    }

    /// Resets this end with the queue: no request is outstanding any more.
    pub fn reset(&mut self) {
        self.retired = self.posted;
    }
}

/// The NIC's end of a send queue.
#[derive(Clone, Debug)]
pub struct SendTaker<M> {
    ring: Ring<M>,
    taken: u64,
    managed: Managed,
}

/// The limit of a managed queue. `None`: laps make entries valid.
#[derive(Clone, Debug, Default)]
struct Managed(Option<u64>);

impl Managed {
    /// Whether entry `count` is valid. `by_lap` returns whether it is valid by its lap, which the queue's poster
    /// writes.
    #[inline]
    fn admits(&self, count: u64, by_lap: impl FnOnce() -> bool) -> bool {
        self.0.map_or_else(by_lap, |limit| count < limit)
    }

    /// Sets the limit, unless the new one is below the present one. Returns whether the queue has a limit.
    fn enable(&mut self, limit: u64) -> bool {
        self.0 = self.0.map(|present| present.max(limit));
        self.0.is_some()
    }

    /// Resets the limit with the queue. Returns whether the queue is managed: then it begins with its first entry
    /// again.
    fn reset(&mut self) -> bool {
        self.0 = self.0.map(|_| 0);
        self.0.is_some()
    }
}

impl<M: Bytes> SendTaker<M> {
    /// Makes the taking end of an empty queue.
    ///
    /// # Panics
    /// The ring's memory is too short for its number of requests.
    #[must_use]
    pub fn new(ring: Ring<M>) -> Self {
        ring.holds_requests();
        Self { ring, taken: 0, managed: Managed::default() }
    }

    /// Makes the taking end of an empty managed queue.
    ///
    /// # Panics
    /// The ring's memory is too short for its number of requests.
    #[must_use]
    pub fn managed(ring: Ring<M>) -> Self {
        Self { managed: Managed(Some(0)), ..Self::new(ring) }
    }

    /// Sets the limit of a managed queue, unless the new one is below the present one. Returns whether the queue is
    /// managed.
    pub fn enable(&mut self, limit: u64) -> bool {
        self.managed.enable(limit)
    }

    /// The progress of the queue.
    #[must_use]
    pub fn progress(&self) -> QueueProgress {
        QueueProgress { taken: self.taken, limit: self.managed.0 }
    }

    /// Number of requests that were taken off.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether a request waits.
    #[must_use]
    #[inline]
    pub fn waiting(&self) -> bool {
        let (offset, lap) = self.ring.slot(self.taken, WORK_REQUEST_BYTES);
        self.managed.admits(self.taken, || self.ring.memory.load(offset + 56) == lap)
    }

    /// Returns a private copy of the next request, which stays in the queue.
    #[must_use]
    // If this function is inlined, the words stay in registers. A call would store them and load them again as wider
    // ones, and that load waits until the stores have left the processor, behind a line that comes from the poster's
    // cache.
    #[inline(always)]
    pub fn peek(&self) -> Option<[u64; 8]> {
        let (offset, _) = self.ring.slot(self.taken, WORK_REQUEST_BYTES);
        self.waiting().then(|| self.ring.memory.load_words(offset))
    }

    /// Fetches the request `ahead` places on from its poster's cache, for later.
    #[inline]
    pub fn prefetch(&self, ahead: u64) {
        let (offset, _) = self.ring.slot(self.taken + ahead, WORK_REQUEST_BYTES);
        self.ring.memory.prefetch(offset, 1);
    }

    /// Returns the request `ahead` places on, if there is one. This is a hint: its words may change before its turn
    /// comes.
    #[must_use]
    pub fn glimpse(&self, ahead: u64) -> Option<[u64; 8]> {
        let (offset, lap) = self.ring.slot(self.taken + ahead, WORK_REQUEST_BYTES);
        (self.ring.memory.load(offset + 56) == lap).then(|| self.ring.memory.load_words(offset))
    }

    /// Takes the next request off.
    pub fn advance(&mut self) {
        self.taken += 1;
    }

    /// Discards the posted requests: at most one ring's worth, however fast their poster is.
    pub fn discard(&mut self) {
        if self.managed.reset() {
            self.taken = 0;
            return;
        }
        for _ in 0..self.ring.depth() {
            if !self.waiting() {
                break;
            }
            self.taken += 1;
        }
    }
}

/// The posting end of a receive queue.
#[derive(Clone, Debug)]
pub struct ReceivePoster<M> {
    ring: Ring<M>,
    posted: u64,
    retired: u64,
}

impl<M: Bytes> ReceivePoster<M> {
    /// Makes the posting end of an empty queue.
    #[must_use]
    pub fn new(ring: Ring<M>) -> Self {
        Self { ring, posted: 0, retired: 0 }
    }

    /// Posts as many of `requests` as fit and returns their number.
    pub fn post(&mut self, requests: &[ReceiveRequest]) -> usize {
        let room = self.ring.depth() - (self.posted - self.retired);
        let fit = usize::try_from(room).map_or(requests.len(), |room| room.min(requests.len()));
        for request in &requests[..fit] {
            let (offset, lap) = self.ring.slot(self.posted, RECEIVE_BYTES);
            self.ring.memory.store_words(offset, encode_receive(request));
            self.ring.memory.store(offset + 24, lap);
            self.posted += 1;
        }
        fit
    }

    /// Frees the slot of a receive that has completed. Receives complete in order, with one completion each.
    pub fn retire(&mut self) {
        if self.retired < self.posted {
            self.retired += 1;
        }
    }

    /// Resets this end with the queue: no receive is outstanding any more.
    pub fn reset(&mut self) {
        self.retired = self.posted;
    }
}

/// The NIC's end of a receive queue.
#[derive(Clone, Debug)]
pub struct ReceiveTaker<M> {
    ring: Ring<M>,
    taken: u64,
    managed: Managed,
}

impl<M: Bytes> ReceiveTaker<M> {
    /// Makes the taking end of an empty queue.
    #[must_use]
    pub fn new(ring: Ring<M>) -> Self {
        Self { ring, taken: 0, managed: Managed::default() }
    }

    /// Makes the taking end of an empty managed queue.
    #[must_use]
    pub fn managed(ring: Ring<M>) -> Self {
        Self { managed: Managed(Some(0)), ..Self::new(ring) }
    }

    /// Sets the limit of a managed queue, unless the new one is below the present one. Returns whether the queue is
    /// managed.
    pub fn enable(&mut self, limit: u64) -> bool {
        self.managed.enable(limit)
    }

    /// The progress of the queue.
    #[must_use]
    pub fn progress(&self) -> QueueProgress {
        QueueProgress { taken: self.taken, limit: self.managed.0 }
    }

    /// Returns a private copy of the next receive, which stays in the queue.
    #[must_use]
    // This function is inlined for the same reason as the `peek` of a send queue.
    #[inline(always)]
    pub fn peek(&self) -> Option<ReceiveRequest> {
        let (offset, lap) = self.ring.slot(self.taken, RECEIVE_BYTES);
        if !self.managed.admits(self.taken, || self.ring.memory.load(offset + 24) == lap) {
            return None;
        }
        Some(decode_receive(&self.ring.memory.load_words(offset)))
    }

    /// Fetches the receive `ahead` places on, for later.
    #[inline]
    pub fn prefetch(&self, ahead: u64) {
        let (offset, _) = self.ring.slot(self.taken + ahead, RECEIVE_BYTES);
        self.ring.memory.prefetch(offset, 1);
    }

    /// Takes the next receive off.
    pub fn advance(&mut self) {
        self.taken += 1;
    }

    /// Discards the posted receives: at most one ring's worth.
    pub fn discard(&mut self) {
        if self.managed.reset() {
            self.taken = 0;
            return;
        }
        for _ in 0..self.ring.depth() {
            if self.peek().is_none() {
                break;
            }
            self.taken += 1;
        }
    }
}

/// The NIC's end of a completion queue.
#[derive(Clone, Debug)]
pub struct CompletionPoster<M> {
    ring: Ring<M>,
    cell: u64,
    posted: u64,
    polled: u64,
}

impl<M: Bytes> CompletionPoster<M> {
    /// Makes the NIC's end of an empty queue. The polling end counts in the word at `cell`.
    #[must_use]
    pub fn new(ring: Ring<M>, cell: u64) -> Self {
        Self { ring, cell, posted: 0, polled: 0 }
    }

    /// Whether `entries` more fit. A polling end that does not poll, or writes a wrong count, stops only its own queue.
    #[inline]
    pub fn has_room(&mut self, entries: u64) -> bool {
        self.posted + entries - self.polled <= self.ring.depth() || self.has_room_after_look(entries)
    }

    /// Whether `entries` more fit, after a reading of the polling end's progress.
    #[cold]
    fn has_room_after_look(&mut self, entries: u64) -> bool {
        let depth = self.ring.depth();
        let claimed = self.ring.memory.load(self.cell);
        if claimed > self.polled && claimed <= self.posted {
            self.polled = claimed;
        }
        self.posted + entries - self.polled <= depth
    }

    /// Writes a completion. The caller has checked that there is room.
    pub fn post(&mut self, completion: &Completion, taken: u64) {
        let (offset, lap) = self.ring.slot(self.posted, COMPLETION_BYTES);
        self.ring.memory.store_words(offset, encode_completion(completion, taken));
        self.ring.memory.store(offset + 24, lap);
        self.posted += 1;
    }
}

/// The polling end of a completion queue.
#[derive(Clone, Debug)]
pub struct CompletionPoller<M> {
    ring: Ring<M>,
    cell: u64,
    polled: u64,
}

impl<M: Bytes> CompletionPoller<M> {
    /// Makes the polling end of an empty queue.
    #[must_use]
    pub fn new(ring: Ring<M>, cell: u64) -> Self {
        Self { ring, cell, polled: 0 }
    }

    /// Whether a completion waits.
    #[must_use]
    pub fn waiting(&self) -> bool {
        let (offset, lap) = self.ring.slot(self.polled, COMPLETION_BYTES);
        self.ring.memory.load(offset + 24) == lap
    }

    /// Takes the next completion and, for send queues, the lower half of the number of requests that the NIC has taken.
    #[inline]
    pub fn take(&mut self) -> Option<(Completion, u32)> {
        let (offset, lap) = self.ring.slot(self.polled, COMPLETION_BYTES);
        if self.ring.memory.load(offset + 24) != lap {
            return None;
        }
        let words = self.ring.memory.load_words(offset);
        self.polled += 1;
        Some(decode_completion(&words))
    }

    /// Publishes to the NIC the number of completions that were polled. One call after a run of
    /// [`CompletionPoller::take`] is enough.
    pub fn publish(&self) {
        self.ring.memory.store(self.cell, self.polled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_memory::Mapping;
    use portcullis_nic::{Lkey, LocalSpan};

    fn memory() -> Mapping {
        Mapping::private(4096).expect("a page")
    }

    #[test]
    #[should_panic(expected = "a send queue lies in its memory")]
    fn a_ring_that_is_too_short_for_requests_is_no_send_queue() {
        let depth = u32::try_from(4096 / RECEIVE_BYTES).expect("a few");
        let _ = SendPoster::new(Ring::new(memory(), 0, depth));
    }

    #[test]
    fn receives_that_nobody_posted_do_not_complete() {
        let mut poster = ReceivePoster::new(Ring::new(memory(), 0, 4));
        poster.retire();
        let local = LocalSpan { address: 0, length: 0, lkey: Lkey(0) };
        assert_eq!(poster.post(&[ReceiveRequest { id: 1, local }; 6]), 4, "as many as it holds");
        poster.retire();
        assert_eq!(poster.post(&[ReceiveRequest { id: 1, local }; 6]), 1);
    }
}
