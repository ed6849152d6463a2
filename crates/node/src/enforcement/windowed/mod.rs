//! The common part of the mechanisms by memory windows: a tenant's windows, the queue pairs on which they are bound,
//! and one batch for each turn and tenant (Patronus §5.4).
//!
//! A mechanism is a [`Scheme`]: it decides which windows a permission gets. Nothing here knows the bytes that a window
//! exposes.

mod binder;
mod data_queue_pairs;
mod own_queue;
mod phases;
mod windows;

pub(super) use binder::{Batch, Binder, Release};
pub(super) use windows::{GoneWindows, WindowIndex, Windows};

use super::enforcer::{Batches, Leftovers, Shrunk, Tenancy};
use super::{Domain, Ended, EnforcementOutcome, Surroundings};
use crate::books::{Exposure, PermissionSlot, Residue};
use crate::config::NodeConfig;
use crate::ends::{Gate, destroy_all};
use data_queue_pairs::{Completed, DataQueuePairs};
use own_queue::OwnQueue;
use portcullis_nic::{
    Access, Completion, CqId, Nic, QpId, RegionId, SendQueue, Status, VerbsError, WindowKind,
};
use portcullis_protocol::{ClientId, Lifetime, Moment, Refusal, TenantId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// The most entries of the completion queue for binds. After a failure all requests complete, including the unsignalled
/// ones.
const COMPLETIONS_MAX: u32 = 1 << 15;

/// Number of completions that are polled from that queue at a time.
const COMPLETIONS_AT_ONCE: usize = 256;

/// Time between two cares of the window pools while nothing else happens.
const TEND_EVERY: Lifetime = Lifetime::millis(10);

/// A tenant's windows.
pub(super) struct Tenant<S: Scheme> {
    pub region: RegionId,
    pub binder: Binder<S::Unit>,
    pub windows: Windows,
    /// The scheme's data about the tenant.
    pub own: S::OfTenant,
}

/// Permissions that could not be part of a batch, and residues that are free too early because a mistake is planted.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Permissions for which no window was left.
    pub failed: Vec<PermissionSlot>,
    /// Residues that are free too early.
    pub early: Vec<Residue>,
}

/// A mechanism by windows. It decides which windows a permission gets, and how they are bound and unbound.
pub(super) trait Scheme: Sized + Send + 'static {
    /// A set of windows that is bound and unbound as one.
    type Unit: Copy + PartialEq + Debug + Send;
    /// The scheme's data about each tenant.
    type OfTenant: Default + Send;
    /// The kind of windows that the scheme uses.
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

    /// Takes back a unit that is known to be unbound.
    fn give(&mut self, tenant: &mut Tenant<Self>, unit: Self::Unit, now: Moment, rest: Lifetime);

    /// Deallocates one window of a unit, which cannot be unbound. Its keys are lost with it.
    fn retire_window<N: Nic>(
        &mut self,
        _nic: &mut N,
        _tenant: &mut Tenant<Self>,
        _unit: Self::Unit,
        _window: WindowIndex,
        _gone: &mut GoneWindows,
    ) {
        unreachable!("only windows of type 2 are bound on clients' queue pairs")
    }

    /// Deallocates the windows of a unit, because it is unknown to what they are bound. Their keys are lost with them.
    fn retire<N: Nic>(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant<Self>,
        unit: Self::Unit,
        gone: &mut GoneWindows,
    );

    /// Ends the scheme's data about a tenant. The tenant's windows have ended with it.
    fn end_tenant(&mut self, own: Self::OfTenant) -> Vec<Residue>;

    /// Handles the departure of a client. Returns those of its data queue pairs that nothing needs any more.
    fn forget_client(&mut self, _client: ClientId, data: Vec<QpId>) -> Vec<QpId> {
        data
    }

    /// Takes the data queue pairs of clients that have left, as soon as nothing needs them any more.
    fn take_left(&mut self) -> Vec<QpId> {
        Vec::new()
    }

    /// Implements [`Batches::release_lingering`].
    fn release_lingering(
        &mut self,
        _tenants: &mut [Option<Box<Tenant<Self>>>],
        _wanted: bool,
        _now: Moment,
        _busy: &mut Vec<TenantId>,
    ) {
    }

    /// Puts at most `most` windows that are bound without a permission into the next batch, which unbinds them. Returns
    /// their number, and whether any wait for that batch.
    fn hasten(&mut self, _tenant: &mut Tenant<Self>, _most: usize, _now: Moment) -> (usize, bool) {
        (0, false)
    }

    /// Implements [`Batches::next_wake`].
    fn next_wake(&self, _tenants: &[Option<Box<Tenant<Self>>>]) -> Option<Moment> {
        None
    }
}

