//! Start and end of permissions: the part of the books before and after the NIC's part.

use super::Books;
use super::effects::{Effect, Exposure, OwedReply, Residue, Withdrawal};
use super::permissions::{Origin, Permission, PermissionSlot, State};
use super::pool::{ObjectId, fits_beside, start_after};
use super::postponed::Parked;
use super::recent_keys::EndedKeys;
use super::requests::{RequestOrigin, Wish};
use crate::audit::AuditEvent;
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{
    Credential, Granted, Keep, LIFETIME_OFFSET, Lifetime, Mechanism, Moment, PermissionId, Refusal,
    RemoteAddress, ReplyBody,
};

/// Number of requests for memory that are retried at once. Requests that still have to wait then do so behind the
/// others.
const RETRIED_AT_ONCE: usize = 32;
/// Delay after which a permission that is still being set up at its deadline is checked again.
const LOOK_AGAIN: Lifetime = Lifetime::micros(10);

impl<M: Memory> Books<M> {
    /// Enters a new permission over `object` in the books. Its protection is not yet set up.
    pub(super) fn start(
        &mut self,
        wish: &Wish,
        object: ObjectId,
        origin: Origin,
        now: Moment,
    ) -> Result<PermissionSlot, Refusal> {
        let RequestOrigin { client, tenant, .. } = wish.from;
        self.accounts.check_permission(tenant)?;
        let beside = self.config.reductions.contiguity && fits_beside(wish.rights, wish.claim.extent.offset);
        let header = self.pool.take_header(object, beside)?;
        let start = start_after(self.pool.last_start(header), now);
        let id = PermissionId { header, start };
        let mut permission = Permission::new(id, object, (client, tenant), wish.rights, wish.claim, origin);
        permission.kind = wish.kind;
        permission.lifetime = wish.lifetime;
        permission.waited = start.since(wish.asked);
        permission.guest = wish.guest;
        let slot = self.permissions.insert(permission);
        self.accounts.hold(slot, &mut self.permissions, &mut self.pool.slabs);
        if wish.guest.is_some() {
            self.note_guests_bytes(object, wish.rights);
        }
        self.pool.note_header(header, object, slot);
        Ok(slot)
    }

    /// Requests the setup of a permission's protection with this turn's batch.
    pub(super) fn expose(&mut self, slot: PermissionSlot) {
        let it = self.permissions.get(slot);
        let (address, length) = self.pool.bytes_of(it);
        self.effects.push_back(Effect::Expose(Exposure {
            permission: slot,
            id: it.id,
            tenant: self.domain_of(it),
            client: it.client,
            object: it.object,
            rights: it.rights,
            address,
            length,
            lifetime: it.lifetime,
        }));
    }

    /// Ends a live permission. It leaves the books at once, and its protection is taken down with this turn's batch. An
    /// owed reply is sent once that is confirmed.
    pub(super) fn finish(
        &mut self,
        slot: PermissionSlot,
        event: AuditEvent,
        reason: Option<&'static str>,
        owed: Option<OwedReply>,
        now: Moment,
    ) {
        let permission = *self.permissions.get(slot);
        // A permission that is being set up is not ended here. It ends once the NIC has confirmed it, if its client or
        // tenant may not hold it by then.
        let State::Live(credential) = permission.state else { panic!("{slot:?} ends before it is live") };
        match event {
            AuditEvent::Expiry => self.counters.expiries += 1,
            _ => self.counters.revokes += 1,
        }
        self.audit.of_permission((&self.accounts, &self.pool), now, event, &permission, reason);
        self.remember_keys(&permission, credential, now);
        self.strike(slot);
        self.serve_waiters(permission.object, now);
        let last = self.let_go(permission.object, now);
        self.effects.push_back(Effect::Withdraw(Withdrawal {
            permission: slot,
            tenant: self.domain_of(&permission),
            client: permission.client,
            rights: permission.rights,
            header: permission.id.header,
            object: permission.object,
            guest: permission.guest,
            last: last && !self.pool.slabs.get(permission.object).end_is_awaited(),
            owed,
        }));
    }

    /// Remembers a permission's keys: from now on its client's accesses with them are late.
    fn remember_keys(&mut self, permission: &Permission, credential: Credential, now: Moment) {
        // A permission without keys has none to show, and a client that has left shows none.
        if credential == Credential::Node {
            return;
        }
        let Some(client) = self.accounts.clients.get_mut(permission.client) else { return };
        let word = RemoteAddress(permission.id.header.0 + LIFETIME_OFFSET);
        let ended = EndedKeys { credential, word, at: now };
        client.recent.push(ended, self.config.violations.keys_remembered);
    }

