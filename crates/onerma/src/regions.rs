//! The registered region table (1RMA §4.3): the bytes and the key of each region. Its size is fixed.

use crate::keys::{
    DerivationKey, DerivedKey, HolderTerms, HostAddress, OperationType, RegionKey, RegionTerms,
};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_planted::planted;
use std::collections::VecDeque;

/// Identifier of a region: its slot in the table, and the number of earlier uses of that slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId {
    /// The slot's index.
    pub index: u32,
    /// Number of earlier uses of the slot.
    pub generation: u32,
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

#[derive(Debug)]
struct RegionSlot {
    generation: u32,
    region: Option<Region>,
    /// The key from which those of the region's holders are derived. If there is no region, it is that of the former
    /// one: a packet under such a key is late.
    derivation: DerivationKey,
    /// The number of the region's key among all keys of the table so far.
    version: u64,
}

/// The regions of a node.
#[derive(Debug)]
pub struct RegionTable {
    incarnation: u64,
    size: u32,
    slots: Vec<RegionSlot>,
    /// Free slots, the latest last. The one that has been free for longest is used first, so that late operations are
    /// recognised as such for as long as possible.
    free: VecDeque<u32>,
    /// Number of keys given to regions so far.
    versions: u64,
}

impl RegionTable {
    /// Creates an empty table with room for `size` regions. `incarnation` is a number that no earlier run of the node
    /// had: because of it no key of an earlier run recurs.
    #[must_use]
    pub fn new(incarnation: u64, size: u32) -> Self {
        Self { incarnation, size, slots: Vec::new(), free: VecDeque::new(), versions: 0 }
    }

    /// Adds a region.
    ///
    /// # Errors
    /// The table is full. A slot that has been used 2³² times is not used again.
    pub fn insert(&mut self, region: Region) -> Result<RegionId, NoRoom> {
        let index = self.take_slot().ok_or(NoRoom(self.size))?;
        self.versions += 1;
        let slot = &mut self.slots[index as usize];
        let id = RegionId { index, generation: slot.generation };
        slot.derivation = region.derivation_key(self.incarnation, id);
        (slot.region, slot.version) = (Some(region), self.versions);
        Ok(id)
    }

    /// Takes a slot for a region. Some slots rest before they are used again, as long as the table can grow instead.
    fn take_slot(&mut self) -> Option<u32> {
        let next = u32::try_from(self.slots.len()).ok().filter(|&next| next < self.size);
        let Some(next) = next.filter(|_| self.free.len() < RESTING) else { return self.free.pop_front() };
        let derivation = DerivationKey::blank();
        self.slots.push(RegionSlot { generation: 0, region: None, derivation, version: 0 });
        Some(next)
    }

    /// Invalidates a region: from here on no key is valid for it. Returns whether the region existed.
    pub fn remove(&mut self, id: RegionId) -> bool {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return false };
        if slot.generation != id.generation || slot.region.take().is_none() {
            return false;
        }
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push_back(id.index);
        }
        true
    }

    /// Gives a region another key (1RMA §5.2), for its owner or for a client that may do so: from here on the keys that
    /// were derived from the old one are not valid. Returns whether the region exists.
    pub fn rekey(&mut self, id: RegionId, key: RegionKey) -> bool {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return false };
        match &mut slot.region {
            Some(region) if slot.generation == id.generation => {
                self.versions += 1;
                (region.key, slot.version) = (key, self.versions);
                slot.derivation = region.derivation_key(self.incarnation, id);
                true
            }
            _ => false,
        }
    }

    /// Returns a region, if it exists.
    #[must_use]
    pub fn get(&self, id: RegionId) -> Option<&Region> {
        let slot = self.slots.get(id.index as usize)?;
        slot.region.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// Returns a number that changes with the region's key and ends with the region: a packet that was authenticated
    /// under another number is not valid any more.
    pub(crate) fn version(&self, id: RegionId) -> Option<u64> {
        let slot = self.slots.get(id.index as usize)?;
        (slot.generation == id.generation && slot.region.is_some()).then_some(slot.version)
    }

    /// Derives the key of a client. `None`: there is no such region.
    #[must_use]
    pub fn derive(&self, id: RegionId, initiator: HostAddress, client: u64) -> Option<DerivedKey> {
        self.get(id)?;
        let derivation = &self.slots[id.index as usize].derivation;
        Some(derivation.derive(&HolderTerms { initiator, client }))
    }

    /// Derives the key that a client had for a region that has ended. `None`: the region has not ended, or the slot
    /// has another region by now.
    pub(crate) fn derive_ended(
        &self,
        id: RegionId,
        initiator: HostAddress,
        client: u64,
    ) -> Option<DerivedKey> {
        let slot = self.slots.get(id.index as usize)?;
        let is_the_last = slot.region.is_none() && slot.generation.checked_sub(1) == Some(id.generation);
        is_the_last.then(|| slot.derivation.derive(&HolderTerms { initiator, client }))
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
        table.slots[0].generation = u32::MAX;
        assert!(table.remove(RegionId { generation: u32::MAX, ..first }));
        assert_eq!(table.insert(region()), Err(NoRoom(1)));
    }
}
