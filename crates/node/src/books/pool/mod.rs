//! The memory that a node lends: the bytes of each object and header, the tenants whose bytes may lie in free memory,
//! and the node's own accesses to that memory.
//!
//! This module knows no clients, leases or NICs. A NIC accesses the same memory on its own.

mod headers;
mod object;
mod page_runs;
mod slabs;
mod taint;

pub(crate) use object::{Membership, Object};
pub(crate) use slabs::{ObjectId, Slabs};

use super::permissions::{Permission, PermissionSlot};
use crate::config::NodeConfig;
use headers::HeaderPool;
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{
    Header, Incarnation, LIFETIME_OFFSET, Lifetime, Moment, ObjectName, ObjectRef, PermissionId, Refusal,
    RemoteAddress, Rights, TenantId,
};
use taint::Taint;

/// The first address of the pool. No process has it, and it fits into the 48 bits of a header.
pub const POOL_BASE: RemoteAddress = RemoteAddress(0x1000_0000_0000);

/// Offset of the start within a header.
const START_OFFSET: u64 = 16;

/// Offset of an address within the pool's memory.
pub(crate) fn offset(address: RemoteAddress) -> u64 {
    address.0 - POOL_BASE.0
}

/// The pool: headers first, then objects.
pub(crate) struct Pool<M> {
    memory: M,
    incarnation: Incarnation,
    /// The objects' places and records.
    pub slabs: Slabs<Object>,
    headers: HeaderPool,
    /// The permission of each header of the header pool.
    header_slots: Vec<PermissionSlot>,
    taint: Taint,
    /// Number of objects so far.
    births: u64,
    objects_max: u32,
    /// Bytes for objects, as configured.
    bytes: u64,
}

impl<M: Memory> Pool<M> {
    /// A pool without objects over `memory`, which is all zeros.
    pub fn new(memory: M, config: &NodeConfig, incarnation: Incarnation) -> Self {
        let objects = RemoteAddress(POOL_BASE.0 + config.header_bytes());
        Self {
            incarnation,
            slabs: Slabs::new(objects, config.pool_bytes),
            headers: HeaderPool::new(POOL_BASE, config.headers),
            header_slots: vec![PermissionSlot::NONE; config.headers as usize],
            taint: Taint::new(POOL_BASE, memory.length()),
            births: 0,
            objects_max: config.objects_max,
            bytes: config.pool_bytes,
            memory,
        }
    }

    /// Continues at this number of objects, for tests near the end of a counter.
    pub fn count_from(&mut self, births: u64) {
        self.births = births;
    }

    /// Returns the number of the next object.
    ///
    /// # Errors
    /// [`Refusal::NodeFull`]: the node has as many objects as it may have, or no number is left.
    pub fn next_birth(&self) -> Result<u64, Refusal> {
        if self.slabs.objects() >= self.objects_max {
            return Err(Refusal::NodeFull { limit: self.objects_max.into() });
        }
        self.births.checked_add(1).ok_or(Refusal::NodeFull { limit: u64::MAX })
    }

    /// Places a new object, which has [`next_birth`](Self::next_birth) as its number.
    ///
    /// # Errors
    /// The errors of [`Slabs::allocate`].
    pub fn place(&mut self, size: u64, alignment: u64, object: Object) -> Result<ObjectId, Refusal> {
        let birth = object.birth;
        let placed = self.slabs.allocate(size, alignment, object)?;
        self.births = birth;
        Ok(placed)
    }

    /// Returns the reference that names an object for ever.
    pub fn reference(&self, object: ObjectId) -> ObjectRef {
        let (address, birth) = (self.slabs.address(object), self.slabs.get(object).birth);
        ObjectRef { incarnation: self.incarnation, address, birth }
    }

