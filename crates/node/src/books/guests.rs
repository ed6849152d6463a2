//! Other tenants' permissions over shared objects, and their end: at once when the object is not shared any more, or a
//! little in each turn if there are many.

use super::Books;
use super::effects::OwedReply;
use super::pending_frees::{PendingFreeKey, PendingFrees};
use super::permissions::{Chain, Permission, PermissionSlot};
use super::pool::ObjectId;
use crate::audit::AuditEvent;
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{Moment, Refusal, Rights, TenantId};
use portcullis_slots::{Key, Reuse, Slots};
use std::collections::VecDeque;

/// Reason that the permission of another tenant ended.
const NOT_SHARED: &str = "its object is not shared any more";

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
    owner: TenantId,
    pub tenant: TenantId,
    /// The first of its permissions over the object.
    pub first: PermissionSlot,
    /// Number of its permissions over the object.
    pub held: u32,
    /// Number of its permissions, including those that have ended and whose protection may still be up.
    pub exposed: u32,
    /// Number of its requests that wait for the object.
    pub waits: u32,
    /// The reply that waits until the guest is removed.
    pending_free: Option<PendingFreeKey>,
}

impl Guest {
    fn is_gone(&self) -> bool {
        self.exposed == 0 && self.waits == 0
    }
}

/// All guests.
#[derive(Debug)]
pub(crate) struct Guests {
    all: Slots<GuestKey, Guest>,
    pending_frees: PendingFrees,
    /// Guests that must not hold anything any more. Some may have been removed by now.
    leaving: VecDeque<GuestKey>,
}

impl Default for Guests {
    fn default() -> Self {
        Self {
            all: Slots::new(Reuse::LatestFirst, u32::MAX),
            pending_frees: PendingFrees::default(),
            leaving: VecDeque::new(),
        }
    }
}

impl Guests {
    /// Returns a guest that still holds something, or waits.
    pub fn get(&self, guest: GuestKey) -> &Guest {
        &self.all[guest]
    }

    /// Returns a guest that still holds something, or waits, to be changed.
    pub fn get_mut(&mut self, guest: GuestKey) -> &mut Guest {
        &mut self.all[guest]
    }

    /// Whether some guests have to leave.
    pub fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }
}

impl<M: Memory> Books<M> {
    /// Returns the guest for a tenant at an object that is shared with it. Makes it if there is none yet.
    pub(super) fn guest_at(&mut self, object: ObjectId, tenant: TenantId) -> GuestKey {
        let record = self.pool.slabs.get_mut(object);
        let known = record.guests().iter().copied().find(|&it| self.guests.get(it).tenant == tenant);
        if let Some(guest) = known {
            return guest;
        }
        let (owner, first) = (record.tenant, PermissionSlot::NONE);
        let guest = Guest { object, owner, tenant, first, held: 0, exposed: 0, waits: 0, pending_free: None };
        let guest = self.guests.all.insert(guest);
        record.named().guests.push(guest);
        self.tenants.get_mut(owner).guests += 1;
        guest
    }

    /// Counts a guest's permission, which starts.
    pub(super) fn start_as_guest(&mut self, guest: GuestKey, slot: PermissionSlot) {
        let it = self.guests.get_mut(guest);
        (it.held, it.exposed) = (it.held + 1, it.exposed + 1);
        self.permissions.link(Chain::Guest, &mut it.first, slot);
        let permission = self.permissions.get(slot);
        let record = self.pool.slabs.get_mut(permission.object);
        let named = record.named();
        named.holders += 1;
        named.exposed += 1;
        let changes = permission.rights.intersects(Rights::WRITE | Rights::ATOMIC);
        if changes && !planted!(GuestsBytesNotNoted) {
            self.pool.mix(permission.object);
        }
    }

    /// Returns the tenant in whose protection domain a permission is set up: its holder's, whichever tenant owns the
    /// object.
    pub(super) fn domain_of(&self, permission: &Permission) -> TenantId {
        if planted!(GuestInOwnersDomain) {
            return self.pool.slabs.get(permission.object).tenant;
        }
        permission.tenant
    }

    /// Returns the number of permissions over an object that have ended and whose protection may still be up, except
    /// for those of `tenant`.
    pub(super) fn fading_beside(&self, object: ObjectId, tenant: TenantId) -> u32 {
        let record = self.pool.slabs.get(object);
        if record.tenant == tenant {
            return record.named.as_ref().map_or(0, |it| it.exposed - it.holders);
        }
        let own = record.guests().iter().map(|&it| self.guests.get(it)).find(|it| it.tenant == tenant);
        (record.exposed - record.holders) - own.map_or(0, |own| own.exposed - own.held)
    }

