//! The registered region table (1RMA §4.3): the bytes and the key of each region. Its size is fixed.
//!
//! A table has one owner, and any number of responders, which may be on other threads. Each slot has a lock. A responder
//! holds it, shared, from the check of an operation's version to the operation's last byte, so an owner that gets it
//! alone knows that the region's operations are over. The owner never waits for a lock that a responder holds.

use crate::keys::{
    DerivationKey, DerivedKey, HolderTerms, HostAddress, OperationType, RegionKey, RegionTerms,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_planted::planted;
use portcullis_protocol::{RegionName, Rights};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Identifier of a region: its slot in the table, and the number of earlier uses of that slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId {
    /// The slot's index.
    pub index: u32,
    /// Number of earlier uses of the slot.
    pub generation: u32,
}

impl From<RegionName> for RegionId {
    fn from(RegionName { index, generation }: RegionName) -> Self {
        Self { index, generation }
    }
}

impl From<RegionId> for RegionName {
    fn from(RegionId { index, generation }: RegionId) -> Self {
        Self { index, generation }
    }
}

/// A registered region.
#[derive(Clone, Debug)]
pub struct Region {
    /// The region's key.
    pub key: RegionKey,
    /// The address of the region's first byte, as its holders name it.
    pub address: u64,
    /// The region's length in bytes.
    pub length: u64,
    /// The offset of the region's first byte in the node's memory.
    pub offset: u64,
    /// The address of a word outside the region on which holders may do atomics, whatever the region allows: the word
    /// of the permission's lifetime. It need not be among the terms of the key, because no holder uses another word.
    pub lifetime_word: Option<u64>,
    /// The types of operations that the region allows.
    pub allowed: Allowed,
}

/// The types of operations that a region allows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Allowed(u8);

impl Allowed {
    /// No type.
    pub const NONE: Self = Self(0);

    /// Creates a set of these types.
    #[must_use]
    pub fn these(types: &[OperationType]) -> Self {
        Self(types.iter().fold(0, |all, &it| all | 1 << it as u8))
    }

    /// Returns a bit for each type.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Whether this type is in the set.
    #[must_use]
    pub fn has(self, it: OperationType) -> bool {
        self.0 & 1 << it as u8 != 0
    }
}

impl From<Rights> for Allowed {
    /// Returns the types of operations that a permission with these rights allows.
    fn from(rights: Rights) -> Self {
        let of = [
            (Rights::READ, OperationType::Read),
            (Rights::WRITE, OperationType::Write),
            (Rights::ATOMIC, OperationType::Atomic),
        ];
        let allowed = of.into_iter().filter(|(right, _)| rights.contains(*right));
        Self(allowed.fold(0, |all, (_, it)| all | 1 << it as u8))
    }
}

/// The table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all {0} places of the region table are taken")]
pub struct NoRoom(pub u32);

impl Coded for NoRoom {
    fn code(&self) -> ErrorCode {
        ErrorCode::Exhausted
    }
}

/// Number of free slots that rest before reuse, while the table can still grow.
const RESTING: usize = 1024;
/// Number of slots that are allocated together.
const SEGMENT: u32 = 1024;
/// Reason that a lock has no poison.
const UNPOISONED: &str = "a node does not outlive the panic of a responder";

/// The state of a slot.
#[derive(Clone, Debug)]
struct SlotState {
    generation: u32,
    region: Option<Region>,
    /// The key from which those of the region's holders are derived. If there is no region, it is that of the former
    /// one: a packet under such a key is late.
    derivation: DerivationKey,
    /// The number of the region's key among all keys of the table so far.
    version: u64,
}

/// A slot. A responder holds the lock for as long as it carries out an operation on the slot's region.
#[derive(Debug)]
struct RegionSlot {
    state: RwLock<SlotState>,
    /// Whether the region was removed while its lock was held. Responders begin no operation on it any more.
    is_ending: AtomicBool,
}

/// The slots of a table, which the table's owner shares with the responders of its lanes.
#[derive(Debug)]
pub(crate) struct RegionSlots {
    incarnation: u64,
    /// The slots, allocated as they are needed.
    segments: Box<[OnceLock<Box<[RegionSlot]>>]>,
    /// Number of keys given to regions so far.
    versions: AtomicU64,
}

/// A region on which an operation is being carried out. The region's removal is not complete while this exists.
pub(crate) struct LiveRegion<'a>(RwLockReadGuard<'a, SlotState>);

