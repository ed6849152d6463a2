//! The memory that a node lends: which bytes belong to which object and header, whose bytes lie in what is free, and
//! what the node itself reads and writes there.
//!
//! Nothing here knows clients, leases or a NIC: a NIC reaches the same memory by itself.

mod headers;
mod object;
mod page_runs;
mod slabs;
mod taint;

pub(crate) use object::Object;
pub(crate) use slabs::{ObjectId, Slabs};

use super::permissions::{Permission, PermissionSlot};
use crate::config::NodeConfig;
use headers::HeaderPool;
use portcullis_nic::Memory;
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{
    Header, Incarnation, LIFETIME_OFFSET, Lifetime, Moment, ObjectName, ObjectRef, PermissionId, Refusal,
    RemoteAddress, Rights, TenantId,
};
use taint::Taint;

/// Where the pool's addresses begin: no address of any process, and within the 48 bits of a header.
pub const POOL_BASE: RemoteAddress = RemoteAddress(0x1000_0000_0000);

/// Where in a header the start stands.
const START_OFFSET: u64 = 16;

/// Where in the pool's memory an address lies.
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
    /// Which permission a header of the header pool is for.
    header_slots: Vec<PermissionSlot>,
    taint: Taint,
    /// Objects that there have been.
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

    /// Goes on with this number for objects: for tests of what happens near the end of a counter.
    pub fn count_from(&mut self, births: u64) {
        self.births = births;
    }

    /// The number that the next object gets.
    ///
    /// # Errors
    /// [`Refusal::NodeFull`]: the node has as many objects as it may have, or no number is left.
    pub fn next_birth(&self) -> Result<u64, Refusal> {
        if self.slabs.objects() >= self.objects_max {
            return Err(Refusal::NodeFull { limit: self.objects_max.into() });
        }
        self.births.checked_add(1).ok_or(Refusal::NodeFull { limit: u64::MAX })
    }

    /// A new object, which has [`next_birth`](Self::next_birth) as its number.
    ///
    /// # Errors
    /// As [`Slabs::allocate`].
    pub fn place(&mut self, size: u64, alignment: u64, object: Object) -> Result<ObjectId, Refusal> {
        let birth = object.birth;
        let placed = self.slabs.allocate(size, alignment, object)?;
        self.births = birth;
        Ok(placed)
    }

    /// What names an object for ever.
    pub fn reference(&self, object: ObjectId) -> ObjectRef {
        let (address, birth) = (self.slabs.address(object), self.slabs.get(object).birth);
        ObjectRef { incarnation: self.incarnation, address, birth }
    }

    /// The object that a request means, if it is this tenant's and not about to go.
    ///
    /// # Errors
    /// What is another tenant's is refused as what is gone is: whether it lives is not this tenant's to know.
    pub fn object_named(&self, tenant: TenantId, name: ObjectName) -> Result<ObjectId, Refusal> {
        let (missing, birth) = match name {
            ObjectName::Reference(it) if it.incarnation != self.incarnation => {
                return Err(Refusal::AnotherNode);
            }
            ObjectName::Reference(it) => (Refusal::Gone, Some(it.birth)),
            ObjectName::Address(_) => (Refusal::NoSuchObject, None),
        };
        let object = self.slabs.find(name.address()).ok_or(missing)?;
        let record = self.slabs.get(object);
        let meant = birth.is_none_or(|birth| birth == record.birth) || planted::is(Fault::BirthNotCompared);
        if meant && record.tenant == tenant && !record.going { Ok(object) } else { Err(missing) }
    }

    /// Where a permission's bytes start, and how many they are.
    pub fn bytes_of(&self, permission: &Permission) -> (RemoteAddress, u64) {
        let extent = permission.claim.extent;
        (RemoteAddress(self.slabs.address(permission.object).0 + extent.offset), extent.length)
    }

    /// A header for a new permission: the hole right before the buffer if one window may expose both (`beside`) and it
    /// is free, or one of the header pool (Patronus §5.4, contiguity).
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

    /// A header is free: nothing exposes it any more.
    pub fn give_header(&mut self, header: RemoteAddress) {
        if self.headers.contains(header) {
            return self.headers.give(header);
        }
        // A hole whose object went before it went with the object.
        if let Some(object) = self.object_behind(header) {
            self.slabs.get_mut(object).hole_used = false;
        }
    }

    /// The object that has this header in its hole. Any address may be asked about.
    fn object_behind(&self, header: RemoteAddress) -> Option<ObjectId> {
        header.checked_add(Header::BYTES).and_then(|buffer| self.slabs.find(buffer))
    }

    /// Notes which permission a header of `object`'s is for.
    pub fn note_header(&mut self, header: RemoteAddress, object: ObjectId, permission: PermissionSlot) {
        match self.headers.index(header) {
            Some(index) => self.header_slots[index as usize] = permission,
            None => self.slabs.get_mut(object).hole_slot = permission,
        }
    }

    /// The permission that has the header of this id now. Any id may be asked about.
    ///
    /// # Errors
    /// [`Refusal::NotLive`]: none has.
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

    /// When the permission started that had this header last: its start still stands there.
    pub fn last_start(&self, header: RemoteAddress) -> u64 {
        self.memory.load(offset(header) + START_OFFSET)
    }

    /// What stands in a header's lifetime word.
    pub fn lifetime_word(&self, header: RemoteAddress) -> Lifetime {
        Lifetime(self.memory.load(offset(header) + LIFETIME_OFFSET))
    }

    /// Tells a holder that its permission cannot be extended any more (Patronus §5.3).
    pub fn put_notice(&self, header: RemoteAddress) {
        self.memory.store(offset(header) + LIFETIME_OFFSET, 0);
    }

    /// The tenant with this mark gets an object's bytes. Returns whether others may have left theirs there.
    pub fn take_over(&mut self, mark: u64, object: ObjectId) -> bool {
        let bytes = self.slabs.size(object) + Header::BYTES;
        let foreign = self.taint.take(mark, self.slabs.header_hole(object), bytes);
        foreign && !planted::is(Fault::ScrubSkipped)
    }

    /// Zeroes some of an object's bytes.
    pub fn zero(&self, object: ObjectId, from: u64, bytes: u64) {
        self.memory.zero(offset(self.slabs.address(object)) + from, bytes);
    }

    /// Whether memory is so plentiful that what has ended may stay exposed for a while over some (Patronus §5.4).
    pub fn is_plentiful(&self) -> bool {
        self.slabs.bytes_free() > self.bytes / 4 && self.headers.free() > self.headers.count() / 4
    }

    /// Headers of the header pool in use.
    pub fn headers_used(&self) -> u32 {
        self.headers.count() - self.headers.free()
    }
}

/// Whether a permission's header may lie in the hole before its buffer, exposed by the same window.
///
/// The window over lifetime word and buffer has one set of rights, and the word needs atomics: so only a permission
/// with all rights can have it without getting more than it was granted.
pub(crate) fn fits_beside(rights: Rights, offset: u64) -> bool {
    rights == Rights::all() && offset == 0
}

/// A start for a permission whose header was used by one that started at `last`: later, so that no two permissions
/// share an id.
pub(crate) fn start_after(last: u64, now: Moment) -> Moment {
    /// A header that was used so recently gets a later start.
    const START_TIES: u64 = 1_000;
    let tied = last >= now.0 && last < now.0 + START_TIES;
    if tied { Moment(last + 1) } else { now }
}
