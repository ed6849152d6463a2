//! Future events, in order.

use crate::time::Nanos;
use std::collections::BTreeMap;

/// Future events, ordered by time, then by insertion.
#[derive(Debug)]
pub(crate) struct Events<E> {
    queue: BTreeMap<(Nanos, u64), E>,
    count: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { queue: BTreeMap::new(), count: 0 }
    }
}

impl<E> Events<E> {
    /// Adds an event.
    pub fn put(&mut self, at: Nanos, event: E) {
        self.count += 1;
        self.queue.insert((at, self.count), event);
    }

    /// Takes the next event, with its time.
    pub fn next(&mut self) -> Option<(Nanos, E)> {
        self.queue.pop_first().map(|((at, _), event)| (at, event))
    }

    /// Takes the next event if its time is before `end`.
    pub fn next_before(&mut self, end: Nanos) -> Option<(Nanos, E)> {
        let is_before = self.queue.first_key_value().is_some_and(|(&(at, _), _)| at < end);
        if is_before { self.next() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_insertion_and_none_at_the_end_itself() {
        let mut events = Events::default();
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
