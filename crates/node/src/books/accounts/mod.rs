//! The accounts: which tenant, client and guest holds how many permissions, objects and chunks.
//!
//! A permission counts in several places: for its tenant's quota, for its client, for its object and, if another tenant
//! holds it, for its guest. Each operation of [`Accounts`] changes all of them together, and the operations on a single
//! counter are private to this module.

mod clients;
mod counts;
mod guests;
mod quota;
mod tenants;

pub(crate) use clients::Client;
pub(crate) use counts::{GuestCounts, PermissionCounts};
pub(crate) use guests::{Guest, GuestKey, Guests};

use super::permissions::{Chain, Permission, PermissionSlot, Permissions};
use super::pool::{Object, ObjectId, Slabs};
use super::postponed::WaiterSlot;
use crate::config::Quota;
use clients::Clients;
use portcullis_protocol::{Keep, Refusal, TenantId};
use tenants::Tenants;

/// The holders of permissions and objects, with the numbers of their holdings.
#[derive(Debug)]
pub(crate) struct Accounts {
    quota: Quota,
    pub tenants: Tenants,
    pub clients: Clients,
    pub guests: Guests,
    /// Number of objects that wait until nothing exposes them any more.
    going: u32,
    chunks_held: u64,
    chunk_allocations: u64,
}

/// Permissions.
impl Accounts {
    /// Accounts without holders. Each tenant may hold as much as `quota` allows.
    pub fn new(quota: Quota) -> Self {
        Self {
            quota,
            tenants: Tenants::default(),
            clients: Clients::default(),
            guests: Guests::default(),
            going: 0,
            chunks_held: 0,
            chunk_allocations: 0,
        }
    }

    /// Checks whether a tenant may hold one more permission.
    ///
    /// # Errors
    /// [`Refusal::Quota`], in permissions.
    pub fn check_permission(&self, tenant: TenantId) -> Result<(), Refusal> {
        self.tenants.get(tenant).usage.check_permission(&self.quota)
    }

    /// Counts a permission that starts, and enters it in the lists of its object, its client and its guest.
    pub fn hold(&mut self, slot: PermissionSlot, permissions: &mut Permissions, objects: &mut Slabs<Object>) {
        let &Permission { object, client, tenant, guest, kind, claim, .. } = permissions.get(slot);
        self.tenants.get_mut(tenant).usage.add_permission();
        let bytes = objects.size(object);
        let record = objects.get_mut(object);
        self.count(record, guest, |counts| counts.start(claim.sharing));
        permissions.link(Chain::Object, &mut record.first, slot);
        if let Some(guest) = guest {
            permissions.link(Chain::Guest, &mut self.guests.get_mut(guest).first, slot);
        }
        // A client that has left meanwhile is in no list, and gets nothing once this is set up.
        if let Some(client) = self.clients.get_mut(client) {
            permissions.link(Chain::Client, &mut client.first, slot);
            client.hold(kind, bytes);
        }
        if kind.is_chunk() {
            self.chunks_held += 1;
            self.chunk_allocations += 1;
        }
    }

    /// Counts a permission that ends, and removes it from all lists. Its protection may still be up.
    pub fn release(
        &mut self,
        slot: PermissionSlot,
        permissions: &mut Permissions,
        objects: &mut Slabs<Object>,
    ) {
        let &Permission { object, client, tenant, guest, kind, claim, .. } = permissions.get(slot);
        self.tenants.get_mut(tenant).usage.remove_permission();
        let bytes = objects.size(object);
        let record = objects.get_mut(object);
        self.count(record, guest, |counts| counts.end(claim.sharing));
        permissions.unlink(Chain::Object, &mut record.first, slot);
        if let Some(guest) = guest {
            permissions.unlink(Chain::Guest, &mut self.guests.get_mut(guest).first, slot);
        }
        // If a client that has left is forgotten already, the permission is in no client's list any more.
        let mut nowhere = PermissionSlot::NONE;
        let head = self.clients.release(client, kind, bytes).unwrap_or(&mut nowhere);
        permissions.unlink(Chain::Client, head, slot);
        self.chunks_held -= u64::from(kind.is_chunk());
    }