impl LiveRegion<'_> {
    /// Returns the region.
    pub fn region(&self) -> &Region {
        self.0.region.as_ref().expect("it is live")
    }

    /// Returns a number that changes with the region's key and ends with the region: a packet that was authenticated
    /// under another number is not valid any more.
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// Returns the key from which those of the region's holders are derived. A derivation takes long, and any process can
    /// cause one: it is done without the lock.
    pub fn derivation(&self) -> DerivationKey {
        self.0.derivation.clone()
    }
}

impl RegionSlots {
    fn slot(&self, index: u32) -> Option<&RegionSlot> {
        self.segments.get((index / SEGMENT) as usize)?.get()?.get((index % SEGMENT) as usize)
    }

    /// Returns a region, for one operation on it. `None`: there is no such region, or no operation may begin any more.
    pub fn enter(&self, id: RegionId) -> Option<LiveRegion<'_>> {
        let slot = self.slot(id.index)?;
        // A region that ends is not kept from it by packets that come too late.
        if slot.is_ending.load(Ordering::Relaxed) {
            return None;
        }
        let state = slot.state.read().expect(UNPOISONED);
        let is_live = state.generation == id.generation
            && state.region.is_some()
            && !slot.is_ending.load(Ordering::Relaxed);
        is_live.then_some(LiveRegion(state))
    }

    /// Returns a region if it has this version, for one operation on it.
    pub fn enter_version(&self, id: RegionId, version: u64) -> Option<LiveRegion<'_>> {
        self.enter(id).filter(|live| live.version() == version)
    }

    /// Gives a region another key if it has this version, and waits for the operations on it. Returns whether it had it.
    pub fn rekey_version(&self, id: RegionId, version: u64, key: RegionKey) -> bool {
        self.rekey_if(id, key, |state| state.version == version)
    }

    fn rekey_if(&self, id: RegionId, key: RegionKey, is_meant: impl FnOnce(&SlotState) -> bool) -> bool {
        let Some(slot) = self.slot(id.index) else { return false };
        let mut state = slot.state.write().expect(UNPOISONED);
        let is_ending = slot.is_ending.load(Ordering::Relaxed);
        if state.generation != id.generation || is_ending || !is_meant(&state) {
            return false;
        }
        let Some(region) = &mut state.region else { return false };
        region.key = key;
        let derivation = region.derivation_key(self.incarnation, id);
        (state.derivation, state.version) = (derivation, self.next_version());
        true
    }

    fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Derives the key that a client had for a region that has ended. `None`: the region has not ended, or the slot
    /// has another region by now.
    pub fn derive_ended(&self, id: RegionId, initiator: HostAddress, client: u64) -> Option<DerivedKey> {
        let slot = self.slot(id.index)?;
        let state = slot.state.read().expect(UNPOISONED);
        let is_ending = slot.is_ending.load(Ordering::Relaxed) && state.generation == id.generation;
        let is_the_last = state.region.is_none() && state.generation.checked_sub(1) == Some(id.generation);
        let derivation = (is_ending || is_the_last).then(|| state.derivation.clone());
        drop(state);
        derivation.map(|derivation| derivation.derive(&HolderTerms { initiator, client }))
    }
}

/// The regions of a node. Their owner adds and removes them; the responders that were made for the table carry out
/// operations on them, each on a thread of its own if the owner has several.
///
/// No call of the owner waits for a responder, except for [`rekey`](Self::rekey).
#[derive(Debug)]
pub struct RegionTable {
    slots: Arc<RegionSlots>,
    size: u32,
    /// For each slot that was used, the number of its earlier uses, and whether it has a region.
    used: Vec<(u32, bool)>,
    /// Free slots, the latest last. The one that has been free for longest is used first, so that late operations are
    /// recognised as such for as long as possible.
    free: VecDeque<u32>,
    /// Removed regions on which a responder was carrying out an operation.
    ending: Vec<RegionId>,
}

impl RegionTable {
    /// Creates an empty table with room for `size` regions. `incarnation` is a number that no earlier run of the node
    /// had: because of it no key of an earlier run recurs.
    #[must_use]
    pub fn new(incarnation: u64, size: u32) -> Self {
        let segments = (0..size.div_ceil(SEGMENT)).map(|_| OnceLock::new()).collect();
        let slots = Arc::new(RegionSlots { incarnation, segments, versions: AtomicU64::new(0) });
        Self { slots, size, used: Vec::new(), free: VecDeque::new(), ending: Vec::new() }
    }

