//! Mechanism `region-key`, for clients without queue pairs, whose accesses are encrypted operations on their own
//! (1RMA). A permission takes a place in a table of regions, and its holder gets a key that was derived for it.
//!
//! A permission is set up when the call returns, and no operation under it begins any more when the call that takes it
//! down returns: the node awaits no request of the NIC, and no queue pair breaks. An operation that another thread is
//! carrying out at that moment ends first: only then is the end of the permission reported, and its memory handed on.
//! The table is behind [`Regions`], which knows keys and packets. This module knows neither.

use super::{EnforcementOutcome, Exposing, Surroundings};
use crate::books::{Exposure, ObjectId, PermissionSlot, Residue, Withdrawal, offset};
use portcullis_nic::Nic;
use portcullis_planted::planted;
use portcullis_protocol::{
    ClientId, Credential, HolderKey, Refusal, RegionName, RemoteAddress, Rights, TenantId,
};
use std::collections::HashMap;
use std::fmt::Debug;

/// A region to be opened to one holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRegion {
    /// The holder.
    pub client: ClientId,
    /// The host from which the holder's packets arrive: an IPv6 address, or the IPv6 form of an IPv4 address.
    pub host: [u8; 16],
    /// Address of its bytes, as the holder names them.
    pub address: RemoteAddress,
    /// Offset of its bytes in the node's memory.
    pub offset: u64,
    /// Number of its bytes.
    pub length: u64,
    /// The permission's lifetime word, on which the holder may do atomics, whatever the rights.
    pub lifetime_word: RemoteAddress,
    /// The holder's rights over the bytes.
    pub rights: Rights,
}

/// The node's table of regions (1RMA §4.3), as far as the node uses it.
pub trait Regions: Debug + Send {
    /// Opens a region. Returns its name and its holder's key. `None`: all places are taken.
    fn open(&mut self, region: OpenRegion) -> Option<(RegionName, HolderKey)>;

    /// Closes a region: from here on no operation of its holder begins.
    fn close(&mut self, region: RegionName);

    /// Whether no operation on a region that was closed is being carried out any more. After this no operation of its
    /// holder has any effect. Returns `true` soon after [`close`](Self::close).
    fn has_ended(&mut self, region: RegionName) -> bool;
}

/// A permission whose region was closed.
#[derive(Debug)]
struct Closed {
    withdrawal: Withdrawal,
    region: RegionName,
    /// Whether no operation under the permission is being carried out any more.
    has_ended: bool,
}

/// A client without queue pairs.
#[derive(Clone, Copy, Debug)]
struct Guest {
    tenant: TenantId,
    host: [u8; 16],
}

impl Closed {
    /// Whether an operation on this object is being carried out.
    fn uses(&self, object: ObjectId) -> bool {
        !self.has_ended && self.withdrawal.object == object
    }
}

/// The mechanism.
#[derive(Debug)]
pub(crate) struct RegionKeys {
    regions: Box<dyn Regions>,
    clients: HashMap<ClientId, Guest>,
    /// The most places of a tenant.
    tenant_max: u32,
    /// Number of places of each tenant. Tenants without places are not in the map.
    taken: HashMap<TenantId, u32>,
    /// For each object, the number of ended permissions of clients with queue pairs that the NIC has not taken down
    /// yet. No region is opened over such an object: its bytes may still be exposed.
    closing: HashMap<ObjectId, u32>,
    /// Permissions that wait for the NIC to take others down, or for operations on regions to end.
    waiting: Vec<Exposure>,
    /// Permissions of clients with queue pairs that wait for operations on regions to end.
    held_back: Vec<Exposure>,
    /// Permissions whose regions are closed, and whose end is not yet reported to the books.
    closed: Vec<Closed>,
}

impl RegionKeys {
    pub fn new(regions: Box<dyn Regions>, tenant_max: u32) -> Self {
        let (clients, taken, closing) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (waiting, held_back, closed) = (Vec::new(), Vec::new(), Vec::new());
        Self { regions, clients, tenant_max, taken, closing, waiting, held_back, closed }
    }