    /// Counts an ended permission whose protection is down.
    pub fn withdraw(&mut self, object: ObjectId, guest: Option<GuestKey>, objects: &mut Slabs<Object>) {
        self.count(objects.get_mut(object), guest, PermissionCounts::withdraw);
    }

    /// Applies a step of one permission to each count of permissions that it is in: that of its object and, if a guest
    /// holds it, those of all guests and of this guest.
    #[inline]
    fn count(&mut self, object: &mut Object, guest: Option<GuestKey>, step: impl Fn(&mut PermissionCounts)) {
        step(&mut object.permissions);
        if let Some(guest) = guest {
            step(&mut object.named().of_guests.permissions);
            step(&mut self.guests.get_mut(guest).counts.permissions);
        }
    }

    /// Returns the number of chunks that the node's CPU has handed out and that clients hold.
    pub fn chunks_held(&self) -> u64 {
        self.chunks_held
    }

    /// Returns the number of chunks that the node's CPU has handed out so far.
    pub fn chunk_allocations(&self) -> u64 {
        self.chunk_allocations
    }
}

/// Guests, and requests that wait.
impl Accounts {
    /// Returns the guest for a tenant at an object that is shared with it. Makes it if there is none yet.
    pub fn guest_at(&mut self, object: ObjectId, tenant: TenantId, objects: &mut Slabs<Object>) -> GuestKey {
        let record = objects.get_mut(object);
        let known = record.guests().iter().copied().find(|&it| self.guests.get(it).tenant == tenant);
        if let Some(guest) = known {
            return guest;
        }
        let guest = self.guests.0.insert(Guest::new(object, record.tenant, tenant));
        self.tenants.get_mut(record.tenant).guests += 1;
        record.named().guests.push(guest);
        guest
    }

    /// Removes a guest that holds nothing and waits for nothing, and returns it. Does nothing otherwise.
    pub fn remove_guest_if_gone(&mut self, guest: GuestKey, objects: &mut Slabs<Object>) -> Option<Guest> {
        if !self.guests.find(guest).is_some_and(Guest::is_gone) {
            return None;
        }
        let it = self.guests.0.remove(guest)?;
        self.tenants.get_mut(it.owner).guests -= 1;
        objects.get_mut(it.object).named().guests.retain(|&other| other != guest);
        Some(it)
    }

    /// Enters a request that waits for an object.
    pub fn wait(
        &mut self,
        waiter: WaiterSlot,
        object: ObjectId,
        guest: Option<GuestKey>,
        objects: &mut Slabs<Object>,
    ) {
        let record = objects.get_mut(object);
        record.waiting.push_back(waiter);
        if let Some(guest) = guest {
            record.named().of_guests.waits += 1;
            self.guests.get_mut(guest).counts.waits += 1;
        }
    }

    /// Removes a request that waits for an object no more.
    pub fn stop_waiting(
        &mut self,
        waiter: WaiterSlot,
        object: ObjectId,
        guest: Option<GuestKey>,
        objects: &mut Slabs<Object>,
    ) {
        let record = objects.get_mut(object);
        record.no_longer_waits(waiter);
        if let Some(guest) = guest {
            record.named().of_guests.waits -= 1;
            self.guests.get_mut(guest).counts.waits -= 1;
        }
    }
}

/// Objects.
impl Accounts {
    /// Checks whether a tenant may have one more object, which takes `bytes` bytes.
    ///
    /// # Errors
    /// [`Refusal::Quota`], in bytes or in objects: what is used without the object, and the limit.
    pub fn check_object(&self, tenant: TenantId, bytes: u64) -> Result<(), Refusal> {
        self.tenants.get(tenant).usage.check_object(&self.quota, bytes)
    }

    /// Counts a new object, and enters it in its tenant's lists.
    pub fn add_object(&mut self, object: ObjectId, objects: &mut Slabs<Object>) {
        let bytes = objects.taken(object);
        let record = objects.get_mut(object);
        let tenant = self.tenants.get_mut(record.tenant);
        tenant.usage.add_object(bytes);
        record.listed = tenant.list(object);
        tenant.keep(object, record);
    }