    /// Returns the slots, for a responder.
    pub(crate) fn slots(&self) -> Arc<RegionSlots> {
        Arc::clone(&self.slots)
    }

    /// Adds a region.
    ///
    /// # Errors
    /// The table is full. A slot that has been used 2³² times is not used again.
    pub fn insert(&mut self, region: Region) -> Result<RegionId, NoRoom> {
        // A responder may be deriving the key of a late packet from a free slot's former key: then another one is taken.
        for _ in 0..=self.free.len() {
            let Some(index) = self.take_slot() else { break };
            let generation = self.used[index as usize].0;
            let id = RegionId { index, generation };
            let slot = self.slots.slot(index).expect("a slot in use is allocated");
            let Some(mut state) = try_write(&slot.state) else {
                self.free.push_back(index);
                continue;
            };
            let derivation = region.derivation_key(self.slots.incarnation, id);
            let version = self.slots.next_version();
            *state = SlotState { generation, region: Some(region), derivation, version };
            self.used[index as usize].1 = true;
            return Ok(id);
        }
        Err(NoRoom(self.size))
    }

    /// Takes a slot for a region. Some slots rest before they are used again, as long as the table can grow instead.
    fn take_slot(&mut self) -> Option<u32> {
        let next = u32::try_from(self.used.len()).ok().filter(|&next| next < self.size);
        let Some(next) = next.filter(|_| self.free.len() < RESTING) else { return self.free.pop_front() };
        self.slots.segments[(next / SEGMENT) as usize].get_or_init(|| {
            let derivation = DerivationKey::blank();
            let state = SlotState { generation: 0, region: None, derivation, version: 0 };
            let slots = (next..self.size).take(SEGMENT as usize);
            let slot = |state| RegionSlot { state: RwLock::new(state), is_ending: AtomicBool::new(false) };
            slots.map(|_| slot(state.clone())).collect()
        });
        self.used.push((0, false));
        Some(next)
    }

    /// Ends a region: from here on no key is valid for it, and no operation on it begins. Operations that have begun are
    /// carried out until [`has_ended`](Self::has_ended). Returns whether the region existed.
    pub fn remove(&mut self, id: RegionId) -> bool {
        let Some((generation, has_region)) = self.used.get_mut(id.index as usize) else { return false };
        if *generation != id.generation || !std::mem::take(has_region) {
            return false;
        }
        let slot = self.slots.slot(id.index).expect("a slot in use is allocated");
        slot.is_ending.store(true, Ordering::Relaxed);
        if !self.complete(id) {
            self.ending.push(id);
        }
        true
    }

    /// Completes the removal of a region, unless an operation on it is being carried out.
    fn complete(&mut self, id: RegionId) -> bool {
        let slot = self.slots.slot(id.index).expect("a slot in use is allocated");
        let Some(mut state) = try_write(&slot.state) else { return false };
        state.region = None;
        if let Some(next) = state.generation.checked_add(1) {
            state.generation = next;
            self.used[id.index as usize].0 = next;
            self.free.push_back(id.index);
        }
        slot.is_ending.store(false, Ordering::Relaxed);
        true
    }

    /// Whether no operation on a region that was removed is being carried out any more. From then on its bytes may be
    /// handed to another holder.
    pub fn has_ended(&mut self, id: RegionId) -> bool {
        for ending in std::mem::take(&mut self.ending) {
            if !self.complete(ending) {
                self.ending.push(ending);
            }
        }
        planted!(EndedRegionNotAwaited) || !self.ending.contains(&id)
    }

    /// Gives a region another key (1RMA §5.2): from here on the keys that were derived from the old one are not valid.
    /// Waits for the operations that are being carried out on the region. Returns whether the region exists.
    pub fn rekey(&mut self, id: RegionId, key: RegionKey) -> bool {
        self.slots.rekey_if(id, key, |_| true)
    }

    /// Derives the key of a client. `None`: there is no such region.
    #[must_use]
    pub fn derive(&self, id: RegionId, initiator: HostAddress, client: u64) -> Option<DerivedKey> {
        let derivation = self.slots.enter(id)?.derivation();
        Some(derivation.derive(&HolderTerms { initiator, client }))
    }
}

