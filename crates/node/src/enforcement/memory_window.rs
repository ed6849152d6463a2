//! Mechanism `memory-window`: a type-1 window for each permission. One batch for each turn and tenant binds, hands over
//! and unbinds windows (Patronus §5.4).

use super::windowed::{
    Batch, Collected, GoneWindows, Release, Scheme, Tenant, WindowIndex, Windowed, Windows,
};
use super::{EXPOSED_BYTES, Ended, Exposing, Surroundings};
use crate::books::{Exposure, Residue};
use crate::config::NodeConfig;
use portcullis_nic::{Access, Nic, Operation, RemoteAddress, VerbsError, WindowBinding, WindowKind};
use portcullis_planted::planted;
use portcullis_protocol::{Credential, Lifetime, Moment, Rkey, TenantId};

/// The mechanism of Patronus.
pub(super) struct MemoryWindow {
    config: NodeConfig,
    /// Windows between two permissions, kept to reuse their memory.
    stock: Stock,
    /// Time of the next check of lingering windows.
    linger_check: Moment,
}

/// A window, and the residue that it exposes without a permission.
type Overdue = (WindowIndex, Residue);

impl MemoryWindow {
    /// Creates the mechanism, without tenants.
    ///
    /// # Errors
    /// The NIC has no queue for the completions of binds.
    pub fn new(
        nic: &mut impl Nic,
        config: &NodeConfig,
        secret: [u8; 32],
        depth_max: u32,
    ) -> Result<Windowed<Self>, VerbsError> {
        let scheme = Self { config: config.clone(), stock: Stock::default(), linger_check: Moment(0) };
        Windowed::new(scheme, nic, config, secret, depth_max)
    }

    /// Unbinds the windows that no starting permission took over, or lets them linger.
    fn unbind_stock<N: Nic>(
        &mut self,
        around: &Surroundings<'_, N>,
        tenant: &mut Tenant<Self>,
        batch: &mut Batch<WindowIndex>,
        early: &mut Vec<Residue>,
    ) {
        let delay = self.config.reductions.delayed_unbinding && around.may_linger;
        for (window, residue) in self.stock.prompt.drain(..) {
            unbind(tenant, batch, window, residue);
        }
        for (window, mut residue) in self.stock.lazy.drain(..) {
            if planted!(ReusedBeforeUnbind) {
                early.push(std::mem::take(&mut residue));
            }
            if planted!(HeaderReusedWhileBound)
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

    /// Binds the windows that a starting permission needs, first windows of ended ones (Patronus §5.4, handover).
    /// `None`: no window is left.
    fn bind<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        (tenant, gone): (&mut Tenant<Self>, &mut GoneWindows),
        batch: &mut Batch<WindowIndex>,
        exposure: &Exposure,
    ) -> Option<Credential> {
        let (word, access) = (exposure.lifetime_word(), Access::from(exposure.rights));
        let access = if planted!(RightsNotNarrowed) { Access::REMOTE } else { access };
        let length = exposure.length + u64::from(planted!(RangeOneByteLong));
        let first = self.take_window(around.nic, tenant, gone)?;
        let (exposing, buffer, lifetime) = if exposure.is_contiguous() {
            let key = rebind(tenant, batch, first, (word, EXPOSED_BYTES + length), access);
            (Exposing::on_nic(first.0.0, first.0.0), key, key)
        } else {
            let Some(second) = self.take_window(around.nic, tenant, gone) else {
                self.stock.prompt.push(first);
                return None;
            };
            let lifetime = rebind(tenant, batch, second, (word, EXPOSED_BYTES), Access::REMOTE_ATOMIC);
            let buffer = rebind(tenant, batch, first, (exposure.address, length), access);
            (Exposing::on_nic(second.0.0, first.0.0), buffer, lifetime)
        };
        around.enter(exposure, exposing);
        Some(Credential::Keys { buffer, lifetime })
    }

    fn take_window<N: Nic>(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant<Self>,
        gone: &mut GoneWindows,
    ) -> Option<(WindowIndex, Residue)> {
        if self.config.reductions.handover
            && let Some(window) = self.stock.take(&tenant.windows)
        {
            return Some(window);
        }
        tenant.windows.take(nic, gone).ok()
    }
}

impl Scheme for MemoryWindow {
    type Unit = WindowIndex;
    /// Windows that must not linger any longer.
    type OfTenant = Vec<Overdue>;
    const KIND: WindowKind = WindowKind::One;

    fn collect<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        (tenant, gone): (&mut Tenant<Self>, &mut GoneWindows),
        batch: &mut Batch<WindowIndex>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> Collected {
        let mut collected = Collected::default();
        self.stock.prompt.append(&mut tenant.own);
        for ended in ending.iter() {
            if planted!(WordTrustedOverUnbind) {
                collected.early.push(ended.withdrawal.residue());
            } else {
                self.stock.add(ended);
            }
        }
        ending.clear();
        for exposure in starting.iter() {
            match self.bind(around, (tenant, gone), batch, exposure) {
                Some(credential) => batch.starts.push((exposure.permission, credential)),
                None => collected.failed.push(exposure.permission),
            }
        }
        starting.clear();
        self.unbind_stock(around, tenant, batch, &mut collected.early);
        collected
    }

