//! Control messages: what each request does.

use crate::audit::{AuditEvent, AuditRecord, AuditedPermission};
use crate::node::Node;
use crate::object::Object;
use crate::permissions::{Claim, Extent, NONE, Permission, Stage};
use crate::postponed::Waiter;
use crate::recovery::Recovery;
use crate::slabs::{ObjectId, Slabs};
use crate::tenant::Answer;
use portcullis_nic::{Completion, CompletionKind, Memory, Nic, Status};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{
    Header, Keep, LIFETIME_OFFSET, Lifetime, MESSAGE_BYTES, Moment, ObjectName, PermissionId, Refusal,
    RemoteAddress, ReplyBody, Request, RequestBody, Rights,
};
use std::sync::Arc;

/// What a request for a permission asks for, whatever it is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub client: u64,
    pub tenant: u32,
    pub sequence: u32,
    pub rights: Rights,
    pub claim: Claim,
    pub lifetime: Lifetime,
    /// When the request came.
    pub asked: Moment,
}

/// What a request for memory asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewObject {
    pub size: u64,
    pub alignment: u64,
    pub keep: Keep,
}

impl<N: Nic> Node<N> {
    /// Something happened on a control queue pair.
    pub(crate) fn hear(&mut self, nic: &mut N, completion: &Completion, now: Moment) {
        let Some((client, data)) = self.qp_owners.get(completion.queue_pair) else { return };
        if data.is_some() {
            return;
        }
        let Some(it) = self.clients.get_mut(client) else { return };
        if completion.status != Status::Success {
            // Its control queue pair is gone, and with it the only way to talk to it.
            return self.evict(client);
        }
        let CompletionKind::Receive { length, .. } = completion.kind else {
            it.finish(u32::try_from(completion.request).unwrap_or(0));
            if !it.queued {
                it.queued = true;
                self.outbox.push(client);
            }
            return;
        };
        let slot = u32::try_from(completion.request).unwrap_or(0);
        let message = it.message(slot);
        let request = Request::decode(message);
        let data = match request {
            Ok(Request { body: RequestBody::Write { length: claimed, .. }, .. }) => {
                let came = u64::from(length).saturating_sub(MESSAGE_BYTES as u64);
                it.data(slot, usize::try_from(claimed.min(came)).unwrap_or(0))
            }
            _ => Vec::new(),
        };
        let whole = length as usize >= MESSAGE_BYTES;
        // The sequence stands where it stands in every message; what did not come is another message's.
        let sequence =
            if whole { u32::from_le_bytes([message[4], message[5], message[6], message[7]]) } else { 0 };
        let _ = it.post_receive(nic, slot);
        self.counters.control_messages += 1;
        match request {
            Ok(request) if whole => self.serve(nic, client, request, data, now),
            _ => self.refuse(client, sequence, Refusal::Malformed),
        }
    }

    fn serve(&mut self, nic: &mut N, client: u64, request: Request, data: Vec<u8>, now: Moment) {
        let Some(tenant) = self.clients.get(client).map(|client| client.tenant) else { return };
        let sequence = request.sequence;
        let wish = |rights, (offset, length), sharing, lifetime| {
            let claim = Claim { extent: Extent { offset, length }, sharing };
            Wish { client, tenant, sequence, rights, claim, lifetime, asked: now }
        };
        let refusal = match request.body {
            RequestBody::Allocate { size, alignment, lifetime, rights, sharing, keep } => {
                let memory = NewObject { size, alignment, keep };
                self.allocate(wish(rights, (0, size), sharing, lifetime), memory, now)
            }
            RequestBody::Acquire { object, part, lifetime, rights, sharing, wait } => {
                let part = (part.offset, part.length);
                self.acquire(wish(rights, part, sharing, lifetime), object, wait, now)
            }
            RequestBody::Extend { permission, lifetime } => {
                self.extend(client, sequence, permission, lifetime, now)
            }
            RequestBody::Revoke { permission, free } => {
                self.revoke((client, sequence), permission, free, now)
            }
            RequestBody::Free { object } => self.free((client, tenant, sequence), object),
            RequestBody::Recover { queue_pair } => {
                self.ask_recovery(nic, (client, tenant, sequence), queue_pair, now)
            }
            RequestBody::Read { permission, offset, length } => {
                self.copy_out(client, sequence, permission, offset, length)
            }
            RequestBody::Write { permission, offset, length } => {
                self.copy_in(client, sequence, permission, offset, length, &data)
            }
            RequestBody::CompareAndSwap { permission, offset, compare, swap } => {
                let new = |old| if old == compare { swap } else { old };
                self.change_word(client, sequence, permission, offset, new)
            }
            RequestBody::FetchAndAdd { permission, offset, add } => {
                self.change_word(client, sequence, permission, offset, |old| old.wrapping_add(add))
            }
        };
        if let Err(refusal) = refusal {
            self.refuse(client, sequence, refusal);
        }
    }

