//! Mechanism `window-group`: a type-2 window for each data queue pair of a permission's holder, including spares
//! (OneSidedMW, «QP and MW Grouping»). A key opens nothing on any other queue pair. So it is useless to a client that
//! guesses or learns it, even to a sibling of the holder.
//!
//! All windows of a turn are bound and invalidated in one batch. If the NIC has a queue pair that binds for others, the
//! batch is posted on one of the node's own. Otherwise each window is bound on the node's end of the queue pair that
//! may use it. A window of type 2 cannot be bound anew while it is bound, so there is no handover in place, and
//! delaying an invalidation saves nothing.

use super::windowed::{Batch, Collected, GoneWindows, Release, Scheme, Tenant, WindowIndex, Windowed};
use super::{EXPOSED_BYTES, Ended, Exposing, Surroundings};
use crate::books::{Exposure, Residue};
use crate::config::NodeConfig;
use portcullis_nic::{Access, Nic, Operation, QpId, RemoteAddress, VerbsError, WindowBinding, WindowKind};
use portcullis_planted::planted;
use portcullis_protocol::{
    ClientId, Credential, GROUP_QUEUE_PAIRS_MAX, GROUP_WORD_QUEUE_PAIRS_MAX, KeyGroup, Lifetime, Moment, Rkey,
};
use portcullis_slots::{Reuse, Slots};
use std::collections::HashMap;

/// The windows over the same bytes, one for each queue pair.
type Windows = [WindowIndex; GROUP_QUEUE_PAIRS_MAX];

/// The place of a group in its tenant's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupIndex(u32);

portcullis_slots::number_key!(GroupIndex);

/// The windows of one permission.
#[derive(Clone, Copy, Debug)]
struct Group {
    holder: ClientId,
    /// Number of the holder's queue pairs.
    count: usize,
    bytes: Windows,
    /// The windows over the lifetime word, if those over the bytes do not cover it.
    word: Option<Windows>,
}

impl Group {
    /// Iterates over the windows, each with the place of its queue pair.
    fn windows(&self) -> impl Iterator<Item = (WindowIndex, usize)> + use<> {
        let (count, bytes, word) = (self.count, self.bytes, self.word);
        let placed = move |windows: Windows| windows.into_iter().zip(0..count);
        let all = placed(bytes).chain(word.into_iter().flat_map(placed));
        all.filter(|&(window, _)| window != GONE)
    }

    /// Notes that a window of the group was deallocated.
    fn lose(&mut self, window: WindowIndex) {
        let mut places = self.bytes.iter_mut().chain(self.word.iter_mut().flatten());
        *places.find(|place| **place == window).expect("the window is one of the group's") = GONE;
    }
}

/// Placeholder for a window that a group does not have, or not any more.
const GONE: WindowIndex = WindowIndex(u32::MAX);

/// The groups of one tenant.
#[derive(Debug)]
pub(super) struct Groups(Slots<GroupIndex, Group>);

impl Default for Groups {
    fn default() -> Self {
        Self(Slots::new(Reuse::LatestFirst, u32::MAX - 1))
    }
}

/// A client that holds permissions.
#[derive(Debug)]
struct Holder {
    /// The node's ends of its data queue pairs.
    queue_pairs: Vec<QpId>,
    /// Number of groups that may be bound to them.
    groups: usize,
    /// Whether the client has left: then its queue pairs are destroyed with the last of its groups.
    is_gone: bool,
}

/// The mechanism.
#[derive(Debug, Default)]
pub(super) struct WindowGroup {
    holders: HashMap<ClientId, Holder>,
    /// Queue pairs of clients that have left, to which no group is bound any more.
    left: Vec<QpId>,
}

impl WindowGroup {
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
        Windowed::new(Self::default(), nic, config, secret, depth_max)
    }

    /// Binds a group for a starting permission. `None`: there are too few windows, or the holder has left.
    fn bind<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        (tenant, gone): (&mut Tenant<Self>, &mut GoneWindows),
        batch: &mut Batch<GroupIndex>,
        exposure: &Exposure,
    ) -> Option<Credential> {
        let count = around.ends.data(exposure.client).len();
        if count == 0 {
            return None;
        }
        let has_word = !exposure.is_contiguous() && count <= GROUP_WORD_QUEUE_PAIRS_MAX;
        let bytes = take_windows(around, (tenant, gone), count)?;
        let word = if has_word {
            let Some(word) = take_windows(around, (tenant, gone), count) else {
                give_windows(tenant, &bytes[..count], around.now, Lifetime(0));
                return None;
            };
            Some(word)
        } else {
            None
        };
        let group = Group { holder: exposure.client, count, bytes, word };
        let index = tenant.own.0.insert(group);
        batch.touched.push(index);
        around.enter(exposure, Exposing::on_nic(index.0, index.0));
        let holder = self.holders.entry(exposure.client).or_insert_with(|| Holder {
            queue_pairs: around.ends.data(exposure.client).to_vec(),
            groups: 0,
            is_gone: false,
        });
        holder.groups += 1;
        let queue_pairs = &holder.queue_pairs;
        let mut bind = |windows: Windows, span, access| {
            let bound = windows.into_iter().zip(queue_pairs);
            let keys =
                bound.map(|(window, &qp)| put_binding(tenant, batch, (index, window, qp), span, access));
            keys.collect::<Vec<_>>()
        };
        let (lifetime, access) = (exposure.lifetime_word(), Access::from(exposure.rights));
        let length = exposure.length + u64::from(planted!(RangeOneByteLong));
        let keys = if exposure.is_contiguous() {
            KeyGroup::of_both(bind(bytes, (lifetime, EXPOSED_BYTES + length), access))
        } else {
            KeyGroup::of_buffer(bind(bytes, (exposure.address, length), access))
        };
        let word = word.map(|word| bind(word, (lifetime, EXPOSED_BYTES), Access::REMOTE_ATOMIC));
        Some(Credential::Group(word.map_or(keys, |word| keys.with_word(word))))
    }

    /// Invalidates the group of a permission that has ended.
    fn invalidate(&self, tenant: &mut Tenant<Self>, batch: &mut Batch<GroupIndex>, ended: &Ended) {
        let index = GroupIndex(ended.exposing.bytes);
        let group = tenant.own.0[index];
        let queue_pairs =
            &self.holders.get(&group.holder).expect("the holder of a group is known").queue_pairs;
        for (window, place) in group.windows().filter(|&(_, place)| !stays_bound(place)) {
            let free = Operation::LocalInvalidate { rkey: tenant.windows.key(window) };
            tenant.binder.put_for(batch, (index, window), queue_pairs[place], free);
        }
        batch.touched.push(index);
        batch.releases.push(Release { residue: ended.withdrawal.residue(), unbound: Some(index) });
    }

    /// Notes that a group of a holder is not bound any more.
    fn let_go(&mut self, client: ClientId) {
        let holder = self.holders.get_mut(&client).expect("the holder of a group is known");
        holder.groups -= 1;
        if holder.groups == 0 && holder.is_gone {
            self.left.append(&mut holder.queue_pairs);
            self.holders.remove(&client);
        }
    }
}