    /// Returns the object that a request names, if it belongs to this tenant, is not going and was not freed.
    ///
    /// # Errors
    /// The errors of [`Pool::object_of`].
    pub fn object_named(&self, tenant: TenantId, name: ObjectName) -> Result<ObjectId, Refusal> {
        let object = self.object_of(tenant, name)?;
        let is_over = self.slabs.get(object).going || self.is_freed(object);
        if is_over { Err(name.missing()) } else { Ok(object) }
    }

    /// Returns the object that a request names, if it belongs to this tenant and its memory is not free yet.
    ///
    /// # Errors
    /// Another tenant's object is refused in the same way as one that was removed: this tenant may not know whether it
    /// exists.
    pub fn object_of(&self, tenant: TenantId, name: ObjectName) -> Result<ObjectId, Refusal> {
        let birth = match name {
            ObjectName::Reference(it) if it.incarnation != self.incarnation => {
                return Err(Refusal::AnotherNode);
            }
            ObjectName::Reference(it) => Some(it.birth),
            ObjectName::Address(_) => None,
        };
        let object = self.slabs.find(name.address()).ok_or(name.missing())?;
        let record = self.slabs.get(object);
        let meant = birth.is_none_or(|birth| birth == record.birth) || planted!(BirthNotCompared);
        if meant && record.tenant == tenant { Ok(object) } else { Err(name.missing()) }
    }

    /// Whether an object was freed, or its head was.
    #[inline]
    pub fn is_freed(&self, object: ObjectId) -> bool {
        let record = self.slabs.get(object);
        let with_head = || record.membership().is_some_and(|it| self.slabs.get(it.head).freed.is_some());
        (record.freed.is_some() || with_head()) && !planted!(FreedStillGranted)
    }

    /// Prefetches the record of an object and the cache line of its header, without waiting for them.
    #[inline]
    pub fn fetch(&self, name: ObjectName) {
        if let Some(object) = self.slabs.find(name.address()) {
            self.slabs.prefetch(object);
            self.memory.prefetch(offset(name.address()) - Header::BYTES, Header::BYTES);
        }
    }

    /// Returns the object that a reference names, of any tenant, if it is not going and was not freed.
    pub fn object_at(&self, reference: ObjectRef) -> Option<ObjectId> {
        let object = self.slabs.find(reference.address)?;
        let record = self.slabs.get(object);
        let meant = record.birth == reference.birth && reference.incarnation == self.incarnation;
        (meant && !record.going && !self.is_freed(object)).then_some(object)
    }

    /// Returns the address of a permission's bytes, and their number.
    pub fn bytes_of(&self, permission: &Permission) -> (RemoteAddress, u64) {
        let extent = permission.claim.extent;
        (RemoteAddress(self.slabs.address(permission.object).0 + extent.offset), extent.length)
    }

    /// Takes a header for a new permission. This is the hole right before the buffer if one window may expose both
    /// (`beside`) and the hole is free, and otherwise a header of the header pool (Patronus §5.4, contiguity).
    ///
    /// # Errors
    /// [`Refusal::NodeFull`]: no header is free.
    pub fn take_header(&mut self, object: ObjectId, beside: bool) -> Result<RemoteAddress, Refusal> {
        let record = self.slabs.get_mut(object);
        if beside && !record.hole_used {
            record.hole_used = true;
            return Ok(self.slabs.header_hole(object));
        }
        let limit = self.headers.count().into();
        self.headers.take().ok_or(Refusal::NodeFull { limit })
    }

    /// Takes back a header that nothing exposes any more.
    pub fn give_header(&mut self, header: RemoteAddress) {
        if self.headers.contains(header) {
            return self.headers.give(header);
        }
        // If the object was removed already, its hole was removed with it.
        if let Some(object) = self.object_behind(header) {
            self.slabs.get_mut(object).hole_used = false;
        }
    }

    /// Returns the object that has this header in its hole. Any address is allowed.
    fn object_behind(&self, header: RemoteAddress) -> Option<ObjectId> {
        header.checked_add(Header::BYTES).and_then(|buffer| self.slabs.find(buffer))
    }

