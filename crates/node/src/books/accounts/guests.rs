//! The tenants that hold, or wait for, permissions over objects of other tenants.

use super::counts::GuestCounts;
use crate::books::pending_frees::PendingFreeKey;
use crate::books::permissions::{Chain, PermissionSlot, Permissions};
use crate::books::pool::ObjectId;
use portcullis_protocol::TenantId;
use portcullis_slots::{Key, Reuse, Slots};

/// Key of a [`Guest`]: of one tenant at one object of another tenant. A key is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GuestKey(u64);

impl Key for GuestKey {
    fn new(number: u32, generation: u32) -> Self {
        Self(u64::new(number, generation))
    }

    fn number(self) -> u32 {
        self.0.number()
    }

    fn generation(self) -> Option<u32> {
        self.0.generation()
    }
}

/// A tenant that holds, or waits for, permissions over an object of another tenant.
#[derive(Debug)]
pub(crate) struct Guest {
    pub object: ObjectId,
    /// The object's tenant.
    pub owner: TenantId,
    pub tenant: TenantId,
    /// The first of its permissions over the object.
    pub(super) first: PermissionSlot,
    pub(super) counts: GuestCounts,
    /// The reply that waits until the guest is removed.
    pub pending_free: Option<PendingFreeKey>,
}

impl Guest {
    /// A tenant that holds nothing of an object of `owner` yet.
    pub(super) fn new(object: ObjectId, owner: TenantId, tenant: TenantId) -> Self {
        let (first, counts) = (PermissionSlot::NONE, GuestCounts::default());
        Self { object, owner, tenant, first, counts, pending_free: None }
    }

    /// Returns the first of its permissions over the object.
    pub fn first(&self) -> Option<PermissionSlot> {
        self.first.some()
    }

    /// Returns the numbers of its permissions and of its waiting requests.
    pub fn counts(&self) -> GuestCounts {
        self.counts
    }

    /// Removes a permission, which is being set up, from the guest's list. It counts until it ends.
    pub fn unlink(&mut self, slot: PermissionSlot, permissions: &mut Permissions) {
        permissions.unlink(Chain::Guest, &mut self.first, slot);
    }

    /// Whether it holds nothing, and waits for nothing. Nothing that it held is exposed any more.
    pub(super) fn is_gone(&self) -> bool {
        self.counts.permissions.exposed() == 0 && self.counts.waits == 0
    }
}

/// All guests.
#[derive(Debug)]
pub(crate) struct Guests(pub(super) Slots<GuestKey, Guest>);

impl Default for Guests {
    fn default() -> Self {
        Self(Slots::new(Reuse::LatestFirst, u32::MAX))
    }
}

impl Guests {
    /// Returns a guest, unless it has been removed.
    pub fn find(&self, guest: GuestKey) -> Option<&Guest> {
        self.0.get(guest)
    }

    /// Returns a guest that still holds something, or waits.
    pub fn get(&self, guest: GuestKey) -> &Guest {
        &self.0[guest]
    }

    /// Returns a guest that still holds something, or waits, to be changed.
    pub fn get_mut(&mut self, guest: GuestKey) -> &mut Guest {
        &mut self.0[guest]
    }
}
