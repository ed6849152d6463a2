//! The directory's real state, beside a model that predicts its answers.

use super::judge::Judge;
use crate::clock::Nanos;
use crate::dice::Dice;
use crate::oracle::Promise;
use portcullis_directory::{
    Access, Address, DirectoryError, DirectoryState, Entry, HeapRange, Lease, LeaseId, Name, Quota, Space,
    Target, Who,
};
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A lease, as the model knows it.
#[derive(Debug)]
struct Holder {
    tenant: TenantName,
    time_to_live: Nanos,
    ends: Nanos,
}

/// A heap, as the model knows it.
#[derive(Debug)]
struct Heap {
    range: HeapRange,
    tenant: TenantName,
    others: Who,
    holders: BTreeSet<LeaseId>,
}

/// The directory, with its model.
#[derive(Debug)]
pub(super) struct Directory {
    state: DirectoryState,
    quota: Quota,
    leases: BTreeMap<LeaseId, Holder>,
    heaps: BTreeMap<u64, Heap>,
    names: BTreeMap<Name, (LeaseId, String)>,
    /// Number of heaps that were given. `tried` counts holds that were not allowed, and `refused` those of them that
    /// were refused.
    pub given: u64,
    pub tried: u64,
    pub refused: u64,
}

fn time(now: Nanos) -> Duration {
    Duration::from_nanos(now)
}

impl Directory {
    pub fn new(space: Space, quota: Quota) -> Self {
        let mut state = DirectoryState::new(space);
        state.set_quota(None, quota);
        let (leases, heaps, names) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { state, quota, leases, heaps, names, given: 0, tried: 0, refused: 0 }
    }

    /// Removes from the model the leases whose time is over.
    fn expire(&mut self, now: Nanos) {
        let ended: Vec<LeaseId> =
            self.leases.iter().filter(|(_, it)| it.ends <= now).map(|(&id, _)| id).collect();
        ended.into_iter().for_each(|id| self.forget(id));
    }

    fn forget(&mut self, id: LeaseId) {
        self.leases.remove(&id);
        self.heaps.values_mut().for_each(|heap| {
            heap.holders.remove(&id);
        });
        self.names.retain(|_, &mut (of, _)| of != id);
    }

    /// Whether a lease has not ended.
    pub fn lives(&mut self, lease: LeaseId, now: Nanos) -> bool {
        self.expire(now);
        self.leases.contains_key(&lease)
    }

    fn is_live(&self, lease: &Lease) -> bool {
        self.leases.contains_key(&lease.id())
    }

    /// Returns the bytes that a lease holds, and those that its tenant holds.
    fn used(&self, lease: &Lease) -> (u64, u64) {
        let bytes_of = |id: &LeaseId| -> u64 {
            self.heaps.values().filter(|heap| heap.holders.contains(id)).map(|heap| heap.range.bytes).sum()
        };
        let tenant = self.leases.iter().filter(|(_, it)| it.tenant == *lease.tenant());
        (bytes_of(&lease.id()), tenant.map(|(id, _)| bytes_of(id)).sum())
    }

    fn has_room(&self, lease: &Lease, bytes: u64) -> bool {
        let (own, tenant) = self.used(lease);
        own + bytes <= self.quota.process_bytes && tenant + bytes <= self.quota.tenant_bytes
    }

    /// Compares the state's result for a lease that is used with the result that the model predicts.
    fn compare<T>(
        &self,
        said: Result<T, DirectoryError>,
        lease: &Lease,
        bytes: u64,
        judge: &mut Judge,
    ) -> Option<T> {
        let (is_live, has_room) = (self.is_live(lease), self.has_room(lease, bytes));
        let (id, (own, tenant)) = (lease.id(), self.used(lease));
        match &said {
            Ok(_) => {
                judge.check(Promise::Lease, is_live, || format!("lease {id} counts although it has ended"));
                judge.check(Promise::Quota, has_room || bytes == 0, || {
                    format!(
                        "lease {id} gets {bytes} bytes beside {own} of its own and {tenant} of its tenant"
                    )
                });
            }
            Err(DirectoryError::LeaseEnded(_)) => {
                judge.check(Promise::Lease, !is_live, || {
                    format!("lease {id} has ended although it was kept alive")
                });
            }
            Err(DirectoryError::Quota(error)) => {
                judge.check(Promise::Quota, !has_room, || {
                    format!(
                        "lease {id} with {own} bytes, whose tenant has {tenant}, is refused {bytes}: {error}"
                    )
                });
            }
            Err(_) => {}
        }
        said.ok()
    }

