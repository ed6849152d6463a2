//! Regions and windows: one table by key index, and one check for each end of a request.

mod entries;
mod entry;

pub use entry::{SharedWords, WORDS, Word};

use super::objects::exhausted;
use entries::Entries;
use entry::{Entry, Kind, State};
use portcullis_nic::{
    Access, AccessFault, LocalSpan, PdId, QpId, RegionId, RemoteAddress, Rkey, Status, VerbsError,
    WindowBinding, WindowId, WindowKind,
};
use portcullis_planted::planted;
use portcullis_slots::{Numbers, Reuse, Table};
use std::sync::Arc;

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

/// The access that a peer's request makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The domain and the number of the queue pair that would serve it.
    pub pd: PdId,
    pub queue_pair: QpId,
    pub rkey: Rkey,
    pub address: RemoteAddress,
    /// Number of bytes.
    pub length: u64,
    /// The right that it needs.
    pub access: Access,
}

/// An entry, as the NIC's thread has it.
#[derive(Clone, Copy, Debug)]
struct Owned {
    entry: Entry,
    /// The region of a bound window.
    region: u32,
    /// The number of windows bound over a region.
    windows: u32,
}

/// All keys. Only the NIC's thread changes them. Engines have a view ([`KeyTable::view`]), which changes none.
#[derive(Debug)]
pub(crate) struct KeyTable {
    // A free entry keeps its last key, so that its next key differs. A view has no entries here.
    entries: Table<Owned>,
    // The same entries, as engines read them. `None`: there are no engines.
    shared: Option<Arc<Entries>>,
    indices: Numbers,
    // The number of type-2 windows bound to each queue pair, by its number.
    bound_two: Vec<u32>,
}

impl Default for KeyTable {
    fn default() -> Self {
        let indices = Numbers::new(Reuse::OldestFirst { resting: RESTING }, KEYS_MAX);
        Self { entries: Table::default(), shared: None, indices, bound_two: Vec::new() }
    }
}

impl Clone for KeyTable {
    /// # Panics
    /// Engines have a view of these keys: a copy would have none.
    fn clone(&self) -> Self {
        assert!(self.shared.is_none(), "keys that engines read have no copies");
        Self {
            entries: self.entries.clone(),
            shared: None,
            indices: self.indices.clone(),
            bound_two: self.bound_two.clone(),
        }
    }
}

impl KeyTable {
    /// Returns a table for an engine: a view of these entries.
    pub fn view(&mut self) -> Self {
        let shared = self.shared.get_or_insert_with(|| {
            let shared = Entries::default();
            (0..).zip(self.entries.iter()).for_each(|(index, owned)| shared.write(index, &owned.entry));
            Arc::new(shared)
        });
        Self { shared: Some(Arc::clone(shared)), ..Self::default() }
    }

    fn take_index(&mut self) -> Result<u32, VerbsError> {
        let index = self.indices.take().ok_or_else(|| exhausted("regions and windows", KEYS_MAX))?;
        if index as usize == self.entries.len() {
            self.entries.push(Owned { entry: Entry::FREE, region: 0, windows: 0 });
        }
        Ok(index)
    }

    /// Returns an entry. Only for the NIC's thread.
    fn present(&self, index: u32) -> Option<&Owned> {
        self.entries.get(index as usize)
    }

