//! Mechanism `region-key`: for clients without queue pairs, whose accesses are encrypted operations on their own (1RMA). A
//! permission takes a place in a table of regions, and its holder gets a key that was derived for it.
//!
//! A permission is set up, and taken down, when the call returns: no request of the NIC is awaited, and no queue pair breaks.
//! The table is behind [`Regions`], which knows keys and packets. This module knows neither.

use super::{Exposing, Outcome, Surroundings};
use crate::books::{Exposure, ObjectId, PermissionSlot, Residue, Withdrawal, offset};
use portcullis_nic::Nic;
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{
    ClientId, Credential, HolderKey, Refusal, RegionName, RemoteAddress, Rights, TenantId,
};
use std::collections::HashMap;
use std::fmt::Debug;

/// A region that is to be opened to one holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRegion {
    /// The holder.
    pub client: ClientId,
    /// The host that the holder's packets come from: an IPv6 address, or an IPv4 address mapped to one.
    pub host: [u8; 16],
    /// Where its bytes start, as the holder names them.
    pub address: RemoteAddress,
    /// Where they start in the node's memory.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// The permission's lifetime word, on which the holder may do atomics, whatever the rights.
    pub lifetime_word: RemoteAddress,
    /// What the holder may do with the bytes.
    pub rights: Rights,
}

/// The node's table of regions (1RMA §4.3), as the node needs it.
pub trait Regions: Debug + Send {
    /// Opens a region. Returns its name and its holder's key. `None`: all places are taken.
    fn open(&mut self, region: OpenRegion) -> Option<(RegionName, HolderKey)>;

    /// Closes a region: after this no operation of its holder has any effect.
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
    /// Places that a tenant may have.
    tenant_max: u32,
    /// Places that each tenant has. Tenants with none are not in it.
    taken: HashMap<TenantId, u32>,
    /// Ended permissions of clients with queue pairs over each object that the NIC has not taken down yet. Nothing is opened
    /// over such an object: its bytes may still be exposed.
    closing: HashMap<ObjectId, u32>,
    /// Permissions that wait for that.
    waiting: Vec<Exposure>,
    /// Permissions whose regions are closed, and the books are not told yet.
    ended: Vec<Withdrawal>,
}

impl RegionKeys {
    pub fn new(regions: Box<dyn Regions>, tenant_max: u32) -> Self {
        let (clients, taken, closing) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { regions, clients, tenant_max, taken, closing, waiting: Vec::new(), ended: Vec::new() }
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

    /// Notes that the NIC is to take a permission over this object down.
    pub fn begin_closing(&mut self, object: ObjectId) {
        if !planted::is(Fault::OpenedWhileBound) {
            *self.closing.entry(object).or_default() += 1;
        }
    }

    /// Notes what the NIC has taken down.
    pub fn take_note(&mut self, outcome: &Outcome) {
        let Outcome::Withdrawn(residue) = outcome else { return };
        let Some(object) = residue.object else { return };
        if let Some(left) = self.closing.get_mut(&object) {
            *left -= 1;
            if *left == 0 {
                self.closing.remove(&object);
            }
        }
    }

    /// Sets a permission up with [`proceed`](Self::proceed).
    pub fn expose(&mut self, exposure: Exposure) {
        self.waiting.push(exposure);
    }

    /// The tenants of permissions that can be set up now.
    pub fn ready(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.waiting.iter().filter(|it| !self.closing.contains_key(&it.object)).map(|it| it.tenant)
    }

    /// Tells of the permissions of a tenant that have ended, and sets up those over whose objects the NIC exposes nothing any
    /// more that has ended.
    pub fn proceed<N: Nic>(&mut self, around: &mut Surroundings<'_, N>) {
        let (tenant, closing) = (around.tenant, &self.closing);
        for ended in self.ended.extract_if(.., |it| it.tenant == tenant) {
            around.outcomes.push(Outcome::Withdrawn(ended.residue()));
            around.outcomes.extend(ended.owed.map(Outcome::Settled));
        }
        let ready: Vec<Exposure> = self
            .waiting
            .extract_if(.., |it| it.tenant == tenant && !closing.contains_key(&it.object))
            .collect();
        for exposure in ready {
            let outcome = match self.open(around, &exposure) {
                Ok(credential) => Outcome::Exposed(exposure.permission, credential),
                Err(refusal) => Outcome::NotExposed(exposure.permission, refusal),
            };
            around.outcomes.push(outcome);
        }
    }

    fn open<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        exposure: &Exposure,
    ) -> Result<Credential, Refusal> {
        // The client has gone meanwhile: the books end the permission as soon as it is set up.
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

    /// Takes a permission down: from here on its holder's operations have no effect. The books are told with
    /// [`proceed`](Self::proceed).
    pub fn withdraw(&mut self, withdrawal: Withdrawal, region: RegionName) {
        if !planted::is(Fault::RegionStaysOpen) {
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

    /// How much of a tenant's is not told to the books yet.
    pub fn burden(&self, tenant: TenantId) -> usize {
        let waiting = self.waiting.iter().filter(|it| it.tenant == tenant).count();
        waiting + self.ended.iter().filter(|it| it.tenant == tenant).count()
    }

    /// A tenant ends. Returns its permissions that were never set up, and what is left of those that have ended.
    pub fn end_tenant(&mut self, tenant: TenantId) -> (Vec<PermissionSlot>, Vec<Residue>) {
        self.clients.retain(|_, guest| guest.tenant != tenant);
        let waiting = self.waiting.extract_if(.., |it| it.tenant == tenant);
        let unexposed = waiting.map(|it| it.permission).collect();
        let ended = self.ended.extract_if(.., |it| it.tenant == tenant);
        (unexposed, ended.map(|it| it.residue()).collect())
    }
}