impl Scheme for WindowGroup {
    type Unit = GroupIndex;
    type OfTenant = Groups;
    const KIND: WindowKind = WindowKind::Two;

    fn collect<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        (tenant, gone): (&mut Tenant<Self>, &mut GoneWindows),
        batch: &mut Batch<GroupIndex>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> Collected {
        let mut collected = Collected::default();
        for ended in ending.drain(..) {
            self.invalidate(tenant, batch, &ended);
        }
        for exposure in starting.drain(..) {
            match self.bind(around, (tenant, gone), batch, &exposure) {
                Some(credential) => batch.starts.push((exposure.permission, credential)),
                None => collected.failed.push(exposure.permission),
            }
        }
        collected
    }

    fn give(&mut self, tenant: &mut Tenant<Self>, index: GroupIndex, now: Moment, rest: Lifetime) {
        let Some(group) = tenant.own.0.remove(index) else { return };
        for (window, _) in group.windows().filter(|&(_, place)| !stays_bound(place)) {
            tenant.windows.give(window, now, rest);
        }
        self.let_go(group.holder);
    }

    fn retire_window<N: Nic>(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant<Self>,
        index: GroupIndex,
        window: WindowIndex,
        gone: &mut GoneWindows,
    ) {
        tenant.own.0[index].lose(window);
        tenant.windows.retire(nic, window, gone);
    }

    fn retire<N: Nic>(
        &mut self,
        nic: &mut N,
        tenant: &mut Tenant<Self>,
        index: GroupIndex,
        gone: &mut GoneWindows,
    ) {
        // Two batches that fail together may name the same group.
        let Some(group) = tenant.own.0.remove(index) else { return };
        for (window, _) in group.windows() {
            tenant.windows.retire(nic, window, gone);
        }
        self.let_go(group.holder);
    }

    fn end_tenant(&mut self, mut groups: Groups) -> Vec<Residue> {
        for group in groups.0.take_all() {
            self.let_go(group.holder);
        }
        Vec::new()
    }

    fn forget_client(&mut self, client: ClientId, data: Vec<QpId>) -> Vec<QpId> {
        match self.holders.get_mut(&client) {
            // The NIC refuses binds for a queue pair that was destroyed, and a batch with such a bind fails for all.
            Some(holder) if holder.groups > 0 => {
                holder.is_gone = true;
                Vec::new()
            }
            _ => {
                self.holders.remove(&client);
                data
            }
        }
    }

    fn take_left(&mut self) -> Vec<QpId> {
        std::mem::take(&mut self.left)
    }
}

/// Takes as many windows as a holder has queue pairs. `None`: there are too few.
fn take_windows<N: Nic>(
    around: &mut Surroundings<'_, N>,
    (tenant, gone): (&mut Tenant<WindowGroup>, &mut GoneWindows),
    count: usize,
) -> Option<Windows> {
    let mut windows = [GONE; GROUP_QUEUE_PAIRS_MAX];
    for place in 0..count {
        let Ok((window, residue)) = tenant.windows.take(around.nic, gone) else {
            give_windows(tenant, &windows[..place], around.now, Lifetime(0));
            return None;
        };
        assert_eq!(residue, Residue::default(), "windows of groups do not linger");
        windows[place] = window;
    }
    Some(windows)
}

fn give_windows(tenant: &mut Tenant<WindowGroup>, windows: &[WindowIndex], now: Moment, rest: Lifetime) {
    windows.iter().for_each(|&window| tenant.windows.give(window, now, rest));
}

fn stays_bound(place: usize) -> bool {
    planted!(SpareStaysBound) && place > 0
}

/// Binds a window for a queue pair, and returns its key.
fn put_binding(
    tenant: &mut Tenant<WindowGroup>,
    batch: &mut Batch<GroupIndex>,
    (unit, window, qp): (GroupIndex, WindowIndex, QpId),
    (address, length): (RemoteAddress, u64),
    access: Access,
) -> Rkey {
    let (id, rkey) = tenant.windows.advance(window);
    let binding = WindowBinding { window: id, rkey, region: tenant.region, address, length, access };
    tenant.binder.put_for(batch, (unit, window), qp, Operation::BindWindow(binding));
    rkey
}
