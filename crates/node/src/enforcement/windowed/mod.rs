//! What the mechanisms by memory windows share: a tenant's windows, the queue pair that binds them, and one batch for
//! each turn and tenant (Patronus §5.4).
//!
//! A mechanism is a [`Scheme`]: it decides which windows a permission gets. Nothing here knows what a window exposes.

mod binder;
mod windows;

pub(super) use binder::{Batch, Binder, Release};
pub(super) use windows::{GoneWindows, WindowIndex, Windows};

use super::{Domain, Ended, Enforcer, Outcome, Remains, Shrunk, Surroundings, destroy_all};
use crate::books::{Exposure, PermissionSlot, Residue};
use crate::config::NodeConfig;
use portcullis_nic::{Access, Completion, CqId, Nic, QpId, RegionId, Status, VerbsError, WindowKind};
use portcullis_protocol::{ClientId, Lifetime, Moment, Refusal, TenantId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::HashMap;
use std::fmt::Debug;

/// Entries of the completion queue for binds. After a failure all requests complete, also the unsignalled ones.
const COMPLETIONS_MAX: u32 = 1 << 15;

/// Completions that are polled from that queue at a time.
const COMPLETIONS_AT_ONCE: usize = 256;

/// How often the window pools are tended while nothing else happens.
const TEND_EVERY: Lifetime = Lifetime::millis(10);

/// A tenant's windows.
pub(super) struct Tenant<S: Scheme> {
    pub region: RegionId,
    pub binder: Binder<S::Unit>,
    pub windows: Windows,
    /// What the scheme keeps of the tenant.
    pub own: S::OfTenant,
}

/// What a batch could not do, or did too early because a mistake is planted.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Permissions for which there was no window.
    pub failed: Vec<PermissionSlot>,
    /// What is free too early.
    pub early: Vec<Residue>,
}

/// A mechanism by windows: which windows a permission gets, and how they are bound and unbound.
pub(super) trait Scheme: Sized + Send + 'static {
    /// What is bound and unbound as one.
    type Unit: Copy + Debug + Send;
    /// What the scheme keeps of each tenant.
    type OfTenant: Default + Send;
    /// The windows that it uses.
    const KIND: WindowKind;

    /// Collects one tenant's binds and unbinds of this turn.
    fn collect<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        windows: (&mut Tenant<Self>, &mut GoneWindows),
        batch: &mut Batch<Self::Unit>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> Collected;

    /// Takes back what is known to be unbound.
    fn give<N: Nic>(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant<Self>,
        unit: Self::Unit,
        now: Moment,
        rest: Lifetime,
    );

    /// It is unknown what is bound to what: the windows go, and their keys with them.
    fn retire<N: Nic>(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant<Self>,
        unit: Self::Unit,
        gone: &mut GoneWindows,
    );

    /// A tenant has ended, and its windows with it.
    fn end_tenant<N: Nic>(&mut self, nic: &mut N, tenant: TenantId, own: Self::OfTenant) -> Vec<Residue>;

    /// See [`Enforcer::forget_client`].
    fn forget_client<N: Nic>(&mut self, nic: &mut N, _client: ClientId, data: Vec<QpId>) {
        destroy_all(nic, &data);
    }

    /// See [`Enforcer::hurry`].
    fn hurry(
        &mut self,
        _tenants: &mut [Option<Box<Tenant<Self>>>],
        _wanted: bool,
        _now: Moment,
        _busy: &mut Vec<TenantId>,
    ) {
    }

    /// Has at most `most` things that are bound without a permission go with the next batch. Returns how many, and
    /// whether any wait for that batch.
    fn hasten(&mut self, _tenant: &mut Tenant<Self>, _most: usize, _now: Moment) -> (usize, bool) {
        (0, false)
    }

    /// See [`Enforcer::next_wake`].
    fn next_wake(&self, _tenants: &[Option<Box<Tenant<Self>>>]) -> Option<Moment> {
        None
    }
}

/// A mechanism by windows.
pub(super) struct Windowed<S: Scheme> {
    scheme: S,
    config: NodeConfig,
    cq: CqId,
    /// Whether the queue pairs that bind do so for others.
    for_others: bool,
    tenants: Vec<Option<Box<Tenant<S>>>>,
    /// Tenants by their queue pairs for binds.
    binders: HashMap<QpId, TenantId>,
    gone: GoneWindows,
    lots: StdRng,
    /// Binds, rebinds and unbinds posted.
    operations: u64,
    /// When the window pools are tended next.
    tend_check: Moment,
}

