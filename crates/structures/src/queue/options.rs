//! The options of a queue, and the layout of its head and its segments.

use super::QueueError;
use crate::record::RECORD_BYTES;
use portcullis::{Keep, Lifetime};
use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: u64 = u64::from_le_bytes(*b"PCQUEUE1");
/// Magic number of a queue of claims: a client that does not know claims cannot open it.
const MAGIC_OF_CLAIMS: u64 = u64::from_le_bytes(*b"PCQUEUE2");
/// Largest number of bytes of an entry of any queue.
pub const ENTRY_BYTES_MAX: usize = 64 << 10;
/// Cells are whole words.
const CELL_STEP: u32 = 8;
/// Bytes of the part of the head from which the places of the records follow. It is read with the records.
pub(super) const STATE_BYTES: usize = 64;
/// Offset in the head of the part that only the holder of the right may change.
pub(super) const STATE_AT: u64 = 64;
const RECORDS_AT: u64 = STATE_AT + STATE_BYTES as u64;
/// Offset in a segment of the words of its slots.
const WORDS_AT: u64 = 64;

/// The options of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// Slots of a segment: 64 to 1,024.
    pub segment_slots: u32,
    /// Bytes of a slot's cell, a multiple of 8. An entry takes as many slots as it fills cells, all in one segment. So
    /// this option limits an entry's length: see [`QueueOptions::entry_bytes_max`].
    pub cell_bytes: u32,
    /// Largest number of segments that the queue may have at a time.
    pub segments_max: u32,
    /// Longest time for which a client that has died can hold up others: a consumer waits this long for a slot that is
    /// taken and not filled, and a permission lives this long.
    ///
    /// Over UDP an operation whose packets are lost takes 60 ms. If packets are lost often, a lease shorter than that
    /// may end before an operation has succeeded, and each change of the queue takes several attempts.
    pub lease: Lifetime,
    /// Whether entries are claimed and acknowledged ([`Queue::claim`](super::Queue::claim)), so that no entry is lost
    /// with its consumer. Otherwise they are popped. Claims take 8 bytes more for each slot.
    pub claims: bool,
    /// Time for which the queue is kept while no client has a permission on it, which is so in every pause of a lease.
    /// [`Keep::No`] is refused with [`QueueError::NotKept`].
    pub keep: Keep,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            segment_slots: 1024,
            cell_bytes: 64,
            segments_max: 1024,
            lease: Lifetime::millis(10),
            claims: false,
            keep: Keep::Attached,
        }
    }
}

/// The first bytes of the head, which never change.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct OptionsWire {
    magic: U64,
    segment_slots: U32,
    cell_bytes: U32,
    segments_max: U32,
    keep: U32,
    keep_for: U64,
    lease: U64,
    reserved: U64,
    reserved_too: U64,
    check: U64,
}

impl QueueOptions {
    /// Number of bytes of the head that hold the options.
    pub(super) const BYTES: usize = size_of::<OptionsWire>();

