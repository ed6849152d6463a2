//! Requests about objects and permissions.

use super::Books;
use super::accounts::GuestKey;
use super::effects::OwedReply;
use super::permissions::{Claim, Extent, Origin, PermissionKind, PermissionSlot};
use super::pool::{Object, ObjectId, Slabs};
use super::postponed::Waiter;
use crate::audit::AuditEvent;
use crate::config::FOR_EVER;
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{
    Acquire, Allocate, ClientId, GrantRequest, Holders, Keep, Lifetime, Moment, ObjectName, PermissionId,
    Refusal, ReplyBody, Rights, TenantId,
};

/// The sender of a request, and the number by which the client recognises the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestOrigin {
    pub client: ClientId,
    pub tenant: TenantId,
    pub sequence: u32,
}

/// A request for a permission, without its object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub from: RequestOrigin,
    pub rights: Rights,
    pub claim: Claim,
    pub kind: PermissionKind,
    pub lifetime: Lifetime,
    /// The guest that requests the permission, if the object is another tenant's.
    pub guest: Option<GuestKey>,
    /// Time of arrival of the request.
    pub asked: Moment,
}

/// The memory that a request for an allocation describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewObject {
    pub size: u64,
    pub alignment: u64,
    pub keep: Keep,
}

impl<M: Memory> Books<M> {
    /// Carries out a request about objects or permissions.
    pub fn handle_request(&mut self, from: RequestOrigin, request: GrantRequest, now: Moment) {
        let wish = |rights, (offset, length), sharing, lifetime| {
            let claim = Claim { extent: Extent { offset, length }, sharing };
            Wish { from, rights, claim, kind: PermissionKind::Object, lifetime, guest: None, asked: now }
        };
        let done = match request {
            GrantRequest::Allocate(Allocate { size, alignment, lifetime, rights, sharing, keep }) => {
                let memory = NewObject { size, alignment, keep };
                self.allocate(wish(rights, (0, size), sharing, lifetime), memory, now)
            }
            GrantRequest::AllocateChunk => self.allocate_chunk(from, now),
            GrantRequest::Acquire(Acquire { object, part, lifetime, rights, sharing, wait }) => {
                let part = (part.offset, part.length);
                self.acquire(wish(rights, part, sharing, lifetime), object, wait, now)
            }
            GrantRequest::Extend { permission, lifetime } => self.extend(from, permission, lifetime, now),
            GrantRequest::Revoke { permission, free } => self.revoke(from, permission, free, now),
            GrantRequest::Free { object, holders } => self.free(from, object, holders, now),
            GrantRequest::Include { member, head } => self.include(from, (member, head), now),
            GrantRequest::Keep { object, keep } => self.set_keep(from, object, keep, now),
        };
        self.refuse_if_refused(from, done, now);
    }

    /// Sends the refusal of a request that was not carried out.
    pub(super) fn refuse_if_refused(&mut self, from: RequestOrigin, done: Result<(), Refusal>, now: Moment) {
        if let Err(refusal) = done {
            if matches!(refusal, Refusal::Quota { .. }) {
                self.audit.of_quota(&self.accounts, now, from.client, &refusal);
            }
            self.refuse(from, refusal);
        }
    }

    pub(super) fn check_wish(&self, wish: &Wish, now: Moment) -> Result<(), Refusal> {
        self.check_standing(wish.from, now)?;
        if wish.rights.is_empty() || wish.lifetime.0 == 0 {
            return Err(Refusal::Nothing);
        }
        let longest = self.config.longest_lifetime;
        if wish.kind.is_chunk() {
            return self.check_chunk(wish.from);
        }
        if wish.lifetime > longest {
            return Err(Refusal::LifetimeTooLong { longest });
        }
        Ok(())
    }

    /// Checks whether the client may get new objects and permissions.
    pub(super) fn check_standing(&self, from: RequestOrigin, now: Moment) -> Result<(), Refusal> {
        self.standing(from.tenant, now).check(now)?;
        // A pause of the client itself delays its rebuilds and nothing else.
        if self.own_standing(from.client, now).is_barred() { Err(Refusal::Barred) } else { Ok(()) }
    }

