//! Records: how the head of a structure names the structure's other objects.

use portcullis::{Incarnation, Keep, Lifetime, ObjectRef, RemoteAddress};
use twox_hash::XxHash3_64;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = size_of::<RecordWire>();

/// How the head says how long the structure is kept.
pub(crate) fn keep_to_words(keep: Keep) -> (u32, u64) {
    match keep {
        Keep::No => (0, 0),
        Keep::Attached => (1, 0),
        Keep::For(time) => (2, time.0),
        Keep::Pinned => (3, 0),
    }
}

/// `None`: no head says this.
pub(crate) fn keep_from_words(kind: u32, time: u64) -> Option<Keep> {
    match kind {
        0 => Some(Keep::No),
        1 => Some(Keep::Attached),
        2 => Some(Keep::For(Lifetime(time))),
        3 => Some(Keep::Pinned),
        _ => None,
    }
}

/// What the head says of one of the structure's other objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub object: ObjectRef,
    /// What else there is to say of it, in 63 bits.
    pub detail: u64,
    /// The object is kept, so clients may use it. Otherwise it may go with the client that made it.
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

impl Record {
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

    /// `None`: nobody has written the record, or somebody is just doing so.
    pub fn from_bytes(bytes: [u8; RECORD_BYTES], incarnation: Incarnation) -> Option<Self> {
        let wire: RecordWire = zerocopy::transmute!(bytes);
        let object =
            ObjectRef { incarnation, address: RemoteAddress(wire.address.get()), birth: wire.birth.get() };
        let detail = wire.detail.get();
        let record = Self { object, detail: detail >> 1, is_kept: detail & 1 != 0 };
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
            bytes[torn] ^= 1;
            prop_assert_eq!(Record::from_bytes(bytes, incarnation), None);
        }
    }

    #[test]
    fn nothing_was_written_where_all_is_zero() {
        assert_eq!(Record::from_bytes([0; RECORD_BYTES], Incarnation(1)), None);
    }
}
