//! The state of the embedded directory: names, heaps, their holders, and the ends of leases.
//!
//! It has no I/O, no clock and no randomness: the caller passes the time, and the same calls in the same order have the
//! same results. So the simulator can own a directory's state. Every call first ends the leases whose time has passed.

mod heaps;
#[cfg(test)]
mod tests;

use crate::addresses::{HeapRange, Space};
use crate::entry::{Entry, Found, Registered};
use crate::error::DirectoryError;
use crate::lease::{self, Lease, LeaseId};
use crate::name::Name;
use crate::quota::{Asked, Quota, Usage};
use heaps::Heap;
use portcullis_planted::planted;
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// Names, heaps, leases and quotas. `now` is the time since some beginning; it may stand still, and does not go back.
///
/// Its calls keep the same promises as those of [`Directory`](crate::Directory).
#[derive(Debug)]
pub struct DirectoryState {
    space: Space,
    leases: BTreeMap<LeaseId, Holder>,
    /// The ends of the leases, in order.
    ends: BTreeSet<(Duration, LeaseId)>,
    names: BTreeMap<Name, Registered>,
    heaps: BTreeMap<u64, Heap>,
    /// The heaps without a holder.
    orphans: BTreeSet<u64>,
    /// Number of the place to try first, by the size of a class. It moves on, so that addresses rest before they are
    /// given to another heap.
    next_places: BTreeMap<u64, u64>,
    tenants: BTreeMap<TenantName, TenantUse>,
    quota: Quota,
    quotas: BTreeMap<TenantName, Quota>,
    /// Number of leases and registrations so far.
    count: u64,
    /// Number of changes of names so far.
    name_changes: u64,
}

/// A summary of the entries below a name that a tenant sees. Two lists with one summary are the same: a new or changed entry has
/// a later revision than all before, and without one the list can only become shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ListSummary {
    entries: usize,
    latest: u64,
}

/// The holdings of a lease.
#[derive(Debug)]
struct Holder {
    tenant: TenantName,
    time_to_live: Duration,
    ends: Duration,
    names: BTreeSet<Name>,
    heaps: BTreeSet<u64>,
    bytes: u64,
}

/// Sum of the holdings of a tenant's leases.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct TenantUse {
    leases: u64,
    names: u64,
    bytes: u64,
}

impl DirectoryState {
    /// Creates a directory's state that allocates these addresses. Tenants have [`Quota::default`] until they are given
    /// another one.
    #[must_use]
    pub fn new(space: Space) -> Self {
        Self {
            space,
            leases: BTreeMap::new(),
            ends: BTreeSet::new(),
            names: BTreeMap::new(),
            heaps: BTreeMap::new(),
            orphans: BTreeSet::new(),
            next_places: BTreeMap::new(),
            tenants: BTreeMap::new(),
            quota: Quota::default(),
            quotas: BTreeMap::new(),
            count: 0,
            name_changes: 0,
        }
    }

    /// Returns the addresses that it allocates.
    #[must_use]
    pub const fn space(&self) -> &Space {
        &self.space
    }

    /// Opens a lease for a process.
    ///
    /// # Errors
    /// The tenant's quota of leases is used up.
    pub fn open_lease(
        &mut self,
        tenant: &TenantName,
        time_to_live: Duration,
        now: Duration,
    ) -> Result<Lease, DirectoryError> {
        self.expire(now);
        let used = self.tenant_usage(tenant, 0);
        self.quota_of(tenant).admit(tenant, &used, Asked::Lease)?;
        let time_to_live = Duration::from_secs(lease::whole_seconds(time_to_live));
        let id = LeaseId(self.next_number());
        let ends = now + time_to_live;
        let holder = Holder {
            tenant: *tenant,
            time_to_live,
            ends,
            names: BTreeSet::new(),
            heaps: BTreeSet::new(),
            bytes: 0,
        };
        self.leases.insert(id, holder);
        self.ends.insert((ends, id));
        self.tenants.entry(*tenant).or_default().leases += 1;
        Ok(Lease::new(id, *tenant, time_to_live))
    }