/// A mechanism by windows.
pub(super) struct Windowed<S: Scheme> {
    scheme: S,
    config: NodeConfig,
    cq: CqId,
    /// The queue pairs on which windows are bound if no queue pair may bind for others.
    data_queue_pairs: Option<DataQueuePairs<S::Unit>>,
    tenants: Vec<Option<Box<Tenant<S>>>>,
    /// Tenants, by their queue pairs for binds.
    binders: BTreeMap<QpId, TenantId>,
    gone: GoneWindows,
    lots: StdRng,
    /// Binds, rebinds and unbinds posted.
    operations: u64,
    /// Time of the next care of the window pools.
    tend_check: Moment,
}

impl<S: Scheme> Windowed<S> {
    /// Creates the mechanism, without tenants.
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
        let depth = COMPLETIONS_MAX.min(depth_max);
        let cq = nic.create_cq(depth)?;
        let on_data_queue_pairs = S::KIND == WindowKind::Two && !config.chains;
        Ok(Self {
            scheme,
            config: config.clone(),
            cq,
            data_queue_pairs: on_data_queue_pairs.then(|| DataQueuePairs::new(cq, depth)),
            tenants: Vec::new(),
            binders: BTreeMap::new(),
            gone: GoneWindows::default(),
            lots: StdRng::from_seed(secret),
            operations: 0,
            tend_check: Moment(0),
        })
    }

    /// Deallocates all windows of a tenant's batches after a bind has failed: it is unknown to what each is bound.
    /// Their keys are lost with them.
    fn fail_batches(&mut self, nic: &mut impl Nic, id: TenantId, outcomes: &mut Vec<EnforcementOutcome>) {
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let batches = tenant.binder.fail(nic);
        if let Some(data_queue_pairs) = &mut self.data_queue_pairs {
            data_queue_pairs.abandon(id);
        }
        for &unit in batches.iter().flat_map(|batch| &batch.touched) {
            self.scheme.retire(nic, tenant, unit, &mut self.gone);
            if let Some(data_queue_pairs) = &mut self.data_queue_pairs {
                data_queue_pairs.forget(id, unit);
            }
        }
        self.destroy_left(nic);
        for batch in batches {
            outcomes
                .extend(batch.releases.iter().map(|release| EnforcementOutcome::Withdrawn(release.residue)));
            let starts = batch.starts.iter();
            outcomes.extend(starts.map(|&(it, _)| EnforcementOutcome::NotExposed(it, Refusal::NicFailed)));
            outcomes.extend(batch.owed.into_iter().map(EnforcementOutcome::Settled));
        }
    }

    /// Posts the requests that can be posted now, and reports the confirmed batches. Returns whether there was one.
    fn proceed(
        &mut self,
        nic: &mut impl Nic,
        id: TenantId,
        now: Moment,
        outcomes: &mut Vec<EnforcementOutcome>,
    ) -> bool {
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let taken = tenant.binder.post(nic, self.data_queue_pairs.as_mut());
        for closing in tenant.binder.take_closing() {
            self.scheme.retire_window(nic, tenant, closing.unit, closing.window, &mut self.gone);
        }
        let mut any = false;
        while let Some(mut batch) = tenant.binder.take_confirmed() {
            any = true;
            for unit in batch.releases.iter().filter_map(|release| release.unbound) {
                self.scheme.give(tenant, unit, now, self.config.window_rest);
            }
            outcomes.extend(
                batch.releases.drain(..).map(|release| EnforcementOutcome::Withdrawn(release.residue)),
            );
            outcomes.extend(
                batch.starts.drain(..).map(|(it, credential)| EnforcementOutcome::Exposed(it, credential)),
            );
            outcomes.extend(batch.owed.drain(..).map(EnforcementOutcome::Settled));
            tenant.binder.return_batch(batch);
        }
        self.destroy_left(nic);
        if !taken {
            self.fail_batches(nic, id, outcomes);
        }
        any
    }

    fn destroy_left(&mut self, nic: &mut impl Nic) {
        let left = self.scheme.take_left();
        self.destroy(nic, &left);
    }

    /// Destroys data queue pairs of clients that have left.
    fn destroy(&mut self, nic: &mut impl Nic, queue_pairs: &[QpId]) {
        if let Some(data_queue_pairs) = &mut self.data_queue_pairs {
            queue_pairs.iter().for_each(|&qp| data_queue_pairs.remove(qp));
        }
        destroy_all(nic, queue_pairs);
    }

    /// Handles a completion. Returns its tenant, and whether the NIC has refused a request of a batch.
    fn take_in(&mut self, nic: &mut impl Nic, completion: &Completion) -> Option<(TenantId, bool)> {
        let of = |id: TenantId| id.0 as usize;
        if let Some(&id) = self.binders.get(&completion.queue_pair) {
            let tenant = self.tenants[of(id)].as_mut().expect("each tenant has windows until it ends");
            let is_refused = completion.status != Status::Success;
            if !is_refused {
                tenant.binder.complete(completion);
            }
            return Some((id, is_refused));
        }
        let completed = self.data_queue_pairs.as_mut()?.complete(completion)?;
        let (Completed::Done(id) | Completed::Closes(id, ..) | Completed::Failed(id) | Completed::Aside(id)) =
            completed;
        let tenant = self.tenants[of(id)].as_mut().expect("a tenant's queue pairs are forgotten with it");
        if let Completed::Closes(_, unit, window) = completed {
            self.scheme.retire_window(nic, tenant, unit, window, &mut self.gone);
        }
        if let Completed::Done(_) | Completed::Closes(..) = completed {
            tenant.binder.complete_on_data_queue_pair();
        }
        Some((id, matches!(completed, Completed::Failed(_))))
    }

    /// Continues for all tenants whose requests had to wait for room in the completion queue.
    fn make_up_for_shortage(
        &mut self,
        nic: &mut impl Nic,
        now: Moment,
        outcomes: &mut Vec<EnforcementOutcome>,
    ) {
        if self.data_queue_pairs.as_mut().is_some_and(DataQueuePairs::take_shortage) {
            for id in (0..).map(TenantId).take(self.tenants.len()) {
                if self.tenants[id.0 as usize].is_some() {
                    self.proceed(nic, id, now, outcomes);
                }
            }
        }
    }
}

