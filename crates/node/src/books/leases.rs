//! The deadlines of permissions. This module knows only deadlines: the caller looks up whether a holder has extended
//! its permission.

use portcullis_protocol::Moment;

/// «No place» in the heap.
const NONE: u32 = u32::MAX;

/// The scheduled end of the permission or request in one of the caller's slots.
#[derive(Clone, Copy, Debug)]
struct Lease {
    deadline: Moment,
    /// Start of the lease. Among equal deadlines, the earlier start goes first.
    start: Moment,
    slot: u32,
}

impl Lease {
    /// Whether this lease goes first. Deadline and start are compared as one number, without a branch between them that
    /// the processor would have to predict.
    fn is_before(&self, other: &Self) -> bool {
        let key = |lease: &Self| u128::from(lease.deadline.0) << 64 | u128::from(lease.start.0);
        (key(self), self.slot) < (key(other), other.slot)
    }
}

/// Deadlines, earliest first, one for each slot.
///
/// The type is a binary heap that knows the place of each slot's lease. Most permissions are revoked long before their
/// deadlines. If their leases stayed, removing them all now and then would stop all clients meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    heap: Vec<Lease>,
    /// Place of each slot's lease in the heap.
    places: Vec<u32>,
}

impl Leases {
    /// Schedules the end of a slot's lease, which began at `start`, at `deadline`. A later call may change the
    /// deadline.
    pub(crate) fn schedule(&mut self, deadline: Moment, slot: u32, start: Moment) {
        let lease = Lease { deadline, start, slot };
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, NONE);
        }
        let place = match self.places[slot as usize] {
            NONE => {
                self.heap.push(lease);
                self.heap.len() - 1
            }
            place => {
                self.heap[place as usize] = lease;
                place as usize
            }
        };
        self.settle(place);
    }

    /// Forgets a slot's lease, which has ended.
    pub(crate) fn forget(&mut self, slot: u32) {
        let Some(&place) = self.places.get(slot as usize).filter(|&&place| place != NONE) else { return };
        self.places[slot as usize] = NONE;
        self.heap.swap_remove(place as usize);
        if (place as usize) < self.heap.len() {
            self.settle(place as usize);
        }
    }

    /// Takes out a lease whose deadline has passed, and returns its slot.
    pub(crate) fn due(&mut self, now: Moment) -> Option<u32> {
        let slot = self.heap.first().filter(|lease| lease.deadline <= now)?.slot;
        self.forget(slot);
        Some(slot)
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.heap.first().map(|lease| lease.deadline)
    }

    /// Moves the lease at `place` to its place in the heap.
    fn settle(&mut self, mut place: usize) {
        let lease = self.heap[place];
        while place > 0
            && let above = (place - 1) / 2
            && lease.is_before(&self.heap[above])
        {
            self.put(place, self.heap[above]);
            place = above;
        }
        loop {
            let below = 2 * place + 1;
            let Some(&left) = self.heap.get(below) else { break };
            let (below, least) = match self.heap.get(below + 1) {
                Some(&right) if right.is_before(&left) => (below + 1, right),
                _ => (below, left),
            };
            if !least.is_before(&lease) {
                break;
            }
            self.put(place, least);
            place = below;
        }
        self.put(place, lease);
    }

    fn put(&mut self, place: usize, lease: Lease) {
        self.heap[place] = lease;
        // There are at most as many leases as slots, which are numbered in 32 bits.
        self.places[lease.slot as usize] = u32::try_from(place).unwrap_or(NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn leases_come_due_once_each_in_order_and_never_early(
            steps in prop::collection::vec((0u8..4, 0u32..40, 0u64..1000), 0..300),
        ) {
            let mut leases = Leases::default();
            let mut model: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            for (start, (choice, slot, time)) in (0..).zip(steps) {
                match choice {
                    0 | 1 => {
                        leases.schedule(Moment(time), slot, Moment(start));
                        model.insert(slot, (time, start));
                    }
                    2 => {
                        leases.forget(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        let first = model.iter().map(|(&slot, &key)| (key, slot)).min();
                        let due = first.filter(|&((deadline, _), _)| deadline <= time).map(|(_, slot)| slot);
                        prop_assert_eq!(leases.due(Moment(time)), due);
                        due.and_then(|slot| model.remove(&slot));
                    }
                }
                prop_assert_eq!(leases.heap.len(), model.len());
                prop_assert_eq!(leases.next(), model.values().map(|&(deadline, _)| Moment(deadline)).min());
            }
        }
    }

    #[test]
    fn revoked_permissions_leave_nothing_behind() {
        let mut leases = Leases::default();
        for start in 0..100_000 {
            leases.schedule(Moment(start + 1_000_000), 7, Moment(start));
            leases.forget(7);
            leases.forget(8);
        }
        assert_eq!((leases.heap.len(), leases.next()), (0, None));
    }

    #[test]
    fn a_lease_that_never_ends_is_never_due() {
        let mut leases = Leases::default();
        leases.schedule(Moment(u64::MAX), 1, Moment(0));
        assert_eq!(leases.due(Moment(u64::MAX - 1)), None);
    }
}
