//! The words of a table: slots, bucket headers, entries of the directory, claims. Each is changed by one atomic.

use portcullis_planted::planted;

/// Bits of a block's version.
const VERSION_BITS: u32 = 22;
const VERSION_MASK: u32 = (1 << VERSION_BITS) - 1;
const VERSION_SHIFT: u32 = 32;
/// Bits of the number of an extent.
const EXTENT_BITS: u32 = 14;
const EXTENT_SHIFT: u32 = 18;
/// Bits of the number of a block in its extent.
const BLOCK_BITS: u32 = 18;
const FINGERPRINT_SHIFT: u32 = 54;
const PENDING: u64 = 1 << 62;
const FROZEN: u64 = 1 << 63;

/// Largest number of extents of a table.
pub(super) const EXTENTS_MAX: u32 = 1 << EXTENT_BITS;
/// Largest number of blocks of an extent.
pub(super) const BLOCKS_MAX: u32 = 1 << BLOCK_BITS;

/// The version of a block: the number of times that it was claimed. It wraps around after four million claims. Each
/// of them takes several round trips, so that takes longer than a permission lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Version(u32);

impl Version {
    pub fn number(self) -> u32 {
        self.0
    }

    /// Decodes the version from a number in a record.
    pub fn from_number(number: u64) -> Self {
        Self(low_half(number) & VERSION_MASK)
    }

    /// Returns the version after which the versions of an extent's blocks begin, if the blocks of an earlier extent
    /// under the same number were claimed up to this version. So a slot that names a block of the earlier extent names
    /// no block of the new one. Versions begin again at zero before any of them wraps around.
    pub fn base_of_successor(self) -> Self {
        if self.0 >= VERSION_MASK / 2 { Self(0) } else { self.next() }
    }

    /// Returns the version of the next claim. Zero is the version of a block that was never claimed.
    fn next(self) -> Self {
        Self(if self.0 == VERSION_MASK || planted!(VersionNotAdvanced) { 1 } else { self.0 + 1 })
    }
}

/// The number of a block's extent, and of the block in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct BlockId {
    pub extent: u32,
    pub block: u32,
}

impl BlockId {
    /// Returns the identifier with a number, for blocks that are numbered by one handle and lie in no extent.
    pub fn of_number(number: u32) -> Self {
        Self { extent: number >> EXTENT_SHIFT, block: number & (BLOCKS_MAX - 1) }
    }

    /// Returns the number of an identifier.
    pub fn number(self) -> u32 {
        self.extent << EXTENT_SHIFT | self.block
    }
}

/// A slot of a bucket: nothing, or the block of one key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Slot(pub u64);

impl Slot {
    pub const EMPTY: Self = Self(0);

    pub fn new(fingerprint: u8, version: Version, block_id: BlockId) -> Self {
        debug_assert!(block_id.extent < EXTENTS_MAX && block_id.block < BLOCKS_MAX && version.0 != 0);
        let high = u64::from(fingerprint) << FINGERPRINT_SHIFT | u64::from(version.0) << VERSION_SHIFT;
        Self(high | u64::from(block_id.extent) << EXTENT_SHIFT | u64::from(block_id.block))
    }

    /// Whether the slot has no key. It may be frozen.
    pub fn is_empty(self) -> bool {
        self.0 & !FROZEN == 0
    }

    /// Whether the slot's key counts only once the client that inserted it has found no other slot of the same key.
    pub fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// Whether the slot has a key, and the key counts.
    #[inline]
    pub fn may_be_found(self) -> bool {
        !self.is_empty() && (!self.is_pending() || planted!(PendingSeen))
    }

    /// Whether a split is about to move the bucket: no client changes the slot until then.
    pub fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    pub fn pending(self) -> Self {
        Self(self.0 | PENDING)
    }

    /// Returns the slot as a split freezes it: a pending key is removed, and its client begins anew.
    pub fn frozen(self) -> Self {
        if self.is_pending() { Self(FROZEN) } else { Self(self.0 | FROZEN) }
    }

    /// Returns the slot without the marks.
    pub fn settled(self) -> Self {
        Self(self.0 & !(PENDING | FROZEN))
    }