impl<N: Nic, S: Scheme> Tenancy<N> for Windowed<S> {
    fn pool_access(&self) -> Access {
        Access::empty()
    }

    fn enter_tenant(&mut self, nic: &mut N, id: TenantId, domain: &Domain) -> Result<(), VerbsError> {
        let binder = if self.data_queue_pairs.is_some() {
            Binder::on_data_queue_pairs()
        } else {
            let queue = OwnQueue::new(nic, domain.pd, self.cq, S::KIND == WindowKind::Two)?;
            self.binders.insert(queue.qp, id);
            Binder::on_own_queue(queue)
        };
        // The poster of a bind of type 2 chooses the low byte of its key.
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

    fn end_tenant(&mut self, around: &mut Surroundings<'_, N>, _ending: &[Ended]) -> Leftovers {
        let slot = around.tenant.0 as usize;
        let tenant = *self.tenants[slot].take().expect("each tenant has windows until it ends");
        let Tenant { binder, mut windows, own, .. } = tenant;
        if let Some(qp) = binder.own_queue_pair() {
            self.binders.remove(&qp);
        }
        let mut leftovers =
            Leftovers { unexposed: Vec::new(), residues: windows.end(around.nic, &mut self.gone) };
        for batch in binder.end(around.nic) {
            leftovers.residues.extend(batch.releases.iter().map(|release| release.residue));
            leftovers.unexposed.extend(batch.starts.iter().map(|&(permission, _)| permission));
        }
        leftovers.residues.extend(self.scheme.end_tenant(own));
        self.destroy_left(around.nic);
        leftovers
    }

    fn burden(&self, tenant: TenantId) -> usize {
        let tenant = self.tenants[tenant.0 as usize].as_ref().expect("each tenant has windows until it ends");
        let bound = tenant.binder.batches().map(|batch| batch.starts.len() + batch.releases.len());
        tenant.windows.len() + bound.sum::<usize>()
    }

    fn shrink(&mut self, nic: &mut N, id: TenantId, most: usize, now: Moment) -> Shrunk {
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let unused = tenant.windows.retire_unused(nic, most, &mut self.gone);
        let (hastened, in_batch) = self.scheme.hasten(tenant, most - unused, now);
        let waits_for_nic = in_batch || tenant.binder.batches().next().is_some();
        Shrunk { ended: unused + hastened, in_batch, waits_for_nic }
    }

    fn end(&mut self, nic: &mut N) {
        let _ = nic.destroy_cq(self.cq);
    }
}

impl<N: Nic, S: Scheme> Gate<N> for Windowed<S> {
    fn access(&self, _client: ClientId) -> Access {
        Access::REMOTE
    }

