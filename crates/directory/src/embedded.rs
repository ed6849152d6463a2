//! A directory within a process.

use crate::addresses::{HeapRange, Space};
use crate::clock;
use crate::directory::{Directory, Watch};
use crate::entry::{Entry, Found, Who};
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::name::Name;
use crate::quota::{Quota, Usage};
use crate::state::{DirectoryState, ListSummary};
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A directory that lives in this process, and ends with it: a [`DirectoryState`] with a clock, for many threads.
/// Clones share the same directory.
#[derive(Clone, Debug)]
pub struct Embedded(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    beginning: Instant,
    state: Mutex<DirectoryState>,
    /// Notified after each change, for watches.
    changed: Condvar,
    /// Number of changes so far.
    changes: AtomicU64,
}

impl Embedded {
    /// Creates a directory that allocates these addresses.
    #[must_use]
    pub fn new(space: Space) -> Self {
        let beginning = clock::now();
        Self(Arc::new(Shared {
            beginning,
            state: Mutex::new(DirectoryState::new(space)),
            changed: Condvar::new(),
            changes: AtomicU64::new(0),
        }))
    }

    /// Changes the state, and wakes the watches.
    fn change<T>(&self, change: impl FnOnce(&mut DirectoryState, Duration) -> T) -> T {
        let (mut state, now) = self.0.lock_now();
        let told = change(&mut state, now);
        self.0.changes.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.0.changed.notify_all();
        told
    }

    /// Waits until there were more than `seen` changes, or a lease has ended by itself, for at most this time. Returns
    /// the number of changes.
    pub(crate) fn wait_for_change(&self, seen: u64, at_most: Duration) -> u64 {
        let until = self.0.now().saturating_add(at_most);
        let (mut state, _) = self.0.lock_now();
        let ends = state.next_end().map_or(until, |ends| ends.min(until));
        loop {
            let (changes, now) = (self.0.changes.load(Ordering::Relaxed), self.0.now());
            if changes != seen {
                return changes;
            }
            if now >= ends {
                // Otherwise the next call would find the same end.
                state.expire(now);
                return changes;
            }
            state = match self.0.changed.wait_timeout(state, ends.saturating_sub(now)) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Wakes the waiting threads, as a change would.
    pub(crate) fn ring(&self) {
        self.change(|_, _| ());
    }

    /// Returns the entry that a tenant sees under a name.
    pub(crate) fn look(&self, tenant: &TenantName, name: &Name) -> Option<Found> {
        self.see(|state, now| state.look_up(tenant, name, now))
    }

    /// Passes the entries to `take` that a tenant sees below a name and whose names follow `after`, by name, until `take` returns
    /// false. Returns whether it has taken all.
    pub(crate) fn look_below(
        &self,
        tenant: &TenantName,
        above: &Name,
        after: Option<&Name>,
        mut take: impl FnMut(&Name, &Found) -> bool,
    ) -> bool {
        self.see(|state, _| state.below(tenant, above, after).all(|(name, found)| take(name, &found)))
    }

    /// Returns the summary of the entries that a tenant sees below a name, if a name has changed since there were `before`
    /// changes, and the number of changes.
    pub(crate) fn summary_below(
        &self,
        tenant: &TenantName,
        above: &Name,
        before: Option<u64>,
    ) -> Option<(ListSummary, u64)> {
        self.see(|state, _| {
            let changes = state.name_changes();
            (before != Some(changes)).then(|| (state.summary_below(tenant, above), changes))
        })
    }

    /// Returns the holders of the heap at this address.
    pub(crate) fn holders(&self, address: u64) -> BTreeSet<LeaseId> {
        self.see(|state, now| state.holders(address, now))
    }

    /// Returns the addresses that the directory allocates.
    pub(crate) fn space(&self) -> Space {
        self.see(|state, _| *state.space())
    }

    fn see<T>(&self, look: impl FnOnce(&mut DirectoryState, Duration) -> T) -> T {
        let (mut state, now) = self.0.lock_now();
        look(&mut state, now)
    }

    fn watch_by<T: PartialEq + Clone>(&self, look: Look<T>) -> Looking<T> {
        let seen = self.see(&*look);
        Looking { shared: Arc::clone(&self.0), look, seen }
    }
}

impl Shared {
    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.beginning)
    }

    /// Locks the state, in which the leases have ended whose time has passed. Watches learn of their ends.
    fn lock_now(&self) -> (MutexGuard<'_, DirectoryState>, Duration) {
        let mut state = self.lock();
        let now = self.end_due(&mut state);
        (state, now)
    }

    /// Ends the leases whose time has passed, so that watches learn of their ends. Returns the time.
    fn end_due(&self, state: &mut DirectoryState) -> Duration {
        let now = self.now();
        if state.expire(now) {
            self.changes.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_all();
        }
        now
    }

