//! When permissions end. Knows deadlines and nothing else: whether a permission still lives, and whether its holder
//! has extended it, is the caller's to look up.

use portcullis_protocol::Moment;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Entries that [`Leases`] may hold beyond twice the live permissions, before it is worth going through them.
const STALE_SLACK: usize = 1024;

/// A permission's end, as scheduled. The start tells it from the permission that used the slot before or after.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lease {
    deadline: Moment,
    start: Moment,
    slot: u32,
}

/// Reversed, since the standard heap gives the greatest first.
impl Ord for Lease {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |lease: &Self| (lease.deadline, lease.start, lease.slot);
        key(other).cmp(&key(self))
    }
}

impl PartialOrd for Lease {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Deadlines, earliest first.
///
/// A revoked permission's entry stays until its deadline or until [`purge`](Self::purge): most permissions are
/// revoked, and taking an entry out of the middle costs more than passing over it.
#[derive(Default)]
pub(crate) struct Leases {
    heap: BinaryHeap<Lease>,
}

impl Leases {
    /// The permission in `slot` that began at `start` ends at `deadline`, as far as is known now.
    pub(crate) fn schedule(&mut self, deadline: Moment, slot: u32, start: Moment) {
        self.heap.push(Lease { deadline, start, slot });
    }

    /// Takes out an entry whose deadline has come. The caller compares the start: another means that the entry is
    /// stale.
    pub(crate) fn due(&mut self, now: Moment) -> Option<(u32, Moment)> {
        if self.heap.peek()?.deadline > now {
            return None;
        }
        self.heap.pop().map(|lease| (lease.slot, lease.start))
    }

    /// The earliest deadline, be it a stale one.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.heap.peek().map(|lease| lease.deadline)
    }

    /// Entries, stale ones among them.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether stale entries outnumber the `live` permissions, so that [`purge`](Self::purge) pays off: called
    /// then, it costs a constant time per entry ever scheduled.
    pub(crate) fn is_crowded(&self, live: usize) -> bool {
        self.heap.len() > live.saturating_mul(2).saturating_add(STALE_SLACK)
    }

    /// Drops the entries that `is_live` says no to, given their slot and start.
    pub(crate) fn purge(&mut self, mut is_live: impl FnMut(u32, Moment) -> bool) {
        self.heap.retain(|lease| is_live(lease.slot, lease.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_due_once_each_in_order_and_never_early(
            deadlines in prop::collection::vec(0u64..1000, 0..200),
        ) {
            let mut leases = Leases::default();
            for (slot, deadline) in (0..).zip(&deadlines) {
                leases.schedule(Moment(*deadline), slot, Moment(u64::from(slot)));
            }
            let mut seen = Vec::new();
            while let Some(now) = leases.next() {
                if now.0 > 0 {
                    prop_assert_eq!(leases.due(Moment(now.0 - 1)), None);
                }
                let (slot, start) = leases.due(now).expect("its deadline has come");
                prop_assert_eq!(u64::from(slot), start.0);
                prop_assert_eq!(deadlines[slot as usize], now.0);
                seen.push((now, slot));
            }
            prop_assert!(seen.is_sorted());
            prop_assert_eq!(seen.len(), deadlines.len());
        }
    }

    #[test]
    fn revoked_permissions_do_not_pile_up() {
        let mut leases = Leases::default();
        let live = 10;
        let mut longest = 0;
        for start in 0..100_000 {
            leases.schedule(Moment(start + 1_000_000), 0, Moment(start));
            if leases.is_crowded(live) {
                leases.purge(|_, since| since.0 + 10 > start);
                assert_eq!(leases.len(), live);
            }
            longest = longest.max(leases.len());
        }
        assert_eq!(longest, 2 * live + STALE_SLACK);
    }

    #[test]
    fn a_lease_that_never_ends_is_never_due() {
        let mut leases = Leases::default();
        leases.schedule(Moment(u64::MAX), 1, Moment(0));
        assert_eq!(leases.due(Moment(u64::MAX - 1)), None);
    }
}
