//! The requests that were posted to a queue and have not completed.
//!
//! libibverbs does not report the room that a queue has, so the queue's owner has to count. A slot is free again once
//! the completion of its request, or of a later one, was polled.

use std::collections::VecDeque;

/// Positions that completions distinguish: far more than any queue holds.
const POSITIONS: u32 = 1 << 24;

/// The requests under way in one queue, oldest first.
#[derive(Debug)]
pub(crate) struct InFlightRequests<T> {
    entries: VecDeque<T>,
    /// The position of the oldest request.
    first: u32,
    depth: usize,
}

impl<T> InFlightRequests<T> {
    pub fn new(depth: u32) -> Self {
        Self { entries: VecDeque::new(), first: 0, depth: depth as usize }
    }

    /// Number of further requests that the queue accepts.
    pub fn room(&self) -> usize {
        self.depth - self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Records a request and returns its position, which its completion has to name. The queue must have room.
    pub fn enter(&mut self, entry: T) -> u32 {
        let ahead = u32::try_from(self.entries.len()).unwrap_or(0);
        self.entries.push_back(entry);
        (self.first + ahead) % POSITIONS
    }

    /// Removes the newest request, which the device did not accept.
    pub fn withdraw(&mut self) -> Option<T> {
        self.entries.pop_back()
    }

    /// Completes the request at `position`. Passes first the earlier requests, which have succeeded, and then this one
    /// to `report`. The flag marks the named request. An unknown position has no effect.
    pub fn complete(&mut self, position: u32, mut report: impl FnMut(T, bool)) {
        let ahead = (position + POSITIONS - self.first) % POSITIONS;
        let Ok(ahead) = usize::try_from(ahead) else { return };
        if ahead >= self.entries.len() {
            return;
        }
        for (at, entry) in self.entries.drain(..=ahead).enumerate() {
            report(entry, at == ahead);
        }
        self.first = (position + 1) % POSITIONS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_completion_reports_those_before_it_too() {
        let mut requests = InFlightRequests::new(4);
        let positions: Vec<u32> = ['a', 'b', 'c'].into_iter().map(|it| requests.enter(it)).collect();
        let mut reported = Vec::new();
        requests.complete(positions[1], |entry, named| reported.push((entry, named)));
        assert_eq!(reported, [('a', false), ('b', true)]);
        assert_eq!(requests.room(), 3);
    }

    #[test]
    fn a_position_is_reported_once() {
        let mut requests = InFlightRequests::new(2);
        let position = requests.enter('a');
        requests.complete(position, |_, _| {});
        requests.complete(position, |_, _| panic!("nothing is left to report"));
    }

    proptest! {
        #[test]
        fn every_request_is_reported_once_and_in_order(
            steps in prop::collection::vec((any::<bool>(), 0_usize..8), 1..400), start in 0..POSITIONS,
        ) {
            let mut requests = InFlightRequests { entries: VecDeque::new(), first: start, depth: 8 };
            let (mut posted, mut reported) = (Vec::new(), Vec::new());
            for (post, which) in steps {
                if post && requests.room() > 0 {
                    posted.push(requests.enter(posted.len()));
                } else if let Some(&position) = posted.get(reported.len() + which) {
                    requests.complete(position, |entry, _| reported.push(entry));
                }
                prop_assert_eq!(requests.room(), 8 - (posted.len() - reported.len()));
            }
            prop_assert!(reported.iter().copied().eq(0..reported.len()));
        }
    }
}
