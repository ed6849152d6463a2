//! Mechanism `memory-window`: a type-1 window for each permission. One batch for each turn and tenant binds, hands over
//! and unbinds windows (Patronus §5.4).

mod binder;
mod windows;

use super::{Domain, EXPOSED_BYTES, Ended, Enforcer, Exposing, Outcome, Remains, Shrunk, Surroundings};
use crate::books::{Exposure, PermissionSlot, Residue};
use crate::config::NodeConfig;
use binder::{Batch, Binder, Release, SIGNAL_EVERY};
use portcullis_nic::{
    Access, Completion, CqId, Nic, Operation, QpId, RegionId, RemoteAddress, Status, VerbsError,
    WindowBinding, WorkRequest,
};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{ClientId, Credential, Lifetime, Moment, Refusal, Rkey, TenantId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::HashMap;
use windows::{GoneWindows, WindowIndex, Windows};

/// Entries of the completion queue for binds. After a failure all requests complete, also the unsignalled ones.
const COMPLETIONS_MAX: u32 = 1 << 15;

/// Completions that are polled from that queue at a time.
const COMPLETIONS_AT_ONCE: usize = 256;

/// How often the window pools are tended while nothing else happens.
const TEND_EVERY: Lifetime = Lifetime::millis(10);

/// A tenant's windows.
struct Tenant {
    region: RegionId,
    binder: Binder,
    windows: Windows,
    /// Windows that must not linger any longer.
    overdue: Vec<(WindowIndex, Residue)>,
}

/// The mechanism of Patronus.
pub(super) struct MemoryWindow {
    config: NodeConfig,
    cq: CqId,
    tenants: Vec<Option<Box<Tenant>>>,
    /// Tenants by their queue pairs for binds.
    binders: HashMap<QpId, TenantId>,
    /// Windows between two permissions, kept for its room.
    stock: Stock,
    gone: GoneWindows,
    lots: StdRng,
    /// Binds, rebinds and unbinds posted.
    operations: u64,
    /// When lingering windows are looked at next.
    linger_check: Moment,
    /// When the window pools are tended next.
    tend_check: Moment,
}

impl MemoryWindow {
    /// No tenants yet.
    ///
    /// # Errors
    /// The NIC has no type-1 windows, or no queue for their completions.
    pub fn new(
        nic: &mut impl Nic,
        config: &NodeConfig,
        secret: [u8; 32],
        depth_max: u32,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            config: config.clone(),
            cq: nic.create_cq(COMPLETIONS_MAX.min(depth_max))?,
            tenants: Vec::new(),
            binders: HashMap::new(),
            stock: Stock::default(),
            gone: GoneWindows::default(),
            lots: StdRng::from_seed(secret),
            operations: 0,
            linger_check: Moment(0),
            tend_check: Moment(0),
        })
    }

    fn tenant(&mut self, tenant: TenantId) -> &mut Tenant {
        self.tenants[tenant.0 as usize].as_mut().expect("each tenant has windows until it ends")
    }

    /// Collects one tenant's binds and unbinds of this turn. Returns the permissions for which there was no window, and
    /// what is free too early if that mistake is planted.
    fn batch<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        tenant: &mut Tenant,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> (Vec<PermissionSlot>, Vec<Residue>) {
        let mut batch = tenant.binder.open_batch();
        let (mut failed, mut early) = (Vec::new(), Vec::new());
        self.stock.prompt.append(&mut tenant.overdue);
        for ended in ending.drain(..) {
            batch.owed.extend(ended.withdrawal.owed);
            if planted::is(Fault::WordTrustedOverUnbind) {
                early.push(ended.withdrawal.residue());
            } else {
                self.stock.add(&ended);
            }
        }
        let posted_before = tenant.binder.unposted.len();
        for exposure in starting.drain(..) {
            match self.bind(around, tenant, &mut batch, &exposure) {
                Some(credential) => batch.starts.push((exposure.permission, credential)),
                None => failed.push(exposure.permission),
            }
        }
        self.unbind_stock(around, tenant, &mut batch, &mut early);
        let posted = tenant.binder.unposted.len() - posted_before;
        self.operations += posted as u64;
        if posted == 0 {
            around.outcomes.extend(batch.owed.drain(..).map(Outcome::Settled));
            tenant.binder.return_batch(batch);
        } else {
            tenant.binder.close_batch(batch);
        }
        (failed, early)
    }

    /// Unbinds the windows that nothing took over, or lets them linger.
    fn unbind_stock<N: Nic>(
        &mut self,
        around: &Surroundings<'_, N>,
        tenant: &mut Tenant,
        batch: &mut Batch,
        early: &mut Vec<Residue>,
    ) {
        let delay = self.config.reductions.delayed_unbinding && around.may_linger;
        for (window, residue) in self.stock.prompt.drain(..) {
            unbind(tenant, batch, window, residue);
        }
        for (window, mut residue) in self.stock.lazy.drain(..) {
            if planted::is(Fault::ReusedBeforeUnbind) {
                early.push(std::mem::take(&mut residue));
            }
            if planted::is(Fault::HeaderReusedWhileBound)
                && let Some(header) = residue.header.take()
            {
                early.push(Residue { header: Some(header), ..Residue::default() });
            }
            if delay && !tenant.windows.is_worn(window) {
                tenant.windows.linger(window, residue, around.now);
            } else {
                unbind(tenant, batch, window, residue);
            }
        }
    }

    /// Binds what a starting permission needs, first windows of ended ones (Patronus §5.4, handover). `None`: there is
    /// no window.
    fn bind<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        tenant: &mut Tenant,
        batch: &mut Batch,
        exposure: &Exposure,
    ) -> Option<Credential> {
        let (word, access) = (exposure.lifetime_word(), Access::from(exposure.rights));
        let access = if planted::is(Fault::RightsNotNarrowed) { Access::REMOTE } else { access };
        let length = exposure.length + u64::from(planted::is(Fault::RangeOneByteLong));
        let first = self.take_window(around, tenant)?;
        let (exposing, buffer, lifetime) = if exposure.is_contiguous() {
            let key = rebind(tenant, batch, first, (word, EXPOSED_BYTES + length), access);
            (Exposing { word: first.0.0, bytes: first.0.0 }, key, key)
        } else {
            let Some(second) = self.take_window(around, tenant) else {
                self.stock.prompt.push(first);
                return None;
            };
            let lifetime = rebind(tenant, batch, second, (word, EXPOSED_BYTES), Access::REMOTE_ATOMIC);
            let buffer = rebind(tenant, batch, first, (exposure.address, length), access);
            (Exposing { word: second.0.0, bytes: first.0.0 }, buffer, lifetime)
        };
        around.enter(exposure, exposing);
        Some(Credential::Keys { buffer, lifetime })
    }

    fn take_window<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        tenant: &mut Tenant,
    ) -> Option<(WindowIndex, Residue)> {
        if self.config.reductions.handover
            && let Some(window) = self.stock.take(&tenant.windows)
        {
            return Some(window);
        }
        tenant.windows.take(around.nic, &mut self.gone).ok()
    }

    /// A bind failed, and it is unknown which windows are bound to what. So all of them go, and their keys with them.
    fn fail_batches(&mut self, nic: &mut impl Nic, id: TenantId, outcomes: &mut Vec<Outcome>) {
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let batches = std::mem::take(&mut tenant.binder.batches);
        tenant.binder.unposted.clear();
        for &window in batches.iter().flat_map(|batch| &batch.windows) {
            tenant.windows.retire(nic, window, &mut self.gone);
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

impl<N: Nic> Enforcer<N> for MemoryWindow {
    fn pool_access(&self) -> Access {
        Access::empty()
    }

    fn client_access(&self, _client: ClientId) -> Access {
        Access::REMOTE
    }

    fn enter_tenant(&mut self, nic: &mut N, id: TenantId, domain: &Domain) -> Result<(), VerbsError> {
        let binder = Binder::new(nic, domain.pd, self.cq)?;
        self.binders.insert(binder.qp, id);
        let chosen_keys = nic.capabilities().chosen_keys;
        let windows = Windows::new(domain.pd, self.config.windows_max, chosen_keys, &mut self.lots);
        let slot = id.0 as usize;
        if slot >= self.tenants.len() {
            self.tenants.resize_with(slot + 1, || None);
        }
        let tenant = Tenant { region: domain.region.id, binder, windows, overdue: Vec::new() };
        self.tenants[slot] = Some(Box::new(tenant));
        Ok(())
    }

    fn end_tenant(&mut self, around: &mut Surroundings<'_, N>, _ending: &[Ended]) -> Remains {
        let slot = around.tenant.0 as usize;
        let mut tenant = self.tenants[slot].take().expect("each tenant has windows until it ends");
        self.binders.remove(&tenant.binder.qp);
        let mut remains =
            Remains { unborn: Vec::new(), residues: tenant.windows.end(around.nic, &mut self.gone) };
        let _ = around.nic.destroy_qp(tenant.binder.qp);
        for batch in tenant.binder.batches {
            remains.residues.extend(batch.releases.iter().map(|release| release.residue));
            remains.unborn.extend(batch.starts.iter().map(|&(permission, _)| permission));
        }
        remains.residues.extend(tenant.overdue.into_iter().map(|(_, residue)| residue));
        remains
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
        let (failed, early) = self.batch(around, &mut tenant, starting, ending);
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
        let tenant = self.tenant(id);
        let confirmed = tenant.binder.batches.pop_front_if(|batch| batch.number == completion.request);
        let Some(mut batch) = confirmed else {
            // Within a batch, or of one that failed: this only says that the queue has room again.
            if !tenant.binder.post(nic) {
                self.fail_batches(nic, id, outcomes);
            }
            return None;
        };
        for window in batch.releases.iter().filter_map(|release| release.window) {
            tenant.windows.give(window, now, rest);
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
        if (now < self.linger_check && !wanted) || planted::is(Fault::LingerForever) {
            return;
        }
        let linger_max = self.config.linger_max;
        self.linger_check = now.after(Lifetime(linger_max.0 / 4));
        let before = if wanted { now } else { Moment(now.0.saturating_sub(linger_max.0)) };
        let mut left = self.config.steps_per_turn;
        for (id, tenant) in (0..).map(TenantId).zip(&mut self.tenants) {
            let Some(tenant) = tenant else { continue };
            while left > 0
                && let Some(overdue) = tenant.windows.lingered(before)
            {
                left -= 1;
                tenant.overdue.push(overdue);
            }
            if !tenant.overdue.is_empty() && !busy.contains(&id) {
                busy.push(id);
            }
        }
        if left == 0 {
            self.linger_check = now;
        }
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
        let lingering = self.tenants.iter().flatten().filter_map(|tenant| tenant.windows.lingering_since());
        lingering.map(|since| since.after(self.config.linger_max)).min()
    }

    fn burden(&self, tenant: TenantId) -> usize {
        let tenant = self.tenants[tenant.0 as usize].as_ref().expect("each tenant has windows until it ends");
        let bound = tenant.binder.batches.iter().map(|batch| batch.starts.len() + batch.releases.len());
        tenant.windows.len() + bound.sum::<usize>()
    }

    fn shrink(&mut self, nic: &mut N, id: TenantId, most: usize, now: Moment) -> Shrunk {
        let tenant = self.tenants[id.0 as usize].as_mut().expect("each tenant has windows until it ends");
        let mut ended = tenant.windows.retire_unused(nic, most, &mut self.gone);
        while ended < most
            && let Some(lingering) = tenant.windows.lingered(now)
        {
            tenant.overdue.push(lingering);
            ended += 1;
        }
        let in_batch = !tenant.overdue.is_empty();
        Shrunk { ended, in_batch, waits_for_nic: in_batch || tenant.binder.is_at_work() }
    }

    fn windows(&self) -> (u64, u64) {
        let windows = self.tenants.iter().flatten().map(|tenant| tenant.windows.len() as u64);
        (windows.sum(), self.operations)
    }

    fn end(&mut self, nic: &mut N) {
        let _ = nic.destroy_cq(self.cq);
    }
}

/// The windows of permissions that ended in this turn.
#[derive(Default)]
struct Stock {
    /// Unbound at once, unless a starting permission takes them over.
    prompt: Vec<(WindowIndex, Residue)>,
    /// May stay bound for a while.
    lazy: Vec<(WindowIndex, Residue)>,
}

impl Stock {
    fn add(&mut self, ended: &Ended) {
        let Ended { withdrawal, exposing: Exposing { word, bytes } } = *ended;
        let (header, object) = (Some(withdrawal.header), Some(withdrawal.object));
        let guest = withdrawal.guest;
        // What a tenant holds of another's object ends at once, also with the object.
        let may_linger = withdrawal.last && guest.is_none();
        if word == bytes {
            self.put(WindowIndex(bytes), Residue { header, object, guest, may_linger });
        } else {
            self.put(WindowIndex(bytes), Residue { header: None, object, guest, may_linger });
            let word_only = Residue { header, may_linger: true, ..Residue::default() };
            self.put(WindowIndex(word), word_only);
        }
    }

    fn put(&mut self, window: WindowIndex, residue: Residue) {
        let stock = if residue.may_linger { &mut self.lazy } else { &mut self.prompt };
        stock.push((window, residue));
    }

    /// A window with a key left for the handover and one for its unbind.
    fn take(&mut self, windows: &Windows) -> Option<(WindowIndex, Residue)> {
        for stock in [&mut self.prompt, &mut self.lazy] {
            if let Some(at) = stock.iter().rposition(|&(window, _)| !windows.is_worn(window)) {
                return Some(stock.swap_remove(at));
            }
        }
        None
    }
}

/// Binds a window anew, and returns its key. What it exposed before becomes free with the batch.
fn rebind(
    tenant: &mut Tenant,
    batch: &mut Batch,
    (window, residue): (WindowIndex, Residue),
    bytes: (RemoteAddress, u64),
    access: Access,
) -> Rkey {
    let rkey = put_binding(tenant, batch, window, bytes, access);
    if residue != Residue::default() {
        batch.releases.push(Release { residue, window: None });
    }
    rkey
}

/// Binding a window of type 1 to no bytes unbinds it.
fn unbind(tenant: &mut Tenant, batch: &mut Batch, window: WindowIndex, residue: Residue) {
    put_binding(tenant, batch, window, (RemoteAddress(0), 0), Access::empty());
    batch.releases.push(Release { residue, window: Some(window) });
}

fn put_binding(
    tenant: &mut Tenant,
    batch: &mut Batch,
    window: WindowIndex,
    (address, length): (RemoteAddress, u64),
    access: Access,
) -> Rkey {
    let (id, rkey) = tenant.windows.advance(window);
    batch.windows.push(window);
    let binding = WindowBinding { window: id, rkey, region: tenant.region, address, length, access };
    let operation = Operation::BindWindow(binding);
    let signalled = batch.windows.len().is_multiple_of(SIGNAL_EVERY);
    tenant.binder.unposted.push_back(WorkRequest { id: 0, signalled, operation });
    rkey
}