    /// Renews a lease for its whole time.
    ///
    /// # Errors
    /// The lease has ended.
    pub fn keep_alive(&mut self, lease: &Lease, now: Duration) -> Result<(), DirectoryError> {
        self.expire(now);
        let holder = live(&mut self.leases, lease)?;
        if planted!(LeaseNotExtended) {
            return Ok(());
        }
        self.ends.remove(&(holder.ends, lease.id()));
        holder.ends = now + holder.time_to_live;
        self.ends.insert((holder.ends, lease.id()));
        Ok(())
    }

    /// Ends a lease.
    pub fn end_lease(&mut self, lease: &Lease, now: Duration) {
        self.expire(now);
        self.remove_lease(lease.id());
    }

    /// Returns the time at which the next lease ends, if none is kept alive until then.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        self.ends.first().map(|&(ends, _)| ends)
    }

    /// Ends the leases whose time has passed. Returns whether there were any.
    pub fn expire(&mut self, now: Duration) -> bool {
        let mut has_ended = false;
        while let Some(&(ends, id)) = self.ends.first()
            && ends <= now
        {
            self.remove_lease(id);
            has_ended = true;
        }
        has_ended
    }

    /// Registers an entry under a name.
    ///
    /// # Errors
    /// The errors of [`Directory::register`](crate::Directory::register).
    pub fn register(
        &mut self,
        lease: &Lease,
        name: &Name,
        entry: &Entry,
        now: Duration,
    ) -> Result<(), DirectoryError> {
        self.expire(now);
        live(&mut self.leases, lease)?;
        entry.check()?;
        let tenant = lease.tenant();
        let is_let = |above: Name| self.names.get(&above).is_some_and(|there| there.lets_register(tenant));
        if !name.is_of(tenant) && !name.above().any(is_let) {
            return Err(DirectoryError::NotAllowed { name: name.clone(), tenant: *tenant });
        }
        match self.names.get_mut(name) {
            Some(there) if there.lease == lease.id() => {
                if there.entry != *entry {
                    self.name_changes += 1;
                    (there.entry, there.revision) = (entry.clone(), self.name_changes);
                }
                return Ok(());
            }
            Some(_) => return Err(DirectoryError::NameTaken(name.clone())),
            None => {}
        }
        let used = self.tenant_usage(tenant, 0);
        self.quota_of(tenant).admit(tenant, &used, Asked::Name)?;
        let registration = self.next_number();
        self.name_changes += 1;
        let (revision, entry) = (self.name_changes, entry.clone());
        let registered = Registered { entry, tenant: *tenant, lease: lease.id(), registration, revision };
        self.names.insert(name.clone(), registered);
        live(&mut self.leases, lease)?.names.insert(name.clone());
        self.tenants.entry(*tenant).or_default().names += 1;
        Ok(())
    }

    /// Withdraws a name.
    ///
    /// # Errors
    /// The lease has not registered the name, or has ended.
    pub fn withdraw(&mut self, lease: &Lease, name: &Name, now: Duration) -> Result<(), DirectoryError> {
        self.expire(now);
        if !live(&mut self.leases, lease)?.names.remove(name) {
            return Err(DirectoryError::NoSuchName(name.clone()));
        }
        self.names.remove(name);
        self.name_changes += 1;
        self.change_use(lease.tenant(), |used| used.names -= 1);
        Ok(())
    }

    /// Looks up the entry under a name. `None`: there is no entry that the tenant may see.
    pub fn look_up(&mut self, tenant: &TenantName, name: &Name, now: Duration) -> Option<Found> {
        self.expire(now);
        self.names.get(name)?.seen_by(tenant)
    }

    /// Returns the entries below a name that the tenant may see.
    pub fn list(&mut self, tenant: &TenantName, above: &Name, now: Duration) -> BTreeMap<Name, Found> {
        self.expire(now);
        self.below(tenant, above, None).map(|(name, found)| (name.clone(), found)).collect()
    }

    /// Returns the entries below a name that the tenant may see and whose names follow `after`, by name.
    pub(crate) fn below<'a>(
        &'a self,
        tenant: &'a TenantName,
        above: &'a Name,
        after: Option<&Name>,
    ) -> impl Iterator<Item = (&'a Name, Found)> {
        let all = self.registered_below(tenant, above, after);
        all.filter_map(|(name, there)| Some((name, there.seen_by(tenant)?)))
    }

    fn registered_below<'a>(
        &'a self,
        tenant: &'a TenantName,
        above: &'a Name,
        after: Option<&Name>,
    ) -> impl Iterator<Item = (&'a Name, &'a Registered)> {
        // Names such as `a-b` sort between `a` and `a/b`.
        let from = after.map_or(Bound::Included(above), Bound::Excluded);
        let names = self.names.range::<Name, _>((from, Bound::Unbounded));
        let among = names.take_while(|(name, _)| name.as_str().starts_with(above.as_str()));
        among.filter(|(name, there)| name.is_below(above) && there.is_seen_by(tenant))
    }

    /// Returns the summary of a list.
    pub(crate) fn summary_below(&self, tenant: &TenantName, above: &Name) -> ListSummary {
        let nothing = ListSummary { entries: 0, latest: 0 };
        self.registered_below(tenant, above, None).fold(nothing, |sum, (_, there)| ListSummary {
            entries: sum.entries + 1,
            latest: sum.latest.max(there.revision),
        })
    }

    /// Number of changes of names so far.
    pub(crate) const fn name_changes(&self) -> u64 {
        self.name_changes
    }

    /// Sets the quota of a tenant, or of all tenants without a quota of their own.
    pub fn set_quota(&mut self, tenant: Option<&TenantName>, quota: Quota) {
        match tenant {
            Some(tenant) => {
                self.quotas.insert(*tenant, quota);
            }
            None => self.quota = quota,
        }
    }

    /// Returns the usage of a lease and its tenant.
    ///
    /// # Errors
    /// The lease has ended.
    pub fn usage(&mut self, lease: &Lease, now: Duration) -> Result<Usage, DirectoryError> {
        self.expire(now);
        let process_bytes = live(&mut self.leases, lease)?.bytes;
        Ok(self.tenant_usage(lease.tenant(), process_bytes))
    }

    fn tenant_usage(&self, tenant: &TenantName, process_bytes: u64) -> Usage {
        let TenantUse { leases, names, bytes } = self.tenants.get(tenant).copied().unwrap_or_default();
        Usage { process_bytes, tenant_bytes: bytes, names, leases }
    }

    fn quota_of(&self, tenant: &TenantName) -> Quota {
        self.quotas.get(tenant).copied().unwrap_or(self.quota)
    }

    /// Changes the sums of a tenant. A tenant that has nothing leaves nothing behind.
    fn change_use(&mut self, tenant: &TenantName, change: impl FnOnce(&mut TenantUse)) {
        let used = self.tenants.get_mut(tenant).expect("a process with a lease is counted");
        change(used);
        if *used == TenantUse::default() {
            self.tenants.remove(tenant);
        }
    }

    fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn remove_lease(&mut self, id: LeaseId) {
        let Some(holder) = self.leases.remove(&id) else { return };
        self.ends.remove(&(holder.ends, id));
        if !planted!(NamesOutliveLease) {
            for name in &holder.names {
                self.names.remove(name);
                self.name_changes += 1;
            }
        }
        if !planted!(EndedStayHolders) {
            for &address in &holder.heaps {
                self.remove_holder(address, id);
            }
        }
        let names = u64::try_from(holder.names.len()).expect("names are counted in 64 bits");
        let bytes = if planted!(EndedBytesStayUsed) { 0 } else { holder.bytes };
        self.change_use(&holder.tenant, |used| {
            used.leases -= 1;
            used.names -= names;
            used.bytes -= bytes;
        });
    }
}

/// Returns the holdings of a lease, if it lives.
fn live<'a>(
    leases: &'a mut BTreeMap<LeaseId, Holder>,
    lease: &Lease,
) -> Result<&'a mut Holder, DirectoryError> {
    let holder = leases.get_mut(&lease.id()).filter(|holder| holder.tenant == *lease.tenant());
    holder.ok_or(DirectoryError::LeaseEnded(lease.id()))
}
