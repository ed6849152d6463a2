//! Replies that wait until several objects are removed.

use super::effects::OwedReply;
use portcullis_slots::{Reuse, Slots};

/// The key of a [`PendingFree`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PendingFreeKey(u32);

portcullis_slots::number_key!(PendingFreeKey);

/// A group of objects for whose end replies wait.
#[derive(Debug, Default)]
struct PendingFree {
    /// Number of its objects that still exist.
    left: usize,
    /// Replies that are due when no object is left.
    owed: Vec<OwedReply>,
}

/// Groups of objects for whose end replies wait. The replies are due when the last object of a group is removed.
#[derive(Debug)]
pub(crate) struct PendingFrees(Slots<PendingFreeKey, PendingFree>);

impl Default for PendingFrees {
    fn default() -> Self {
        Self(Slots::new(Reuse::LatestFirst, u32::MAX))
    }
}

impl PendingFrees {
    /// Adds a group of `left` objects. More may be added to the group until the last of them is removed.
    pub fn begin(&mut self, left: usize) -> PendingFreeKey {
        self.0.insert(PendingFree { left, owed: Vec::new() })
    }

    /// Adds one object to a group.
    pub fn add(&mut self, pending_free: PendingFreeKey) {
        self.0[pending_free].left += 1;
    }

    /// Adds a reply, which is due when all objects of the group are removed.
    pub fn owe(&mut self, pending_free: PendingFreeKey, owed: OwedReply) {
        self.0[pending_free].owed.push(owed);
    }

    /// Removes one object from its group, because it does not exist any more. Returns the replies that are due now.
    pub fn one_gone(&mut self, pending_free: PendingFreeKey) -> Vec<OwedReply> {
        let it = &mut self.0[pending_free];
        it.left -= 1;
        if it.left > 0 {
            return Vec::new();
        }
        self.0.remove(pending_free).expect("it was just there").owed
    }
}
