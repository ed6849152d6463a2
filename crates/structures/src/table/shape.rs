//! The layout of a table: the head object, subtables, extents.

use super::TableError;
use super::words::EXTENTS_MAX;
use crate::record::{RECORD_BYTES, keep_from_words, keep_to_words};
use portcullis::{Keep, Lifetime, Moment};
use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: u64 = u64::from_le_bytes(*b"PCTABLE2");
/// Number of bytes of a word.
pub(super) const WORD: u64 = 8;
/// Number of bytes of a bucket: seven slots and the header.
pub(super) const BUCKET_BYTES: usize = 64;
pub(super) const BUCKET_WORDS: usize = BUCKET_BYTES / 8;
/// Number of slots of a bucket.
pub(super) const SLOTS: usize = 7;
/// Number of buckets of a group: a main bucket, the overflow bucket of both, a main bucket.
const GROUP_BUCKETS: u32 = 3;
/// Number of bytes of a combined bucket, which one read takes: a main bucket and its overflow bucket.
pub(super) const COMBINED_BYTES: u32 = 128;
pub(super) const COMBINED_WORDS: usize = 2 * BUCKET_WORDS;
const _: () = assert!(COMBINED_BYTES as usize == 2 * BUCKET_BYTES);
/// The greatest depth that a directory may have.
pub(super) const DEPTH_LIMIT: u32 = 24;
/// Largest number of bytes of a key.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Largest number of bytes of a value, unless a handle is set to accept longer ones.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Largest number of bytes of a value that a handle can be set to accept.
pub const LONG_VALUE_BYTES_MAX: usize = 128 << 20;

/// The grain of the permissions under which a get reads blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Grain {
    /// One permission for each block (Patronus §6.1).
    Block,
    /// One permission over each extent. An extent contains no data of another table or tenant.
    #[default]
    Extent,
}

/// The memory in which a table's blocks lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BlockMemory {
    /// Objects of the node, which clients share.
    #[default]
    Objects,
    /// Chunks of the session that makes the table (OneSidedMW). No message goes to the node for a block, and memory of
    /// removed keys goes back to the node chunk by chunk. A chunk's keys work on its holder's queue pairs only. So only
    /// the handle that makes the table can use it, and its values are lost with its session.
    Chunks,
}

/// The options of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableOptions {
    /// The memory in which the blocks lie.
    pub blocks: BlockMemory,
    /// The grain of reads. Blocks in chunks have the grain of a chunk, whatever this option is.
    pub grain: Grain,
    /// Limit on how long a client's death in the middle of a change can hold up other clients that need the same
    /// change: at most twice this time. The right to split a subtable lives for a lease, and other permissions for a
    /// quarter of it.
    ///
    /// Over UDP an operation whose packets are lost takes 60 ms, and a value is read under one permission. So if
    /// packets are lost often, a lease must be at least half a second.
    pub lease: Lifetime,
    /// Number of groups of buckets of a subtable: each has room for 21 keys.
    pub groups: u32,
    /// The table has at most two to this power subtables.
    pub depth_max: u32,
    /// The seed of the hashes of keys. `None`: a number that is drawn when the table is made.
    ///
    /// A program that knows the seed can choose keys that share their buckets, until a subtable has no room for the
    /// keys of any client. So a table whose keys come from others must have a drawn seed. A given seed makes an
    /// experiment repeatable.
    pub seed: Option<u64>,
    /// Time for which the table is kept while no client has a permission on it, which is so in every pause of a lease.
    /// [`Keep::No`] is refused with [`TableError::NotKept`].
    pub keep: Keep,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            blocks: BlockMemory::default(),
            grain: Grain::default(),
            lease: Lifetime::seconds(1),
            groups: 256,
            depth_max: 14,
            seed: None,
            keep: Keep::Attached,
        }
    }
}

/// The first bytes of the head, which never change.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct OptionsWire {
    magic: U64,
    blocks_and_grain: U32,
    keep: U32,
    keep_for: U64,
    lease: U64,
    groups: U64,
    depth_max: U64,
    seed: U64,
    check: U64,
}

