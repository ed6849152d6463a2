//! The heaps of a directory's state: their addresses and their holders.

use super::{DirectoryState, HeapRange, live};
use crate::addresses::Class;
use crate::entry::Who;
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::quota::Asked;
use portcullis_planted::planted;
use portcullis_protocol::TenantName;
use std::collections::BTreeSet;
use std::time::Duration;

/// A heap that has addresses.
#[derive(Debug)]
pub(super) struct Heap {
    pub(super) range: HeapRange,
    pub(super) tenant: TenantName,
    /// Other tenants that may hold it.
    pub(super) others: Who,
    pub(super) holders: BTreeSet<LeaseId>,
}

/// Maximum number of orphans that wait for [`DirectoryState::reclaim`]. If there are more, no caller calls it, so
/// creating a heap calls it.
const ORPHANS_MAX: usize = 4_096;

impl DirectoryState {
    /// Allocates addresses to a new heap.
    ///
    /// # Errors
    /// The errors of [`Directory::create_heap`](crate::Directory::create_heap).
    pub fn create_heap(
        &mut self,
        lease: &Lease,
        bytes: u64,
        others: &Who,
        now: Duration,
    ) -> Result<HeapRange, DirectoryError> {
        self.expire(now);
        others.check()?;
        let (smallest, largest) = self.space.sizes();
        let Some((class, bytes)) = self.space.class(bytes) else {
            live(&mut self.leases, lease)?;
            return Err(DirectoryError::HeapSize { bytes, smallest, largest });
        };
        self.admit_bytes(lease, bytes)?;
        if self.orphans.len() >= ORPHANS_MAX {
            self.reclaim(now);
        }
        let address = match self.free_place(class) {
            Some(address) => address,
            None if self.reclaim(now).is_empty() => return Err(DirectoryError::NoAddresses { bytes }),
            None => self.free_place(class).ok_or(DirectoryError::NoAddresses { bytes })?,
        };
        self.next_places.insert(class.size(), class.behind(address));
        let range = HeapRange { address, bytes };
        let heap = Heap { range, tenant: *lease.tenant(), others: others.clone(), holders: BTreeSet::new() };
        self.heaps.insert(address, heap);
        self.add_holder(lease, range)?;
        Ok(range)
    }

    /// Registers a lease as a holder of a heap.
    ///
    /// # Errors
    /// The errors of [`Directory::hold_heap`](crate::Directory::hold_heap).
    pub fn hold_heap(
        &mut self,
        lease: &Lease,
        address: u64,
        now: Duration,
    ) -> Result<HeapRange, DirectoryError> {
        self.expire(now);
        live(&mut self.leases, lease)?;
        let may_hold = |heap: &&Heap| {
            let is_listed = heap.tenant == *lease.tenant() || heap.others.includes(lease.tenant());
            is_listed || planted!(AccessNotAsked)
        };
        let heap = self.heaps.get(&address).filter(may_hold).filter(|heap| !heap.holders.is_empty());
        let Heap { range, holders, .. } = heap.ok_or(DirectoryError::NoSuchHeap(address))?;
        let range = *range;
        if !holders.contains(&lease.id()) {
            self.admit_bytes(lease, range.bytes)?;
            self.add_holder(lease, range)?;
        }
        Ok(range)
    }

    /// Releases a heap.
    ///
    /// # Errors
    /// The lease does not hold it, or has ended.
    pub fn release_heap(&mut self, lease: &Lease, address: u64, now: Duration) -> Result<(), DirectoryError> {
        self.expire(now);
        let holder = live(&mut self.leases, lease)?;
        if !holder.heaps.remove(&address) {
            return Err(DirectoryError::NoSuchHeap(address));
        }
        let bytes = self.heaps[&address].range.bytes;
        holder.bytes -= bytes;
        self.change_use(lease.tenant(), |used| used.bytes -= bytes);
        self.remove_holder(address, lease.id());
        if self.orphans.remove(&address) {
            self.heaps.remove(&address);
        }
        Ok(())
    }

    /// Returns the heaps that a lease holds, by address.
    ///
    /// # Errors
    /// The lease has ended.
    pub fn heaps(&mut self, lease: &Lease, now: Duration) -> Result<Vec<HeapRange>, DirectoryError> {
        self.expire(now);
        let held = &live(&mut self.leases, lease)?.heaps;
        Ok(held.iter().map(|address| self.heaps[address].range).collect())
    }

    /// Returns the holders of a heap; none if it has ended.
    pub fn holders(&mut self, address: u64, now: Duration) -> BTreeSet<LeaseId> {
        self.expire(now);
        self.heaps.get(&address).map(|heap| heap.holders.clone()).unwrap_or_default()
    }

    /// Frees the addresses of heaps whose holders' leases have all ended. Returns these heaps.
    pub fn reclaim(&mut self, now: Duration) -> Vec<HeapRange> {
        self.expire(now);
        let orphans = std::mem::take(&mut self.orphans);
        let reclaim = |address| self.heaps.remove(&address).expect("an orphan is a heap").range;
        orphans.into_iter().map(reclaim).collect()
    }

    pub(super) fn remove_holder(&mut self, address: u64, lease: LeaseId) {
        let heap = self.heaps.get_mut(&address).expect("a held heap exists");
        heap.holders.remove(&lease);
        if heap.holders.is_empty() || planted!(HeldHeapReclaimed) {
            self.orphans.insert(address);
        }
    }

    fn admit_bytes(&mut self, lease: &Lease, bytes: u64) -> Result<(), DirectoryError> {
        let held = live(&mut self.leases, lease)?.bytes;
        let used = self.tenant_usage(lease.tenant(), held);
        Ok(self.quota_of(lease.tenant()).admit(lease.tenant(), &used, Asked::HeapBytes(bytes))?)
    }

    fn add_holder(&mut self, lease: &Lease, range: HeapRange) -> Result<(), DirectoryError> {
        let holder = live(&mut self.leases, lease)?;
        holder.heaps.insert(range.address);
        holder.bytes += range.bytes;
        self.change_use(lease.tenant(), |used| used.bytes += range.bytes);
        let heap = self.heaps.get_mut(&range.address).expect("it has addresses");
        heap.holders.insert(lease.id());
        Ok(())
    }

    /// Returns a free place of the class, from the next place on.
    fn free_place(&self, class: Class) -> Option<u64> {
        let next = self.next_places.get(&class.size()).copied().unwrap_or(0);
        if planted!(PlaceGivenTwice) {
            return Some(class.place(0));
        }
        let taken = |among: std::ops::Range<u64>| self.heaps.range(among).map(|(&address, _)| address);
        class
            .from(class.place(next))
            .into_iter()
            .find_map(|among| class.first_free(among.clone(), taken(among)))
    }
}