    pub fn enter_client(&mut self, client: ClientId, tenant: TenantId, host: [u8; 16]) {
        self.clients.insert(client, Guest { tenant, host });
    }

    pub fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }

    /// Whether this mechanism enforces the client's permissions.
    pub fn serves(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Notes that the NIC has to take down a permission over this object.
    pub fn begin_closing(&mut self, object: ObjectId) {
        if !planted!(OpenedWhileBound) {
            *self.closing.entry(object).or_default() += 1;
        }
    }

    /// Notes an outcome of the NIC, which may have taken a permission down.
    pub fn take_note(&mut self, outcome: &EnforcementOutcome) {
        let EnforcementOutcome::Withdrawn(residue) = outcome else { return };
        let Some(object) = residue.object else { return };
        if let Some(left) = self.closing.get_mut(&object) {
            *left -= 1;
            if *left == 0 {
                self.closing.remove(&object);
            }
        }
    }

    /// Queues a permission, which [`proceed`](Self::proceed) sets up.
    pub fn expose(&mut self, exposure: Exposure) {
        self.waiting.push(exposure);
    }

    /// Takes out permissions of clients with queue pairs over whose objects an operation on a closed region is carried out.
    /// [`take_released`](Self::take_released) returns them when it has ended.
    pub fn hold_back(&mut self, starting: &mut Vec<Exposure>) {
        let Self { closed, held_back, .. } = self;
        let is_in_use = |it: &mut Exposure| closed.iter().any(|closed| closed.uses(it.object));
        held_back.extend(starting.extract_if(.., is_in_use));
    }

    /// Takes out the held-back permissions that can be set up now, as [`ready`](Self::ready) has found.
    pub fn take_released(&mut self) -> Vec<Exposure> {
        let held_back = std::mem::take(&mut self.held_back);
        let (held_back, released) = held_back.into_iter().partition(|it| self.is_in_use(it.object));
        self.held_back = held_back;
        released
    }

    /// Whether an operation on a closed region over this object is being carried out.
    fn is_in_use(&self, object: ObjectId) -> bool {
        self.closed.iter().any(|it| it.uses(object))
    }

    /// Whether the NIC or an operation may still access an object under a permission that has ended.
    fn is_exposed(&self, object: ObjectId) -> bool {
        self.closing.contains_key(&object) || self.is_in_use(object)
    }

    /// Returns the tenants of permissions that can be set up now, or whose end can be reported now.
    pub fn ready(&mut self) -> Vec<TenantId> {
        self.look_at_closed();
        let ended = self.closed.iter().filter(|it| it.has_ended).map(|it| it.withdrawal.tenant);
        let waiting = self.waiting.iter().filter(|it| !self.is_exposed(it.object));
        waiting.map(|it| it.tenant).chain(ended).collect()
    }

    /// Whether ends of permissions are not reported yet. No event announces the end of the operations that they wait for.
    pub fn awaits_operations(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether an operation of a tenant's client on a closed region is being carried out.
    pub fn awaits_operations_of(&self, tenant: TenantId) -> bool {
        self.closed.iter().any(|it| !it.has_ended && it.withdrawal.tenant == tenant)
    }

    /// Notes under which permissions no operation is being carried out any more.
    fn look_at_closed(&mut self) {
        for closed in self.closed.iter_mut().filter(|it| !it.has_ended) {
            closed.has_ended = planted!(RegionStaysOpen) || self.regions.has_ended(closed.region);
        }
    }

    /// Reports the permissions of a tenant that have ended. Sets up those over whose objects the NIC exposes no ended
    /// permissions any more.
    pub fn proceed<N: Nic>(&mut self, around: &mut Surroundings<'_, N>) {
        self.look_at_closed();
        let tenant = around.tenant;
        for ended in self.closed.extract_if(.., |it| it.has_ended && it.withdrawal.tenant == tenant) {
            around.outcomes.push(EnforcementOutcome::Withdrawn(ended.withdrawal.residue()));
            around.outcomes.extend(ended.withdrawal.owed.map(EnforcementOutcome::Settled));
        }
        let (ready, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<Exposure>, _>(|it| it.tenant == tenant && !self.is_exposed(it.object));
        self.waiting = waiting;
        for exposure in ready {
            let outcome = match self.open(around, &exposure) {
                Ok(credential) => EnforcementOutcome::Exposed(exposure.permission, credential),
                Err(refusal) => EnforcementOutcome::NotExposed(exposure.permission, refusal),
            };
            around.outcomes.push(outcome);
        }
    }

    fn open<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        exposure: &Exposure,
    ) -> Result<Credential, Refusal> {
        // If the client has left meanwhile, the books end the permission as soon as it is set up.
        let guest = self.clients.get(&exposure.client).ok_or(Refusal::NotLive)?;
        let taken = self.taken.get(&exposure.tenant).copied().unwrap_or_default();
        if taken >= self.tenant_max {
            return Err(Refusal::Quota { used: taken.into(), limit: self.tenant_max.into() });
        }
        let region = OpenRegion {
            client: exposure.client,
            host: guest.host,
            address: exposure.address,
            offset: offset(exposure.address),
            length: exposure.length,
            lifetime_word: exposure.lifetime_word(),
            rights: exposure.rights,
        };
        let opened = self.regions.open(region);
        let (region, key) = opened.ok_or(Refusal::NodeFull { limit: self.places() })?;
        *self.taken.entry(exposure.tenant).or_default() += 1;
        around.enter(exposure, Exposing::region(region));
        Ok(Credential::RegionKey { region, key })
    }

    fn places(&self) -> u64 {
        self.taken.values().map(|&taken| u64::from(taken)).sum()
    }

    /// Takes a permission down: from here on none of its holder's operations begins. [`proceed`](Self::proceed) reports
    /// the end to the books.
    pub fn withdraw(&mut self, withdrawal: Withdrawal, region: RegionName) {
        if !planted!(RegionStaysOpen) {
            self.regions.close(region);
        }
        let tenant = withdrawal.tenant;
        let taken = self.taken.get_mut(&tenant).expect("a permission that is set up has a place");
        *taken -= 1;
        if *taken == 0 {
            self.taken.remove(&tenant);
        }
        let has_ended = planted!(RegionStaysOpen) || self.regions.has_ended(region);
        self.closed.push(Closed { withdrawal, region, has_ended });
    }

    /// Returns the number of a tenant's permissions that are not reported to the books yet.
    pub fn burden(&self, tenant: TenantId) -> usize {
        let waiting = self.waiting.iter().chain(&self.held_back).filter(|it| it.tenant == tenant).count();
        waiting + self.closed.iter().filter(|it| it.withdrawal.tenant == tenant).count()
    }

    /// Ends a tenant. Returns its permissions that were never set up, and the residues of those that have ended. Waits for
    /// the operations under these, at most one on each thread that carries out operations.
    pub fn end_tenant(&mut self, tenant: TenantId) -> (Vec<PermissionSlot>, Vec<Residue>) {
        self.clients.retain(|_, guest| guest.tenant != tenant);
        let waiting = self.waiting.extract_if(.., |it| it.tenant == tenant);
        let held_back = self.held_back.extract_if(.., |it| it.tenant == tenant);
        let unexposed = waiting.chain(held_back).map(|it| it.permission).collect();
        let (regions, mut residues) = (&mut self.regions, Vec::new());
        for closed in self.closed.extract_if(.., |it| it.withdrawal.tenant == tenant) {
            while !closed.has_ended && !planted!(RegionStaysOpen) && !regions.has_ended(closed.region) {
                std::thread::yield_now();
            }
            residues.push(closed.withdrawal.residue());
        }
        (unexposed, residues)
    }
}
