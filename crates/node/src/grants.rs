//! Permissions that start and end: the bookkeeping, before and after the NIC's part.

use crate::audit::AuditEvent;
use crate::node::Node;
use crate::object::Object;
use crate::permissions::{Chain, Grip, NONE, Permission, Stage};
use crate::postponed::Parked;
use crate::recent_keys::EndedKeys;
use crate::requests::{NewObject, Wish};
use crate::slabs::ObjectId;
use crate::tenant::{Answer, Ending};
use crate::windows::Residue;
use portcullis_nic::{Memory, Nic};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{
    Keep, LIFETIME_OFFSET, Lifetime, Mechanism, Moment, PermissionId, Refusal, RemoteAddress, ReplyBody,
    Rights, Sharing,
};

/// A header that was used so recently gets a later start, so that no two permissions share an id.
const START_TIES: u64 = 1_000;
/// Where in a header the start stands.
const START_OFFSET: u64 = 16;
/// Requests for memory that are tried again at once. Those that have to wait on do so behind the others.
const RETRIED_AT_ONCE: usize = 32;
/// How long after its deadline a permission that is still being set up is looked at again.
const LOOK_AGAIN: Lifetime = Lifetime::micros(10);

impl<N: Nic> Node<N> {
    /// An object for an allocation. `None`: memory is on its way back, and may do.
    pub(crate) fn make_object(
        &mut self,
        wish: &Wish,
        memory: NewObject,
    ) -> Result<Option<ObjectId>, Refusal> {
        let NewObject { size, alignment, keep } = memory;
        if self.slabs.objects() >= self.config.objects_max {
            return Err(Refusal::NodeFull { limit: self.config.objects_max.into() });
        }
        let birth = self.births.checked_add(1).ok_or(Refusal::NodeFull { limit: u64::MAX })?;
        match self.slabs.allocate(size, alignment, Object::new(wish.tenant, birth, keep)) {
            Ok(object) => {
                self.births = birth;
                self.list(object);
                self.enter_kept(object);
                Ok(Some(object))
            }
            Err(Refusal::OutOfMemory { .. }) if self.going > 0 => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    fn list(&mut self, object: ObjectId) {
        let record = self.slabs.get_mut(object);
        let Some(tenant) = self.tenants.get_mut(record.tenant as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        // All of the node's objects are numbered in 32 bits.
        record.listed = u32::try_from(tenant.objects.len()).unwrap_or(NONE);
        tenant.objects.push(object);
    }

    fn unlist(&mut self, tenant: u32, place: u32) {
        let Some(tenant) = self.tenants.get_mut(tenant as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        tenant.objects.swap_remove(place as usize);
        if let Some(&moved) = tenant.objects.get(place as usize) {
            self.slabs.get_mut(moved).listed = place;
        }
    }

    /// An object that took so many bytes does not count against a tenant's quota any more.
    pub(crate) fn refund(&mut self, tenant: u32, bytes: u64) {
        if let Some(tenant) = self.tenant_mut(tenant) {
            tenant.usage.refund_object(bytes);
        }
    }

    /// Enters a new permission over `object` in the books. Its protection is still to be set up.
    pub(crate) fn start(&mut self, wish: &Wish, object: ObjectId, now: Moment) -> Result<u32, Refusal> {
        let quota = self.config.quota;
        let tenant = self.tenant_mut(wish.tenant).ok_or(Refusal::NicFailed)?;
        tenant.usage.charge_permission(&quota)?;
        let header = match self.take_header(object, wish) {
            Ok(header) => header,
            Err(refusal) => {
                if let Some(tenant) = self.tenant_mut(wish.tenant) {
                    tenant.usage.refund_permission();
                }
                return Err(refusal);
            }
        };
        // The header still holds the start of whoever had it before.
        let last = self.memory.load(Self::offset(header) + START_OFFSET);
        let tied = last >= now.0 && last < now.0 + START_TIES;
        let start = if tied { Moment(last + 1) } else { now };
        let id = PermissionId { header, start };
        let holder = (wish.client, wish.tenant);
        let mut permission = Permission::new(id, object, holder, wish.rights, wish.claim);
        permission.lifetime = wish.lifetime;
        permission.waited = start.since(wish.asked);
        permission.stage = Stage::Starting { sequence: wish.sequence };
        let deadline = permission.deadline();
        let slot = self.permissions.insert(permission);
        let record = self.slabs.get_mut(object);
        record.holders += 1;
        record.exposed += 1;
        record.exclusive += u32::from(wish.claim.sharing == Sharing::Exclusive);
        self.permissions.link(Chain::Object, &mut record.first, slot);
        if let Some(client) = self.clients.get_mut(wish.client) {
            self.permissions.link(Chain::Client, &mut client.first, slot);
            client.held.add(self.slabs.size(object));
        }
        self.note_header(header, object, slot);
        self.leases.schedule(deadline, slot, start);
        Ok(slot)
    }

    /// A header for a new permission: the hole right before the buffer if one window may expose both, or one of the
    /// header pool (Patronus §5.4, contiguity).
    ///
    /// The window over lifetime word and buffer has one set of rights, and the word needs atomics: so only a
    /// permission with all rights can have it without getting more than it was granted.
    fn take_header(&mut self, object: ObjectId, wish: &Wish) -> Result<RemoteAddress, Refusal> {
        let record = self.slabs.get_mut(object);
        let beside = wish.rights == Rights::all() && wish.claim.extent.offset == 0;
        if self.config.reductions.contiguity && beside && !record.hole_used {
            record.hole_used = true;
            return Ok(self.slabs.header_hole(object));
        }
        let limit = self.config.headers.into();
        self.headers.take().ok_or(Refusal::NodeFull { limit })
    }

    pub(crate) fn give_header(&mut self, header: RemoteAddress) {
        if self.headers.contains(header) {
            self.headers.give(header);
        } else if let Some(object) =
            header.checked_add(portcullis_protocol::Header::BYTES).and_then(|buffer| self.slabs.find(buffer))
        {
            self.slabs.get_mut(object).hole_used = false;
        }
    }

    /// The permission's protection can be set up with this turn's batch.
    pub(crate) fn enlist(&mut self, slot: u32) {
        let Some(tenant) = self.permissions.get(slot).map(|permission| permission.tenant) else { return };
        if let Some(it) = self.tenant_mut(tenant) {
            it.starting.push(slot);
            self.mark_busy(tenant);
        }
    }

    pub(crate) fn mark_busy(&mut self, tenant: u32) {
        if !self.busy.contains(&tenant) {
            self.busy.push(tenant);
        }
    }

    /// Ends a live permission: it is out of the books at once, and its protection comes down with this turn's batch.
    /// The answer, if one is owed, goes out when that is confirmed.
    pub(crate) fn finish(
        &mut self,
        slot: u32,
        event: AuditEvent,
        reason: Option<&'static str>,
        answer: Option<Answer>,
        now: Moment,
    ) {
        let Some(&permission) = self.permissions.get(slot) else { return };
        if permission.stage != Stage::Live {
            // Being set up: it is ended when the NIC has confirmed it, since its client or tenant may not hold it.
            return;
        }
        match event {
            AuditEvent::Expiry => self.counters.expiries += 1,
            _ => self.counters.revokes += 1,
        }
        self.audit_permission(now, event, slot, reason);
        self.remember_keys(&permission, now);
        self.strike(slot);
        self.serve_waiters(permission.object, now);
        let last = self.let_go(permission.object);
        let ending = Ending {
            grip: permission.grip,
            header: permission.id.header,
            rights: permission.rights,
            client: permission.client,
            object: permission.object,
            last,
            answer,
        };
        if let Some(tenant) = self.tenant_mut(permission.tenant) {
            tenant.ending.push(ending);
            self.mark_busy(permission.tenant);
        }
    }

    /// What its client shows from now on is shown too late.
    fn remember_keys(&mut self, permission: &Permission, now: Moment) {
        let Some(keys) = self.keys(permission.tenant, permission.grip) else { return };
        let Some(client) = self.clients.get_mut(permission.client) else { return };
        let word = RemoteAddress(permission.id.header.0 + LIFETIME_OFFSET);
        let (buffer, lifetime) = keys;
        let ended = EndedKeys { buffer, lifetime, word, at: now };
        client.recent.push(ended, self.config.violations.keys_remembered);
    }

    /// Takes a permission out of all books but its tenant's windows.
    fn strike(&mut self, slot: u32) {
        let Some(&permission) = self.permissions.get(slot) else { return };
        let record = self.slabs.get_mut(permission.object);
        record.holders -= 1;
        record.exclusive -= u32::from(permission.claim.sharing == Sharing::Exclusive);
        self.permissions.unlink(Chain::Object, &mut record.first, slot);
        let mut nowhere = NONE;
        let bytes = self.slabs.size(permission.object);
        let head = match self.clients.get_mut(permission.client) {
            Some(client) => {
                client.held.take(bytes);
                &mut client.first
            }
            None => match self.departures.client_mut(permission.client) {
                Some(gone) => &mut gone.first,
                None => &mut nowhere,
            },
        };
        self.permissions.unlink(Chain::Client, head, slot);
        self.note_header(permission.id.header, permission.object, NONE);
        if let Some(tenant) = self.tenant_mut(permission.tenant) {
            tenant.usage.refund_permission();
        }
        self.permissions.remove(slot);
        self.leases.forget(slot);
    }

    /// Whether an object goes now that a permission over it, or what kept it, has ended. It is not freed yet.
    pub(crate) fn let_go(&mut self, object: ObjectId) -> bool {
        let record = self.slabs.get_mut(object);
        // What nobody was told of, nobody can use or free: it is not kept.
        let unwanted = (record.keep == Keep::No || !record.told) && record.waiting.is_empty();
        let goes = record.holders == 0 && unwanted && !record.going;
        if goes {
            record.going = true;
            self.going += 1;
            // The tenant has let go of it: how long its window lingers is the node's affair, not the quota's.
            let tenant = record.tenant;
            self.refund(tenant, self.slabs.taken(object));
        }
        goes
    }

    /// A permission could not be set up: as if it had never been.
    pub(crate) fn undo_start(&mut self, slot: u32, refusal: Refusal, now: Moment) {
        let Some(&permission) = self.permissions.get(slot) else { return };
        self.strike(slot);
        self.serve_waiters(permission.object, now);
        self.let_go(permission.object);
        let (header, object) = (Some(permission.id.header), Some(permission.object));
        self.release(Residue { header, object, may_linger: false });
        if let Stage::Starting { sequence } = permission.stage {
            self.refuse(permission.client, sequence, refusal);
        }
    }

    /// Frees an object that nothing exposes any more.
    pub(crate) fn release_object(&mut self, object: ObjectId) {
        let taken = self.slabs.taken(object);
        self.strike_kept(object);
        let record = self.slabs.free(object);
        self.unlist(record.tenant, record.listed);
        if record.going {
            self.going -= 1;
        } else {
            self.refund(record.tenant, taken);
        }
    }

    /// Memory came back: those that wait for some try again.
    pub(crate) fn retry_parked(&mut self, now: Moment) {
        if !self.postponed.is_thirsty() {
            return;
        }
        for Parked { wish, memory } in self.postponed.unpark(RETRIED_AT_ONCE) {
            if self.clients.get(wish.client).is_none() {
                continue;
            }
            if let Err(refusal) = self.allocate(wish, memory, now) {
                self.refuse(wish.client, wish.sequence, refusal);
            }
        }
    }

    /// Ends what is due, unless its client has extended it (Patronus §5.3).
    pub(crate) fn expire(&mut self, now: Moment) -> bool {
        let mut worked = false;
        if planted::is(Fault::ExpiryNotScanned) {
            return false;
        }
        while self.steps_left > 0
            && let Some(slot) = self.leases.due(now)
        {
            self.take_step();
            worked = true;
            let Some(permission) = self.permissions.get(slot) else { continue };
            let start = permission.id.start;
            if permission.stage != Stage::Live {
                self.leases.schedule(now.after(LOOK_AGAIN), slot, start);
                continue;
            }
            // A request may have extended it, or the lifetime word says so.
            if permission.deadline() > now || self.see_extension(slot, now) {
                let deadline = self.permissions.get(slot).map_or(now, Permission::deadline);
                if deadline > now {
                    self.leases.schedule(deadline, slot, start);
                    continue;
                }
            }
            self.finish(slot, AuditEvent::Expiry, None, None, now);
        }
        worked
    }

    /// The NIC has confirmed a permission's protection: its client may have it.
    pub(crate) fn grant(&mut self, slot: u32, credential: portcullis_protocol::Credential, now: Moment) {
        let mechanism = self.config.mechanism;
        let Some(permission) = self.permissions.get_mut(slot) else { return };
        let Stage::Starting { sequence } = permission.stage else { return };
        permission.stage = Stage::Live;
        let (client, tenant, object) = (permission.client, permission.tenant, permission.object);
        let final_notice = permission.final_notice;
        let permission = *permission;
        let granted = portcullis_protocol::Granted {
            permission: permission.id,
            object: self.reference(object),
            offset: permission.claim.extent.offset,
            length: permission.claim.extent.length,
            lifetime: permission.lifetime,
            waited: permission.waited,
            longest: self.config.longest_lifetime,
            credential,
            mechanism,
        };
        self.counters.grants += 1;
        if let portcullis_protocol::Credential::Keys { buffer, lifetime } = credential {
            self.key_holders.note(buffer, slot);
            self.key_holders.note(lifetime, slot);
        }
        self.audit_permission(now, AuditEvent::Grant, slot, None);
        let barred = self.standing(tenant, now).and(self.own_standing(client, now)).is_barred();
        if barred || self.clients.get(client).is_none() {
            self.refuse(client, sequence, Refusal::Barred);
            self.finish(slot, AuditEvent::Revoke, Some("nobody is left to hold it"), None, now);
            return;
        }
        self.slabs.get_mut(object).told = true;
        // One that had its notice before its header was written needs it again: the word says otherwise.
        if final_notice || self.is_awaited(object, permission.claim) {
            self.notify(slot, now);
        }
        self.reply(client, sequence, ReplyBody::Granted(granted), Vec::new());
    }

    /// The tenant's last client is gone: nothing of the tenant's stays. Done at once: it has little left, or the node
    /// ends.
    pub(crate) fn end_tenant(&mut self, nic: &mut N, slot: u32, now: Moment) {
        let Some(mut tenant) = self.tenants.get_mut(slot as usize).and_then(Option::take) else { return };
        self.binders.remove(&tenant.binder);
        self.busy.retain(|&other| other != slot);
        for ending in &tenant.ending {
            if let Grip::Regions { header, buffer } = ending.grip {
                let _ = nic.deregister_region(buffer.id);
                let _ = nic.deregister_region(header.id);
            }
        }
        // From here on no window and no region of this tenant opens anything.
        let mut residues = tenant.end(nic, &mut self.gone_windows);
        self.empty_domains.push(tenant.pd);
        self.drop_domains(nic);
        let mut unborn: Vec<u32> = tenant.starting.drain(..).collect();
        for batch in tenant.batches.drain(..) {
            residues.extend(batch.releases.iter().map(|release| release.residue));
            unborn.extend(batch.starts);
        }
        residues.extend(tenant.overdue.drain(..).map(|(_, residue)| residue));
        residues.extend(tenant.ending.drain(..).map(|ending| Residue {
            header: Some(ending.header),
            object: Some(ending.object),
            may_linger: false,
        }));
        let scrubbed: Vec<u32> = self.scrubs.iter().map(|&(permission, _)| permission).collect();
        unborn.extend(
            scrubbed.into_iter().filter(|&it| self.permissions.get(it).is_some_and(|it| it.tenant == slot)),
        );
        self.scrubs.retain(|&(permission, _)| !unborn.contains(&permission));
        for permission in unborn {
            self.undo_start(permission, Refusal::NicFailed, now);
        }
        for residue in residues {
            self.release(residue);
        }
        // What has gone already is in the list of this tenant, which is not in the table any more, and in no other.
        for object in std::mem::take(&mut tenant.objects) {
            if self.slabs.is_live(object) {
                self.release_object(object);
            }
        }
    }

    /// What an ended permission left behind is free.
    pub(crate) fn release(&mut self, residue: Residue) {
        if let Some(header) = residue.header {
            self.give_header(header);
        }
        if let Some(object) = residue.object {
            let record = self.slabs.get_mut(object);
            record.exposed -= 1;
            if record.going && record.exposed == 0 {
                self.release_object(object);
            }
        }
    }

    /// Whether memory is so plentiful that ended permissions' windows may stay bound over some (Patronus §5.4).
    pub(crate) fn memory_is_plentiful(&self) -> bool {
        self.slabs.bytes_free() > self.config.pool_bytes / 4 && self.headers.free() > self.headers.count() / 4
    }

    /// What enforces this node's permissions.
    pub(crate) fn mechanism(&self) -> Mechanism {
        self.config.mechanism
    }
}