impl<S: Scheme> Windowed<S> {
    /// No tenants yet.
    ///
    /// # Errors
    /// The NIC has no queue for the completions of binds.
    pub fn new(
        scheme: S,
        nic: &mut impl Nic,
        config: &NodeConfig,
        secret: [u8; 32],
        depth_max: u32,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            scheme,
            config: config.clone(),
            cq: nic.create_cq(COMPLETIONS_MAX.min(depth_max))?,
            for_others: S::KIND == WindowKind::Two,
            tenants: Vec::new(),
            binders: HashMap::new(),
            gone: GoneWindows::default(),
            lots: StdRng::from_seed(secret),
            operations: 0,
            tend_check: Moment(0),
        })
    }

    /// A bind failed, and it is unknown which windows are bound to what. So all of them go, and their keys with them.
    fn fail_batches(&mut self, nic: &mut impl Nic, id: TenantId, outcomes: &mut Vec<Outcome>) {
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let batches = std::mem::take(&mut tenant.binder.batches);
        tenant.binder.unposted.clear();
        for &unit in batches.iter().flat_map(|batch| &batch.touched) {
            self.scheme.retire(nic, tenant, unit, &mut self.gone);
        }
        tenant.binder.mend(nic);
        for batch in batches {
            outcomes.extend(batch.releases.iter().map(|release| Outcome::Withdrawn(release.residue)));
            let starts = batch.starts.iter();
            outcomes.extend(starts.map(|&(it, _)| Outcome::NotExposed(it, Refusal::NicFailed)));
            outcomes.extend(batch.owed.into_iter().map(Outcome::Settled));
        }
    }
}

impl<N: Nic, S: Scheme> Enforcer<N> for Windowed<S> {
    fn pool_access(&self) -> Access {
        Access::empty()
    }

    fn client_access(&self, _client: ClientId) -> Access {
        Access::REMOTE
    }

    fn enter_tenant(&mut self, nic: &mut N, id: TenantId, domain: &Domain) -> Result<(), VerbsError> {
        let binder = Binder::new(nic, domain.pd, self.cq, self.for_others)?;
        self.binders.insert(binder.qp, id);
        // Whoever posts a bind of type 2 chooses the low byte of its key.
        let chosen_keys = S::KIND == WindowKind::Two || nic.capabilities().chosen_keys;
        let windows =
            Windows::new((domain.pd, S::KIND), self.config.windows_max, chosen_keys, &mut self.lots);
        let slot = id.0 as usize;
        if slot >= self.tenants.len() {
            self.tenants.resize_with(slot + 1, || None);
        }
        let tenant = Tenant { region: domain.region.id, binder, windows, own: S::OfTenant::default() };
        self.tenants[slot] = Some(Box::new(tenant));
        Ok(())
    }

    fn end_tenant(&mut self, around: &mut Surroundings<'_, N>, _ending: &[Ended]) -> Remains {
        let slot = around.tenant.0 as usize;
        let tenant = *self.tenants[slot].take().expect("each tenant has windows until it ends");
        let Tenant { binder, mut windows, own, .. } = tenant;
        self.binders.remove(&binder.qp);
        let mut remains = Remains { unborn: Vec::new(), residues: windows.end(around.nic, &mut self.gone) };
        let _ = around.nic.destroy_qp(binder.qp);
        for batch in binder.batches {
            remains.residues.extend(batch.releases.iter().map(|release| release.residue));
            remains.unborn.extend(batch.starts.iter().map(|&(permission, _)| permission));
        }
        remains.residues.extend(self.scheme.end_tenant(around.nic, around.tenant, own));
        remains
    }

    fn forget_client(&mut self, nic: &mut N, client: ClientId, data: Vec<QpId>) {
        self.scheme.forget_client(nic, client, data);
    }

    fn carry_out(
        &mut self,
        around: &mut Surroundings<'_, N>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> bool {
        let slot = around.tenant.0 as usize;
        // Taken out of the table, so that the rest can be reached meanwhile.
        let mut tenant = self.tenants[slot].take().expect("each tenant has windows until it ends");
        let mut batch = tenant.binder.open_batch();
        batch.owed.extend(ending.iter().filter_map(|ended| ended.withdrawal.owed));
        let posted_before = tenant.binder.unposted.len();
        let window = (&mut *tenant, &mut self.gone);
        let Collected { failed, early } = self.scheme.collect(around, window, &mut batch, starting, ending);
        let posted = tenant.binder.unposted.len() - posted_before;
        self.operations += posted as u64;
        if posted == 0 {
            around.outcomes.extend(batch.owed.drain(..).map(Outcome::Settled));
            tenant.binder.return_batch(batch);
        } else {
            tenant.binder.close_batch(batch);
        }
        let taken = tenant.binder.post(around.nic);
        self.tenants[slot] = Some(tenant);
        if !taken {
            self.fail_batches(around.nic, around.tenant, around.outcomes);
        }
        around.outcomes.extend(early.into_iter().map(Outcome::Withdrawn));
        let refusal = Refusal::NodeFull { limit: self.config.windows_max.into() };
        around.outcomes.extend(failed.into_iter().map(|it| Outcome::NotExposed(it, refusal)));
        false
    }

