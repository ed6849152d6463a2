//! Tenants in the books: what each holds and keeps, and the number of its clients.

use super::pool::ObjectId;
use super::quota::Usage;
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
    pub usage: Usage,
    /// The tenant's objects, including those that are going. Each object knows its place here.
    pub objects: Vec<ObjectId>,
    /// The kept objects, by how long they stay after the tenant's last client has left.
    pub kept: BTreeSet<(u64, ObjectId)>,
    pub clients: u32,
    /// Number of other tenants that hold permissions over its objects or wait for them: one for each tenant and object.
    pub guests: u32,
    /// The moment since which it has no clients, and stays only for what it has left behind.
    pub alone_since: Option<Moment>,
    /// Whether it has broken a rule on this node before, so that its standing has to be looked up.
    pub offended: bool,
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