    /// Removes a permission from the books.
    fn strike(&mut self, slot: PermissionSlot) {
        let &Permission { id, object, .. } = self.permissions.get(slot);
        self.accounts.release(slot, &mut self.permissions, &mut self.pool.slabs);
        self.pool.note_header(id.header, object, PermissionSlot::NONE);
        self.permissions.remove(slot);
    }

    /// Marks an object as going if nothing holds, awaits or keeps it any more. Returns whether it did. Does not free
    /// the object yet.
    fn let_go(&mut self, object: ObjectId, now: Moment) -> bool {
        let record = self.pool.slabs.get(object);
        if record.freed.is_some() && !record.members().is_empty() {
            // The members are freed before their head.
            return false;
        }
        if !record.is_wanted() {
            // Other tenants do not keep an object: their permissions over it end.
            self.strike_name_if_any(object, now);
            self.strike_memberships(object);
        }
        let record = self.pool.slabs.get(object);
        let in_use = record.permissions.held() > 0 || !record.waiting.is_empty();
        let goes = !in_use && !record.is_wanted() && !record.going;
        if goes {
            self.accounts.give_up(object, &mut self.pool.slabs);
        }
        goes
    }

    /// Stops keeping an object, and releases it if it has no holder.
    pub(super) fn keep_no_longer(&mut self, object: ObjectId, now: Moment) {
        self.accounts.set_keep(object, Keep::No, &mut self.pool.slabs);
        self.release_if_unwanted(object, now);
    }

    /// Releases an object that is not held, awaited or kept. Frees it at once if nothing exposes it.
    pub(super) fn release_if_unwanted(&mut self, object: ObjectId, now: Moment) {
        let exposed = self.pool.slabs.get(object).permissions.exposed() > 0;
        if self.let_go(object, now) && !exposed {
            self.release_object(object);
        }
    }

    /// Frees an object that nothing exposes any more.
    pub(super) fn release_object(&mut self, object: ObjectId) {
        let record = self.accounts.remove_object(object, &mut self.pool.slabs);
        assert!(
            record.name().is_none() && record.guests().is_empty(),
            "a name and guests go before their object"
        );
        self.handle_freed_gone(object);
    }

    /// Handles the NIC's confirmation of a permission's protection: the client gets the permission.
    pub fn handle_exposed(&mut self, slot: PermissionSlot, credential: Credential, now: Moment) {
        let (permission, origin) = self.permissions.make_live(slot, credential);
        let (client, tenant, object) = (permission.client, permission.tenant, permission.object);
        self.counters.grants += 1;
        let books = (&self.accounts, &self.pool);
        self.audit.of_permission(books, now, AuditEvent::Grant, &permission, None);
        let barred = self.standing(tenant, now).and(self.own_standing(client, now)).is_barred();
        if barred || self.accounts.clients.get(client).is_none() {
            self.refuse_start(&permission, origin, Refusal::Barred);
            self.finish(slot, AuditEvent::Revoke, Some("its client is gone or barred"), None, now);
            return;
        }
        if let Some(reason) = self.reason_if_unwanted(slot) {
            self.refuse_start(&permission, origin, Refusal::Gone);
            self.finish(slot, AuditEvent::Revoke, Some(reason), None, now);
            return;
        }
        self.pool.slabs.get_mut(object).told = true;
        // Writing the header has overwritten an earlier notice.
        if permission.final_notice || self.is_awaited(object, permission.claim) {
            self.notify(slot, now);
        }
        if let Origin::Request { sequence } = origin {
            let granted = self.granted(&permission, credential);
            self.reply(RequestOrigin { client, tenant, sequence }, ReplyBody::Granted(granted));
        }
    }

    /// Returns the description of a permission for the reply to its client.
    fn granted(&self, permission: &Permission, credential: Credential) -> Granted {
        Granted {
            permission: permission.id,
            object: self.pool.reference(permission.object),
            offset: permission.claim.extent.offset,
            length: permission.claim.extent.length,
            lifetime: permission.lifetime,
            waited: permission.waited,
            longest: self.config.longest_lifetime,
            credential,
            mechanism: match credential {
                Credential::RegionKey { .. } => Mechanism::RegionKey,
                _ => self.config.mechanism,
            },
        }
    }

