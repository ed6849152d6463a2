//! Enforcement: makes sure that every access that the books do not allow is refused.
//!
//! Exposures and withdrawals arrive from the books as values, and are carried out in one batch for each turn and tenant
//! (Patronus §5.4). Outcomes are returned as values. A mechanism is one module here, behind the trait [`Enforcer`].
//! Nothing here decides which client may have which permission.

mod at_once;
mod domain;
mod enforcer;
mod memory_region;
mod memory_window;
pub(crate) mod node_copy;
mod open;
mod queue_pair;
mod region_keys;
mod window_group;
mod windowed;

pub(crate) use domain::Domain;
pub use region_keys::{OpenRegion, Regions};

use crate::books::{Exposure, OwedReply, PermissionSlot, Residue, Withdrawal, offset};
use crate::config::NodeConfig;
use crate::ends::Ends;
use at_once::AtOnce;
use enforcer::{Enforcer, Leftovers, Shrunk};
use memory_window::MemoryWindow;
use portcullis_nic::{Completion, Memory, Nic, PdId, QpId, VerbsError};
use portcullis_protocol::{
    Credential, Header, LIFETIME_OFFSET, Mechanism, Moment, Refusal, RegionName, Rkey, TenantId,
};
use portcullis_slots::Table;
use region_keys::RegionKeys;
use window_group::WindowGroup;

/// The bytes of a header that a client may access: its lifetime word.
const EXPOSED_BYTES: u64 = Header::BYTES - LIFETIME_OFFSET;

/// Outcome of an exposure or a withdrawal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EnforcementOutcome {
    /// The permission is enforced from here on. Its holder shows this credential.
    Exposed(PermissionSlot, Credential),
    /// The permission could not be set up, and nothing exposes it.
    NotExposed(PermissionSlot, Refusal),
    /// The residue is not exposed any more.
    Withdrawn(Residue),
    /// The promise of this owed reply is true now.
    Settled(OwedReply),
}

/// The windows or regions that expose a permission's lifetime word and its bytes, as the NIC or the mechanism numbers
/// them. Headers repeat these numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exposing {
    pub word: u32,
    pub bytes: u32,
    /// The region, if the permission's holder has no queue pairs.
    region: Option<RegionName>,
}

impl Exposing {
    /// The permission has no window or region of its own.
    const NOTHING: Self = Self::on_nic(u32::MAX, u32::MAX);

    /// Names windows or regions of the NIC.
    const fn on_nic(word: u32, bytes: u32) -> Self {
        Self { word, bytes, region: None }
    }

    /// Names a place in the table of regions.
    fn region(name: RegionName) -> Self {
        Self { word: name.index, bytes: name.index, region: Some(name) }
    }
}

/// A permission to be taken down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub withdrawal: Withdrawal,
    pub exposing: Exposing,
}

/// The context in which a mechanism sets up and takes down permissions.
pub(crate) struct Surroundings<'a, N: Nic> {
    pub nic: &'a mut N,
    pub ends: &'a Ends,
    pub tenant: TenantId,
    pub domain: &'a Domain,
    pub memory: &'a N::Memory,
    /// The unit of lengths in headers, in bytes.
    pub scale: u64,
    /// Whether ended permissions may stay exposed for a while, because the memory is not needed soon (Patronus §5.4).
    pub may_linger: bool,
    pub now: Moment,
    pub outcomes: &'a mut Vec<EnforcementOutcome>,
    exposing: &'a mut Table<Option<Exposing>>,
}

impl<N: Nic> Surroundings<'_, N> {
    /// Notes the windows or regions that expose a permission from here on, and writes its header (Patronus Fig. 3),
    /// which is not exposed yet.
    fn enter(&mut self, exposure: &Exposure, exposing: Exposing) {
        self.exposing.put(exposure.permission.index(), Some(exposing));
        let Exposure { id, address, length, lifetime, .. } = *exposure;
        let windows = (exposing.word, exposing.bytes);
        let header = Header::new(address, length, self.scale, windows, id.start, lifetime);
        let header = header.expect("the scale was chosen for the longest buffer of the pool");
        for (word_at, word) in (0..).step_by(8).zip(header.words()) {
            self.memory.store(offset(id.header) + word_at, word);
        }
    }
}