    /// Checks whether an object may be kept in this way.
    fn check_keep(&self, keep: Keep) -> Result<(), Refusal> {
        let longest = self.config.longest_keep;
        let allowed = match keep {
            Keep::No | Keep::Attached => true,
            Keep::For(time) => time <= longest,
            Keep::Pinned => longest == FOR_EVER,
        };
        if allowed { Ok(()) } else { Err(Refusal::KeptTooLong { longest }) }
    }

    pub(super) fn allocate(&mut self, wish: Wish, memory: NewObject, now: Moment) -> Result<(), Refusal> {
        self.check_wish(&wish, now)?;
        self.check_keep(memory.keep)?;
        let takes = Slabs::<Object>::footprint(memory.size, memory.alignment)?;
        self.accounts.check_object(wish.from.tenant, takes)?;
        let Some(object) = self.make_object(&wish, memory)? else {
            // Lingering memory is about to be freed: the request waits for it.
            return self.postponed.park(wish, memory);
        };
        debug_assert_eq!(self.pool.slabs.taken(object), takes, "the quota was checked for what it takes");
        let mark = self.accounts.tenants.get(wish.from.tenant).mark;
        let foreign = self.pool.take_over(mark, object) || wish.kind.is_chunk();
        let origin = Origin::Request { sequence: wish.from.sequence };
        let slot = self.start(&wish, object, origin, now).inspect_err(|_| self.release_object(object))?;
        if !foreign || self.scrub_at_once(object) {
            self.expose(slot);
        } else {
            self.scrub_later(slot, object);
        }
        Ok(())
    }