    /// Returns only the name of the slot's block.
    pub fn name(self) -> Self {
        Self(self.settled().0 & !(0xFF << FINGERPRINT_SHIFT))
    }

    pub fn fingerprint(self) -> u8 {
        (self.0 >> FINGERPRINT_SHIFT & 0xFF) as u8
    }

    pub fn version(self) -> Version {
        Version((self.0 >> VERSION_SHIFT & u64::from(VERSION_MASK)) as u32)
    }

    pub fn block_id(self) -> BlockId {
        let low = low_half(self.0);
        BlockId { extent: low >> EXTENT_SHIFT, block: low & ((1 << BLOCK_BITS) - 1) }
    }
}

/// A bucket's header: it defines which keys are in the bucket.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct BucketHeader(pub u64);

const PUBLISHED: u64 = 1 << 63;
const DEPTH_SHIFT: u32 = 32;

impl BucketHeader {
    /// Makes the header of a bucket with the keys whose hashes end with the low `depth` bits of `suffix`.
    pub fn new(depth: u32, suffix: u32) -> Self {
        Self(PUBLISHED | u64::from(depth) << DEPTH_SHIFT | u64::from(suffix & mask(depth)))
    }

    /// Returns the header for a bucket that a split has filled and whose keys the parent's bucket does not give up yet.
    pub fn unpublished(self) -> Self {
        Self(self.0 & !PUBLISHED)
    }

    /// Whether the bucket is in use. Otherwise only the header of its parent's bucket shows whether it is.
    pub fn is_published(self) -> bool {
        self.0 & PUBLISHED != 0
    }

    /// Whether keys with this hash are in this bucket, if the bucket is in use.
    #[inline]
    pub fn covers(self, suffix: u32) -> bool {
        (self.suffix() ^ suffix) & mask(self.depth()) == 0
    }

    pub fn depth(self) -> u32 {
        (self.0 >> DEPTH_SHIFT & 0xFF) as u32
    }

    pub fn suffix(self) -> u32 {
        low_half(self.0)
    }

    /// Whether keys with this hash are in this bucket.
    #[inline]
    pub fn has(self, suffix: u32) -> bool {
        self.is_published() && self.covers(suffix)
    }
}

fn low_half(word: u64) -> u32 {
    (word & 0xFFFF_FFFF) as u32
}

/// Returns a mask of the low `depth` bits.
#[inline]
pub(super) fn mask(depth: u32) -> u32 {
    1u32.checked_shl(depth).map_or(u32::MAX, |bit| bit - 1)
}

/// An entry of the shared directory: the subtable of some keys, or one from which splits lead there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(pub u64);

impl Entry {
    pub fn new(subtable: u32, depth: u32) -> Self {
        Self(u64::from(depth) << 32 | u64::from(subtable + 1))
    }

    /// Returns the subtable and its depth. `None`: no client has written the entry yet.
    pub fn get(self) -> Option<(u32, u32)> {
        let subtable = low_half(self.0).checked_sub(1)?;
        Some((subtable, low_half(self.0 >> 32)))
    }
}

/// The word that defines which client may write a block: none, or the one that has claimed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim(pub u64);

const CLAIMED: u64 = 1 << 63;
const RETIRED: u64 = 1 << 62;
const RENEWALS_SHIFT: u32 = 32;

impl Claim {
    /// Returns the word of a block that no client has claimed, and whose next claim has the version after this one.
    pub fn free_after(version: Version) -> Self {
        Self(version.0.into())
    }

    /// Returns the claim with which a client takes a free block.
    pub fn taken(self) -> Self {
        Self(CLAIMED | u64::from(self.version().next().0))
    }

    /// Returns a claim that was never renewed.
    pub fn of(version: Version) -> Self {
        Self::renewed(version, 0)
    }

    /// Returns a claim that was renewed `renewals` times. Its client is at work, so the block is no orphan.
    pub fn renewed(version: Version, renewals: u8) -> Self {
        Self(CLAIMED | u64::from(renewals) << RENEWALS_SHIFT | u64::from(version.0))
    }

    /// Returns the word of the block once it is free again.
    pub fn freed(self) -> Self {
        Self::free_after(self.version())
    }