/// The work of a turn for one tenant.
struct Work {
    domain: Domain,
    starting: Vec<Exposure>,
    ending: Vec<Ended>,
}

/// The enforcement of a node: its mechanism, its tenants' domains, and the work for the next batch.
pub(crate) struct Enforcement<N: Nic> {
    /// The mechanism. The node calls it for all that needs nothing else of the enforcement.
    pub mechanism: Box<dyn Enforcer<N> + Send>,
    memory: N::Memory,
    scale: u64,
    tenants: Vec<Option<Work>>,
    /// The windows or regions that expose each permission, by its slot.
    exposing: Table<Option<Exposing>>,
    /// Tenants with something to set up or take down in this turn, each once.
    busy: Vec<TenantId>,
    /// Domains of tenants that have ended, while queue pairs are still in them.
    empty_domains: Vec<PdId>,
    outcomes: Vec<EnforcementOutcome>,
    /// The mechanism for clients without queue pairs. `None`: the node allows no such clients.
    region_keys: Option<RegionKeys>,
    /// Number of outcomes that the mechanism for those clients has taken note of.
    noted: usize,
}

impl<N: Nic> Enforcement<N> {
    /// Creates the enforcement that `config` names, over `memory`. It draws the next keys from `secret`, which only the
    /// node knows. Its completion queues have at most `depth_max` entries.
    ///
    /// # Errors
    /// The NIC has no queues left.
    pub fn new(
        nic: &mut N,
        config: &NodeConfig,
        memory: N::Memory,
        secret: [u8; 32],
        depth_max: u32,
    ) -> Result<Self, VerbsError>
    where
        N: 'static,
    {
        let mechanism: Box<dyn Enforcer<N> + Send> = match config.mechanism {
            Mechanism::MemoryWindow => Box::new(MemoryWindow::new(nic, config, secret, depth_max)?),
            Mechanism::WindowGroup => Box::new(WindowGroup::new(nic, config, secret, depth_max)?),
            Mechanism::MemoryRegion => Box::new(AtOnce(memory_region::MemoryRegion)),
            Mechanism::QueuePair => Box::new(AtOnce(queue_pair::QueuePair::default())),
            Mechanism::NodeCopy => Box::new(AtOnce(node_copy::NodeCopy)),
            Mechanism::None => Box::new(AtOnce(open::Open)),
            Mechanism::RegionKey => {
                return Err(VerbsError::Invalid("region keys are for clients without queue pairs only"));
            }
        };
        Ok(Self {
            mechanism,
            memory,
            scale: config.pool_bytes.div_ceil(1 << 16).next_power_of_two(),
            tenants: Vec::new(),
            exposing: Table::default(),
            busy: Vec::new(),
            empty_domains: Vec::new(),
            outcomes: Vec::new(),
            region_keys: None,
            noted: 0,
        })
    }

    /// Allows clients without queue pairs from here on. A tenant may have `tenant_max` places of the table.
    pub fn lend_regions(&mut self, regions: Box<dyn Regions>, tenant_max: u32) {
        self.region_keys = Some(RegionKeys::new(regions, tenant_max));
    }

    /// Whether the end of an operation of a client without queue pairs is awaited, which no event announces.
    pub fn awaits_operations(&self) -> bool {
        self.region_keys.as_ref().is_some_and(RegionKeys::awaits_operations)
    }

    /// Whether an operation of a tenant's client without queue pairs is awaited.
    pub fn awaits_operations_of(&self, tenant: TenantId) -> bool {
        self.region_keys.as_ref().is_some_and(|region_keys| region_keys.awaits_operations_of(tenant))
    }

    /// Returns the mechanism for clients without queue pairs, to be changed.
    pub fn region_keys_mut(&mut self) -> Option<&mut RegionKeys> {
        self.region_keys.as_mut()
    }

    /// Sets a tenant up on the NIC. Returns the key that opens all its permissions, if they have no keys of their own.
    ///
    /// # Errors
    /// The NIC refuses. Nothing is left behind.
    pub fn enter_tenant(&mut self, nic: &mut N, tenant: TenantId) -> Result<Option<Rkey>, VerbsError> {
        let domain = Domain::new(nic, &self.memory, self.mechanism.pool_access())?;
        self.mechanism.enter_tenant(nic, tenant, &domain).inspect_err(|_| {
            domain.deregister(nic);
            let _ = nic.deallocate_pd(domain.pd);
        })?;
        let slot = tenant.0 as usize;
        if slot >= self.tenants.len() {
            self.tenants.resize_with(slot + 1, || None);
        }
        let shared_key = self.mechanism.shared_key(&domain);
        self.tenants[slot] = Some(Work { domain, starting: Vec::new(), ending: Vec::new() });
        Ok(shared_key)
    }

