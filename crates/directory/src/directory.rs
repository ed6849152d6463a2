//! The directory as its users see it.

use crate::addresses::HeapRange;
use crate::entry::{Entry, Found, Who};
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::name::Name;
use crate::quota::{Quota, Usage};
use portcullis_protocol::TenantName;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

/// What a cluster knows of names, heaps and leases: RPCool's orchestrator (§4.1, §4.6).
///
/// **Whoever has a directory is trusted.** It says for which tenant and process it asks, as RPCool's daemon does; the directory
/// decides what these may do. A program that is not trusted asks such a daemon.
///
/// **Everything belongs to a lease**, which one process has. When the lease ends, its names and its hold on heaps have ended in
/// the same step. Who else needs to know learns of it by a [`Watch`].
///
/// Each call ends within a bounded time. A call that fails with [`DirectoryError::Away`] may have been carried out if the error
/// says so; of the calls that change something, [`create_heap`](Self::create_heap) and [`open_lease`](Self::open_lease) are
/// not to be repeated blindly then: [`heaps`](Self::heaps) tells what a lease holds, and a lease that nobody knows of ends by
/// itself. All others can be repeated.
pub trait Directory: Send + Sync + Debug {
    /// Gives a process of this tenant a lease that lives for this time without being kept alive: [`Lease::time_to_live`] says for
    /// how long it really is.
    ///
    /// # Errors
    /// The tenant's quota of leases, or the directory is away.
    fn open_lease(&self, tenant: &TenantName, time_to_live: Duration) -> Result<Lease, DirectoryError>;

    /// Lets a lease live for its whole time again, from now on.
    ///
    /// # Errors
    /// The lease has ended, or the directory is away.
    fn keep_alive(&self, lease: &Lease) -> Result<(), DirectoryError>;

    /// Ends a lease now. A lease that has ended stays so.
    ///
    /// # Errors
    /// The directory is away.
    fn end_lease(&self, lease: &Lease) -> Result<(), DirectoryError>;

    /// Registers an entry under a name, until it is withdrawn or the lease ends. The same lease may register the name again, with
    /// the same entry or with another one, which takes its place.
    ///
    /// # Errors
    /// Another lease has the name, the tenant may not register it ([`Access`](crate::Access)), the tenant's quota of names, the
    /// lease has ended, or the directory is away.
    fn register(&self, lease: &Lease, name: &Name, entry: &Entry) -> Result<(), DirectoryError>;

    /// Withdraws what this lease has registered under a name.
    ///
    /// # Errors
    /// The lease has not registered the name or has ended, or the directory is away.
    fn withdraw(&self, lease: &Lease, name: &Name) -> Result<(), DirectoryError>;

    /// What a name stands for.
    ///
    /// # Errors
    /// There is nothing, or the tenant may not see it; or the directory is away.
    fn look_up(&self, tenant: &TenantName, name: &Name) -> Result<Found, DirectoryError>;

    /// Looks a name up and goes on looking: what its entry becomes, when it ends, when there is one again. `None` stands for no
    /// entry, and for one that the tenant may not see.
    ///
    /// # Errors
    /// The directory is away.
    fn watch(
        &self,
        tenant: &TenantName,
        name: &Name,
    ) -> Result<Box<dyn Watch<Option<Found>>>, DirectoryError>;

    /// Gives a new heap addresses that no other heap of the cluster has, and enters this lease as its first holder. Processes of
    /// the same tenant, and those of `others`, may hold it too.
    ///
    /// # Errors
    /// No heap can have so many bytes, there are no addresses left, a quota, the lease has ended, or the directory is away.
    fn create_heap(&self, lease: &Lease, bytes: u64, others: &Who) -> Result<HeapRange, DirectoryError>;

    /// Enters this lease as a holder of the heap at this address. One that holds it already goes on holding it.
    ///
    /// # Errors
    /// There is no heap that anybody holds, or the tenant may not hold it; a quota, the lease has ended, or the directory is away.
    fn hold_heap(&self, lease: &Lease, address: u64) -> Result<HeapRange, DirectoryError>;

    /// Lets go of a heap. The last holder gives its addresses back.
    ///
    /// # Errors
    /// The lease does not hold it or has ended, or the directory is away.
    fn release_heap(&self, lease: &Lease, address: u64) -> Result<(), DirectoryError>;

    /// The heaps that this lease holds, by address.
    ///
    /// # Errors
    /// The lease has ended, or the directory is away.
    fn heaps(&self, lease: &Lease) -> Result<Vec<HeapRange>, DirectoryError>;

    /// Watches who holds a heap that this lease holds: the failure notice of RPCool §4.6. No holders: the heap is gone.
    ///
    /// # Errors
    /// The lease does not hold it or has ended, or the directory is away.
    fn watch_heap(
        &self,
        lease: &Lease,
        address: u64,
    ) -> Result<Box<dyn Watch<BTreeSet<LeaseId>>>, DirectoryError>;

    /// Takes back the addresses of heaps whose holders' leases have all ended, and says which these were. To be called now and
    /// then by those who keep the directory. Without it, such addresses are taken back when others of their size run out.
    ///
    /// # Errors
    /// The directory is away. Some may have been taken back.
    fn reclaim(&self) -> Result<Vec<HeapRange>, DirectoryError>;

    /// Sets the quota of a tenant, or of all tenants that have none of their own. What goes beyond it already stays.
    ///
    /// # Errors
    /// The directory is away.
    fn set_quota(&self, tenant: Option<&TenantName>, quota: Quota) -> Result<(), DirectoryError>;

    /// What a lease and its tenant have.
    ///
    /// # Errors
    /// The lease has ended, or the directory is away.
    fn usage(&self, lease: &Lease) -> Result<Usage, DirectoryError>;
}

/// A look at something that changes.
///
/// It reports states, not steps: of what changes several times between two looks, the last state is reported.
pub trait Watch<T>: Send + Debug {
    /// What was seen last.
    fn seen(&self) -> &T;

    /// Waits until there is something else to see, for at most this time, and returns it. `None`: nothing has changed.
    ///
    /// # Errors
    /// The directory is away. Nothing is lost: the next call goes on from what was seen last.
    fn next(&mut self, at_most: Duration) -> Result<Option<T>, DirectoryError>;
}