    pub fn open(
        &mut self,
        tenant: &TenantName,
        time_to_live: Nanos,
        now: Nanos,
        judge: &mut Judge,
    ) -> Option<Lease> {
        self.expire(now);
        let lease = match self.state.open_lease(tenant, time(time_to_live), time(now)) {
            Ok(lease) => lease,
            Err(error) => {
                judge.fail(Promise::Quota, format!("no lease for {tenant}: {error}"));
                return None;
            }
        };
        let time_to_live = lease_nanos(&lease);
        let holder = Holder { tenant: *tenant, time_to_live, ends: now + time_to_live };
        self.leases.insert(lease.id(), holder);
        Some(lease)
    }

    /// Keeps a lease alive. Returns whether it lives on.
    pub fn keep_alive(&mut self, lease: &Lease, now: Nanos, judge: &mut Judge) -> bool {
        self.expire(now);
        let said = self.state.keep_alive(lease, time(now));
        let is_kept = self.compare(said, lease, 0, judge).is_some();
        if let Some(holder) = self.leases.get_mut(&lease.id()) {
            holder.ends = now + holder.time_to_live;
        }
        is_kept
    }

    pub fn end(&mut self, lease: &Lease, now: Nanos) {
        self.expire(now);
        self.state.end_lease(lease, time(now));
        self.forget(lease.id());
    }

    /// Registers a channel. `false`: another process has the name.
    pub fn register(&mut self, lease: &Lease, name: &Name, at: &str, now: Nanos, judge: &mut Judge) -> bool {
        self.expire(now);
        let Ok(address) = Address::new(at) else { return false };
        let entry = Entry { target: Target::Channel { address }, access: Access::public() };
        let said = self.state.register(lease, name, &entry, time(now));
        let is_free = self.names.get(name).is_none_or(|&(of, _)| of == lease.id());
        let is_taken = matches!(said, Err(DirectoryError::NameTaken(_)));
        if self.is_live(lease) {
            judge.check(Promise::Lease, is_taken != is_free, || {
                let known = self.names.get(name);
                format!("{name} is reported as taken: {is_taken}, but it is registered by {known:?}")
            });
        }
        let is_registered = self.compare(said, lease, 0, judge).is_some();
        if is_registered {
            self.names.insert(name.clone(), (lease.id(), at.to_owned()));
        }
        is_registered
    }

    /// Returns the address of a channel.
    pub fn look_up(
        &mut self,
        tenant: &TenantName,
        name: &Name,
        now: Nanos,
        judge: &mut Judge,
    ) -> Option<String> {
        self.expire(now);
        let found = self.state.look_up(tenant, name, time(now)).and_then(|found| match found.target {
            Target::Channel { address } => Some(address.as_str().to_owned()),
            _ => None,
        });
        let known = self.names.get(name).map(|(_, at)| at.clone());
        judge.check(Promise::Lease, found == known, || {
            format!("{name} stands for {found:?}, where {known:?} was registered")
        });
        name.above().for_each(|above| self.check_list(tenant, &above, now, judge));
        found
    }

    /// Compares a list with the names that the model knows. Each entry is visible to each tenant.
    fn check_list(&mut self, tenant: &TenantName, above: &Name, now: Nanos, judge: &mut Judge) {
        let listed: Vec<Name> = self.state.list(tenant, above, time(now)).into_keys().collect();
        let known: Vec<Name> = self.names.keys().filter(|name| name.is_below(above)).cloned().collect();
        judge.check(Promise::Lease, listed == known, || {
            format!("below {above} are {listed:?}, where {known:?} were registered")
        });
    }

    pub fn create(
        &mut self,
        lease: &Lease,
        bytes: u64,
        others: &Who,
        now: Nanos,
        judge: &mut Judge,
    ) -> Option<HeapRange> {
        self.expire(now);
        let said = self.state.create_heap(lease, bytes, others, time(now));
        let range = self.compare(said, lease, bytes, judge)?;
        let end = range.address + range.bytes;
        let overlaps =
            |heap: &&Heap| heap.range.address < end && range.address < heap.range.address + heap.range.bytes;
        if let Some(other) = self.heaps.values().filter(|it| !it.holders.is_empty()).find(overlaps) {
            let other = other.range;
            judge.fail(
                Promise::Places,
                format!("{range:x?} is given to a heap, where another has {other:x?}"),
            );
        }
        // If addresses run out, the directory takes them back from heaps without a holder.
        self.heaps.retain(|_, heap| !heap.holders.is_empty() || !overlaps(&&*heap));
        let holders = BTreeSet::from([lease.id()]);
        self.heaps
            .insert(range.address, Heap { range, tenant: *lease.tenant(), others: others.clone(), holders });
        self.given += 1;
        Some(range)
    }

