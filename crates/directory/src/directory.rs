//! The directory as its users see it.

use crate::addresses::HeapRange;
use crate::entry::{Entry, Found, Who};
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::name::Name;
use crate::quota::{Quota, Usage};
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

/// A cluster's store of names, heaps and leases: RPCool's orchestrator (§4.1, §4.6).
///
/// **Every user of this trait is trusted.** The caller names the tenant and the process that it acts for, as RPCool's
/// daemon does; the directory decides what these may do. A program that is not trusted sends its requests to such a
/// daemon.
///
/// **Everything belongs to a lease**, which one process has. When the lease ends, its names and its hold on heaps end
/// in the same step. Other processes that need to know are notified by a [`Watch`].
///
/// Each call ends within a bounded time. A call that fails with [`DirectoryError::Away`] may have been carried out if
/// the error has that flag. Of the calls that change something, [`create_heap`](Self::create_heap) and
/// [`open_lease`](Self::open_lease) must not be repeated blindly then: [`heaps`](Self::heaps) returns the heaps that a
/// lease holds, and a lease that no process knows of ends by itself. All other calls can be repeated.
pub trait Directory: Send + Sync + Debug {
    /// Opens a lease for a process of this tenant. It lives for this time without being kept alive;
    /// [`Lease::time_to_live`] returns the actual time.
    ///
    /// # Errors
    /// The tenant's quota of leases is used up, or the directory is away.
    fn open_lease(&self, tenant: &TenantName, time_to_live: Duration) -> Result<Lease, DirectoryError>;

    /// Renews a lease for its whole time, from now on.
    ///
    /// # Errors
    /// The lease has ended, or the directory is away.
    fn keep_alive(&self, lease: &Lease) -> Result<(), DirectoryError>;

    /// Ends a lease now. If the lease has ended already, the call has no effect.
    ///
    /// # Errors
    /// The directory is away.
    fn end_lease(&self, lease: &Lease) -> Result<(), DirectoryError>;

    /// Registers an entry under a name, until it is withdrawn or the lease ends. The same lease may register the name
    /// again, with the same entry or with another one, which replaces it.
    ///
    /// # Errors
    /// Another lease has the name, the tenant may not register it ([`Access`](crate::Access)), the tenant's quota of
    /// names is used up, the lease has ended, or the directory is away.
    fn register(&self, lease: &Lease, name: &Name, entry: &Entry) -> Result<(), DirectoryError>;

    /// Withdraws the entry that this lease has registered under a name.
    ///
    /// # Errors
    /// The lease has not registered the name or has ended, or the directory is away.
    fn withdraw(&self, lease: &Lease, name: &Name) -> Result<(), DirectoryError>;

    /// Looks up the entry under a name.
    ///
    /// # Errors
    /// The name has no entry, or the tenant may not see it; or the directory is away.
    fn look_up(&self, tenant: &TenantName, name: &Name) -> Result<Found, DirectoryError>;

    /// Looks up a name and watches it: changes of its entry, its end, and a new entry. `None` stands for no entry, and
    /// for an entry that the tenant may not see.
    ///
    /// # Errors
    /// The directory is away.
    fn watch(
        &self,
        tenant: &TenantName,
        name: &Name,
    ) -> Result<Box<dyn Watch<Option<Found>>>, DirectoryError>;

    /// Returns the entries of all names below `above` that the tenant may see ([`Name::is_below`]), such as the nodes of a
    /// store. An entry that is registered, changed or ended during the call may be in the list or not.
    ///
    /// # Errors
    /// The directory is away.
    fn list(&self, tenant: &TenantName, above: &Name) -> Result<BTreeMap<Name, Found>, DirectoryError>;

    /// Watches the entries of all names below `above` that the tenant may see: new ones, changes and ends.
    ///
    /// # Errors
    /// The directory is away.
    fn watch_list(
        &self,
        tenant: &TenantName,
        above: &Name,
    ) -> Result<Box<dyn Watch<BTreeMap<Name, Found>>>, DirectoryError>;

    /// Allocates addresses that no other heap of the cluster has to a new heap, and registers this lease as its first
    /// holder. Processes of the same tenant, and those of `others`, may hold it too.
    ///
    /// # Errors
    /// No heap can have this size, there are no addresses left, a quota is used up, the lease has ended, or the
    /// directory is away.
    fn create_heap(&self, lease: &Lease, bytes: u64, others: &Who) -> Result<HeapRange, DirectoryError>;

    /// Registers this lease as a holder of the heap at this address. A lease that holds it already continues to hold
    /// it.
    ///
    /// # Errors
    /// No heap with a holder is at this address, or the tenant may not hold it; a quota is used up, the lease has
    /// ended, or the directory is away.
    fn hold_heap(&self, lease: &Lease, address: u64) -> Result<HeapRange, DirectoryError>;

    /// Releases a heap. When the last holder releases it, its addresses are free again.
    ///
    /// # Errors
    /// The lease does not hold it or has ended, or the directory is away.
    fn release_heap(&self, lease: &Lease, address: u64) -> Result<(), DirectoryError>;

    /// Returns the heaps that this lease holds, by address.
    ///
    /// # Errors
    /// The lease has ended, or the directory is away.
    fn heaps(&self, lease: &Lease) -> Result<Vec<HeapRange>, DirectoryError>;

    /// Watches the holders of a heap that this lease holds: the failure notice of RPCool §4.6. If there are no holders,
    /// the heap has ended.
    ///
    /// # Errors
    /// The lease does not hold it or has ended, or the directory is away.
    fn watch_heap(
        &self,
        lease: &Lease,
        address: u64,
    ) -> Result<Box<dyn Watch<BTreeSet<LeaseId>>>, DirectoryError>;

    /// Frees the addresses of heaps whose holders' leases have all ended, and returns these heaps. The operators of the
    /// directory should call it from time to time. Without it, such addresses are freed when other addresses of their
    /// size run out.
    ///
    /// # Errors
    /// The directory is away. Some addresses may have been freed.
    fn reclaim(&self) -> Result<Vec<HeapRange>, DirectoryError>;

    /// Sets the quota of a tenant, or of all tenants without a quota of their own. Usage that exceeds it already stays.
    ///
    /// # Errors
    /// The directory is away.
    fn set_quota(&self, tenant: Option<&TenantName>, quota: Quota) -> Result<(), DirectoryError>;

    /// Returns the usage of a lease and its tenant.
    ///
    /// # Errors
    /// The lease has ended, or the directory is away.
    fn usage(&self, lease: &Lease) -> Result<Usage, DirectoryError>;
}

/// A watch on a value that changes.
///
/// It reports states, not steps: if a value changes several times between two calls, only the last state is reported.
pub trait Watch<T>: Send + Debug {
    /// Returns the value that was seen last.
    fn seen(&self) -> &T;

    /// Waits until the value has changed, for at most this time, and returns it. `None`: it has not changed.
    ///
    /// # Errors
    /// The directory is away. No change is lost: the next call continues from the value that was seen last.
    fn next(&mut self, at_most: Duration) -> Result<Option<T>, DirectoryError>;
}
