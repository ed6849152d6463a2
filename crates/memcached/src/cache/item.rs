//! Format of an item in a value of the table.

use crate::protocol::Returned;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes in front of an item's value.
pub const HEADER_BYTES: usize = size_of::<Header>();

/// Marks a value of the table that a gateway of this kind has written.
const MAGIC: [u8; 3] = *b"mc1";
const STALE: u8 = 1;
const TOLD: u8 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    magic: [u8; 3],
    state: u8,
    /// Length of the value in bytes: a block may have more room.
    length: U32,
    flags: U32,
    /// Expiry time in seconds since 1970. Zero: never.
    expires: U32,
    cas: U64,
    stamp: U64,
}

const _: () = assert!(HEADER_BYTES == 32);

/// Properties of an item besides its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Item {
    /// The client's flags.
    pub flags: u32,
    /// Expiry time in seconds. `None`: the item does not expire.
    pub expires: Option<u32>,
    /// The unique number.
    pub cas: u64,
    /// Time at which the item was stored, in microseconds.
    pub stamp: u64,
    /// The item is stale: a client that reads it should store it anew.
    pub stale: bool,
    /// A client was chosen to store the item anew.
    pub told: bool,
}

/// An existing item, with all bytes of the table's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The item.
    pub item: Item,
    /// All bytes.
    pub bytes: Vec<u8>,
    length: usize,
}

impl Item {
    /// Writes the header in front of a value. `bytes` has room for both.
    pub fn write_to(&self, bytes: &mut [u8]) {
        let (header, value) = bytes.split_at_mut(HEADER_BYTES);
        let wire = Header {
            magic: MAGIC,
            state: if self.stale { STALE } else { 0 } | if self.told { TOLD } else { 0 },
            length: U32::new(u32::try_from(value.len()).expect("a value is shorter than 4 GiB")),
            flags: U32::new(self.flags),
            expires: U32::new(self.expires.unwrap_or(0)),
            cas: U64::new(self.cas),
            stamp: U64::new(self.stamp),
        };
        header.copy_from_slice(wire.as_bytes());
    }

    /// Returns the bytes of this item with a value.
    pub fn with(&self, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + value.len());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend_from_slice(value);
        self.write_to(&mut bytes);
        bytes
    }

    /// Returns the seconds until the item expires.
    pub fn left(&self, now: u32) -> Option<u32> {
        self.expires.map(|at| at.saturating_sub(now))
    }
}

impl Found {
    /// Parses a value of the table. Returns `None` if it was not written by a gateway.
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let (header, rest) = Header::read_from_prefix(&bytes[..]).ok()?;
        let length = usize::try_from(header.length.get()).ok()?;
        if header.magic != MAGIC || rest.len() < length {
            return None;
        }
        let expires = header.expires.get();
        let item = Item {
            flags: header.flags.get(),
            expires: (expires != 0).then_some(expires),
            cas: header.cas.get(),
            stamp: header.stamp.get(),
            stale: header.state & STALE != 0,
            told: header.state & TOLD != 0,
        };
        Some(Self { item, bytes, length })
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + self.length]
    }

    /// Converts the item into the form for a client.
    pub fn into_returned(self) -> Returned {
        let Item { flags, cas, .. } = self.item;
        Returned { flags, cas, bytes: self.bytes, value: HEADER_BYTES..HEADER_BYTES + self.length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_item_reads_back_whatever_room_its_block_has(
            (flags, cas, stamp) in any::<(u32, u64, u64)>(),
            expires in prop::option::of(1u32..),
            (stale, told) in any::<(bool, bool)>(),
            value in prop::collection::vec(any::<u8>(), 0..200),
            behind in 0usize..50,
        ) {
            let item = Item { flags, expires, cas, stamp, stale, told };
            let mut bytes = item.with(&value);
            bytes.resize(bytes.len() + behind, 0);
            let found = Found::parse(bytes).expect("an item");
            prop_assert_eq!(found.item, item);
            prop_assert_eq!(found.value(), &value[..]);
        }

        #[test]
        fn what_others_wrote_is_no_item_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Found::parse(bytes).is_none_or(|found| found.bytes.starts_with(&MAGIC)));
        }
    }
}