    /// Locks the state. It changes in single steps, each of which is complete or has not begun, so a poisoned lock
    /// does no harm.
    fn lock(&self) -> MutexGuard<'_, DirectoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for Embedded {
    fn open_lease(&self, tenant: &TenantName, time_to_live: Duration) -> Result<Lease, DirectoryError> {
        self.change(|state, now| state.open_lease(tenant, time_to_live, now))
    }

    fn keep_alive(&self, lease: &Lease) -> Result<(), DirectoryError> {
        self.see(|state, now| state.keep_alive(lease, now))
    }

    fn end_lease(&self, lease: &Lease) -> Result<(), DirectoryError> {
        self.change(|state, now| state.end_lease(lease, now));
        Ok(())
    }

    fn register(&self, lease: &Lease, name: &Name, entry: &Entry) -> Result<(), DirectoryError> {
        self.change(|state, now| state.register(lease, name, entry, now))
    }

    fn withdraw(&self, lease: &Lease, name: &Name) -> Result<(), DirectoryError> {
        self.change(|state, now| state.withdraw(lease, name, now))
    }

    fn look_up(&self, tenant: &TenantName, name: &Name) -> Result<Found, DirectoryError> {
        let found = self.see(|state, now| state.look_up(tenant, name, now));
        found.ok_or_else(|| DirectoryError::NoSuchName(name.clone()))
    }

    fn watch(
        &self,
        tenant: &TenantName,
        name: &Name,
    ) -> Result<Box<dyn Watch<Option<Found>>>, DirectoryError> {
        let (tenant, name) = (*tenant, name.clone());
        Ok(Box::new(self.watch_by(Box::new(move |state, now| state.look_up(&tenant, &name, now)))))
    }

    fn list(&self, tenant: &TenantName, above: &Name) -> Result<BTreeMap<Name, Found>, DirectoryError> {
        Ok(self.see(|state, now| state.list(tenant, above, now)))
    }

    fn watch_list(
        &self,
        tenant: &TenantName,
        above: &Name,
    ) -> Result<Box<dyn Watch<BTreeMap<Name, Found>>>, DirectoryError> {
        let (tenant, above) = (*tenant, above.clone());
        Ok(Box::new(self.watch_by(Box::new(move |state, now| state.list(&tenant, &above, now)))))
    }

    fn create_heap(&self, lease: &Lease, bytes: u64, others: &Who) -> Result<HeapRange, DirectoryError> {
        self.change(|state, now| state.create_heap(lease, bytes, others, now))
    }

    fn hold_heap(&self, lease: &Lease, address: u64) -> Result<HeapRange, DirectoryError> {
        self.change(|state, now| state.hold_heap(lease, address, now))
    }

    fn release_heap(&self, lease: &Lease, address: u64) -> Result<(), DirectoryError> {
        self.change(|state, now| state.release_heap(lease, address, now))
    }

    fn heaps(&self, lease: &Lease) -> Result<Vec<HeapRange>, DirectoryError> {
        self.see(|state, now| state.heaps(lease, now))
    }

    fn watch_heap(
        &self,
        lease: &Lease,
        address: u64,
    ) -> Result<Box<dyn Watch<BTreeSet<LeaseId>>>, DirectoryError> {
        if !self.heaps(lease)?.iter().any(|range| range.address == address) {
            return Err(DirectoryError::NoSuchHeap(address));
        }
        Ok(Box::new(self.watch_by(Box::new(move |state, now| state.holders(address, now)))))
    }

    fn reclaim(&self) -> Result<Vec<HeapRange>, DirectoryError> {
        Ok(self.change(DirectoryState::reclaim))
    }

    fn set_quota(&self, tenant: Option<&TenantName>, quota: Quota) -> Result<(), DirectoryError> {
        self.see(|state, _| state.set_quota(tenant, quota));
        Ok(())
    }

    fn usage(&self, lease: &Lease) -> Result<Usage, DirectoryError> {
        self.see(|state, now| state.usage(lease, now))
    }
}

type Look<T> = Box<dyn Fn(&mut DirectoryState, Duration) -> T + Send>;

/// A watch on a part of the directory's state.
struct Looking<T> {
    shared: Arc<Shared>,
    look: Look<T>,
    seen: T,
}

impl<T: fmt::Debug> fmt::Debug for Looking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looking").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl<T: PartialEq + Clone + Send + fmt::Debug> Watch<T> for Looking<T> {
    fn seen(&self) -> &T {
        &self.seen
    }

    fn next(&mut self, at_most: Duration) -> Result<Option<T>, DirectoryError> {
        let until = self.shared.now().saturating_add(at_most);
        let mut state = self.shared.lock();
        loop {
            let now = self.shared.end_due(&mut state);
            let there = (self.look)(&mut state, now);
            if there != self.seen {
                self.seen = there.clone();
                return Ok(Some(there));
            }
            if now >= until {
                return Ok(None);
            }
            // If a lease ends by itself, no thread sends a notification.
            let wake = state.next_end().map_or(until, |ends| ends.min(until));
            let pause = wake.saturating_sub(now);
            state = match self.shared.changed.wait_timeout(state, pause) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}
