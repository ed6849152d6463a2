//! Requests about names: the directory as clients see it.

use super::Books;
use super::accounts::GuestKey;
use super::directory::Reader;
use super::effects::OwedReply;
use super::pool::ObjectId;
use super::requests::RequestOrigin;
use crate::audit::{AuditEvent, AuditRecord, AuditedName};
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{
    DirectoryName, Entry, Moment, NamedRequest, ObjectRef, Refusal, ReplyBody, Rights, Sharing, TenantId,
    TenantName,
};
use std::sync::Arc;

impl<M: Memory> Books<M> {
    /// Carries out a request about names.
    pub fn handle_named(&mut self, from: RequestOrigin, request: NamedRequest, now: Moment) {
        let done = self.carry_out_named(from, request, now);
        self.refuse_if_refused(from, done, now);
    }

    fn carry_out_named(
        &mut self,
        from: RequestOrigin,
        request: NamedRequest,
        now: Moment,
    ) -> Result<(), Refusal> {
        self.check_standing(from, now)?;
        match request {
            NamedRequest::Publish { name, object } => self.publish(from, name, object, now),
            NamedRequest::Unpublish { name } => self.unpublish(from, name, now),
            NamedRequest::Lookup { owner, name } => self.lookup(from, owner, name),
            NamedRequest::List { owner, after } => self.list_behind(from, owner, after),
            NamedRequest::Share { name, tenant, rights } => self.share(from, name, tenant, rights, now),
            NamedRequest::Unshare { name, tenant } => self.unshare(from, name, tenant, now),
        }
    }

    fn name_of(&self, tenant: TenantId) -> Arc<str> {
        Arc::clone(&self.accounts.tenants.get(tenant).name)
    }

    fn publish(
        &mut self,
        from: RequestOrigin,
        name: DirectoryName,
        reference: ObjectRef,
        now: Moment,
    ) -> Result<(), Refusal> {
        let object = self.pool.object_named(from.tenant, reference.into())?;
        let record = self.pool.slabs.get(object);
        if record.name().is_some() || record.membership().is_some() {
            return Err(Refusal::AlreadyNamed);
        }
        let owner = self.name_of(from.tenant);
        self.directory.publish(&owner, name, self.pool.reference(object))?;
        self.pool.slabs.get_mut(object).named().name = Some(name);
        let named = AuditedName { object: Some(reference), ..AuditedName::new(name) };
        self.audit_name(now, AuditEvent::Publish, from, named);
        self.reply_done(from);
        Ok(())
    }

    fn unpublish(&mut self, from: RequestOrigin, name: DirectoryName, now: Moment) -> Result<(), Refusal> {
        let object = self.own_object(from, &name)?;
        self.audit_name(now, AuditEvent::Unpublish, from, AuditedName::new(name));
        self.strike_name(object, Some(done(from)));
        Ok(())
    }

    /// Removes an object's name from the directory. Other tenants' permissions over the object end, and then the `owed`
    /// reply is sent.
    fn strike_name(&mut self, object: ObjectId, owed: Option<OwedReply>) {
        let record = self.pool.slabs.get_mut(object);
        let name = record.named().name.take().expect("its name is struck once");
        let owner = self.name_of(self.pool.slabs.get(object).tenant);
        let guests = self.guests_of_all(object, |_| true);
        self.directory.unpublish(&owner, &name);
        self.show_out(&guests, owed);
    }

    /// Removes the name of an object that is about to be removed, if it has one.
    pub(super) fn strike_name_if_any(&mut self, object: ObjectId, now: Moment) {
        let record = self.pool.slabs.get(object);
        let Some(name) = record.name() else { return };
        let owner = self.name_of(record.tenant);
        self.audit.of_tenant(now, AuditEvent::Unpublish, owner, |record| AuditRecord {
            name: Some(Box::new(AuditedName::new(name))),
            reason: Some("its object goes"),
            ..record
        });
        self.strike_name(object, None);
    }

    /// Removes the first name of a tenant. Returns whether there was one.
    pub(super) fn strike_first_name(&mut self, tenant: TenantId, now: Moment) -> bool {
        let owner = self.name_of(tenant);
        let Some(name) = self.directory.next(&owner, None, Reader::Owner) else { return false };
        let object = self.object_of(&owner, &name).expect("a name goes before its object");
        self.strike_name_if_any(object, now);
        true
    }

    fn lookup(
        &mut self,
        from: RequestOrigin,
        owner: Option<TenantName>,
        name: DirectoryName,
    ) -> Result<(), Refusal> {
        let entry = self.entry(from.tenant, owner.as_ref(), name).ok_or(Refusal::NoSuchName)?;
        self.reply(from, ReplyBody::Entry(entry));
        Ok(())
    }

    fn list_behind(
        &mut self,
        from: RequestOrigin,
        owner: Option<TenantName>,
        after: Option<DirectoryName>,
    ) -> Result<(), Refusal> {
        let reader = self.accounts.tenants.get(from.tenant);
        let next = match self.foreign(from.tenant, owner.as_ref()) {
            None => self.directory.next(&reader.name, after.as_ref(), Reader::Owner),
            Some(owner) => reader.called.as_ref().and_then(|called| {
                self.directory.next(owner.as_str(), after.as_ref(), Reader::Other(called))
            }),
        };
        let entry = next.and_then(|name| self.entry(from.tenant, owner.as_ref(), name));
        self.reply(from, entry.map_or(ReplyBody::EndOfList, ReplyBody::Entry));
        Ok(())
    }