    /// Largest number of bytes of an entry.
    #[must_use]
    pub fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX.min(self.segment_slots as usize * self.cell_bytes as usize)
    }

    /// # Errors
    /// [`QueueError::Option`] or [`QueueError::NotKept`].
    pub(super) fn check(&self) -> Result<(), QueueError> {
        let within = |what, value: u64, least: u64, most: u64| {
            let fits = (least..=most).contains(&value);
            if fits { Ok(()) } else { Err(QueueError::Option { what, value, least, most }) }
        };
        within("segment_slots", self.segment_slots.into(), 64, 1024)?;
        within("cell_bytes", self.cell_bytes.into(), 8, ENTRY_BYTES_MAX as u64)?;
        if !self.cell_bytes.is_multiple_of(CELL_STEP) {
            return Err(QueueError::Step {
                what: "cell_bytes",
                value: self.cell_bytes.into(),
                step: CELL_STEP.into(),
            });
        }
        within("segments_max", self.segments_max.into(), 2, 1 << 20)?;
        within("lease (in µs)", self.lease.0, 1_000, 10_000_000)?;
        if self.keep == Keep::No { Err(QueueError::NotKept) } else { Ok(()) }
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let (keep, keep_for) = crate::record::keep_to_words(self.keep);
        let mut wire = OptionsWire {
            magic: U64::new(if self.claims { MAGIC_OF_CLAIMS } else { MAGIC }),
            segment_slots: U32::new(self.segment_slots),
            cell_bytes: U32::new(self.cell_bytes),
            segments_max: U32::new(self.segments_max),
            keep: U32::new(keep),
            keep_for: U64::new(keep_for),
            lease: U64::new(self.lease.0),
            reserved: U64::ZERO,
            reserved_too: U64::ZERO,
            check: U64::ZERO,
        };
        wire.check = U64::new(XxHash3_64::oneshot(wire.as_bytes()));
        zerocopy::transmute!(wire)
    }

    /// # Errors
    /// [`QueueError::NotAQueue`].
    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<Self, QueueError> {
        let mut wire: OptionsWire = zerocopy::transmute!(bytes);
        let check = std::mem::replace(&mut wire.check, U64::ZERO);
        let claims = wire.magic.get() == MAGIC_OF_CLAIMS;
        if !(claims || wire.magic.get() == MAGIC) || check.get() != XxHash3_64::oneshot(wire.as_bytes()) {
            return Err(QueueError::NotAQueue);
        }
        let keep = crate::record::keep_from_words(wire.keep.get(), wire.keep_for.get());
        let options = Self {
            segment_slots: wire.segment_slots.get(),
            cell_bytes: wire.cell_bytes.get(),
            segments_max: wire.segments_max.get(),
            lease: Lifetime(wire.lease.get()),
            claims,
            keep: keep.ok_or(QueueError::NotAQueue)?,
        };
        options.check().map(|()| options)
    }

    /// Offset in the head of the record of a segment. Segments that never exist together share one record.
    pub(super) fn record_at(&self, number: u64) -> u64 {
        RECORDS_AT + self.place_of(number) as u64 * RECORD_BYTES as u64
    }

    /// Number of the record that a segment uses.
    pub(super) fn place_of(&self, number: u64) -> usize {
        usize::try_from(number % u64::from(self.segments_max)).expect("less than a u32")
    }

    pub(super) fn head_bytes(&self) -> u64 {
        RECORDS_AT + u64::from(self.segments_max) * RECORD_BYTES as u64
    }

    pub(super) fn slots(&self) -> u64 {
        self.segment_slots.into()
    }

    /// Offset in a segment of the word of a slot.
    pub(super) fn word_at(slot: u64) -> u64 {
        WORDS_AT + slot * 8
    }

    /// Offset in a segment of the claim of a slot.
    pub(super) fn claim_at(&self, slot: u64) -> u64 {
        Self::word_at(self.slots()) + slot * 8
    }

    /// Offset in a segment of the cell of a slot. Bytes before the first cell are zeroed when a segment is made.
    pub(super) fn cell_at(&self, slot: u64) -> u64 {
        let words = if self.claims { self.claim_at(self.slots()) } else { Self::word_at(self.slots()) };
        words.next_multiple_of(64) + slot * u64::from(self.cell_bytes)
    }

    pub(super) fn segment_bytes(&self) -> u64 {
        self.cell_at(self.slots())
    }

    /// Number of slots that an entry of `bytes` bytes takes.
    pub(super) fn slots_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.cell_bytes.into()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn options_read_back_and_nothing_of_a_queue_overlaps(
            segment_slots in 64u32..=1024, cells in 1u32..=8192, segments_max in 2u32..=4096, lease in 1_000u64..=10_000_000,
            claims: bool,
        ) {
            let cell_bytes = cells * 8;
            let options = QueueOptions {
                segment_slots, cell_bytes, segments_max, lease: Lifetime(lease), claims,
                ..QueueOptions::default()
            };
            prop_assert_eq!(QueueOptions::from_bytes(options.to_bytes()), Ok(options));
            prop_assert!(QueueOptions::BYTES as u64 <= STATE_AT);
            prop_assert!(options.record_at(u64::from(segments_max) - 1) + RECORD_BYTES as u64 <= options.head_bytes());
            prop_assert!(QueueOptions::word_at(options.slots()) <= options.cell_at(0));
            prop_assert!(!claims || options.claim_at(options.slots()) <= options.cell_at(0));
            let most = options.entry_bytes_max() as u64;
            prop_assert!(options.slots_of(most) <= options.slots());
        }
    }

    #[test]
    fn other_options_are_refused() {
        let refused = |options: QueueOptions| assert!(options.check().is_err(), "{options:?}");
        refused(QueueOptions { segment_slots: 63, ..QueueOptions::default() });
        refused(QueueOptions { segment_slots: 1025, ..QueueOptions::default() });
        refused(QueueOptions { cell_bytes: 12, ..QueueOptions::default() });
        refused(QueueOptions { segments_max: 1, ..QueueOptions::default() });
        refused(QueueOptions { lease: Lifetime(1), ..QueueOptions::default() });
        refused(QueueOptions { keep: Keep::No, ..QueueOptions::default() });
        assert_eq!(QueueOptions::from_bytes([0; QueueOptions::BYTES]), Err(QueueError::NotAQueue));
    }
}
