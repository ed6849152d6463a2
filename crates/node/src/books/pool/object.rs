//! An object's record: who holds it, who waits for it.

use crate::books::permissions::PermissionSlot;
use crate::books::postponed::WaiterSlot;
use portcullis_protocol::{Keep, TenantId};
use std::collections::VecDeque;

/// What the node keeps about an object beside its place.
#[derive(Debug)]
pub(crate) struct Object {
    pub tenant: TenantId,
    /// Its place in its tenant's list.
    pub listed: u32,
    /// Which object of this run of the node it is: see [`portcullis_protocol::ObjectRef`].
    pub birth: u64,
    /// What it outlives.
    pub keep: Keep,
    /// A client has been told its reference. Until then nobody can ask for it to be kept or to go.
    pub told: bool,
    /// Its last permission has ended: it goes when no window exposes it any more.
    pub going: bool,
    /// The header hole before its buffer is in use.
    pub hole_used: bool,
    /// The permission whose header is in the hole.
    pub hole_slot: PermissionSlot,
    /// Permissions over it whose protection is not known to be down: until then its memory is not used again.
    pub exposed: u32,
    pub holders: u32,
    /// Holders among them that share it with nobody.
    pub exclusive: u32,
    /// Somebody has asked for a part of it: holders and waiters may get along beside each other.
    pub divided: bool,
    /// The first of its holders.
    pub first: PermissionSlot,
    /// Requests that wait for it, first come first served.
    pub waiting: VecDeque<WaiterSlot>,
    /// Some of them may be let in, and a later turn does.
    pub put_off: bool,
    /// Its bytes are being zeroed; its first permission waits for that.
    pub scrubbing: bool,
}

impl Object {
    pub fn new(tenant: TenantId, birth: u64, keep: Keep) -> Self {
        Self {
            tenant,
            listed: 0,
            birth,
            keep,
            told: false,
            going: false,
            hole_used: false,
            hole_slot: PermissionSlot::NONE,
            exposed: 0,
            holders: 0,
            exclusive: 0,
            divided: false,
            first: PermissionSlot::NONE,
            waiting: VecDeque::new(),
            put_off: false,
            scrubbing: false,
        }
    }

    /// A request does not wait for it any more. Most often the one that has waited for longest.
    pub fn no_longer_waits(&mut self, waiter: WaiterSlot) {
        if let Some(at) = self.waiting.iter().position(|&other| other == waiter) {
            self.waiting.remove(at);
        }
    }

    /// How long it stays after its tenant's last client has gone, in µs, if it is kept: [`u64::MAX`] for as long as the
    /// node runs.
    pub fn kept_for(&self) -> Option<u64> {
        match self.keep {
            Keep::No => None,
            Keep::Attached => Some(0),
            Keep::For(time) => Some(time.0),
            Keep::Pinned => Some(u64::MAX),
        }
    }
}
