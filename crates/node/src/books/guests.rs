//! Other tenants' permissions over shared objects, and their end: at once when the object is not shared any more, or a
//! little in each turn if there are many.

use super::Books;
use super::accounts::GuestKey;
use super::effects::OwedReply;
use super::pending_frees::PendingFrees;
use super::permissions::{Permission, PermissionSlot};
use super::pool::ObjectId;
use crate::audit::AuditEvent;
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{Moment, Refusal, Rights, TenantId};
use std::collections::VecDeque;

/// Reason that the permission of another tenant ended.
const NOT_SHARED: &str = "its object is not shared any more";

/// Guests that must not hold anything any more.
#[derive(Debug, Default)]
pub(crate) struct LeavingGuests {
    /// The guests in the order in which they leave. Some may have been removed by now.
    queue: VecDeque<GuestKey>,
    pending_frees: PendingFrees,
}

impl LeavingGuests {
    /// Whether no guest has to leave.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl<M: Memory> Books<M> {
    /// Notes that a guest may write into an object, if it has these rights over it.
    pub(super) fn note_guests_bytes(&mut self, object: ObjectId, rights: Rights) {
        let changes = rights.intersects(Rights::WRITE | Rights::ATOMIC);
        if changes && !planted!(GuestsBytesNotNoted) {
            self.pool.mix(object);
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
            return record.named.as_ref().map_or(0, |it| it.of_guests.permissions().fading());
        }
        let mut guests = record.guests().iter().map(|&it| self.accounts.guests.get(it));
        let own = guests.find(|it| it.tenant == tenant);
        record.permissions.fading() - own.map_or(0, |own| own.counts().permissions().fading())
    }

    /// Forgets a guest that holds nothing and waits for nothing. Does nothing otherwise.
    pub(super) fn forget_guest_if_gone(&mut self, guest: GuestKey) {
        let Some(it) = self.accounts.remove_guest_if_gone(guest, &mut self.pool.slabs) else { return };
        if let Some(pending_free) = it.pending_free {
            for owed in self.leaving.pending_frees.one_gone(pending_free) {
                self.handle_settled(owed);
            }
        }
        if self.accounts.tenants.get(it.owner).guests() == 0 {
            self.look_at_if_deserted(it.owner);
        }
    }

    /// Makes guests leave: from now on they hold their permissions only until these can be ended. The `owed` reply is
    /// sent once none is left.
    pub(super) fn show_out(&mut self, guests: &[GuestKey], owed: Option<OwedReply>) {
        let pending_free = match owed {
            Some(owed) if guests.is_empty() => return self.handle_settled(owed),
            Some(owed) => {
                let pending_free = self.leaving.pending_frees.begin(guests.len());
                self.leaving.pending_frees.owe(pending_free, owed);
                Some(pending_free)
            }
            None => None,
        };
        for &guest in guests {
            let it = self.accounts.guests.get_mut(guest);
            it.pending_free = pending_free;
            let object = it.object;
            self.pool.slabs.get_mut(object).named().guests.retain(|other| *other != guest);
            self.leaving.queue.push_back(guest);
        }
    }

    /// Continues to end the permissions and requests of guests that have to leave, as far as this turn's steps allow.
    pub(super) fn end_leaving(&mut self, now: Moment) {
        while self.steps_left > 0
            && let Some(&guest) = self.leaving.queue.front()
        {
            let Some(it) = self.accounts.guests.find(guest) else {
                self.leaving.queue.pop_front();
                continue;
            };
            let (first, waits) = (it.first(), it.counts().waits());
            match first {
                Some(permission) => self.take_from_guest(guest, permission, now),
                None if waits > 0 => self.turn_away(guest, now),
                // The remaining protection is taken down without more work here.
                None => {
                    self.leaving.queue.pop_front();
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
            self.accounts.guests.get_mut(guest).unlink(permission, &mut self.permissions);
            self.permissions.get_mut(permission).uninvited = true;
        }
    }

    /// Refuses the first waiting request of a guest that has to leave.
    fn turn_away(&mut self, guest: GuestKey, now: Moment) {
        self.take_step();
        let object = self.accounts.guests.get(guest).object;
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