    /// Notes the permission of a header of `object`.
    pub fn note_header(&mut self, header: RemoteAddress, object: ObjectId, permission: PermissionSlot) {
        match self.headers.index(header) {
            Some(index) => self.header_slots[index as usize] = permission,
            None => self.slabs.get_mut(object).hole_slot = permission,
        }
    }

    /// Returns the permission that has the header of this id now. Any id is allowed.
    ///
    /// # Errors
    /// [`Refusal::NotLive`]: no permission has that header.
    pub fn holder_of(&self, id: PermissionId) -> Result<PermissionSlot, Refusal> {
        let slot = match self.headers.index(id.header) {
            Some(index) => self.header_slots[index as usize],
            None => {
                let object = self.object_behind(id.header).ok_or(Refusal::NotLive)?;
                self.slabs.get(object).hole_slot
            }
        };
        slot.some().ok_or(Refusal::NotLive)
    }

    /// Reads from a header the start of the last permission that had it.
    pub fn last_start(&self, header: RemoteAddress) -> u64 {
        self.memory.load(offset(header) + START_OFFSET)
    }

    /// Reads a header's lifetime word.
    pub fn lifetime_word(&self, header: RemoteAddress) -> Lifetime {
        Lifetime(self.memory.load(offset(header) + LIFETIME_OFFSET))
    }

    /// Notifies a holder that its permission cannot be extended any more (Patronus §5.3).
    pub fn put_notice(&self, header: RemoteAddress) {
        self.memory.store(offset(header) + LIFETIME_OFFSET, 0);
    }

    /// Gives an object's bytes to the tenant with this mark. Returns whether other tenants' bytes may still lie there.
    pub fn take_over(&mut self, mark: u64, object: ObjectId) -> bool {
        let bytes = self.slabs.size(object) + Header::BYTES;
        let foreign = self.taint.take(mark, self.slabs.header_hole(object), bytes);
        foreign && !planted!(ScrubSkipped)
    }

    /// Notes that another tenant may write into an object from here on. The next owner of these bytes gets them
    /// scrubbed, even if it is the object's own tenant.
    pub fn mix(&mut self, object: ObjectId) {
        if !std::mem::replace(&mut self.slabs.get_mut(object).named().mixed, true) {
            let bytes = self.slabs.size(object) + Header::BYTES;
            self.taint.mix(self.slabs.header_hole(object), bytes);
        }
    }

    /// Zeroes some of an object's bytes.
    pub fn zero(&self, object: ObjectId, from: u64, bytes: u64) {
        self.memory.zero(offset(self.slabs.address(object)) + from, bytes);
    }

    /// Whether enough memory is free that ended permissions may stay exposed for a while (Patronus §5.4).
    pub fn is_plentiful(&self) -> bool {
        self.slabs.bytes_free() > self.bytes / 4 && self.headers.free() > self.headers.count() / 4
    }

    /// Returns the number of headers of the header pool in use.
    pub fn headers_used(&self) -> u32 {
        self.headers.count() - self.headers.free()
    }
}

/// Whether a permission's header may lie in the hole before its buffer, exposed by the same window.
///
/// The window over lifetime word and buffer has one set of rights, and the word needs atomics. So only for a permission
/// with all rights does such a window give no more than was granted.
pub(crate) fn fits_beside(rights: Rights, offset: u64) -> bool {
    rights == Rights::all() && offset == 0
}

/// Returns the start of a permission whose header was last used by a permission that started at `last`. The new start
/// is later, so that no two permissions share an id.
pub(crate) fn start_after(last: u64, now: Moment) -> Moment {
    /// If the last start is ahead of `now` by less than this, in µs, it counts as a tie.
    const START_TIES: u64 = 1_000;
    let tied = last >= now.0 && last < now.0 + START_TIES;
    if tied { Moment(last + 1) } else { now }
}