    fn check_wish(&self, wish: &Wish, now: Moment) -> Result<(), Refusal> {
        self.standing(wish.tenant, now).check(now)?;
        // A pause of the client's own holds up its rebuilds and nothing else.
        if self.own_standing(wish.client, now).is_barred() {
            return Err(Refusal::Barred);
        }
        if wish.rights.is_empty() || wish.lifetime.0 == 0 {
            return Err(Refusal::Nothing);
        }
        let longest = self.config.longest_lifetime;
        if wish.lifetime > longest {
            return Err(Refusal::LifetimeTooLong { longest });
        }
        Ok(())
    }

    pub(crate) fn allocate(&mut self, wish: Wish, memory: NewObject, now: Moment) -> Result<(), Refusal> {
        self.check_wish(&wish, now)?;
        self.check_keep(memory.keep)?;
        let size = memory.size;
        let takes = Slabs::<Object>::footprint(size, memory.alignment)?;
        let quota = self.config.quota;
        let tenant = self.tenant_mut(wish.tenant).ok_or(Refusal::NicFailed)?;
        tenant.usage.charge_object(&quota, takes)?;
        let mark = tenant.mark;
        let made = self.make_object(&wish, memory);
        let object = match made {
            Ok(Some(object)) => object,
            // Memory that lingers is on its way back: the request waits for it.
            Ok(None) => {
                self.refund(wish.tenant, takes);
                return self.postponed.park(wish, memory);
            }
            Err(refusal) => {
                self.refund(wish.tenant, takes);
                return Err(refusal);
            }
        };
        debug_assert_eq!(self.slabs.taken(object), takes, "what was charged is what it takes");
        let (address, hole) = (self.slabs.address(object), self.slabs.header_hole(object));
        let foreign = self.taint.take(mark, hole, size + Header::BYTES) && !planted::is(Fault::ScrubSkipped);
        match self.start(&wish, object, now) {
            Ok(slot) if foreign && self.slabs.capacity(object).max(size) > self.scrub_left => {
                self.slabs.get_mut(object).scrubbing = true;
                self.scrubs.push_back((slot, 0));
            }
            Ok(slot) => {
                if foreign {
                    let bytes = self.slabs.capacity(object).max(size);
                    self.memory.zero(Self::offset(address), bytes);
                    self.scrub_left -= bytes;
                }
                self.enlist(slot);
            }
            Err(refusal) => {
                self.release_object(object);
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Goes on zeroing objects that other tenants' bytes may lie in: as much as this turn has left.
    pub(crate) fn scrub(&mut self, now: Moment) -> bool {
        if self.scrub_left == 0 {
            return !self.scrubs.is_empty();
        }
        let Some((slot, done)) = self.scrubs.pop_front() else { return false };
        let Some(permission) = self.permissions.get(slot) else { return true };
        let object = permission.object;
        let size = self.slabs.size(object);
        let part = (size - done).min(self.scrub_left);
        self.scrub_left -= part;
        self.memory.zero(Self::offset(self.slabs.address(object)) + done, part);
        if done + part < size {
            self.scrubs.push_back((slot, done + part));
        } else {
            self.slabs.get_mut(object).scrubbing = false;
            self.start_now(slot, now);
            self.enlist(slot);
            // Those who may share it with its first holder need not wait for that one's end.
            self.serve_waiters(object, now);
        }
        true
    }

    /// A permission that has waited for a scrub starts only now: its client has not heard of it, and its time shall not
    /// have run out meanwhile.
    fn start_now(&mut self, slot: u32, now: Moment) {
        let Some(permission) = self.permissions.get_mut(slot) else { return };
        if now <= permission.id.start {
            return;
        }
        permission.waited = Lifetime(permission.waited.0 + now.since(permission.id.start).0);
        permission.id.start = now;
        let deadline = permission.deadline();
        self.leases.schedule(deadline, slot, now);
    }

    fn acquire(
        &mut self,
        mut wish: Wish,
        name: ObjectName,
        wait: Lifetime,
        now: Moment,
    ) -> Result<(), Refusal> {
        self.check_wish(&wish, now)?;
        let object = self.object_named(wish.tenant, name)?;
        wish.claim.extent = self.part_of(object, wish.claim.extent)?;
        let record = self.slabs.get(object);
        if record.divided {
            self.charge_claims(record.holders as usize + record.waiting.len());
        }
        // First come, first served: nobody overtakes those who wait already.
        if !self.is_awaited(object, wish.claim) && self.admits(object, wish.claim) {
            let slot = self.start(&wish, object, now)?;
            self.enlist(slot);
            return Ok(());
        }
        let wait = wait.min(self.config.longest_wait);
        if wait.0 == 0 {
            return Err(Refusal::Conflict);
        }
        let waiter = self.postponed.insert(Waiter { wish, object, since: now, timeout: now.after(wait) })?;
        self.slabs.get_mut(object).waiting.push_back(waiter);
        self.give_notice(object, wish.claim, now);
        Ok(())
    }

    /// The bytes of an object that a request means.
    fn part_of(&mut self, object: ObjectId, part: Extent) -> Result<Extent, Refusal> {
        let size = self.slabs.size(object);
        let rest = size.checked_sub(part.offset).filter(|&rest| rest > 0 && part.length <= rest);
        let rest = rest.ok_or(Refusal::OutsideObject { size })?;
        let length = if part.length == 0 { rest } else { part.length };
        if length < size {
            self.divide(object)?;
        }
        Ok(Extent { offset: part.offset, length })
    }

    /// Where a permission's bytes start, and how many they are.
    pub(crate) fn bytes_of(&self, permission: &Permission) -> (RemoteAddress, u64) {
        let Extent { offset, length } = permission.claim.extent;
        (RemoteAddress(self.slabs.address(permission.object).0 + offset), length)
    }

    /// One holder cannot extend any more.
    pub(crate) fn notify(&mut self, slot: u32, now: Moment) {
        self.see_extension(slot, now);
        let Some(permission) = self.permissions.get_mut(slot) else { return };
        permission.final_notice = true;
        let word = Self::offset(permission.id.header) + LIFETIME_OFFSET;
        self.memory.store(word, 0);
    }

    /// Takes over what the client has put into the lifetime word, as far as the rules allow. Returns whether the
    /// permission lives longer for it.
    pub(crate) fn see_extension(&mut self, slot: u32, now: Moment) -> bool {
        let longest = self.config.longest_lifetime;
        let Some(permission) = self.permissions.get_mut(slot) else { return false };
        // Before it is live, the word still holds what the header's last holder left there.
        if permission.final_notice || permission.stage != Stage::Live {
            return false;
        }
        let word = self.memory.load(Self::offset(permission.id.header) + LIFETIME_OFFSET);
        let lifetime = Lifetime(word).min(longest);
        if lifetime <= permission.lifetime {
            return false;
        }
        permission.lifetime = lifetime;
        self.counters.extensions += 1;
        self.audit_permission(now, AuditEvent::Extension, slot, None);
        true
    }

    /// The slot of the permission that has the header of this id now, if one has.
    fn named(&self, id: PermissionId) -> Result<u32, Refusal> {
        if let Some(index) = self.headers.index(id.header) {
            return Ok(self.header_slots[index as usize]);
        }
        let buffer = id.header.checked_add(Header::BYTES).ok_or(Refusal::NotLive)?;
        let object = self.slabs.find(buffer).ok_or(Refusal::NotLive)?;
        Ok(self.slabs.get(object).hole_slot)
    }

    /// The live permission with this id, if it is this client's (Patronus §5.6: the start must match).
    pub(crate) fn held(&self, client: u64, id: PermissionId) -> Result<u32, Refusal> {
        let slot = self.named(id)?;
        let permission = self.permissions.get(slot).ok_or(Refusal::NotLive)?;
        let same = permission.id == id || planted::is(Fault::StartNotChecked);
        let own = permission.client == client && self.tenant_of(client) == Some(permission.tenant);
        if same && own && permission.stage == Stage::Live { Ok(slot) } else { Err(Refusal::NotLive) }
    }

    fn tenant_of(&self, client: u64) -> Option<u32> {
        self.clients.get(client).map(|client| client.tenant)
    }

    /// The same, if it is this client's or a sibling's: who knows a permission may keep it alive, as the key of its
    /// lifetime word lets all of the tenant.
    fn kept(&self, client: u64, id: PermissionId) -> Result<u32, Refusal> {
        let slot = self.named(id)?;
        let permission = self.permissions.get(slot).ok_or(Refusal::NotLive)?;
        let known = permission.id == id && permission.stage == Stage::Live;
        if known && self.tenant_of(client) == Some(permission.tenant) {
            Ok(slot)
        } else {
            Err(Refusal::NotLive)
        }
    }

    fn extend(
        &mut self,
        client: u64,
        sequence: u32,
        id: PermissionId,
        lifetime: Lifetime,
        now: Moment,
    ) -> Result<(), Refusal> {
        let slot = self.kept(client, id)?;
        let longest = self.config.longest_lifetime;
        self.see_extension(slot, now);
        let permission = self.permissions.get_mut(slot).ok_or(Refusal::NotLive)?;
        if permission.final_notice || permission.deadline() <= now {
            return Err(Refusal::NotExtendable);
        }
        if lifetime > longest {
            return Err(Refusal::LifetimeTooLong { longest });
        }
        let longer = lifetime > permission.lifetime;
        permission.lifetime = permission.lifetime.max(lifetime);
        let lifetime = permission.lifetime;
        if longer {
            self.counters.extensions += 1;
            self.audit_permission(now, AuditEvent::Extension, slot, None);
        }
        self.reply(client, sequence, ReplyBody::Extended(lifetime), Vec::new());
        Ok(())
    }

    fn revoke(
        &mut self,
        (client, sequence): (u64, u32),
        id: PermissionId,
        free: bool,
        now: Moment,
    ) -> Result<(), Refusal> {
        let slot = self.held(client, id)?;
        if free && let Some(permission) = self.permissions.get(slot) {
            self.strike_kept(permission.object);
        }
        let answer = Answer { client, sequence, body: ReplyBody::Done };
        self.finish(slot, AuditEvent::Revoke, None, Some(answer), now);
        Ok(())
    }

    fn free(&mut self, (client, tenant, sequence): (u64, u32, u32), name: ObjectName) -> Result<(), Refusal> {
        let object = self.object_named(tenant, name)?;
        self.keep_no_longer(object);
        self.reply(client, sequence, ReplyBody::Done, Vec::new());
        Ok(())
    }

    fn ask_recovery(
        &mut self,
        nic: &mut N,
        (client, tenant, sequence): (u64, u32, u32),
        number: u32,
        now: Moment,
    ) -> Result<(), Refusal> {
        let it = self.clients.get(client).ok_or(Refusal::NotLive)?;
        let &qp = it.ends.data.get(number as usize).ok_or(Refusal::Malformed)?;
        // A client whose requests had no answer for too long has a broken end that nobody else can see.
        let broken = !self.sees_peer_ends
            || nic.qp_state(qp).is_ok_and(|state| state == portcullis_nic::QpState::Error);
        if !broken || self.recoveries.has(qp) {
            // Nothing to mend, or being mended already: an honest client asks once.
            return Err(Refusal::Malformed);
        }
        if !self.sees_peer_ends {
            // Whatever the answer: once the client has it, nothing that it sent there before is executed any more. And
            // a NIC that has not told yet that an access broke it knows now.
            let _ = nic.modify_qp(qp, portcullis_nic::QpChange::Error);
            self.take_events(nic, now);
        }
        self.standing(tenant, now).and(self.own_standing(client, now)).check(now)?;
        self.recoveries.ask(Recovery::new(client, sequence, (qp, number)));
        Ok(())
    }

    pub(crate) fn audit_permission(
        &mut self,
        at: Moment,
        event: AuditEvent,
        slot: u32,
        reason: Option<&'static str>,
    ) {
        let (permissions, slabs) = (&self.permissions, &self.slabs);
        let (tenants, clients, departures) = (&self.tenants, &self.clients, &self.departures);
        self.audit.push(at, event, |record| {
            let permission = permissions.get(slot);
            let tenant = permission.and_then(|it| tenants.get(it.tenant as usize)?.as_ref());
            let client = permission.and_then(|it| clients.get(it.client)).map(|it| (it.id, it.process));
            let gone = permission.and_then(|it| departures.client(it.client)).map(|it| (it.id, it.process));
            let (client, process) = client.or(gone).unzip();
            AuditRecord {
                tenant: tenant.map(|tenant| Arc::clone(&tenant.name)),
                client,
                process: process.flatten(),
                permission: permission.map(|it| AuditedPermission {
                    id: it.id,
                    address: RemoteAddress(slabs.address(it.object).0 + it.claim.extent.offset),
                    length: it.claim.extent.length,
                    rights: it.rights,
                    sharing: it.claim.sharing,
                    lifetime: it.lifetime,
                }),
                reason,
                ..record
            }
        });
    }

    /// Notes which permission a header is for; [`NONE`]: for none.
    pub(crate) fn note_header(&mut self, header: RemoteAddress, object: ObjectId, slot: u32) {
        match self.headers.index(header) {
            Some(index) => self.header_slots[index as usize] = slot,
            None => self.slabs.get_mut(object).hole_slot = slot,
        }
        debug_assert!(slot == NONE || self.permissions.get(slot).is_some());
    }
}

/// Bytes that are zeroed within one turn, about a microsecond's worth: everybody's next operation waits for that.
pub(crate) const SCRUB_PER_TURN_BYTES: u64 = 16 << 10;