    /// Returns the word of a free block that no client can claim any more: its extent is about to be given back.
    pub fn retired(self) -> Self {
        Self(RETIRED | u64::from(self.version().0))
    }

    /// Returns the word of a retired block whose extent stays. It differs from the word before, so that a client that
    /// has retired the block under that word notices.
    pub fn restored(self) -> Self {
        Self::free_after(self.version().next())
    }

    pub fn is_claimed(self) -> bool {
        self.0 & CLAIMED != 0
    }

    pub fn is_retired(self) -> bool {
        self.0 & RETIRED != 0
    }

    pub fn is_free(self) -> bool {
        self.0 & (CLAIMED | RETIRED) == 0
    }

    pub fn version(self) -> Version {
        Version(low_half(self.0) & VERSION_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_slot_gives_back_what_it_was_made_of(
            fingerprint: u8, version in 1u32..=VERSION_MASK, extent in 0..EXTENTS_MAX, block in 0..BLOCKS_MAX,
        ) {
            let (version, block_id) = (Version(version), BlockId { extent, block });
            let slot = Slot::new(fingerprint, version, block_id);
            for marked in [slot, slot.pending(), slot.frozen()] {
                prop_assert_eq!(marked.fingerprint(), fingerprint);
                prop_assert_eq!((marked.version(), marked.block_id()), (version, block_id));
                prop_assert_eq!(marked.settled(), slot);
                prop_assert!(!marked.is_empty());
            }
            prop_assert!(slot.pending().frozen().is_empty());
        }

        #[test]
        fn each_number_is_a_place_of_its_own(number: u32) {
            let block_id = BlockId::of_number(number);
            prop_assert!(block_id.extent < EXTENTS_MAX && block_id.block < BLOCKS_MAX);
            prop_assert_eq!(block_id.number(), number);
        }

        #[test]
        fn a_bucket_has_the_keys_with_its_suffix_and_no_others(depth in 0u32..=31, own: u32, other: u32) {
            let header = BucketHeader::new(depth, own);
            prop_assert!(header.has(own));
            prop_assert_eq!(header.has(other), other & mask(depth) == own & mask(depth));
            prop_assert_eq!(header.depth(), depth);
            prop_assert!(!header.unpublished().has(own) && header.unpublished().covers(own));
        }

        #[test]
        fn each_claim_of_a_block_has_another_version(claims in 1usize..100) {
            let mut word = Claim(0);
            let mut seen = std::collections::HashSet::new();
            for _ in 0..claims {
                let taken = word.taken();
                prop_assert!(taken.is_claimed() && seen.insert(taken.version().number()));
                prop_assert_eq!(taken, Claim::of(taken.version()));
                word = taken.freed();
                prop_assert!(word.is_free());
                let retired = word.retired();
                prop_assert!(retired.is_retired() && !retired.is_claimed() && !retired.is_free());
                word = retired.restored();
                prop_assert!(word.is_free());
                seen.insert(word.version().number());
                for renewals in [0, 1, u8::MAX] {
                    let renewed = Claim::renewed(taken.version(), renewals);
                    prop_assert!(renewed.is_claimed() && renewed.version() == taken.version());
                    prop_assert_eq!(renewed.freed(), taken.freed());
                }
            }
        }
    }

    #[test]
    fn no_claimed_block_has_the_version_of_one_that_was_never_claimed() {
        assert_eq!(Claim(u64::from(VERSION_MASK)).taken().version(), Version(1));
    }

    #[test]
    fn the_blocks_of_a_successor_have_later_versions_or_begin_again_long_before_they_come_round() {
        for version in [0, 1, 1000, VERSION_MASK / 2 - 1] {
            assert!(Version(version).base_of_successor() > Version(version));
        }
        assert_eq!(Version(VERSION_MASK / 2).base_of_successor(), Version(0));
        assert_eq!(Version(VERSION_MASK).base_of_successor(), Version(0));
    }

    #[test]
    fn an_entry_that_nobody_has_written_names_no_subtable() {
        assert_eq!(Entry(0).get(), None);
        assert_eq!(Entry::new(0, 3).get(), Some((0, 3)));
    }
}
