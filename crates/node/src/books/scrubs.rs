//! Zeroes memory that another tenant used, a little in each turn. The next owner gets the memory only after that.

use super::Books;
use super::permissions::PermissionSlot;
use super::pool::ObjectId;
use portcullis_nic::Memory;
use portcullis_protocol::Moment;
use std::collections::VecDeque;

/// Bytes that one turn zeroes: about a microsecond's worth, for which all clients' next operations wait.
const BYTES_PER_TURN: u64 = 16 << 10;

/// Objects that are being zeroed, by their first permissions, which wait for that.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    /// Each permission with the number of bytes that are zero already.
    waiting: VecDeque<(PermissionSlot, u64)>,
    /// Number of bytes that this turn may still zero.
    bytes_left: u64,
}

impl Scrubs {
    /// Begins a turn.
    pub fn begin_turn(&mut self) {
        self.bytes_left = BYTES_PER_TURN;
    }

    /// Takes out the permissions for which `is_meant` holds.
    pub fn take(&mut self, is_meant: impl Fn(PermissionSlot) -> bool) -> Vec<PermissionSlot> {
        let meant = |&(permission, _): &(PermissionSlot, u64)| is_meant(permission);
        let taken = self.waiting.iter().filter(|it| meant(it)).map(|&(permission, _)| permission).collect();
        self.waiting.retain(|it| !meant(it));
        taken
    }
}

impl<M: Memory> Books<M> {
    /// Zeroes an object, if this turn has bytes left for it. Returns whether it did.
    pub(super) fn scrub_at_once(&mut self, object: ObjectId) -> bool {
        let bytes = self.pool.slabs.capacity(object).max(self.pool.slabs.size(object));
        let Some(left) = self.scrubs.bytes_left.checked_sub(bytes) else { return false };
        self.pool.zero(object, 0, bytes);
        self.scrubs.bytes_left = left;
        true
    }

    /// Zeroes an object in later turns. `permission` is the first one over it.
    pub(super) fn scrub_later(&mut self, permission: PermissionSlot, object: ObjectId) {
        self.pool.slabs.get_mut(object).scrubbing = true;
        self.scrubs.waiting.push_back((permission, 0));
    }

    /// Continues to zero objects in which other tenants' bytes may lie, as far as this turn allows.
    pub fn scrub(&mut self, now: Moment) -> bool {
        if self.scrubs.bytes_left == 0 {
            return !self.scrubs.waiting.is_empty();
        }
        let Some((slot, done)) = self.scrubs.waiting.pop_front() else { return false };
        let object = self.permissions.get(slot).object;
        let size = self.pool.slabs.size(object);
        let part = (size - done).min(self.scrubs.bytes_left);
        self.scrubs.bytes_left -= part;
        self.pool.zero(object, done, part);
        if done + part < size {
            self.scrubs.waiting.push_back((slot, done + part));
        } else {
            self.pool.slabs.get_mut(object).scrubbing = false;
            self.permissions.start_now(slot, now);
            self.expose(slot);
            // Requests that may share the object with its first holder need not wait for that holder's end.
            self.serve_waiters(object, now);
        }
        true
    }
}
