//! Regions and windows: one table by key index, and one check.

use super::objects::exhausted;
use portcullis_nic::{
    Access, AccessFault, LocalSpan, PdId, QpId, RegionId, RemoteAddress, Rkey, Status, VerbsError,
    WindowBinding, WindowId, WindowKind,
};
use portcullis_planted::planted;
use portcullis_slots::{Numbers, Reuse, Table};

/// The most regions and windows together: 2^20 of the 2^24 indices that a key can name.
pub const KEYS_MAX: u32 = 1 << 20;
/// Number of freed indices that are kept from reuse as long as there are unused ones.
const RESTING: u32 = 1024;

/// The memory and the offset of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The memory's number.
    pub memory: u32,
    /// The offset in the memory.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Free,
    Region,
    Window(WindowKind),
}

/// A region, a window, or a free index.
#[derive(Clone, Copy, Debug)]
struct Entry {
    base: u64,
    length: u64,
    offset: u64,
    memory: u32,
    pd: PdId,
    /// The region of a bound window.
    region: u32,
    /// The queue pair of a bound type-2 window.
    queue_pair: QpId,
    /// The number of windows bound over a region.
    windows: u32,
    key: u8,
    /// Whether the entry is a region or a bound window.
    live: bool,
    access: Access,
    kind: Kind,
}

impl Entry {
    const FREE: Self = Self {
        base: 0,
        length: 0,
        offset: 0,
        memory: 0,
        pd: PdId(0),
        region: 0,
        queue_pair: QpId(0),
        windows: 0,
        key: 0,
        live: false,
        access: Access::empty(),
        kind: Kind::Free,
    };
}

#[derive(Clone, Debug)]
pub(crate) struct KeyTable {
    // A free entry keeps its last key, so that its next key differs.
    entries: Table<Entry>,
    indices: Numbers,
    // The number of type-2 windows bound to each queue pair, by its number.
    bound_two: Vec<u32>,
}

impl Default for KeyTable {
    fn default() -> Self {
        let indices = Numbers::new(Reuse::OldestFirst { resting: RESTING }, KEYS_MAX);
        Self { entries: Table::default(), indices, bound_two: Vec::new() }
    }
}

impl KeyTable {
    fn take_index(&mut self) -> Result<u32, VerbsError> {
        let index = self.indices.take().ok_or_else(|| exhausted("regions and windows", KEYS_MAX))?;
        if index as usize == self.entries.len() {
            self.entries.push(Entry::FREE);
        }
        Ok(index)
    }

    /// The number of regions and windows.
    pub fn len(&self) -> usize {
        self.indices.given()
    }