    pub fn hold(&mut self, lease: &Lease, address: u64, now: Nanos, judge: &mut Judge) -> bool {
        self.expire(now);
        let said = self.state.hold_heap(lease, address, time(now));
        let known = self.heaps.get(&address);
        let may_hold =
            known.is_some_and(|heap| heap.tenant == *lease.tenant() || heap.others.includes(lease.tenant()));
        let is_there = known.is_some_and(|heap| !heap.holders.is_empty());
        let is_refused = matches!(said, Err(DirectoryError::NoSuchHeap(_)));
        if is_there && !may_hold {
            self.tried += 1;
            self.refused += u64::from(said.is_err());
        }
        let (id, tenant) = (lease.id(), *lease.tenant());
        judge.check(Promise::Access, said.is_err() || may_hold, || {
            format!("lease {id} of {tenant} holds the heap at {address:#x}, which is not for it")
        });
        judge.check(Promise::Reclaim, !is_refused || !is_there || !may_hold, || {
            format!("lease {id} of {tenant} finds no heap at {address:#x}, which others hold")
        });
        let new = known.filter(|heap| !heap.holders.contains(&id)).map_or(0, |heap| heap.range.bytes);
        let is_held = self.compare(said, lease, new, judge).is_some();
        if let Some(heap) = self.heaps.get_mut(&address).filter(|_| is_held) {
            heap.holders.insert(id);
        }
        is_held
    }

    pub fn release(&mut self, lease: &Lease, address: u64, now: Nanos, judge: &mut Judge) {
        self.expire(now);
        let said = self.state.release_heap(lease, address, time(now));
        self.compare(said, lease, 0, judge);
        let Some(heap) = self.heaps.get_mut(&address) else { return };
        let was_held = heap.holders.remove(&lease.id());
        if was_held && heap.holders.is_empty() {
            self.heaps.remove(&address);
        }
    }

    /// Returns the address of a random heap.
    pub fn any_heap(&self, dice: &mut Dice) -> Option<u64> {
        let heaps: Vec<u64> = self.heaps.keys().copied().collect();
        dice.pick(&heaps).copied()
    }

    /// Whether a lease holds a heap. This stands for the failure notice of the heap's other holders.
    pub fn is_held(&mut self, address: u64, by: LeaseId, now: Nanos, judge: &mut Judge) -> bool {
        self.expire(now);
        let said = self.state.holders(address, time(now));
        let known = self.heaps.get(&address).map(|heap| heap.holders.clone()).unwrap_or_default();
        judge.check(Promise::Lease, said == known, || {
            format!("{said:?} are reported as holders of the heap at {address:#x}, which {known:?} hold")
        });
        said.contains(&by)
    }

    /// Takes back heaps without a holder.
    pub fn reclaim(&mut self, now: Nanos, judge: &mut Judge) {
        self.expire(now);
        for range in self.state.reclaim(time(now)) {
            let address = range.address;
            let holders = self.heaps.get(&address).map(|heap| heap.holders.clone()).unwrap_or_default();
            judge.check(Promise::Reclaim, holders.is_empty(), || {
                format!("the heap at {address:#x} is taken back, which {holders:?} hold")
            });
            self.heaps.remove(&address);
        }
        let orphans: Vec<u64> = self
            .heaps
            .iter()
            .filter(|(_, heap)| heap.holders.is_empty())
            .map(|(&address, _)| address)
            .collect();
        for address in orphans {
            // The directory may have taken it back when addresses ran out.
            let holders = self.state.holders(address, time(now));
            judge.check(Promise::Reclaim, holders.is_empty(), || {
                format!("the heap at {address:#x} is not taken back: {holders:?} are reported as its holders")
            });
            self.heaps.remove(&address);
        }
    }

    /// Checks the state after all leases have ended.
    pub fn conclude(&mut self, now: Nanos, judge: &mut Judge) {
        self.reclaim(now, judge);
        let next = self.state.next_end();
        judge.check(Promise::Rest, next.is_none() && self.leases.is_empty(), || {
            format!("a lease ends at {next:?}, when all have ended")
        });
        judge.check(Promise::Rest, self.heaps.is_empty(), || {
            format!("{} heaps are left when all leases have ended", self.heaps.len())
        });
    }
}

/// Returns the time to live of a lease.
pub(super) fn lease_nanos(lease: &Lease) -> Nanos {
    Nanos::try_from(lease.time_to_live().as_nanos()).unwrap_or(Nanos::MAX)
}