    fn data_sends(&self) -> Option<SendQueue> {
        self.data_queue_pairs.as_ref().map(DataQueuePairs::sends)
    }

    fn enter_client(&mut self, tenant: TenantId, data: &[QpId]) {
        if let Some(data_queue_pairs) = &mut self.data_queue_pairs {
            data_queue_pairs.insert(tenant, data);
        }
    }

    fn forget_client(&mut self, nic: &mut N, client: ClientId, data: Vec<QpId>) {
        let needless = self.scheme.forget_client(client, data);
        self.destroy(nic, &needless);
    }

    fn quiesce(&mut self, qp: QpId) -> bool {
        self.data_queue_pairs.as_mut().is_none_or(|data_queue_pairs| data_queue_pairs.quiesce(qp))
    }

    fn resume(&mut self, qp: QpId) {
        if let Some(data_queue_pairs) = &mut self.data_queue_pairs {
            data_queue_pairs.resume(qp);
        }
    }

    fn restore(&mut self, nic: &mut N, qp: QpId) -> bool {
        self.data_queue_pairs.as_mut().is_none_or(|data_queue_pairs| data_queue_pairs.restore(nic, qp))
    }
}

impl<N: Nic, S: Scheme> Batches<N> for Windowed<S> {
    fn carry_out(
        &mut self,
        around: &mut Surroundings<'_, N>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> bool {
        let slot = around.tenant.0 as usize;
        // Taken out of the table, so that the rest of `self` can be used meanwhile.
        let mut tenant = self.tenants[slot].take().expect("each tenant has windows until it ends");
        let mut batch = tenant.binder.open_batch();
        batch.owed.extend(ending.iter().filter_map(|ended| ended.withdrawal.owed));
        let window = (&mut *tenant, &mut self.gone);
        let Collected { failed, early } = self.scheme.collect(around, window, &mut batch, starting, ending);
        self.operations += batch.requests as u64;
        if batch.requests == 0 {
            around.outcomes.extend(batch.owed.drain(..).map(EnforcementOutcome::Settled));
            tenant.binder.return_batch(batch);
        } else {
            tenant.binder.close_batch(batch);
        }
        self.tenants[slot] = Some(tenant);
        let confirmed = self.proceed(around.nic, around.tenant, around.now, around.outcomes);
        around.outcomes.extend(early.into_iter().map(EnforcementOutcome::Withdrawn));
        let refusal = Refusal::NodeFull { limit: self.config.windows_max.into() };
        around.outcomes.extend(failed.into_iter().map(|it| EnforcementOutcome::NotExposed(it, refusal)));
        confirmed
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
        outcomes: &mut Vec<EnforcementOutcome>,
    ) -> Option<TenantId> {
        // `None`: the tenant or the client may have ended meanwhile.
        let (id, is_refused) = self.take_in(nic, completion)?;
        let confirmed = if is_refused {
            self.fail_batches(nic, id, outcomes);
            false
        } else {
            self.proceed(nic, id, now, outcomes)
        };
        self.make_up_for_shortage(nic, now, outcomes);
        confirmed.then_some(id)
    }

    fn handle_broken(&mut self, nic: &mut N, qp: QpId, outcomes: &mut Vec<EnforcementOutcome>) {
        if let Some(&tenant) = self.binders.get(&qp) {
            self.fail_batches(nic, tenant, outcomes);
        }
    }

    fn release_lingering(&mut self, wanted: bool, now: Moment, busy: &mut Vec<TenantId>) {
        self.scheme.release_lingering(&mut self.tenants, wanted, now, busy);
    }

    /// Fills pools and deallocates worn windows.
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

    fn windows(&self) -> (u64, u64) {
        let windows = self.tenants.iter().flatten().map(|tenant| tenant.windows.len() as u64);
        (windows.sum(), self.operations)
    }
}
