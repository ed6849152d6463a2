//! Tenants in the books: what each holds and keeps, and the number of its clients.

use super::quota::Usage;
use crate::books::pool::{Object, ObjectId};
use portcullis_protocol::{Moment, Rkey, TenantId, TenantName};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub name: Arc<str>,
    /// The name in the form in which other tenants can use it. `None`: the name is too long, and no tenant can share
    /// anything with this tenant.
    pub called: Option<TenantName>,
    /// Distinguishes the tenant's bytes from those of others. It is not used again.
    pub mark: u64,
    /// The key that opens all permissions of the tenant, if they have no keys of their own.
    pub shared_key: Option<Rkey>,
    pub(super) usage: Usage,
    /// The tenant's objects, including those that are going. Each object knows its place here.
    objects: Vec<ObjectId>,
    /// The kept objects, by how long they stay after the tenant's last client has left.
    kept: BTreeSet<(u64, ObjectId)>,
    clients: u32,
    /// Number of other tenants that hold permissions over its objects or wait for them: one for each tenant and object.
    pub(super) guests: u32,
    /// The moment since which it has no clients, and stays only for what it has left behind.
    alone_since: Option<Moment>,
    /// Whether it has broken a rule on this node before, so that its standing has to be looked up.
    pub offended: bool,
}

impl Tenant {
    /// Returns the tenant's objects, including those that are going.
    pub fn objects(&self) -> &[ObjectId] {
        &self.objects
    }

    /// Returns the kept object that stays the shortest after the tenant's last client has left, with the time, in µs.
    pub fn first_kept(&self) -> Option<(u64, ObjectId)> {
        self.kept.first().copied()
    }

    /// Returns the number of other tenants that hold permissions over its objects or wait for them: one for each tenant
    /// and object.
    pub fn guests(&self) -> u32 {
        self.guests
    }

    /// Returns the moment since which it has no clients. `None`: it has some.
    pub fn alone_since(&self) -> Option<Moment> {
        self.alone_since
    }

    /// Counts one more client, which attaches now or later.
    pub fn join(&mut self) {
        self.clients += 1;
        self.alone_since = None;
    }

    /// Counts one client less. Returns whether it was the last.
    pub fn leave(&mut self, now: Moment) -> bool {
        self.clients -= 1;
        let is_alone = self.clients == 0;
        if is_alone {
            self.alone_since = Some(now);
        }
        is_alone
    }

    /// Enters an object in the tenant's list. Returns the object's place there.
    pub(super) fn list(&mut self, object: ObjectId) -> u32 {
        let place = u32::try_from(self.objects.len());
        self.objects.push(object);
        place.expect("the node's objects are numbered in 32 bits")
    }

    /// Removes the object at `place` from the tenant's list. Returns the object that has this place now.
    pub(super) fn unlist(&mut self, place: u32) -> Option<ObjectId> {
        self.objects.swap_remove(place as usize);
        self.objects.get(place as usize).copied()
    }

    /// Enters an object into the kept objects, if its record has a time.
    pub(super) fn keep(&mut self, object: ObjectId, record: &Object) {
        if let Some(time) = record.kept_for() {
            self.kept.insert((time, object));
        }
    }

    /// Removes an object from the kept objects, if its record has a time.
    pub(super) fn keep_no_longer(&mut self, object: ObjectId, record: &Object) {
        if let Some(time) = record.kept_for() {
            self.kept.remove(&(time, object));
        }
    }
}

/// All tenants, by number. A number is used again when its tenant has ended.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    slots: Vec<Option<Box<Tenant>>>,
    next_mark: u64,
}

impl Tenants {
    /// Continues at this mark, for tests near the end of a counter.
    pub fn count_from(&mut self, mark: u64) {
        self.next_mark = mark;
    }

    /// Whether a mark is left for one more tenant.
    pub fn has_marks(&self) -> bool {
        self.next_mark < u64::MAX
    }

    /// Returns the number of the next tenant.
    pub fn next_id(&self) -> TenantId {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        TenantId(u32::try_from(free).expect("each tenant has a domain, which a NIC numbers in 32 bits"))
    }

    /// Adds a tenant, with the number [`next_id`](Self::next_id).
    pub fn insert(&mut self, name: Arc<str>, shared_key: Option<Rkey>, offended: bool) {
        let slot = self.next_id().0 as usize;
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(Box::new(Tenant {
            called: TenantName::new(&name).ok(),
            name,
            mark: self.next_mark,
            shared_key,
            usage: Usage::default(),
            objects: Vec::new(),
            kept: BTreeSet::new(),
            clients: 0,
            guests: 0,
            alone_since: None,
            offended,
        }));
        self.next_mark += 1;
    }

    pub fn remove(&mut self, tenant: TenantId) {
        self.slots[tenant.0 as usize] = None;
    }

    /// Returns the tenant with this name, if it has clients or has left something behind.
    pub fn named(&self, name: &str) -> Option<TenantId> {
        self.iter().find(|(_, tenant)| &*tenant.name == name).map(|(id, _)| id)
    }

    /// Returns the tenant that has this number now. It may not be the tenant that had it some time ago.
    pub fn find(&self, tenant: TenantId) -> Option<&Tenant> {
        self.slots.get(tenant.0 as usize)?.as_deref()
    }

    /// Returns the tenant of a client, an object or a permission.
    pub fn get(&self, tenant: TenantId) -> &Tenant {
        self.find(tenant).expect("a tenant stays for as long as something of it does")
    }

    /// Returns the tenant of a client, an object or a permission, to be changed.
    pub fn get_mut(&mut self, tenant: TenantId) -> &mut Tenant {
        let slot = self.slots[tenant.0 as usize].as_deref_mut();
        slot.expect("a tenant stays for as long as something of it does")
    }

    pub fn iter(&self) -> impl Iterator<Item = (TenantId, &Tenant)> {
        (0..).map(TenantId).zip(&self.slots).filter_map(|(id, tenant)| Some((id, tenant.as_deref()?)))
    }
}