    /// Makes an object for an allocation. `None`: memory is about to be freed, and may suffice.
    fn make_object(&mut self, wish: &Wish, memory: NewObject) -> Result<Option<ObjectId>, Refusal> {
        let NewObject { size, alignment, keep } = memory;
        let birth = self.pool.next_birth()?;
        match self.pool.place(size, alignment, Object::new(wish.from.tenant, birth, keep)) {
            Ok(object) => {
                self.accounts.add_object(object, &mut self.pool.slabs);
                Ok(Some(object))
            }
            Err(Refusal::OutOfMemory { .. }) if self.accounts.going() > 0 => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    fn acquire(
        &mut self,
        mut wish: Wish,
        name: ObjectName,
        wait: Lifetime,
        now: Moment,
    ) -> Result<(), Refusal> {
        self.check_wish(&wish, now)?;
        let tenant = wish.from.tenant;
        let object = match (self.pool.object_named(tenant, name), name) {
            (Ok(object), _) => object,
            (Err(missing), ObjectName::Reference(reference)) => {
                let asked = (wish.rights, wish.claim.sharing);
                let object = self.shared_object(tenant, reference, asked).ok_or(missing)??;
                wish.guest = Some(self.accounts.guest_at(object, tenant, &mut self.pool.slabs));
                object
            }
            (Err(missing), ObjectName::Address(_)) => return Err(missing),
        };
        let done = self.acquire_object(wish, object, wait, now);
        // A tenant that got nothing, and waits for nothing, is no guest.
        wish.guest.into_iter().for_each(|guest| self.forget_guest_if_gone(guest));
        done
    }

    /// Starts a permission over an object that the client's tenant may use, or lets the request wait for it.
    fn acquire_object(
        &mut self,
        mut wish: Wish,
        object: ObjectId,
        wait: Lifetime,
        now: Moment,
    ) -> Result<(), Refusal> {
        wish.claim.extent = self.part_of(object, wish.claim.extent)?;
        let record = self.pool.slabs.get(object);
        if record.divided {
            self.charge_claims(record.permissions.held() as usize + record.waiting.len());
        }
        // First come, first served: no request overtakes those that wait already.
        if !self.is_awaited(object, wish.claim) && self.admits(object, wish.claim, wish.from.tenant) {
            let origin = Origin::Request { sequence: wish.from.sequence };
            let slot = self.start(&wish, object, origin, now)?;
            self.expose(slot);
            return Ok(());
        }
        let wait = wait.min(self.config.longest_wait);
        if wait.0 == 0 {
            return Err(Refusal::Conflict);
        }
        let waiter = self.postponed.insert(Waiter { wish, object, since: now, timeout: now.after(wait) })?;
        self.accounts.wait(waiter, object, wish.guest, &mut self.pool.slabs);
        self.give_notice(object, wish.claim, now);
        Ok(())
    }

    /// Returns the range of an object's bytes that a request names.
    pub(super) fn part_of(&mut self, object: ObjectId, part: Extent) -> Result<Extent, Refusal> {
        let size = self.pool.slabs.size(object);
        let rest = size.checked_sub(part.offset).filter(|&rest| rest > 0 && part.length <= rest);
        let rest = rest.ok_or(Refusal::OutsideObject { size })?;
        let length = if part.length == 0 { rest } else { part.length };
        if length < size {
            self.divide(object)?;
        }
        Ok(Extent { offset: part.offset, length })
    }

    /// Returns the live permission with this id, if it belongs to this client (Patronus §5.6: the start must match).
    fn held(&self, from: RequestOrigin, id: PermissionId) -> Result<PermissionSlot, Refusal> {
        let slot = self.pool.holder_of(id)?;
        let permission = self.permissions.get(slot);
        let same = permission.id == id || planted!(StartNotChecked);
        let own = permission.client == from.client && permission.tenant == from.tenant;
        if same && own && permission.is_live() { Ok(slot) } else { Err(Refusal::NotLive) }
    }

    /// Returns the live permission with this id, if it belongs to this client or to a sibling. All clients of a tenant
    /// may extend it, as they can with the key of its lifetime word.
    fn held_by_tenant(&self, from: RequestOrigin, id: PermissionId) -> Result<PermissionSlot, Refusal> {
        let slot = self.pool.holder_of(id)?;
        let permission = self.permissions.get(slot);
        let known = permission.id == id && permission.is_live();
        if known && permission.tenant == from.tenant { Ok(slot) } else { Err(Refusal::NotLive) }
    }

    fn extend(
        &mut self,
        from: RequestOrigin,
        id: PermissionId,
        lifetime: Lifetime,
        now: Moment,
    ) -> Result<(), Refusal> {
        let slot = self.held_by_tenant(from, id)?;
        let longest = self.config.longest_lifetime;
        self.see_extension(slot, now);
        let permission = self.permissions.get_mut(slot);
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
            let books = (&self.accounts, &self.pool);
            self.audit.of_permission(books, now, AuditEvent::Extension, permission, None);
        }
        self.reply(from, ReplyBody::Extended(lifetime));
        Ok(())
    }

    fn revoke(
        &mut self,
        from: RequestOrigin,
        id: PermissionId,
        free: bool,
        now: Moment,
    ) -> Result<(), Refusal> {
        let slot = self.held(from, id)?;
        let object = self.permissions.get(slot).object;
        // The client must not free another tenant's object.
        if free && self.pool.slabs.get(object).tenant == from.tenant {
            self.begin_to_free(object, Holders::Stay, now);
        }
        let owed = OwedReply { client: from.client, sequence: from.sequence };
        self.finish(slot, AuditEvent::Revoke, None, Some(owed), now);
        Ok(())
    }

    /// Changes how long an object is kept, from here on.
    fn set_keep(
        &mut self,
        from: RequestOrigin,
        name: ObjectName,
        keep: Keep,
        now: Moment,
    ) -> Result<(), Refusal> {
        self.check_keep(keep)?;
        let object = self.pool.object_named(from.tenant, name)?;
        self.accounts.set_keep(object, keep, &mut self.pool.slabs);
        self.release_if_unwanted(object, now);
        self.reply(from, ReplyBody::Done);
        Ok(())
    }

    /// Returns the offset in the pool's memory of an access by message, if the client holds a permission that allows
    /// it.
    ///
    /// # Errors
    /// The client holds no such permission, or the permission lacks the right or the bytes.
    pub fn covered(
        &self,
        from: RequestOrigin,
        permission: PermissionId,
        (offset, length): (u64, u64),
        right: Rights,
    ) -> Result<u64, Refusal> {
        let permission = self.permissions.get(self.held(from, permission)?);
        if !permission.rights.contains(right) {
            return Err(Refusal::WrongRight);
        }
        let (address, size) = self.pool.bytes_of(permission);
        if offset > size || length > size - offset {
            return Err(Refusal::OutsideRange);
        }
        Ok(super::offset(address) + offset)
    }
}