    /// Removes a tenant from the NIC. Its domain is deallocated once no queue pair of a client is in it any more.
    pub fn end_tenant(&mut self, nic: &mut N, ends: &Ends, tenant: TenantId, now: Moment) -> Leftovers {
        let Work { domain, starting, ending } =
            self.tenants[tenant.0 as usize].take().expect("a tenant ends once");
        self.busy.retain(|&other| other != tenant);
        let mut around = Surroundings {
            nic,
            ends,
            tenant,
            domain: &domain,
            memory: &self.memory,
            scale: self.scale,
            may_linger: false,
            now,
            outcomes: &mut self.outcomes,
            exposing: &mut self.exposing,
        };
        let mut leftovers = self.mechanism.end_tenant(&mut around, &ending);
        domain.deregister(nic);
        self.empty_domains.push(domain.pd);
        self.drop_domains(nic);
        leftovers.unexposed.splice(..0, starting.iter().map(|exposure| exposure.permission));
        leftovers.residues.extend(ending.iter().map(|ended| ended.withdrawal.residue()));
        if let Some(region_keys) = &mut self.region_keys {
            leftovers
                .residues
                .iter()
                .for_each(|residue| region_keys.take_note(&EnforcementOutcome::Withdrawn(*residue)));
            let (unexposed, residues) = region_keys.end_tenant(tenant);
            leftovers.unexposed.extend(unexposed);
            leftovers.residues.extend(residues);
        }
        leftovers
    }

    /// Deallocates the domains in which there are no queue pairs any more.
    pub fn drop_domains(&mut self, nic: &mut N) {
        self.empty_domains.retain(|&pd| matches!(nic.deallocate_pd(pd), Err(VerbsError::Busy { .. })));
    }

    /// Returns a tenant's protection domain.
    pub fn pd(&self, tenant: TenantId) -> PdId {
        self.work(tenant).domain.pd
    }

    fn work(&self, tenant: TenantId) -> &Work {
        self.tenants[tenant.0 as usize].as_ref().expect("the books know no tenant that is not on the NIC")
    }

    fn work_mut(&mut self, tenant: TenantId) -> &mut Work {
        self.tenants[tenant.0 as usize].as_mut().expect("the books know no tenant that is not on the NIC")
    }

    /// Sets a permission up with this turn's batch.
    pub fn expose(&mut self, exposure: &Exposure) {
        self.mark_busy(exposure.tenant);
        match &mut self.region_keys {
            Some(region_keys) if region_keys.serves(exposure.client) => region_keys.expose(*exposure),
            _ => self.work_mut(exposure.tenant).starting.push(*exposure),
        }
    }

    /// Takes a permission down with this turn's batch.
    pub fn withdraw(&mut self, withdrawal: &Withdrawal) {
        // Taken now, not with the batch: another tenant's permission may get the slot in the same turn.
        let exposing = self.exposing[withdrawal.permission.index()].take();
        let exposing = exposing.expect("only a permission that was set up is taken down");
        self.mark_busy(withdrawal.tenant);
        match (&mut self.region_keys, exposing.region) {
            (Some(region_keys), Some(region)) => return region_keys.withdraw(*withdrawal, region),
            (Some(region_keys), None) => region_keys.begin_closing(withdrawal.object),
            (None, _) => {}
        }
        self.work_mut(withdrawal.tenant).ending.push(Ended { withdrawal: *withdrawal, exposing });
    }

    fn mark_busy(&mut self, tenant: TenantId) {
        if !self.busy.contains(&tenant) {
            self.busy.push(tenant);
        }
    }

    /// Calls [`Batches::release_lingering`](enforcer::Batches::release_lingering).
    pub fn release_lingering(&mut self, wanted: bool, now: Moment) {
        self.mechanism.release_lingering(wanted, now, &mut self.busy);
    }

