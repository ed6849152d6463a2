//! Buckets, and the buckets in which a key can be.

use super::KeyHash;
use crate::table::shape::{BUCKET_BYTES, BUCKET_WORDS, COMBINED_WORDS, SHARED_AT, SLOTS, bucket_at};
use crate::table::words::{BucketHeader, Slot};

/// Number of buckets in which a key can be: two combined ones, which may share their overflow bucket.
const BUCKETS_MAX: usize = 4;

/// The place of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(in crate::table) struct SlotAt {
    pub subtable: u32,
    pub bucket: u32,
    pub slot: u32,
}

impl SlotAt {
    /// Offset of the slot in the part of the subtable that clients share.
    pub fn offset(self) -> u64 {
        bucket_at(self.bucket) - SHARED_AT + u64::from(self.slot) * 8
    }
}

/// A bucket, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(in crate::table) struct Bucket {
    pub subtable: u32,
    pub number: u32,
    pub slots: [Slot; SLOTS],
    pub header: BucketHeader,
}

impl Bucket {
    #[inline]
    pub fn parse(subtable: u32, number: u32, bytes: &[u8; BUCKET_BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self::of_words(subtable, number, &std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    }

    #[inline]
    fn of_words(subtable: u32, number: u32, words: &[u64; BUCKET_WORDS]) -> Self {
        let slots = std::array::from_fn(|slot| Slot(words[slot]));
        Self { subtable, number, slots, header: BucketHeader(words[SLOTS]) }
    }

    /// Parses buckets that lie one after another, from `first` on.
    #[inline]
    pub fn parse_all(subtable: u32, first: u32, bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let (buckets, _) = bytes.as_chunks();
        (first..).zip(buckets).map(move |(number, bytes)| Self::parse(subtable, number, bytes))
    }

    pub fn slots(&self) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        (0..).zip(self.slots).map(|(slot, word)| (self.at(slot), word))
    }

    fn at(&self, slot: u32) -> SlotAt {
        SlotAt { subtable: self.subtable, bucket: self.number, slot }
    }

    /// Returns the slots that are not empty and have this fingerprint.
    #[inline]
    fn candidates(&self, fingerprint: u8) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        // Most buckets have no such slot. So all slots are compared first, without a branch.
        let mut matching = 0_u32;
        for (bit, slot) in self.slots.iter().enumerate() {
            let matches = slot.fingerprint() == fingerprint && !slot.is_empty();
            matching |= u32::from(matches) << bit;
        }
        std::iter::from_fn(move || {
            let slot = matching.trailing_zeros();
            matching &= matching.wrapping_sub(1);
            let word = self.slots.get(slot as usize)?;
            Some((self.at(slot), *word))
        })
    }
}

/// All buckets in which a key can be.
#[derive(Default, Debug)]
pub(in crate::table) struct View {
    buckets: [Bucket; BUCKETS_MAX],
    count: usize,
}

impl View {
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets[..self.count].iter()
    }

    /// Returns the buckets, to replace them by others.
    #[inline]
    pub fn buckets_mut(&mut self) -> &mut [Bucket] {
        &mut self.buckets[..self.count]
    }

    /// Removes all buckets.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds buckets that lie one after another, from `first` on, unless they are here already.
    pub fn add(&mut self, subtable: u32, first: u32, words: &[u64; COMBINED_WORDS]) {
        for (number, words) in (first..).zip(words.as_chunks().0) {
            let bucket = Bucket::of_words(subtable, number, words);
            if self.buckets().all(|known| known.number != bucket.number) {
                self.buckets[self.count] = bucket;
                self.count += 1;
            }
        }
    }

    pub fn slots(&self) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        self.buckets().flat_map(Bucket::slots)
    }

    /// Returns the slots that may be this key's.
    #[inline]
    pub fn candidates(&self, hash: KeyHash) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        self.buckets().flat_map(move |bucket| bucket.candidates(hash.fingerprint))
    }
}