    /// Changes an entry that there is, also for engines.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Entry)) {
        let entry = &mut self.entries[index as usize].entry;
        change(entry);
        if let Some(shared) = &self.shared {
            shared.write(index, entry);
        }
    }

    /// Returns an entry for the reason of a refusal, after a change that is under way.
    #[cold]
    fn read_settled(&self, index: u32) -> Option<Entry> {
        let own = self.present(index).map(|owned| owned.entry);
        own.or_else(|| self.shared.as_ref()?.read_settled(index))
    }

    fn owned(&mut self, index: u32) -> &mut Owned {
        &mut self.entries[index as usize]
    }

    /// The number of regions and windows.
    pub fn len(&self) -> usize {
        self.indices.given()
    }

    fn entry(&self, index: u32, kind: &'static str) -> Result<Entry, VerbsError> {
        self.present(index).map(|owned| owned.entry).ok_or(VerbsError::NoSuch { what: kind })
    }

    fn release(&mut self, index: u32) {
        self.change(index, |entry| {
            entry.state = State::new(entry.state.key().wrapping_add(1), false, Access::empty(), Kind::Free);
        });
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
        self.owned(index).windows = 0;
        self.change(index, |entry| {
            *entry = Entry {
                base: base.0,
                length,
                offset: target.offset,
                memory: target.memory,
                pd,
                state: State::new(entry.state.key(), true, access, Kind::Region),
                ..*entry
            };
        });
        Ok(self.key_of(index))
    }

    /// Ends a region. Returns the memory that it was over, and its domain.
    pub fn deregister(&mut self, region: RegionId) -> Result<(u32, PdId), VerbsError> {
        let entry = self.entry(region.0, "memory region")?;
        if entry.state.kind() != Kind::Region {
            return Err(VerbsError::NoSuch { what: "memory region" });
        }
        if self.owned(region.0).windows > 0 {
            return Err(VerbsError::Busy { what: "memory region", by: "memory window" });
        }
        let gone = (entry.memory, entry.pd);
        self.release(region.0);
        Ok(gone)
    }

    /// Allocates a window, bound to nothing.
    pub fn allocate(&mut self, pd: PdId, kind: WindowKind) -> Result<Rkey, VerbsError> {
        let index = self.take_index()?;
        self.change(index, |entry| {
            let state = State::new(entry.state.key(), false, Access::empty(), Kind::Window(kind));
            *entry = Entry { pd, length: 0, state, ..*entry };
        });
        Ok(self.key_of(index))
    }

    /// Returns the present key of an index that is in use.
    fn key_of(&self, index: u32) -> Rkey {
        Rkey::new(index, self.entries[index as usize].entry.state.key())
    }

    /// Ends a window, bound or not. Returns its domain.
    pub fn deallocate(&mut self, window: WindowId) -> Result<PdId, VerbsError> {
        let entry = self.entry(window.0, "memory window")?;
        if !matches!(entry.state.kind(), Kind::Window(_)) {
            return Err(VerbsError::NoSuch { what: "memory window" });
        }
        self.unbind(window.0);
        self.release(window.0);
        Ok(entry.pd)
    }

    fn unbind(&mut self, index: u32) {
        let entry = self.entries[index as usize].entry;
        if entry.state.live() {
            self.change(index, |entry| entry.state = entry.state.unbound());
            self.release_binding(index, &entry);
        }
    }

    /// Notes that a window which was bound, as `entry` says, is not any more.
    fn release_binding(&mut self, index: u32, entry: &Entry) {
        if entry.state.is_type_2() {
            self.bound_two[entry.queue_pair.0 as usize] -= 1;
        }
        let region = self.owned(index).region;
        self.owned(region).windows -= 1;
    }

    /// Binds a window on queue pair `queue_pair` of domain `pd`. Length zero unbinds a type-1 window. Returns whether the
    /// window was bound before.
    pub fn bind(&mut self, pd: PdId, queue_pair: QpId, binding: &WindowBinding) -> Result<bool, Status> {
        let window = self.present(binding.window.0).ok_or(Status::WindowBindError)?.entry;
        let Kind::Window(kind) = window.state.kind() else { return Err(Status::WindowBindError) };
        let misplaced = window.pd != pd || binding.rkey.index() != binding.window.0;
        if misplaced || (kind == WindowKind::Two && (window.state.live() || binding.length == 0)) {
            return Err(Status::WindowBindError);
        }
        let was_bound = window.state.live();
        if binding.length == 0 {
            self.unbind(binding.window.0);
            let state = State::new(binding.rkey.low_byte(), false, Access::empty(), Kind::Window(kind));
            self.change(binding.window.0, |entry| entry.state = state);
            return Ok(was_bound);
        }
        let (memory, offset) = self.bindable(pd, binding).ok_or(Status::WindowBindError)?;
        if was_bound {
            self.release_binding(binding.window.0, &window);
        }
        self.change(binding.window.0, |entry| {
            *entry = Entry {
                state: State::new(binding.rkey.low_byte(), true, binding.access, Kind::Window(kind)),
                base: binding.address.0,
                length: binding.length,
                memory,
                offset,
                queue_pair,
                ..*entry
            };
        });
        self.owned(binding.window.0).region = binding.region.0;
        if kind == WindowKind::Two {
            let place = queue_pair.0 as usize;
            if self.bound_two.len() <= place {
                self.bound_two.resize(place + 1, 0);
            }
            self.bound_two[place] += 1;
        }
        self.owned(binding.region.0).windows += 1;
        Ok(was_bound)
    }

    /// Returns the place of a binding's bytes, if its region allows the binding.
    fn bindable(&self, pd: PdId, binding: &WindowBinding) -> Option<(u32, u64)> {
        let region = self.present(binding.region.0)?.entry;
        let writes = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let fits = region.state.kind() == Kind::Region
            && region.pd == pd
            && region.state.access().contains(Access::WINDOW_BIND)
            && (!writes || region.state.access().contains(Access::LOCAL_WRITE))
            && Access::REMOTE.contains(binding.access);
        let from = binding.address.0.wrapping_sub(region.base);
        (fits && from <= region.length && binding.length <= region.length - from)
            .then(|| (region.memory, region.offset + from))
    }

    /// Frees a type-2 window by its present key, on the queue pair that it is bound to.
    pub fn invalidate(&mut self, pd: PdId, queue_pair: QpId, rkey: Rkey) -> Result<(), Status> {
        let entry = self.present(rkey.index()).ok_or(Status::RemoteAccessError)?.entry;
        let held = entry.state.is_type_2()
            && entry.state.live()
            && entry.state.key() == rkey.low_byte()
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
        self.present(window.0).is_some_and(|owned| owned.entry.state.is_type_2())
    }

    /// The queue pair and the key of a bound type-2 window.
    pub fn holder(&self, window: WindowId) -> Option<(QpId, Rkey)> {
        let entry = self.present(window.0)?.entry;
        let bound = entry.state.live() && entry.state.is_type_2();
        bound.then(|| (entry.queue_pair, Rkey::new(window.0, entry.state.key())))
    }

    /// Whether a type-2 window is bound to `queue_pair`.
    pub fn bound_to(&self, queue_pair: QpId) -> bool {
        self.bound_two.get(queue_pair.0 as usize).is_some_and(|count| *count > 0)
    }

    /// Returns the target of a peer's access, if the key allows the access: see [`Entry::admits`].
    // Inlined, as `local`, `admits` and `covers`: each request needs them, and a call returns its target through memory.
    #[inline(always)]
    pub fn authorize(&self, claim: &Claim) -> Option<Target> {
        match self.entries.get(claim.rkey.index() as usize) {
            Some(owned) => owned.entry.admits(claim),
            None => self.authorize_on_engine(claim),
        }
    }

    // Not inlined, so that the check of the NIC's thread keeps its registers.
    #[inline(never)]
    fn authorize_on_engine(&self, claim: &Claim) -> Option<Target> {
        self.shared.as_ref()?.read(claim.rkey.index())?.admits(claim)
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
        // The reason decides whom the node charges: an entry that is being changed is no unknown one.
        let entry = self.read_settled(rkey.index()).filter(|entry| entry.state.kind() != Kind::Free);
        let Some(entry) = entry else { return AccessFault::UnknownKey };
        let from = address.0.wrapping_sub(entry.base);
        let inside = from <= entry.length && length <= entry.length - from;
        if entry.pd != pd {
            AccessFault::WrongDomain
        } else if entry.state.key() != rkey.low_byte() {
            AccessFault::StaleKey
        } else if !entry.state.live() {
            AccessFault::Unbound
        } else if entry.state.is_type_2() && entry.queue_pair != queue_pair {
            AccessFault::WrongQueuePair
        } else if !(rights & entry.state.access()).contains(needs) {
            AccessFault::MissingRight
        } else if inside {
            AccessFault::Misaligned
        } else {
            AccessFault::OutsideRange
        }
    }

    /// Returns the place of a local span: see [`Entry::covers`].
    #[inline(always)]
    pub fn local(&self, pd: PdId, span: LocalSpan, write: bool) -> Option<Target> {
        match self.entries.get(Rkey(span.lkey.0).index() as usize) {
            Some(owned) => owned.entry.covers(pd, span, write),
            None => self.local_on_engine(pd, span, write),
        }
    }

    #[inline(never)]
    fn local_on_engine(&self, pd: PdId, span: LocalSpan, write: bool) -> Option<Target> {
        self.shared.as_ref()?.read(Rkey(span.lkey.0).index())?.covers(pd, span, write)
    }
}