/// Offset of the global depth in the head.
pub(super) const GLOBAL_DEPTH_AT: u64 = 64;
/// Offset in the head of the number of subtables that were ever begun.
pub(super) const SUBTABLES_AT: u64 = 72;
/// Offset in the head of the number of extents that were ever begun.
pub(super) const EXTENTS_AT: u64 = 80;
/// Offset in the head of the number of extents that were given back, or made in the place of such ones.
pub(super) const CHANGES_AT: u64 = 88;
/// Offset in the head of the time on the node's clock at which the table was made. 0: the client that made the table did not
/// write that.
pub(super) const MADE_AT: u64 = 96;
const DIRECTORY_AT: u64 = 128;
/// Number of words from [`MADE_AT`] to the directory's first entry, which are written together.
pub(super) const FIRST_WORDS: usize = 5;
const _: () = assert!(MADE_AT + (FIRST_WORDS as u64 - 1) * WORD == DIRECTORY_AT);

impl TableOptions {
    /// Number of bytes of the head that hold the options.
    pub(super) const BYTES: usize = size_of::<OptionsWire>();

    /// # Errors
    /// [`TableError::Option`] or [`TableError::NotKept`].
    pub(super) fn check(&self) -> Result<(), TableError> {
        let within = |what, value: u64, least: u64, most: u64| {
            let fits = (least..=most).contains(&value);
            if fits { Ok(()) } else { Err(TableError::Option { what, value, least, most }) }
        };
        within("lease (in µs)", self.lease.0, 1_000, 10_000_000)?;
        within("groups", self.groups.into(), 1, 1 << 20)?;
        within("depth_max", self.depth_max.into(), 0, DEPTH_LIMIT.into())?;
        if self.keep == Keep::No { Err(TableError::NotKept) } else { Ok(()) }
    }

    /// Returns the given seed, or draws one.
    ///
    /// # Errors
    /// [`TableError::NoRandomness`].
    pub(super) fn seed_or_drawn(&self) -> Result<u64, TableError> {
        self.seed.map_or_else(|| getrandom::u64().map_err(|_| TableError::NoRandomness), Ok)
    }

    /// Encodes the options with this seed for the head.
    pub(super) fn to_bytes(self, seed: u64) -> [u8; Self::BYTES] {
        let (keep, keep_for) = keep_to_words(self.keep);
        let mut wire = OptionsWire {
            magic: U64::new(MAGIC),
            // One word holds both: a program that does not know blocks in chunks then rejects such a table.
            blocks_and_grain: U32::new(match (self.blocks, self.grain) {
                (BlockMemory::Objects, Grain::Block) => 0,
                (BlockMemory::Objects, Grain::Extent) => 1,
                (BlockMemory::Chunks, Grain::Block) => 2,
                (BlockMemory::Chunks, Grain::Extent) => 3,
            }),
            keep: U32::new(keep),
            keep_for: U64::new(keep_for),
            lease: U64::new(self.lease.0),
            groups: U64::new(self.groups.into()),
            depth_max: U64::new(self.depth_max.into()),
            seed: U64::new(seed),
            check: U64::ZERO,
        };
        wire.check = U64::new(XxHash3_64::oneshot(wire.as_bytes()));
        zerocopy::transmute!(wire)
    }

    /// Decodes the options and the seed from a head.
    ///
    /// # Errors
    /// [`TableError::NotATable`].
    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<(Self, u64), TableError> {
        let mut wire: OptionsWire = zerocopy::transmute!(bytes);
        let check = std::mem::replace(&mut wire.check, U64::ZERO);
        if wire.magic.get() != MAGIC || check.get() != XxHash3_64::oneshot(wire.as_bytes()) {
            return Err(TableError::NotATable);
        }
        let small = |word: U64| u32::try_from(word.get()).map_err(|_| TableError::NotATable);
        let (blocks, grain) = match wire.blocks_and_grain.get() {
            0 => (BlockMemory::Objects, Grain::Block),
            1 => (BlockMemory::Objects, Grain::Extent),
            2 => (BlockMemory::Chunks, Grain::Block),
            3 => (BlockMemory::Chunks, Grain::Extent),
            _ => return Err(TableError::NotATable),
        };
        let keep = keep_from_words(wire.keep.get(), wire.keep_for.get()).ok_or(TableError::NotATable)?;
        let options = Self {
            blocks,
            grain,
            lease: Lifetime(wire.lease.get()),
            groups: small(wire.groups)?,
            depth_max: small(wire.depth_max)?,
            seed: Some(wire.seed.get()),
            keep,
        };
        options.check().map(|()| (options, wire.seed.get()))
    }

    /// Returns the time for which a shared permission lives. It is much shorter than the right to split: a client that
    /// takes a split over has most of its own right left when all others' permissions have ended.
    pub(super) fn hold(&self) -> Lifetime {
        Lifetime(self.lease.0 / 4)
    }