    /// Takes the tenants with something to set up or take down in this turn. [`return_busy`](Self::return_busy) takes
    /// their buffer back.
    pub fn take_busy(&mut self) -> Vec<TenantId> {
        std::mem::take(&mut self.busy)
    }

    /// Takes back the buffer for busy tenants, to be used again.
    pub fn return_busy(&mut self, mut room: Vec<TenantId>) {
        room.clear();
        if self.busy.is_empty() {
            self.busy = room;
        }
    }

    /// Calls [`Batches::carry_out`](enforcer::Batches::carry_out). `may_linger`: whether ended permissions may stay exposed for a while.
    pub fn carry_out(
        &mut self,
        nic: &mut N,
        ends: &Ends,
        tenant: TenantId,
        may_linger: bool,
        now: Moment,
    ) -> bool {
        let work = self.tenants[tenant.0 as usize].as_mut().expect("a tenant that ends is busy no more");
        let mut around = Surroundings {
            nic,
            ends,
            tenant,
            domain: &work.domain,
            memory: &self.memory,
            scale: self.scale,
            may_linger,
            now,
            outcomes: &mut self.outcomes,
            exposing: &mut self.exposing,
        };
        // Here and not when a permission is queued: the region over its object may be closed after that, in the same turn.
        if let Some(region_keys) = &mut self.region_keys {
            region_keys.hold_back(&mut work.starting);
        }
        let done = self.mechanism.carry_out(&mut around, &mut work.starting, &mut work.ending);
        if let Some(region_keys) = &mut self.region_keys {
            around.outcomes[self.noted..].iter().for_each(|outcome| region_keys.take_note(outcome));
            region_keys.proceed(&mut around);
            // The mechanism's own outcomes are not the NIC's.
            self.noted = around.outcomes.len();
        }
        done
    }

    /// Takes the outcomes since the last call. [`return_outcomes`](Self::return_outcomes) takes their buffer back.
    pub fn take_outcomes(&mut self) -> Vec<EnforcementOutcome> {
        if let Some(region_keys) = &mut self.region_keys {
            self.outcomes[self.noted..].iter().for_each(|outcome| region_keys.take_note(outcome));
            self.noted = 0;
            let (ready, released) = (region_keys.ready(), region_keys.take_released());
            ready.into_iter().for_each(|tenant| self.mark_busy(tenant));
            for exposure in released {
                self.mark_busy(exposure.tenant);
                self.work_mut(exposure.tenant).starting.push(exposure);
            }
        }
        std::mem::take(&mut self.outcomes)
    }

    /// Takes back the buffer for outcomes, to be used again.
    pub fn return_outcomes(&mut self, mut room: Vec<EnforcementOutcome>) {
        room.clear();
        if self.outcomes.is_empty() {
            self.outcomes = room;
        }
    }

    /// Calls [`Batches::confirm`](enforcer::Batches::confirm).
    pub fn confirm(&mut self, nic: &mut N, completion: &Completion, now: Moment) -> Option<TenantId> {
        self.mechanism.confirm(nic, completion, now, &mut self.outcomes)
    }

    /// Handles the break of a queue pair that belongs to no client.
    pub fn handle_broken(&mut self, nic: &mut N, qp: QpId) {
        self.mechanism.handle_broken(nic, qp, &mut self.outcomes);
    }

    /// Returns the number of things to take apart when a tenant ends.
    pub fn burden(&self, tenant: TenantId) -> usize {
        let work = self.work(tenant);
        let without_nic = self.region_keys.as_ref().map_or(0, |region_keys| region_keys.burden(tenant));
        work.starting.len() + work.ending.len() + self.mechanism.burden(tenant) + without_nic
    }

    /// Calls [`Tenancy::shrink`](enforcer::Tenancy::shrink).
    pub fn shrink(&mut self, nic: &mut N, tenant: TenantId, most: usize, now: Moment) -> Shrunk {
        let mut shrunk = self.mechanism.shrink(nic, tenant, most, now);
        let work = self.work(tenant);
        shrunk.waits_for_nic |= !work.starting.is_empty() || !work.ending.is_empty();
        shrunk.waits_for_nic |=
            self.region_keys.as_ref().is_some_and(|region_keys| region_keys.burden(tenant) > 0);
        if shrunk.in_batch {
            self.mark_busy(tenant);
        }
        shrunk
    }
}
