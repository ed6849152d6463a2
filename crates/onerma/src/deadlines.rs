//! The deadlines of command slots, the earliest first.

use crate::initiator::SlotId;
use std::time::Duration;

/// Deadlines as a linked list in an array with an entry for each slot. Deadlines nearly always arrive in order, so a
/// new one is added at the end, and any can be removed in constant time.
#[derive(Debug)]
pub(crate) struct Deadlines {
    entries: Vec<Option<DeadlineEntry>>,
    first: Option<SlotId>,
    last: Option<SlotId>,
}

#[derive(Clone, Copy, Debug)]
struct DeadlineEntry {
    deadline: Duration,
    before: Option<SlotId>,
    after: Option<SlotId>,
}

impl Deadlines {
    /// Creates an empty list with room for one deadline of each slot.
    pub fn new(slots: u32) -> Self {
        Self { entries: vec![None; slots as usize], first: None, last: None }
    }

    /// Returns the earliest deadline with its slot.
    pub fn first(&self) -> Option<(Duration, SlotId)> {
        self.first.map(|slot| (self.entry(slot).deadline, slot))
    }

    /// Sets a slot's deadline, and replaces the one that it may have.
    pub fn set(&mut self, slot: SlotId, deadline: Duration) {
        self.remove(slot);
        let (mut before, mut after) = (self.last, None);
        while let Some(other) = before
            && self.entry(other).deadline > deadline
        {
            (before, after) = (self.entry(other).before, Some(other));
        }
        self.entries[slot.0 as usize] = Some(DeadlineEntry { deadline, before, after });
        self.join(before, Some(slot));
        self.join(Some(slot), after);
    }

    /// Removes a slot's deadline, if it has one.
    pub fn remove(&mut self, slot: SlotId) {
        if let Some(DeadlineEntry { before, after, .. }) = self.entries[slot.0 as usize].take() {
            self.join(before, after);
        }
    }

    /// Links two entries as neighbours. `None` is the end of the list.
    fn join(&mut self, before: Option<SlotId>, after: Option<SlotId>) {
        match before {
            Some(slot) => self.entry_mut(slot).after = after,
            None => self.first = after,
        }
        match after {
            Some(slot) => self.entry_mut(slot).before = before,
            None => self.last = before,
        }
    }

    fn entry(&self, slot: SlotId) -> &DeadlineEntry {
        self.entries[slot.0 as usize].as_ref().expect("an entry of the list has a place")
    }

    fn entry_mut(&mut self, slot: SlotId) -> &mut DeadlineEntry {
        self.entries[slot.0 as usize].as_mut().expect("an entry of the list has a place")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn the_earliest_comes_first(changes in prop::collection::vec((0u32..8, prop::option::of(0u64..20)), 0..60)) {
            let (mut deadlines, mut expected) = (Deadlines::new(8), BTreeMap::new());
            for (slot, deadline) in changes {
                match deadline {
                    Some(deadline) => {
                        deadlines.set(SlotId(slot), Duration::from_secs(deadline));
                        expected.insert(slot, deadline);
                    }
                    None => {
                        deadlines.remove(SlotId(slot));
                        expected.remove(&slot);
                    }
                }
                let earliest = expected.values().min().map(|&it| Duration::from_secs(it));
                prop_assert_eq!(deadlines.first().map(|it| it.0), earliest);
            }
            let mut before = Duration::ZERO;
            while let Some((deadline, slot)) = deadlines.first() {
                prop_assert!(before <= deadline);
                before = deadline;
                deadlines.remove(slot);
                prop_assert_eq!(expected.remove(&slot.0).map(Duration::from_secs), Some(deadline));
            }
            prop_assert!(expected.is_empty());
        }
    }
}
