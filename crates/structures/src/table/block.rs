//! A block: one key with its value, and what shows a reader that it is the right one and whole.

use super::words::{Place, Version};
use portcullis::Moment;
use portcullis_protocol::planted::{self, Fault};
use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes before the key.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();
const CHECKSUM_BYTES: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    /// Of all that follows, and of the block's place.
    checksum: U64,
    /// On the node's clock, in µs. Zero: never.
    expires: U64,
    version: U32,
    value_bytes: U32,
    key_bytes: U16,
    unused: [u8; 6],
}

/// What a block is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Content<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// When the key goes, on the node's clock.
    pub expires: Option<Moment>,
}

/// How many bytes a block has to have.
pub(super) fn bytes_of(key: &[u8], value: &[u8]) -> u64 {
    (HEADER_BYTES + key.len() + value.len()) as u64
}

/// The block as bytes.
pub(super) fn encode(content: &Content<'_>, version: Version, place: Place) -> Vec<u8> {
    let Content { key, value, expires } = content;
    let header = Header {
        checksum: U64::ZERO,
        expires: U64::new(expires.map_or(0, |at| at.0.max(1))),
        version: U32::new(version.number()),
        value_bytes: U32::new(u32::try_from(value.len()).expect("the length was checked")),
        key_bytes: U16::new(u16::try_from(key.len()).expect("the length was checked")),
        unused: [0; 6],
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + key.len() + value.len());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let checksum = checksum(&bytes[CHECKSUM_BYTES..], place);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The content of a block that was read under a slot with this version. `None`: the block was used again meanwhile, or
/// is being written.
pub(super) fn decode(bytes: &[u8], version: Version, place: Place) -> Option<Content<'_>> {
    let (header, rest) = Header::read_from_prefix(bytes).ok()?;
    if header.version.get() != version.number() && !planted::is(Fault::VersionNotCompared) {
        return None;
    }
    let (key_bytes, value_bytes) = (usize::from(header.key_bytes.get()), header.value_bytes.get() as usize);
    let used = bytes.get(CHECKSUM_BYTES..HEADER_BYTES + key_bytes.checked_add(value_bytes)?)?;
    if header.checksum.get() != checksum(used, place) {
        return None;
    }
    let (key, rest) = rest.split_at(key_bytes);
    let expires = header.expires.get();
    Some(Content { key, value: &rest[..value_bytes], expires: (expires != 0).then_some(Moment(expires)) })
}

/// Bytes of the key of a block that is known to be whole. `None`: the block was used again meanwhile.
pub(super) fn key_bytes(bytes: &[u8], version: Version) -> Option<usize> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    (header.version.get() == version.number()).then(|| usize::from(header.key_bytes.get()))
}

/// The place is in it, so that a block that was read from elsewhere is none.
fn checksum(bytes: &[u8], place: Place) -> u64 {
    XxHash3_64::oneshot_with_seed(u64::from(place.extent) << 32 | u64::from(place.block), bytes)
}

#[cfg(test)]
mod tests {
    use super::super::words::Claim;
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place { extent: 3, block: 9 };

    proptest! {
        #[test]
        fn a_block_reads_back_and_any_changed_byte_is_noticed(
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..200),
            expires in prop::option::of(1u64..),
            changed: prop::sample::Index,
            bit in 0u32..8,
            behind in 0usize..20,
        ) {
            let version = Claim(0).taken().version();
            let content = Content { key: &key, value: &value, expires: expires.map(Moment) };
            let mut bytes = encode(&content, version, PLACE);
            let at = changed.index(bytes.len());
            bytes.extend(std::iter::repeat_n(0xAA, behind));
            prop_assert_eq!(decode(&bytes, version, PLACE), Some(content));
            prop_assert_eq!(decode(&bytes, Claim(1).taken().version(), PLACE), None);
            prop_assert_eq!(decode(&bytes, version, Place { block: 8, ..PLACE }), None);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode(&bytes, version, PLACE), None);
        }

        #[test]
        fn garbage_is_no_block(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&bytes, Claim(0).taken().version(), PLACE), None);
        }
    }
}