    /// Returns the time before which a block that was claimed at `now` must get into a slot, or never does.
    pub(super) fn claimed_until(&self, now: Moment) -> Moment {
        let lease = self.lease.0;
        now.after(Lifetime(lease - lease / 8))
    }

    pub(super) fn subtables_max(&self) -> u32 {
        // Some numbers of subtables are lost with clients that died.
        (2 << self.depth_max) + 64
    }

    pub(super) fn entry_at(&self, index: u32) -> u64 {
        DIRECTORY_AT + u64::from(index) * WORD
    }

    pub(super) fn subtable_record_at(&self, subtable: u32) -> u64 {
        self.entry_at(1 << self.depth_max).next_multiple_of(64) + u64::from(subtable) * RECORD_BYTES as u64
    }

    pub(super) fn extent_record_at(&self, extent: u32) -> u64 {
        self.subtable_record_at(self.subtables_max()) + u64::from(extent) * RECORD_BYTES as u64
    }

    pub(super) fn head_bytes(&self) -> u64 {
        self.extent_record_at(EXTENTS_MAX)
    }

    pub(super) fn buckets(&self) -> u32 {
        self.groups * GROUP_BUCKETS
    }

    pub(super) fn subtable_bytes(&self) -> u64 {
        bucket_at(self.buckets())
    }

    /// Returns the first bucket of a combined bucket; the second follows it.
    #[inline]
    pub(super) fn combined(choice: u32) -> u32 {
        choice / 2 * GROUP_BUCKETS + choice % 2
    }

    /// Whether a bucket is a main bucket of its group, and not the overflow bucket.
    pub(super) fn is_main(bucket: u32) -> bool {
        bucket % GROUP_BUCKETS != 1
    }

    /// Returns the number of combined buckets of a subtable.
    pub(super) fn choices(&self) -> u32 {
        self.groups * 2
    }
}

/// Number of bytes at the start of a subtable that only the client that splits it may write.
pub(super) const SPLIT_BYTES: u64 = 64;
/// Offset in a subtable of the rest, which clients share.
pub(super) const SHARED_AT: u64 = SPLIT_BYTES;
/// Offset in a subtable of the number of its parent, plus one.
pub(super) const PARENT_AT: u64 = SHARED_AT;
/// Offset in a subtable of its depth when it was made.
pub(super) const BIRTH_DEPTH_AT: u64 = SHARED_AT + 8;
/// Offset in a subtable of the numbers of its children, plus one, by the depth of the split.
const CHILDREN_AT: u64 = SHARED_AT + 16;
/// Number of bytes of the shared record, up to the last child.
pub(super) const SHARED_RECORD_BYTES: usize = 16 + DEPTH_LIMIT as usize * 8;
const BUCKETS_AT: u64 = 320;

const _: () = assert!(CHILDREN_AT + DEPTH_LIMIT as u64 * WORD <= BUCKETS_AT);
const _: () = assert!(BUCKETS_AT.is_multiple_of(BUCKET_BYTES as u64));

/// Returns the offset in a subtable of a child's number.
pub(super) fn child_at(depth: u32) -> u64 {
    CHILDREN_AT + u64::from(depth) * WORD
}

/// Returns the offset in a subtable of a bucket.
#[inline]
pub(super) fn bucket_at(bucket: u32) -> u64 {
    BUCKETS_AT + u64::from(bucket) * BUCKET_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_lies_in_the_head_does_not_overlap(
            depth_max in 0u32..=DEPTH_LIMIT,
            blocks in prop::sample::select(vec![BlockMemory::Objects, BlockMemory::Chunks]),
            grain in prop::sample::select(vec![Grain::Block, Grain::Extent]),
        ) {
            let options = TableOptions { depth_max, blocks, grain, ..TableOptions::default() };
            let seeded = TableOptions { seed: Some(7), ..options };
            prop_assert_eq!(TableOptions::from_bytes(options.to_bytes(7)).expect("the same"), (seeded, 7));
            prop_assert!(options.entry_at(1 << depth_max) <= options.subtable_record_at(0));
            prop_assert!(options.subtable_record_at(options.subtables_max()) <= options.extent_record_at(0));
        }
    }

    #[test]
    fn a_table_that_would_go_in_the_first_pause_is_refused() {
        let options = TableOptions { keep: Keep::No, ..TableOptions::default() };
        assert!(matches!(options.check(), Err(TableError::NotKept)));
    }

    #[test]
    fn nothing_was_written_where_all_is_zero() {
        assert!(matches!(TableOptions::from_bytes([0; 64]), Err(TableError::NotATable)));
    }
}
