//! Records, by which the head of a structure names the structure's other objects.

use portcullis::{Incarnation, Keep, Lifetime, ObjectRef, RemoteAddress};
use twox_hash::XxHash3_64;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = size_of::<RecordWire>();

/// Encodes how long the structure is kept, for the head.
pub(crate) fn keep_to_words(keep: Keep) -> (u32, u64) {
    match keep {
        Keep::No => (0, 0),
        Keep::Attached => (1, 0),
        Keep::For(time) => (2, time.0),
        Keep::Pinned => (3, 0),
    }
}

/// Decodes how long the structure is kept. `None`: no head contains these words.
pub(crate) fn keep_from_words(kind: u32, time: u64) -> Option<Keep> {
    match kind {
        0 => Some(Keep::No),
        1 => Some(Keep::Attached),
        2 => Some(Keep::For(Lifetime(time))),
        3 => Some(Keep::Pinned),
        _ => None,
    }
}

/// The head's record of one of the structure's other objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub object: ObjectRef,
    /// Further data about the object, in 63 bits.
    pub detail: u64,
    /// Whether the object is kept, so that clients may use it. Otherwise it may be freed with the client that made it.
    pub is_kept: bool,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RecordWire {
    address: U64,
    birth: U64,
    detail: U64,
    check: U64,
}

impl RecordWire {
    fn sum(&self) -> u64 {
        XxHash3_64::oneshot(&self.as_bytes()[..24]) | 1
    }
}

/// Offset of the check in a record. A client that is about to change a record which other clients may change too first
/// takes the record: with a COMPARE_AND_SWAP of the check for a word that is no check of any record.
pub(crate) const CHECK_AT: u64 = 24;

/// Reads the check from a record's bytes.
pub(crate) fn check_of(bytes: &[u8; RECORD_BYTES]) -> u64 {
    let wire: RecordWire = zerocopy::transmute!(*bytes);
    wire.check.get()
}

/// Makes a word from a number that is no check of any record.
pub(crate) fn no_check(number: u64) -> u64 {
    // Checks are odd, and a check of zero means that no record was written.
    (number << 1).max(2)
}

impl Record {
    /// Decodes the words of a record, also if no client has completed it.
    pub fn from_words(bytes: [u8; RECORD_BYTES], incarnation: Incarnation) -> Self {
        let wire: RecordWire = zerocopy::transmute!(bytes);
        let object =
            ObjectRef { incarnation, address: RemoteAddress(wire.address.get()), birth: wire.birth.get() };
        let detail = wire.detail.get();
        Self { object, detail: detail >> 1, is_kept: detail & 1 != 0 }
    }

    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut wire = RecordWire {
            address: U64::new(self.object.address.0),
            birth: U64::new(self.object.birth),
            detail: U64::new(self.detail << 1 | u64::from(self.is_kept)),
            check: U64::ZERO,
        };
        wire.check = U64::new(wire.sum());
        zerocopy::transmute!(wire)
    }

    /// Decodes a record. `None`: no client has written the record, or a client is writing it now.
    pub fn from_bytes(bytes: [u8; RECORD_BYTES], incarnation: Incarnation) -> Option<Self> {
        let wire: RecordWire = zerocopy::transmute!(bytes);
        let record = Self::from_words(bytes, incarnation);
        (wire.check.get() == wire.sum()).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_reads_back_and_a_torn_one_does_not(
            address: u64, birth: u64, detail in 0u64..1 << 63, is_kept: bool, torn in 0usize..24,
        ) {
            let incarnation = Incarnation(7);
            let object = ObjectRef { incarnation, address: RemoteAddress(address), birth };
            let record = Record { object, detail, is_kept };
            let mut bytes = record.to_bytes();
            prop_assert_eq!(Record::from_bytes(bytes, incarnation), Some(record));
            prop_assert_eq!(check_of(&bytes), u64::from_le_bytes(bytes[24..].try_into().expect("eight bytes")));
            let mut taken = bytes;
            taken[24..].copy_from_slice(&no_check(address).to_le_bytes());
            prop_assert_eq!(Record::from_bytes(taken, incarnation), None, "a record that is taken");
            prop_assert_eq!(Record::from_words(taken, incarnation), record);
            bytes[torn] ^= 1;
            prop_assert_eq!(Record::from_bytes(bytes, incarnation), None);
        }
    }

    #[test]
    fn nothing_was_written_where_all_is_zero() {
        assert_eq!(Record::from_bytes([0; RECORD_BYTES], Incarnation(1)), None);
    }
}
