//! The permissions by which look-ups hold blocks.

use portcullis::{BarePermission, Lifetime, Moment};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A block that look-ups hold.
#[derive(Debug)]
struct Hold {
    permission: Rc<BarePermission>,
    length: u64,
    until: Moment,
    /// Number of reads for which the block is held: one for each look-up that has reported it.
    uses: u32,
}

/// The blocks that the look-ups of one handle hold.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks {
    holds: BTreeMap<Box<[u8]>, Hold>,
    /// Time of the next look for ended leases.
    next_look: Moment,
}

/// A permission that a look-up has left for one read.
pub(crate) struct Taken {
    pub permission: Rc<BarePermission>,
    /// Whether no other read waits for it: the caller revokes it.
    pub is_last: bool,
}

impl HeldBlocks {
    /// Number of blocks that are held.
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Holds a block for one more read if it is held until `least` or longer. Returns whether it is.
    pub fn hold_again(&mut self, key: &[u8], least: Moment) -> bool {
        let Some(hold) = self.holds.get_mut(key).filter(|hold| hold.until >= least) else { return false };
        hold.uses = hold.uses.saturating_add(1);
        true
    }

    /// Holds a block for one more read by a new permission. Returns the permission that held it before.
    pub fn hold(
        &mut self,
        key: &[u8],
        length: u64,
        permission: Rc<BarePermission>,
        until: Moment,
    ) -> Option<Rc<BarePermission>> {
        let before = self.holds.remove(key);
        let uses = before.as_ref().map_or(0, |before| before.uses).saturating_add(1);
        self.holds.insert(key.into(), Hold { permission, length, until, uses });
        before.map(|before| before.permission)
    }

    /// Takes the permission for a read of `length` bytes (`None`: of all) that is over before `least`. `None`: no
    /// look-up holds such a block for so long.
    pub fn take(&mut self, key: &[u8], length: Option<u64>, least: Moment) -> Option<(Taken, u64)> {
        let hold = self.holds.get_mut(key)?;
        if hold.until < least || length.is_some_and(|length| length != hold.length) {
            return None;
        }
        hold.uses -= 1;
        let (taken, length) =
            (Taken { permission: Rc::clone(&hold.permission), is_last: hold.uses == 0 }, hold.length);
        if taken.is_last {
            self.holds.remove(key);
        }
        Some((taken, length))
    }

    /// Whether a look-up of this handle holds the block.
    pub fn holds(&self, key: &[u8], now: Moment) -> bool {
        self.holds.get(key).is_some_and(|hold| hold.until > now)
    }

    /// Lets a block go: the key has another one now. Returns the permission.
    pub fn let_go(&mut self, key: &[u8]) -> Option<Rc<BarePermission>> {
        self.holds.remove(key).map(|hold| hold.permission)
    }

    /// Lets all blocks go. Returns the permissions.
    pub fn let_all_go(&mut self) -> Vec<Rc<BarePermission>> {
        std::mem::take(&mut self.holds).into_values().map(|hold| hold.permission).collect()
    }

    /// Forgets leases that have ended, at most once in a quarter of `lease`.
    pub fn forget_ended(&mut self, now: Moment, lease: Lifetime) {
        if now >= self.next_look {
            self.next_look = now.after(Lifetime(lease.0 / 4));
            self.holds.retain(|_, hold| hold.until > now);
        }
    }
}