    fn give(&mut self, tenant: &mut Tenant<Self>, window: WindowIndex, now: Moment, rest: Lifetime) {
        tenant.windows.give(window, now, rest);
    }

    fn retire<N: Nic>(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant<Self>,
        window: WindowIndex,
        gone: &mut GoneWindows,
    ) {
        tenant.windows.retire(nic, window, gone);
    }

    fn end_tenant(&mut self, overdue: Vec<Overdue>) -> Vec<Residue> {
        overdue.into_iter().map(|(_, residue)| residue).collect()
    }

    fn release_lingering(
        &mut self,
        tenants: &mut [Option<Box<Tenant<Self>>>],
        wanted: bool,
        now: Moment,
        busy: &mut Vec<TenantId>,
    ) {
        if (now < self.linger_check && !wanted) || planted!(LingerForever) {
            return;
        }
        let linger_max = self.config.linger_max;
        self.linger_check = now.after(Lifetime(linger_max.0 / 4));
        let before = if wanted { now } else { Moment(now.0.saturating_sub(linger_max.0)) };
        let mut left = self.config.steps_per_turn;
        for (id, tenant) in (0..).map(TenantId).zip(tenants) {
            let Some(tenant) = tenant else { continue };
            while left > 0
                && let Some(overdue) = tenant.windows.lingered(before)
            {
                left -= 1;
                tenant.own.push(overdue);
            }
            if !tenant.own.is_empty() && !busy.contains(&id) {
                busy.push(id);
            }
        }
        if left == 0 {
            self.linger_check = now;
        }
    }

    fn hasten(&mut self, tenant: &mut Tenant<Self>, most: usize, now: Moment) -> (usize, bool) {
        let mut hastened = 0;
        while hastened < most
            && let Some(lingering) = tenant.windows.lingered(now)
        {
            tenant.own.push(lingering);
            hastened += 1;
        }
        (hastened, !tenant.own.is_empty())
    }

    fn next_wake(&self, tenants: &[Option<Box<Tenant<Self>>>]) -> Option<Moment> {
        let lingering = tenants.iter().flatten().filter_map(|tenant| tenant.windows.lingering_since());
        // Not before the next check: until then no window is released.
        lingering.map(|since| since.after(self.config.linger_max).max(self.linger_check)).min()
    }
}

/// The windows of permissions that ended in this turn.
#[derive(Default)]
struct Stock {
    /// Windows that are unbound at once, unless a starting permission takes them over.
    prompt: Vec<(WindowIndex, Residue)>,
    /// Windows that may stay bound for a while.
    lazy: Vec<(WindowIndex, Residue)>,
}

impl Stock {
    fn add(&mut self, ended: &Ended) {
        let Ended { withdrawal, exposing: Exposing { word, bytes, .. } } = *ended;
        let (header, object) = (Some(withdrawal.header), Some(withdrawal.object));
        let guest = withdrawal.guest;
        // Another tenant's permission over the object ends at once, even if the object is removed.
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

    /// Takes a window that has a key left for the handover and one for its unbind.
    fn take(&mut self, windows: &Windows) -> Option<(WindowIndex, Residue)> {
        for stock in [&mut self.prompt, &mut self.lazy] {
            if let Some(at) = stock.iter().rposition(|&(window, _)| !windows.is_worn(window)) {
                return Some(stock.swap_remove(at));
            }
        }
        None
    }
}

/// Binds a window anew, and returns its key. Its previous residue becomes free with the batch.
fn rebind(
    tenant: &mut Tenant<MemoryWindow>,
    batch: &mut Batch<WindowIndex>,
    (window, residue): (WindowIndex, Residue),
    bytes: (RemoteAddress, u64),
    access: Access,
) -> Rkey {
    let rkey = put_binding(tenant, batch, window, bytes, access);
    if residue != Residue::default() {
        batch.releases.push(Release { residue, unbound: None });
    }
    rkey
}

/// Unbinds a window: a window of type 1 is unbound by a bind to no bytes.
fn unbind(
    tenant: &mut Tenant<MemoryWindow>,
    batch: &mut Batch<WindowIndex>,
    window: WindowIndex,
    residue: Residue,
) {
    put_binding(tenant, batch, window, (RemoteAddress(0), 0), Access::empty());
    batch.releases.push(Release { residue, unbound: Some(window) });
}

fn put_binding(
    tenant: &mut Tenant<MemoryWindow>,
    batch: &mut Batch<WindowIndex>,
    window: WindowIndex,
    (address, length): (RemoteAddress, u64),
    access: Access,
) -> Rkey {
    let (id, rkey) = tenant.windows.advance(window);
    batch.touched.push(window);
    let binding = WindowBinding { window: id, rkey, region: tenant.region, address, length, access };
    tenant.binder.put(batch, Operation::BindWindow(binding));
    rkey
}