/// Returns exclusive access to a slot, unless a responder uses it.
fn try_write(state: &RwLock<SlotState>) -> Option<RwLockWriteGuard<'_, SlotState>> {
    match state.try_write() {
        Ok(state) => Some(state),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => panic!("{UNPOISONED}"),
    }
}

impl Region {
    /// Performs the first step of the derivation of keys for this region.
    fn derivation_key(&self, incarnation: u64, id: RegionId) -> DerivationKey {
        let (RegionId { index, generation }, &Self { address, length, allowed, .. }) = (id, self);
        self.key.derivation_key(&RegionTerms { incarnation, index, generation, address, length, allowed })
    }

    /// Returns the offset of these bytes in the node's memory. `None`: they are not all in the region.
    #[must_use]
    pub fn place(&self, address: u64, length: u32) -> Option<u64> {
        let end = address.checked_sub(self.address)?.checked_add(length.into())?;
        let length = self.length + u64::from(planted!(RegionOneByteLong));
        (end <= length).then(|| self.offset.checked_add(address - self.address))?
    }

    /// Returns the offset of the lifetime word in the node's memory, if that is its address.
    pub(crate) fn place_of_lifetime_word(&self, address: u64) -> Option<u64> {
        let word = self.lifetime_word.filter(|&word| word == address)?;
        Some(word.wrapping_sub(self.address).wrapping_add(self.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        Region {
            key: RegionKey::new([1; 32]),
            address: 0,
            length: 64,
            offset: 4096,
            lifetime_word: None,
            allowed: Allowed::these(&[OperationType::Read]),
        }
    }

    #[test]
    fn a_place_that_is_used_again_is_another_region_with_another_key() {
        let mut table = RegionTable::new(1, 1);
        let key =
            |table: &RegionTable, id| table.derive(id, HostAddress([0; 16]), 1).map(|key| key.to_bytes());
        let first = table.insert(region()).expect("room");
        assert_eq!(table.insert(region()), Err(NoRoom(1)));
        let before = key(&table, first).expect("a key");
        assert!(table.remove(first) && !table.remove(first));
        assert_eq!(key(&table, first), None);
        let second = table.insert(region()).expect("room again");
        assert_eq!((second.index, second.generation), (0, 1));
        assert!(key(&table, second).expect("a key") != before);
        assert!(!table.remove(first), "the old id names nothing");
        assert!(table.rekey(second, RegionKey::new([2; 32])) && !table.rekey(first, RegionKey::new([3; 32])));
    }

    #[test]
    fn a_key_is_for_the_rights_that_the_region_has_and_for_its_latest_key() {
        let mut table = RegionTable::new(1, 1);
        let key =
            |table: &RegionTable, id| table.derive(id, HostAddress([0; 16]), 1).map(|key| key.to_bytes());
        let id = table.insert(region()).expect("room");
        let before = key(&table, id).expect("a key");
        let mut other = RegionTable::new(1, 1);
        let wide = Allowed::these(&[OperationType::Read, OperationType::Write]);
        let same_id = other.insert(Region { allowed: wide, ..region() }).expect("room");
        assert_eq!(same_id, id);
        assert!(key(&other, same_id).expect("a key") != before, "rights are among the terms");
        assert!(table.rekey(id, RegionKey::new([2; 32])));
        assert!(key(&table, id).expect("a key") != before);
        assert!(table.rekey(id, RegionKey::new([1; 32])));
        assert!(key(&table, id).expect("a key") == before, "the same terms and the same key");
    }

    #[test]
    fn a_region_has_its_own_bytes_and_its_own_rights_only() {
        let mut table = RegionTable::new(1, 4);
        let id = table.insert(region()).expect("room");
        assert!(table.derive(id, HostAddress([0; 16]), 1).is_some());
        let region = region();
        assert_eq!((region.place(0, 64), region.place(60, 4)), (Some(4096), Some(4156)));
        assert_eq!((region.place(0, 65), region.place(64, 1), region.place(u64::MAX, 1)), (None, None, None));
    }

    #[test]
    fn a_place_is_not_used_again_when_its_generations_are_over() {
        let mut table = RegionTable::new(1, 1);
        let first = table.insert(region()).expect("room");
        table.used[0].0 = u32::MAX;
        table.slots.slot(0).expect("a slot").state.write().expect("a lock").generation = u32::MAX;
        assert!(table.remove(RegionId { generation: u32::MAX, ..first }));
        assert_eq!(table.insert(region()), Err(NoRoom(1)));
    }
}