    /// Marks an object as going: its tenant has given it up. How long its window lingers depends on the node, so the
    /// quota ignores that.
    pub fn give_up(&mut self, object: ObjectId, objects: &mut Slabs<Object>) {
        let bytes = objects.taken(object);
        let record = objects.get_mut(object);
        record.going = true;
        self.going += 1;
        self.tenants.get_mut(record.tenant).usage.remove_object(bytes);
    }

    /// Removes an object from its tenant's lists and from memory, and returns its record. It is neither held nor
    /// exposed.
    pub fn remove_object(&mut self, object: ObjectId, objects: &mut Slabs<Object>) -> Object {
        self.set_keep(object, Keep::No, objects);
        let bytes = objects.taken(object);
        let record = objects.free(object);
        let tenant = self.tenants.get_mut(record.tenant);
        if let Some(moved) = tenant.unlist(record.listed) {
            objects.get_mut(moved).listed = record.listed;
        }
        if record.going {
            self.going -= 1;
        } else {
            tenant.usage.remove_object(bytes);
        }
        record
    }

    /// Changes how long an object is kept, from here on.
    pub fn set_keep(&mut self, object: ObjectId, keep: Keep, objects: &mut Slabs<Object>) {
        let record = objects.get_mut(object);
        let tenant = self.tenants.get_mut(record.tenant);
        tenant.keep_no_longer(object, record);
        record.keep = keep;
        tenant.keep(object, record);
    }