    /// Returns the owner of names, if it is not the requesting tenant itself.
    fn foreign<'a>(&self, tenant: TenantId, owner: Option<&'a TenantName>) -> Option<&'a TenantName> {
        owner.filter(|owner| owner.as_str() != &*self.accounts.tenants.get(tenant).name)
    }

    /// Returns a name with what a tenant may know of it. `None`: there is no such name, or the tenant may not know of
    /// it.
    fn entry(&self, tenant: TenantId, owner: Option<&TenantName>, name: DirectoryName) -> Option<Entry> {
        let reader = self.accounts.tenants.get(tenant);
        let (owner, rights) = match self.foreign(tenant, owner) {
            None => (&*reader.name, Rights::all()),
            Some(owner) => {
                (owner.as_str(), self.directory.shared(owner.as_str(), &name, reader.called.as_ref()?)?)
            }
        };
        let object = self.object_of(owner, &name)?;
        let (reference, size) = (self.pool.reference(object), self.pool.slabs.size(object));
        Some(Entry { name, object: reference, size, rights })
    }

    fn object_of(&self, owner: &str, name: &DirectoryName) -> Option<ObjectId> {
        self.pool.object_at(self.directory.find(owner, name)?)
    }

    fn own_object(&self, from: RequestOrigin, name: &DirectoryName) -> Result<ObjectId, Refusal> {
        self.object_of(&self.accounts.tenants.get(from.tenant).name, name).ok_or(Refusal::NoSuchName)
    }

    fn share(
        &mut self,
        from: RequestOrigin,
        name: DirectoryName,
        with: TenantName,
        rights: Rights,
        now: Moment,
    ) -> Result<(), Refusal> {
        let owner = self.name_of(from.tenant);
        if rights.is_empty() {
            return Err(Refusal::Nothing);
        }
        if with.as_str() == &*owner {
            return Err(Refusal::SharedWithOwner);
        }
        self.directory.share(&owner, &name, with, rights)?;
        let named = AuditedName { with: Some(with), rights: Some(rights), ..AuditedName::new(name) };
        self.audit_name(now, AuditEvent::Share, from, named);
        self.reply_done(from);
        Ok(())
    }

    fn unshare(
        &mut self,
        from: RequestOrigin,
        name: DirectoryName,
        with: TenantName,
        now: Moment,
    ) -> Result<(), Refusal> {
        let owner = self.name_of(from.tenant);
        self.directory.unshare(&owner, &name, &with)?;
        let named = AuditedName { with: Some(with), ..AuditedName::new(name) };
        self.audit_name(now, AuditEvent::Unshare, from, named);
        let object = self.own_object(from, &name)?;
        let is_it = |&guest: &GuestKey| {
            self.accounts
                .tenants
                .get(self.accounts.guests.get(guest).tenant)
                .called
                .is_some_and(|called| called == with)
        };
        let guests = self.guests_of_all(object, is_it);
        let guests = if planted!(UnshareEndsNothing) { Vec::new() } else { guests };
        self.show_out(&guests, Some(done(from)));
        Ok(())
    }

    /// Returns the object that a request for a permission names, if it is shared with the tenant, or the refusal if the
    /// share's rights do not suffice. `None`: the tenant may not know of the object.
    pub(super) fn shared_object(
        &self,
        tenant: TenantId,
        reference: ObjectRef,
        (rights, sharing): (Rights, Sharing),
    ) -> Option<Result<ObjectId, Refusal>> {
        let object = self.pool.object_at(reference)?;
        let record = self.pool.slabs.get(object);
        let owner = &self.accounts.tenants.get(record.tenant).name;
        let called = self.accounts.tenants.get(tenant).called.as_ref()?;
        let name = self.pool.slabs.get(self.namesake(object)).name()?;
        let shared = self.directory.shared(owner, &name, called)?;
        // A tenant that may only read must not be able to keep the owner from writing.
        let needed = if sharing == Sharing::Exclusive { rights | Rights::WRITE } else { rights };
        let allowed = shared.contains(needed) || planted!(ShareNotCompared);
        Some(if allowed { Ok(object) } else { Err(Refusal::BeyondShare { rights: shared }) })
    }

    pub(super) fn reply_done(&mut self, from: RequestOrigin) {
        self.reply(from, ReplyBody::Done);
    }

    /// Audits a client's request about a name.
    fn audit_name(&mut self, at: Moment, event: AuditEvent, from: RequestOrigin, named: AuditedName) {
        self.audit.of_client(&self.accounts, at, event, from.client, |record| AuditRecord {
            name: Some(Box::new(named)),
            ..record
        });
    }
}

/// The reply that reports that a request was carried out.
fn done(from: RequestOrigin) -> OwedReply {
    OwedReply { client: from.client, sequence: from.sequence }
}
