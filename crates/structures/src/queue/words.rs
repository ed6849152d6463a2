//! The words of a segment: its indexes and its slots.

use super::QueueOptions;
use twox_hash::XxHash3_64;

/// A tail of this value or more means that no client may push any more. It is far more than the slots that are
/// requested of any segment.
const CLOSED: u64 = 1 << 40;

/// The tail of a segment: the number of slots that were requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tail(pub u64);

impl Tail {
    /// The number that is added to a tail to close it.
    pub const CLOSING: u64 = CLOSED;

    pub fn is_closed(self) -> bool {
        self.0 >= CLOSED
    }

    /// Number of slots that were requested, including requests in vain.
    pub fn asked_for(self) -> u64 {
        self.0 % CLOSED
    }
}

/// Both indexes of a segment, as one look has found them: first the head, then the tail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Indexes {
    /// The first slot that is not consumed.
    pub head: u64,
    pub tail: Tail,
}

impl Indexes {
    /// Number of bytes of a segment that hold the indexes.
    pub const BYTES: usize = 16;
    /// Offset of the head in a segment.
    pub const HEAD_AT: u64 = 0;
    /// Offset of the tail in a segment.
    pub const TAIL_AT: u64 = 8;

    /// Number of slots that were taken.
    pub fn taken(self, options: &QueueOptions) -> u64 {
        self.tail.asked_for().min(options.slots())
    }
}

/// The meaning of a slot's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// The slot is free, or taken and not filled yet. The further slots of an entry with several slots are empty too.
    Empty,
    /// An entry begins in this slot. Its length is in the word.
    Filled(Entry),
    /// The slot's producer did not fill it in time, or had no use for it.
    Abandoned,
}

/// The word of a filled slot: the length of its entry, and a checksum of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry(u64);

const FILLED: u64 = 1 << 63;
const ABANDONED: u64 = 1 << 62;
const LENGTH_BITS: u32 = 17;
const SUM_BITS: u32 = 40;

impl Entry {
    /// # Panics
    /// If there are more bytes than any entry has.
    pub fn of(bytes: &[u8]) -> Self {
        assert!(bytes.len() < 1 << LENGTH_BITS, "the caller has looked");
        let sum = XxHash3_64::oneshot(bytes) >> (64 - SUM_BITS);
        Self(FILLED | sum << LENGTH_BITS | bytes.len() as u64)
    }

    pub fn length(self) -> u64 {
        self.0 & ((1 << LENGTH_BITS) - 1)
    }

    pub fn word(self) -> u64 {
        self.0
    }
}

impl Slot {
    pub const EMPTY: u64 = 0;
    pub const ABANDONED: u64 = ABANDONED;

    /// Decodes a slot's word. `None`: no client writes such a word.
    pub fn from_word(word: u64) -> Option<Self> {
        match word {
            Self::EMPTY => Some(Self::Empty),
            Self::ABANDONED => Some(Self::Abandoned),
            _ if word & FILLED != 0 => Some(Self::Filled(Entry(word))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_word_of_an_entry_says_its_length_and_no_other_bytes_have_it(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), change in any::<proptest::sample::Index>(),
        ) {
            let entry = Entry::of(&bytes);
            prop_assert_eq!(entry.length(), bytes.len() as u64);
            prop_assert_eq!(Slot::from_word(entry.word()), Some(Slot::Filled(entry)));
            if !bytes.is_empty() {
                let mut other = bytes.clone();
                other[change.index(bytes.len())] ^= 1;
                prop_assert_ne!(Entry::of(&other), entry);
            }
        }

        #[test]
        fn a_closed_tail_stays_closed_and_counts_on(asked in 0u64..1 << 30, more in 0u64..1 << 30) {
            prop_assert!(!Tail(asked).is_closed());
            let closed = Tail(asked + Tail::CLOSING + more);
            prop_assert!(closed.is_closed());
            prop_assert_eq!(closed.asked_for(), asked + more);
            // A client that died while it closed the queue may have done so already.
            prop_assert!(Tail(closed.0 + Tail::CLOSING).is_closed());
        }
    }

    #[test]
    fn the_longest_entry_has_a_word() {
        let longest = vec![1; super::super::ENTRY_BYTES_MAX];
        assert_eq!(Entry::of(&longest).length(), longest.len() as u64);
    }
}
