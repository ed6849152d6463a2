//! Future events, in order.

use crate::clock::Nanos;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Future events of any kind, ordered by time, then by insertion.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    count: u64,
}

/// An event with its place in the order.
#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event at this time in ns.
    pub fn put(&mut self, at: u64, event: E) {
        self.count += 1;
        self.heap.push(Entry { at, number: self.count, event });
    }

    /// Takes the next event, with its time in ns.
    #[expect(clippy::should_implement_trait, reason = "events can be put between two calls")]
    pub fn next(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }

    /// Takes the next event if its time is before `end`.
    pub fn next_before(&mut self, end: u64) -> Option<(u64, E)> {
        let is_before = self.heap.peek().is_some_and(|entry| entry.at < end);
        if is_before { self.next() } else { None }
    }
}

impl<E> Entry<E> {
    fn place(&self) -> (Nanos, u64) {
        (self.at, self.number)
    }
}

// The heap gives out its greatest entry first, and the queue its earliest event.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.place().cmp(&self.place())
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_insertion_and_none_at_the_end_itself() {
        let mut events = EventQueue::default();
        for (at, event) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b')] {
            events.put(at, event);
        }
        let first: Vec<_> = std::iter::from_fn(|| events.next_before(2)).collect();
        assert_eq!(first, [(1, 'a'), (1, 'b')]);
        // An event that is put back is behind the others of its time.
        let (at, event) = events.next().expect("an event is left");
        events.put(at, event);
        let rest: Vec<_> = std::iter::from_fn(|| events.next()).collect();
        assert_eq!(rest, [(2, 'd'), (2, 'c')]);
    }
}
