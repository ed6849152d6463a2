//! The slots in which a get looks for its key.

use super::{KeyHash, SlotAt};
use crate::table::shape::{BUCKET_WORDS, COMBINED_WORDS, SLOTS};
use crate::table::words::{BucketHeader, Slot};

/// Number of slots for which there is room. If all 28 slots are full, two slots of other keys have a key's fingerprint in
/// one of 187 gets, and four in one of 245,000.
const CANDIDATES_MAX: usize = 4;

/// Slots that may be a key's, in the buckets that a get has read.
#[derive(Default, Debug)]
pub(in crate::table) struct Candidates {
    slots: [(SlotAt, Slot); CANDIDATES_MAX],
    count: usize,
}

impl Candidates {
    /// Adds the slots of two buckets that lie one after another, unless they are here already. Returns false if the
    /// candidates are not all there then: a bucket does not have the keys with this hash, or there is no room.
    #[inline]
    pub fn add(&mut self, subtable: u32, first: u32, words: &[u64; COMBINED_WORDS], hash: KeyHash) -> bool {
        let (buckets, _) = words.as_chunks::<BUCKET_WORDS>();
        let mut is_whole = true;
        for (bucket, &[ref slots @ .., header]) in (first..).zip(buckets) {
            let slots: &[u64; SLOTS] = slots;
            is_whole &= BucketHeader(header).has(hash.suffix);
            for (slot, &word) in (0..).zip(slots) {
                // Most slots have another fingerprint, which is compared first.
                if Slot(word).fingerprint() == hash.fingerprint && Slot(word).may_be_found() {
                    is_whole &= self.push(SlotAt { subtable, bucket, slot }, Slot(word));
                }
            }
        }
        is_whole
    }

    #[cold]
    fn push(&mut self, at: SlotAt, slot: Slot) -> bool {
        // Both choices of a key may share their overflow bucket.
        if self.slots().iter().any(|(known, _)| *known == at) {
            return true;
        }
        let room = self.slots.get_mut(self.count);
        let has_room = room.is_some();
        if let Some(room) = room {
            *room = (at, slot);
            self.count += 1;
        }
        has_room
    }

    /// The slots that were added.
    pub fn slots(&self) -> &[(SlotAt, Slot)] {
        &self.slots[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::words::{BlockId, Claim};

    const SUFFIX: u32 = 0b1011;

    fn hash() -> KeyHash {
        KeyHash { fingerprint: 7, suffix: SUFFIX, choices: [0, 1] }
    }

    fn slot(fingerprint: u8, block: u32) -> Slot {
        Slot::new(fingerprint, Claim(0).taken().version(), BlockId { extent: 1, block })
    }

    /// Two buckets with these slots, whose keys end with the low four bits of `suffix`.
    fn buckets(suffix: u32, slots: &[(usize, Slot)]) -> [u64; COMBINED_WORDS] {
        let mut words = [0; COMBINED_WORDS];
        for bucket in words.as_chunks_mut::<BUCKET_WORDS>().0 {
            bucket[SLOTS] = BucketHeader::new(4, suffix).0;
        }
        for &(at, slot) in slots {
            words[at / SLOTS * BUCKET_WORDS + at % SLOTS] = slot.0;
        }
        words
    }

    #[test]
    fn candidates_are_the_slots_with_the_fingerprint_of_a_key_that_counts() {
        let wanted = slot(7, 3);
        let slots = [(2, slot(8, 1)), (5, slot(7, 2).pending()), (9, wanted), (13, Slot::EMPTY)];
        let mut candidates = Candidates::default();
        assert!(candidates.add(4, 10, &buckets(SUFFIX, &slots), hash()));
        assert_eq!(candidates.slots(), [(SlotAt { subtable: 4, bucket: 11, slot: 2 }, wanted)]);
    }

    #[test]
    fn a_bucket_that_both_choices_share_gives_its_slots_once() {
        let (low, shared, high) = (slot(7, 1), slot(7, 2), slot(7, 3));
        let mut candidates = Candidates::default();
        assert!(candidates.add(0, 10, &buckets(SUFFIX, &[(0, low), (SLOTS, shared)]), hash()));
        assert!(candidates.add(0, 11, &buckets(SUFFIX, &[(0, shared), (SLOTS, high)]), hash()));
        let slots: Vec<_> = candidates.slots().iter().map(|(at, slot)| (at.bucket, *slot)).collect();
        assert_eq!(slots, [(10, low), (11, shared), (12, high)]);
    }

    #[test]
    fn a_bucket_that_a_split_has_moved_makes_the_candidates_incomplete() {
        let mut words = buckets(SUFFIX, &[]);
        assert!(Candidates::default().add(0, 0, &words, hash()));
        words[BUCKET_WORDS + SLOTS] = BucketHeader::new(4, SUFFIX).unpublished().0;
        assert!(!Candidates::default().add(0, 0, &words, hash()));
        assert!(!Candidates::default().add(0, 0, &buckets(SUFFIX ^ 0b100, &[]), hash()));
    }

    #[test]
    fn more_slots_than_there_is_room_for_make_the_candidates_incomplete() {
        for count in 0..=SLOTS {
            let slots: Vec<_> = (0..count).zip(0..).map(|(at, block)| (at, slot(7, block))).collect();
            let mut candidates = Candidates::default();
            assert_eq!(candidates.add(0, 0, &buckets(SUFFIX, &slots), hash()), count <= CANDIDATES_MAX);
            assert_eq!(candidates.slots().len(), count.min(CANDIDATES_MAX));
        }
    }
}
