//! Mechanism `region-key`, for clients without queue pairs, whose accesses are encrypted operations on their own
//! (1RMA). A permission takes a place in a table of regions, and its holder gets a key that was derived for it.
//!
//! A permission is set up, or taken down, when the call returns: the node awaits no request of the NIC, and no queue
//! pair breaks. The table is behind [`Regions`], which knows keys and packets. This module knows neither.

use super::{EnforcementOutcome, Exposing, Surroundings};
use crate::books::{Exposure, ObjectId, PermissionSlot, Residue, Withdrawal, offset};
use portcullis_nic::Nic;
use portcullis_planted::planted;
use portcullis_protocol::{
    ClientId, Credential, HolderKey, Refusal, RegionName, RemoteAddress, Rights, TenantId,
};
use std::any::Any;
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

/// The node's table of regions (1RMA §4.3), as far as the node uses it. The component that carries out the operations on
/// the regions gets the table, as the type that it is, from [`Node::regions`](crate::Node::regions).
pub trait Regions: Any + Debug + Send {
    /// Opens a region. Returns its name and its holder's key. `None`: all places are taken.
    fn open(&mut self, region: OpenRegion) -> Option<(RegionName, HolderKey)>;

    /// Closes a region. After this no operation of its holder has any effect.
    fn close(&mut self, region: RegionName);
}

/// A client without queue pairs.
#[derive(Clone, Copy, Debug)]
struct Guest {
    tenant: TenantId,
    host: [u8; 16],
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
    /// Permissions that wait for the NIC to take others down.
    waiting: Vec<Exposure>,
    /// Permissions whose regions are closed, and whose end is not yet reported to the books.
    ended: Vec<Withdrawal>,
}

impl RegionKeys {
    pub fn new(regions: Box<dyn Regions>, tenant_max: u32) -> Self {
        let (clients, taken, closing) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { regions, clients, tenant_max, taken, closing, waiting: Vec::new(), ended: Vec::new() }
    }

    /// Returns the table of regions.
    pub fn regions(&self) -> &dyn Any {
        &*self.regions
    }

    /// Returns the table of regions, to be changed.
    pub fn regions_mut(&mut self) -> &mut dyn Any {
        &mut *self.regions
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

    /// Iterates over the tenants of permissions that can be set up now.
    pub fn ready(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.waiting.iter().filter(|it| !self.closing.contains_key(&it.object)).map(|it| it.tenant)
    }

    /// Reports the permissions of a tenant that have ended. Sets up those over whose objects the NIC exposes no ended
    /// permissions any more.
    pub fn proceed<N: Nic>(&mut self, around: &mut Surroundings<'_, N>) {
        let (tenant, closing) = (around.tenant, &self.closing);
        for ended in self.ended.extract_if(.., |it| it.tenant == tenant) {
            around.outcomes.push(EnforcementOutcome::Withdrawn(ended.residue()));
            around.outcomes.extend(ended.owed.map(EnforcementOutcome::Settled));
        }
        let ready: Vec<Exposure> = self
            .waiting
            .extract_if(.., |it| it.tenant == tenant && !closing.contains_key(&it.object))
            .collect();
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

    /// Takes a permission down: from here on its holder's operations have no effect. [`proceed`](Self::proceed) reports
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
        self.ended.push(withdrawal);
    }

    /// Returns the number of a tenant's permissions that are not reported to the books yet.
    pub fn burden(&self, tenant: TenantId) -> usize {
        let waiting = self.waiting.iter().filter(|it| it.tenant == tenant).count();
        waiting + self.ended.iter().filter(|it| it.tenant == tenant).count()
    }

    /// Ends a tenant. Returns its permissions that were never set up, and the residues of those that have ended.
    pub fn end_tenant(&mut self, tenant: TenantId) -> (Vec<PermissionSlot>, Vec<Residue>) {
        self.clients.retain(|_, guest| guest.tenant != tenant);
        let waiting = self.waiting.extract_if(.., |it| it.tenant == tenant);
        let unexposed = waiting.map(|it| it.permission).collect();
        let ended = self.ended.extract_if(.., |it| it.tenant == tenant);
        (unexposed, ended.map(|it| it.residue()).collect())
    }
}