    /// Drops a permission that could not be set up.
    pub fn handle_not_exposed(&mut self, slot: PermissionSlot, refusal: Refusal, now: Moment) {
        let permission = *self.permissions.get(slot);
        let State::Starting(origin) = permission.state else { panic!("{slot:?} is exposed already") };
        self.strike(slot);
        self.serve_waiters(permission.object, now);
        self.let_go(permission.object, now);
        let (header, object) = (Some(permission.id.header), Some(permission.object));
        let residue = Residue { header, object, guest: permission.guest, may_linger: false };
        self.handle_withdrawn(residue, now);
        self.refuse_start(&permission, origin, refusal);
    }

    fn refuse_start(&mut self, permission: &Permission, origin: Origin, refusal: Refusal) {
        if let Origin::Request { sequence } = origin {
            let Permission { client, tenant, .. } = *permission;
            self.refuse(RequestOrigin { client, tenant, sequence }, refusal);
        }
    }

    /// Handles the end of a residue's exposure: its header is free, and so is a going object's memory if nothing else
    /// exposes it.
    pub fn handle_withdrawn(&mut self, residue: Residue, now: Moment) {
        if let Some(header) = residue.header {
            self.pool.give_header(header);
        }
        let Some(object) = residue.object else { return };
        self.accounts.withdraw(object, residue.guest, &mut self.pool.slabs);
        residue.guest.into_iter().for_each(|guest| self.forget_guest_if_gone(guest));
        let record = self.pool.slabs.get(object);
        if record.going && record.permissions.exposed() == 0 {
            self.release_object(object);
        } else if residue.guest.is_some() || record.named.as_ref().is_some_and(|it| it.of_guests.waits() > 0)
        {
            // Other tenants may have waited for this alone.
            self.serve_waiters(object, now);
        }
    }

    /// Queues an owed reply, whose promise is true now.
    pub fn handle_settled(&mut self, owed: OwedReply) {
        self.effects.push_back(owed.due());
    }

    /// Answers requests that wait for memory, if no object is about to give memory back.
    pub fn retry_if_idle(&mut self, now: Moment) {
        if self.accounts.going() == 0 {
            self.retry_parked(now);
        }
    }

    /// Retries requests for memory, after some memory was freed.
    pub fn retry_parked(&mut self, now: Moment) {
        if !self.postponed.is_thirsty() {
            return;
        }
        for Parked { wish, memory } in self.postponed.unpark(RETRIED_AT_ONCE) {
            if self.accounts.clients.get(wish.from.client).is_none() {
                continue;
            }
            if let Err(refusal) = self.allocate(wish, memory, now) {
                self.refuse(wish.from, refusal);
            }
        }
    }

    /// Ends due permissions, unless their clients have extended them (Patronus §5.3).
    pub(super) fn expire(&mut self, now: Moment) -> bool {
        let mut worked = false;
        if planted!(ExpiryNotScanned) {
            return false;
        }
        while self.steps_left > 0
            && let Some(slot) = self.permissions.due(now)
        {
            self.take_step();
            worked = true;
            let permission = self.permissions.get(slot);
            if !permission.is_live() {
                self.permissions.schedule(slot, now.after(LOOK_AGAIN));
                continue;
            }
            // A request or the lifetime word may have extended the permission.
            if permission.deadline() > now || self.see_extension(slot, now) {
                let deadline = self.permissions.get(slot).deadline();
                if deadline > now {
                    self.permissions.schedule(slot, deadline);
                    continue;
                }
            }
            self.finish(slot, AuditEvent::Expiry, None, None, now);
        }
        worked
    }

    /// Notifies the holder that this permission cannot be extended any more.
    pub(super) fn notify(&mut self, slot: PermissionSlot, now: Moment) {
        self.see_extension(slot, now);
        let permission = self.permissions.get_mut(slot);
        permission.final_notice = true;
        self.pool.put_notice(permission.id.header);
    }

    /// Takes over the lifetime that the client has written into the lifetime word, as far as the rules allow. Returns
    /// whether the permission lives longer now.
    pub(super) fn see_extension(&mut self, slot: PermissionSlot, now: Moment) -> bool {
        let longest = self.config.longest_lifetime;
        let permission = self.permissions.get_mut(slot);
        // Before the permission is live, the word still holds what the header's last holder left there.
        if permission.final_notice || !permission.is_live() {
            return false;
        }
        let lifetime = self.pool.lifetime_word(permission.id.header).min(longest);
        if lifetime <= permission.lifetime {
            return false;
        }
        permission.lifetime = lifetime;
        self.counters.extensions += 1;
        let books = (&self.accounts, &self.pool);
        self.audit.of_permission(books, now, AuditEvent::Extension, permission, None);
        true
    }
}