impl Entry {
    /// Returns the target of a peer's access, if this entry allows the access. This function is the whole of the
    /// protection.
    #[inline(always)]
    fn admits(&self, claim: &Claim) -> Option<Target> {
        let from = claim.address.0.wrapping_sub(self.base);
        let held = self.state.opens(claim.rkey.low_byte(), claim.access)
            && (self.pd == claim.pd || planted!(HandoverAcrossTenants))
            && from <= self.length
            && claim.length <= self.length - from;
        let elsewhere =
            self.state.is_type_2() && self.queue_pair != claim.queue_pair && !planted!(QueuePairNotCompared);
        (held && !elsewhere).then(|| Target { memory: self.memory, offset: self.offset + from })
    }

    /// Returns the place of a local span, if this entry is a region of the domain that covers the span.
    #[inline(always)]
    fn covers(&self, pd: PdId, span: LocalSpan, write: bool) -> Option<Target> {
        let from = span.address.wrapping_sub(self.base);
        let length = u64::from(span.length);
        let rights = if write { Access::LOCAL_WRITE } else { Access::empty() };
        let held = self.state.is_region(Rkey(span.lkey.0).low_byte(), rights)
            && self.pd == pd
            && from <= self.length
            && length <= self.length - from;
        held.then(|| Target { memory: self.memory, offset: self.offset + from })
    }
}