    fn poll(&mut self, nic: &mut N, completions: &mut Vec<Completion>) {
        // A device that has failed confirms nothing: nothing more is granted, and nothing becomes free.
        let _ = nic.poll(self.cq, COMPLETIONS_AT_ONCE, completions);
    }

    fn confirm(
        &mut self,
        nic: &mut N,
        completion: &Completion,
        now: Moment,
        outcomes: &mut Vec<Outcome>,
    ) -> Option<TenantId> {
        // The tenant may have ended since.
        let &id = self.binders.get(&completion.queue_pair)?;
        if completion.status != Status::Success {
            self.fail_batches(nic, id, outcomes);
            return None;
        }
        let rest = self.config.window_rest;
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let confirmed = tenant.binder.batches.pop_front_if(|batch| batch.number == completion.request);
        let Some(mut batch) = confirmed else {
            // Within a batch, or of one that failed: this only says that the queue has room again.
            if !tenant.binder.post(nic) {
                self.fail_batches(nic, id, outcomes);
            }
            return None;
        };
        for unit in batch.releases.iter().filter_map(|release| release.unbound) {
            self.scheme.give(nic, tenant, unit, now, rest);
        }
        let taken = tenant.binder.post(nic);
        outcomes.extend(batch.releases.drain(..).map(|release| Outcome::Withdrawn(release.residue)));
        outcomes.extend(batch.starts.drain(..).map(|(it, credential)| Outcome::Exposed(it, credential)));
        outcomes.extend(batch.owed.drain(..).map(Outcome::Settled));
        tenant.binder.return_batch(batch);
        if !taken {
            self.fail_batches(nic, id, outcomes);
        }
        Some(id)
    }

    fn handle_broken(&mut self, nic: &mut N, qp: QpId, outcomes: &mut Vec<Outcome>) {
        if let Some(&tenant) = self.binders.get(&qp) {
            self.fail_batches(nic, tenant, outcomes);
        }
    }

    fn hurry(&mut self, wanted: bool, now: Moment, busy: &mut Vec<TenantId>) {
        self.scheme.hurry(&mut self.tenants, wanted, now, busy);
    }

    /// Fills pools and ends worn windows.
    fn tend(&mut self, nic: &mut N, now: Moment) -> bool {
        if now < self.tend_check {
            return false;
        }
        let ready = self.config.windows_ready;
        let mut more = false;
        for tenant in self.tenants.iter_mut().flatten() {
            more |= tenant.windows.tend(nic, now, ready, &mut self.gone);
        }
        if !more {
            self.tend_check = now.after(TEND_EVERY);
        }
        more
    }

    fn next_wake(&self) -> Option<Moment> {
        self.scheme.next_wake(&self.tenants)
    }

    fn burden(&self, tenant: TenantId) -> usize {
        let tenant = self.tenants[tenant.0 as usize].as_ref().expect("each tenant has windows until it ends");
        let bound = tenant.binder.batches.iter().map(|batch| batch.starts.len() + batch.releases.len());
        tenant.windows.len() + bound.sum::<usize>()
    }

    fn shrink(&mut self, nic: &mut N, id: TenantId, most: usize, now: Moment) -> Shrunk {
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let unused = tenant.windows.retire_unused(nic, most, &mut self.gone);
        let (hastened, in_batch) = self.scheme.hasten(tenant, most - unused, now);
        let waits_for_nic = in_batch || tenant.binder.is_at_work();
        Shrunk { ended: unused + hastened, in_batch, waits_for_nic }
    }

    fn windows(&self) -> (u64, u64) {
        let windows = self.tenants.iter().flatten().map(|tenant| tenant.windows.len() as u64);
        (windows.sum(), self.operations)
    }

    fn end(&mut self, nic: &mut N) {
        let _ = nic.destroy_cq(self.cq);
    }
}