    fn entry(&self, index: u32, kind: &'static str) -> Result<&Entry, VerbsError> {
        self.entries.get(index as usize).ok_or(VerbsError::NoSuch { what: kind })
    }

    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.kind = Kind::Free;
        entry.live = false;
        entry.key = entry.key.wrapping_add(1);
        self.indices.give_back(index);
    }

    /// Registers a region over `length` bytes of memory `target.memory`, from `target.offset` on.
    pub fn register(
        &mut self,
        pd: PdId,
        target: Target,
        base: RemoteAddress,
        length: u64,
        access: Access,
    ) -> Result<Rkey, VerbsError> {
        let index = self.take_index()?;
        let entry = &mut self.entries[index as usize];
        *entry = Entry {
            base: base.0,
            length,
            offset: target.offset,
            memory: target.memory,
            pd,
            windows: 0,
            live: true,
            access,
            kind: Kind::Region,
            ..*entry
        };
        Ok(Rkey::new(index, entry.key))
    }

    /// Ends a region. Returns the memory that it was over, and its domain.
    pub fn deregister(&mut self, region: RegionId) -> Result<(u32, PdId), VerbsError> {
        let entry = self.entry(region.0, "memory region")?;
        if entry.kind != Kind::Region {
            return Err(VerbsError::NoSuch { what: "memory region" });
        }
        if entry.windows > 0 {
            return Err(VerbsError::Busy { what: "memory region", by: "memory window" });
        }
        let gone = (entry.memory, entry.pd);
        self.release(region.0);
        Ok(gone)
    }

    /// Allocates a window, bound to nothing.
    pub fn allocate(&mut self, pd: PdId, kind: WindowKind) -> Result<Rkey, VerbsError> {
        let index = self.take_index()?;
        let entry = &mut self.entries[index as usize];
        *entry = Entry { pd, length: 0, live: false, kind: Kind::Window(kind), ..*entry };
        Ok(Rkey::new(index, entry.key))
    }

    /// Ends a window, bound or not. Returns its domain.
    pub fn deallocate(&mut self, window: WindowId) -> Result<PdId, VerbsError> {
        let entry = *self.entry(window.0, "memory window")?;
        if !matches!(entry.kind, Kind::Window(_)) {
            return Err(VerbsError::NoSuch { what: "memory window" });
        }
        self.unbind(window.0);
        self.release(window.0);
        Ok(entry.pd)
    }

    fn unbind(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if entry.live {
            entry.live = false;
            let (region, queue_pair) = (entry.region, entry.queue_pair);
            if entry.kind == Kind::Window(WindowKind::Two) {
                self.bound_two[queue_pair.0 as usize] -= 1;
            }
            self.entries[region as usize].windows -= 1;
        }
    }

    /// Binds a window on queue pair `queue_pair` of domain `pd`. Length zero unbinds a type-1 window. Returns whether the
    /// window was bound before.
    pub fn bind(&mut self, pd: PdId, queue_pair: QpId, binding: &WindowBinding) -> Result<bool, Status> {
        let window = self.entries.get(binding.window.0 as usize).ok_or(Status::WindowBindError)?;
        let Kind::Window(kind) = window.kind else { return Err(Status::WindowBindError) };
        let misplaced = window.pd != pd || binding.rkey.index() != binding.window.0;
        if misplaced || (kind == WindowKind::Two && (window.live || binding.length == 0)) {
            return Err(Status::WindowBindError);
        }
        let was_bound = window.live;
        if binding.length == 0 {
            self.unbind(binding.window.0);
            self.entries[binding.window.0 as usize].key = binding.rkey.low_byte();
            return Ok(was_bound);
        }
        let (memory, offset) = self.bindable(pd, binding).ok_or(Status::WindowBindError)?;
        self.unbind(binding.window.0);
        let window = &mut self.entries[binding.window.0 as usize];
        window.key = binding.rkey.low_byte();
        window.live = true;
        window.base = binding.address.0;
        window.length = binding.length;
        window.memory = memory;
        window.offset = offset;
        window.access = binding.access;
        window.region = binding.region.0;
        window.queue_pair = queue_pair;
        if kind == WindowKind::Two {
            let place = queue_pair.0 as usize;
            if self.bound_two.len() <= place {
                self.bound_two.resize(place + 1, 0);
            }
            self.bound_two[place] += 1;
        }
        self.entries[binding.region.0 as usize].windows += 1;
        Ok(was_bound)
    }

    /// Returns the place of a binding's bytes, if its region allows the binding.
    fn bindable(&self, pd: PdId, binding: &WindowBinding) -> Option<(u32, u64)> {
        let region = self.entries.get(binding.region.0 as usize)?;
        let writes = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let fits = region.kind == Kind::Region
            && region.pd == pd
            && region.access.contains(Access::WINDOW_BIND)
            && (!writes || region.access.contains(Access::LOCAL_WRITE))
            && Access::REMOTE.contains(binding.access);
        let from = binding.address.0.wrapping_sub(region.base);
        (fits && from <= region.length && binding.length <= region.length - from)
            .then(|| (region.memory, region.offset + from))
    }

    /// Frees a type-2 window by its present key, on the queue pair that it is bound to.
    pub fn invalidate(&mut self, pd: PdId, queue_pair: QpId, rkey: Rkey) -> Result<(), Status> {
        let entry = self.entries.get(rkey.index() as usize).ok_or(Status::RemoteAccessError)?;
        let held = entry.kind == Kind::Window(WindowKind::Two)
            && entry.live
            && entry.key == rkey.low_byte()
            && entry.pd == pd
            && entry.queue_pair == queue_pair;
        if !held {
            return Err(Status::RemoteAccessError);
        }
        self.unbind(rkey.index());
        Ok(())
    }

    /// Whether there is such a window, and it is of type 2.
    pub fn is_type_2(&self, window: WindowId) -> bool {
        let entry = self.entries.get(window.0 as usize);
        entry.is_some_and(|entry| entry.kind == Kind::Window(WindowKind::Two))
    }

    /// The queue pair and the key of a bound type-2 window.
    pub fn holder(&self, window: WindowId) -> Option<(QpId, Rkey)> {
        let entry = self.entries.get(window.0 as usize)?;
        let bound = entry.live && entry.kind == Kind::Window(WindowKind::Two);
        bound.then(|| (entry.queue_pair, Rkey::new(window.0, entry.key)))
    }

    /// Whether a type-2 window is bound to `queue_pair`.
    pub fn bound_to(&self, queue_pair: QpId) -> bool {
        self.bound_two.get(queue_pair.0 as usize).is_some_and(|count| *count > 0)
    }

    /// Returns the target of a peer's access, if the key allows the access. This function is the whole of the
    /// protection.
    #[inline]
    pub fn authorize(
        &self,
        pd: PdId,
        queue_pair: QpId,
        rkey: Rkey,
        address: RemoteAddress,
        length: u64,
        access: Access,
    ) -> Option<Target> {
        let entry = self.entries.get(rkey.index() as usize)?;
        let from = address.0.wrapping_sub(entry.base);
        let held = entry.live
            && (entry.key == rkey.low_byte() || planted!(KeyNotCompared))
            && (entry.pd == pd || planted!(HandoverAcrossTenants))
            && entry.access.contains(access)
            && from <= entry.length
            && length <= entry.length - from;
        let elsewhere = entry.kind == Kind::Window(WindowKind::Two)
            && entry.queue_pair != queue_pair
            && !planted!(QueuePairNotCompared);
        (held && !elsewhere).then(|| Target { memory: entry.memory, offset: entry.offset + from })
    }

    /// Returns the reason for which [`authorize`](Self::authorize) refused, given the rights that `queue_pair` has.
    /// Values that only a refusal needs are computed here, off the path of accesses that are allowed.
    #[cold]
    pub fn fault(
        &self,
        pd: PdId,
        (queue_pair, rights): (QpId, Access),
        rkey: Rkey,
        (address, length): (RemoteAddress, u64),
        needs: Access,
    ) -> AccessFault {
        let entry = self.entries.get(rkey.index() as usize).filter(|entry| entry.kind != Kind::Free);
        let Some(entry) = entry else { return AccessFault::UnknownKey };
        let from = address.0.wrapping_sub(entry.base);
        let inside = from <= entry.length && length <= entry.length - from;
        if entry.pd != pd {
            AccessFault::WrongDomain
        } else if entry.key != rkey.low_byte() {
            AccessFault::StaleKey
        } else if !entry.live {
            AccessFault::Unbound
        } else if entry.kind == Kind::Window(WindowKind::Two) && entry.queue_pair != queue_pair {
            AccessFault::WrongQueuePair
        } else if !(rights & entry.access).contains(needs) {
            AccessFault::MissingRight
        } else if inside {
            AccessFault::Misaligned
        } else {
            AccessFault::OutsideRange
        }
    }

    /// Returns the place of a local span, if its key names a region of the domain that covers the span.
    #[inline]
    pub fn local(&self, pd: PdId, span: LocalSpan, write: bool) -> Option<Target> {
        let key = Rkey(span.lkey.0);
        let entry = self.entries.get(key.index() as usize)?;
        let from = span.address.wrapping_sub(entry.base);
        let length = u64::from(span.length);
        let held = entry.kind == Kind::Region
            && entry.key == key.low_byte()
            && entry.pd == pd
            && (!write || entry.access.contains(Access::LOCAL_WRITE))
            && from <= entry.length
            && length <= entry.length - from;
        held.then(|| Target { memory: entry.memory, offset: entry.offset + from })
    }
}