    /// Handles the end of the protection of a guest's permission.
    pub(super) fn handle_guest_withdrawn(&mut self, guest: GuestKey) {
        let it = self.guests.get_mut(guest);
        it.exposed -= 1;
        let object = it.object;
        self.pool.slabs.get_mut(object).named().exposed -= 1;
        self.forget_guest_if_gone(guest);
    }

    /// Forgets a guest that holds nothing and waits for nothing. Does nothing otherwise.
    pub(super) fn forget_guest_if_gone(&mut self, guest: GuestKey) {
        if !self.guests.all.get(guest).is_some_and(Guest::is_gone) {
            return;
        }
        let it = self.guests.all.remove(guest).expect("it was just there");
        self.pool.slabs.get_mut(it.object).named().guests.retain(|&other| other != guest);
        if let Some(pending_free) = it.pending_free {
            for owed in self.guests.pending_frees.one_gone(pending_free) {
                self.handle_settled(owed);
            }
        }
        let owner = self.tenants.get_mut(it.owner);
        owner.guests -= 1;
        if owner.guests == 0 {
            self.look_at_if_deserted(it.owner);
        }
    }

    /// Makes guests leave: from now on they hold their permissions only until these can be ended. The `owed` reply is
    /// sent once none is left.
    pub(super) fn show_out(&mut self, guests: &[GuestKey], owed: Option<OwedReply>) {
        let pending_free = match owed {
            Some(owed) if guests.is_empty() => return self.handle_settled(owed),
            Some(owed) => {
                let pending_free = self.guests.pending_frees.begin(guests.len());
                self.guests.pending_frees.owe(pending_free, owed);
                Some(pending_free)
            }
            None => None,
        };
        for &guest in guests {
            let it = self.guests.get_mut(guest);
            it.pending_free = pending_free;
            let object = it.object;
            self.pool.slabs.get_mut(object).named().guests.retain(|other| *other != guest);
            self.guests.leaving.push_back(guest);
        }
    }

    /// Continues to end the permissions and requests of guests that have to leave, as far as this turn's steps allow.
    pub(super) fn end_leaving(&mut self, now: Moment) {
        while self.steps_left > 0
            && let Some(&guest) = self.guests.leaving.front()
        {
            let Some(it) = self.guests.all.get(guest) else {
                self.guests.leaving.pop_front();
                continue;
            };
            let (first, waits) = (it.first.some(), it.waits);
            match first {
                Some(permission) => self.take_from_guest(guest, permission, now),
                None if waits > 0 => self.turn_away(guest, now),
                // The remaining protection is taken down without more work here.
                None => {
                    self.guests.leaving.pop_front();
                }
            }
        }
    }

    /// Ends a permission of a guest that has to leave.
    fn take_from_guest(&mut self, guest: GuestKey, permission: PermissionSlot, now: Moment) {
        self.take_step();
        if self.permissions.get(permission).is_live() {
            self.finish(permission, AuditEvent::Revoke, Some(NOT_SHARED), None, now);
        } else {
            // The permission is being set up: it ends once the NIC has confirmed it.
            self.permissions.unlink(Chain::Guest, &mut self.guests.get_mut(guest).first, permission);
            self.permissions.get_mut(permission).uninvited = true;
        }
    }

    /// Refuses the first waiting request of a guest that has to leave.
    fn turn_away(&mut self, guest: GuestKey, now: Moment) {
        self.take_step();
        let object = self.guests.get(guest).object;
        let waiting = &self.pool.slabs.get(object).waiting;
        let is_its = |&waiter: &_| self.postponed.get(waiter).wish.guest == Some(guest);
        let at = waiting.iter().position(is_its).expect("it has requests that wait for the object");
        let waiter = waiting[at];
        self.charge_claims(at);
        let waiter = self.drop_waiter(waiter);
        self.refuse(waiter.wish.from, Refusal::Gone);
        self.pass_waiter(&waiter, now);
    }

    /// Returns the reason to end a permission that was being set up, if its tenant has to leave the object or the
    /// object was freed.
    pub(super) fn reason_if_unwanted(&self, permission: PermissionSlot) -> Option<&'static str> {
        let it = self.permissions.get(permission);
        let freed = self.pool.is_freed(it.object).then_some(super::freeing::FREED);
        if it.uninvited { Some(NOT_SHARED) } else { freed }
    }
}