    /// Returns the number of objects that wait until nothing exposes them any more.
    pub fn going(&self) -> u32 {
        self.going
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::permissions::{Claim, Extent, Origin, PermissionKind};
    use crate::config::ViolationLimits;
    use portcullis_protocol::{ClientId, Moment, PermissionId, RemoteAddress, Rights, Sharing};
    use proptest::prelude::*;

    const OWNER: TenantId = TenantId(0);
    const OTHER: TenantId = TenantId(1);
    const QUOTA: Quota = Quota {
        bytes_max: 1 << 20,
        objects_max: 1,
        permissions_max: 1 << 20,
        names_max: 1,
        shares_max: 1,
        chunks_max: 1,
    };

    /// Accounts of an object with a client of its tenant and a client of a guest.
    struct Books {
        accounts: Accounts,
        permissions: Permissions,
        objects: Slabs<Object>,
        object: ObjectId,
        /// The permissions that have not ended.
        held: Vec<PermissionSlot>,
        /// The ended permissions whose protection may be up, each with its guest.
        fading: Vec<Option<GuestKey>>,
    }

    impl Books {
        fn new() -> Self {
            let mut accounts = Accounts::new(QUOTA);
            for (name, tenant, client) in [("a", OWNER, ClientId(1)), ("b", OTHER, ClientId(2))] {
                accounts.tenants.insert(name.into(), None, false);
                accounts.clients.insert(client, tenant, None, ViolationLimits::default());
            }
            let mut objects = Slabs::new(RemoteAddress(0), 1 << 20);
            let object = objects.allocate(64, 8, Object::new(OWNER, 1, Keep::No)).expect("it is empty");
            accounts.add_object(object, &mut objects);
            let (held, fading) = (Vec::new(), Vec::new());
            Self { accounts, permissions: Permissions::default(), objects, object, held, fading }
        }

        fn hold(&mut self, by_guest: bool, sharing: Sharing, kind: PermissionKind) {
            let Self { accounts, permissions, objects, object, .. } = self;
            let holder = if by_guest { (ClientId(2), OTHER) } else { (ClientId(1), OWNER) };
            let claim = Claim { extent: Extent { offset: 0, length: 64 }, sharing };
            let id = PermissionId { header: RemoteAddress(0), start: Moment(0) };
            let mut permission = Permission::new(id, *object, holder, Rights::all(), claim, Origin::Adopted);
            permission.guest = by_guest.then(|| accounts.guest_at(*object, OTHER, objects));
            permission.kind = kind;
            let slot = permissions.insert(permission);
            accounts.hold(slot, permissions, objects);
            self.held.push(slot);
        }

        fn release(&mut self, at: usize) {
            let slot = self.held.swap_remove(at % self.held.len());
            self.fading.push(self.permissions.get(slot).guest);
            self.accounts.release(slot, &mut self.permissions, &mut self.objects);
            self.permissions.remove(slot);
        }

        fn withdraw(&mut self, at: usize) {
            let guest = self.fading.swap_remove(at % self.fading.len());
            self.accounts.withdraw(self.object, guest, &mut self.objects);
            if let Some(guest) = guest {
                let gone = self.accounts.remove_guest_if_gone(guest, &mut self.objects);
                assert_eq!(gone.is_some(), self.guest_is_gone());
            }
        }

        fn guest_is_gone(&self) -> bool {
            let held = self.held.iter().any(|&slot| self.permissions.get(slot).guest.is_some());
            !held && self.fading.iter().all(Option::is_none)
        }

        /// Number of the permissions, not ended, for which `is_it` holds.
        fn count(&self, is_it: impl Fn(&Permission) -> bool) -> u32 {
            let held = self.held.iter().filter(|&&slot| is_it(self.permissions.get(slot)));
            u32::try_from(held.count()).expect("they are few")
        }

        fn check(&self) {
            let record = self.objects.get(self.object);
            let all = u32::try_from(self.held.len() + self.fading.len()).expect("they are few");
            let exclusive = self.count(|it| it.claim.sharing == Sharing::Exclusive);
            let counts = record.permissions;
            assert_eq!((counts.held(), counts.exclusive()), (self.count(|_| true), exclusive));
            assert_eq!((counts.exposed(), counts.fading() as usize), (all, self.fading.len()));
            let of_guests = record.named.as_ref().map_or(0, |it| it.of_guests.permissions().held());
            assert_eq!(of_guests, self.count(|it| it.guest.is_some()));
            for &guest in record.guests() {
                assert_eq!(self.accounts.guests.get(guest).counts().permissions().held(), of_guests);
            }
            for (client, tenant) in [(ClientId(1), OWNER), (ClientId(2), OTHER)] {
                let its = u64::from(self.count(|it| it.client == client));
                let chunks = u64::from(self.count(|it| it.client == client && it.kind.is_chunk()));
                let client = self.accounts.clients.get(client).expect("it is attached");
                assert_eq!((client.held().permissions, client.held().bytes), (its, 64 * its));
                assert_eq!((client.chunks.held(), client.first().some().is_some()), (chunks, its > 0));
                assert_eq!(self.accounts.tenants.get(tenant).usage.permissions(), its);
            }
            assert_eq!(self.accounts.chunks_held(), u64::from(self.count(|it| it.kind.is_chunk())));
            assert_eq!(self.accounts.tenants.get(OWNER).guests(), u32::from(!self.guest_is_gone()));
        }
    }

    proptest! {
        #[test]
        fn a_permission_counts_everywhere_until_it_ends_and_nowhere_after_that(
            steps in prop::collection::vec((0u8..4, 0usize..20, any::<[bool; 3]>()), 0..60),
        ) {
            let mut books = Books::new();
            for (choice, at, [by_guest, exclusive, is_chunk]) in steps {
                match choice {
                    0 | 1 => {
                        let sharing = if exclusive { Sharing::Exclusive } else { Sharing::Shared };
                        let kind = if is_chunk { PermissionKind::Chunk } else { PermissionKind::Object };
                        books.hold(by_guest, sharing, kind);
                    }
                    2 if !books.held.is_empty() => books.release(at),
                    3 if !books.fading.is_empty() => books.withdraw(at),
                    _ => {}
                }
                books.check();
            }
            while !books.held.is_empty() {
                books.release(0);
            }
            while !books.fading.is_empty() {
                books.withdraw(0);
            }
            books.check();
            let Books { mut accounts, mut objects, object, .. } = books;
            prop_assert!(!objects.get(object).is_wanted());
            accounts.give_up(object, &mut objects);
            prop_assert_eq!(accounts.going(), 1);
            accounts.remove_object(object, &mut objects);
            prop_assert_eq!((accounts.going(), accounts.tenants.get(OWNER).usage.bytes()), (0, 0));
        }
    }
}
