//! A block: one key with its value or with the beginning of one, or a piece of a value. Its header shows a reader that
//! it is the right block and whole.
//!
//! A value that is too long for one block lies in several: the block that the key's slot names has the key, the names
//! of the pieces and the end of the value; each piece has the name of that block. A name consists of the block's
//! identifier and the version in a slot. So a reader that has found the first block finds the pieces of this value or
//! none.

use crate::table::words::{BlockId, Slot, Version};
use portcullis::Moment;
use portcullis_planted::planted;
use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of bytes before the key, or before a piece's bytes.
pub(in crate::table) const HEADER_BYTES: usize = size_of::<Header>();
/// Number of bytes of a word of a list of pieces.
const WORD_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    /// Checksum of all bytes that follow, and of the block's identifier.
    checksum: U64,
    /// Time at which the key expires, on the node's clock, in µs. Zero: never. In a piece: the name of its first block.
    expires_or_first: U64,
    version: U32,
    /// Number of bytes of the value in this block.
    value_bytes: U32,
    key_bytes: U16,
    kind: u8,
    /// Number of times that the claim was renewed before the block was written.
    renewals: u8,
    /// Number of words of the list of pieces.
    list_words: U32,
}

/// A block that a slot names.
const FIRST: u8 = 0;
const PIECE: u8 = 1;

/// The content of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::table) struct Content<'a> {
    pub key: &'a [u8],
    /// The value, or its end behind the pieces.
    pub value: &'a [u8],
    /// Time at which the key expires, on the node's clock.
    pub expires: Option<Moment>,
    /// The pieces that come before `value`, in the form of [`list_of_pieces`].
    pub pieces: &'a [u8],
    /// Number of times that the block's claim was renewed.
    pub renewals: u8,
}

impl Content<'_> {
    /// Returns the names of the pieces.
    pub fn piece_names(&self) -> impl Iterator<Item = Slot> + '_ {
        self.words().skip(1).map(Slot)
    }

    /// Returns the number of bytes of the value.
    pub fn length(&self) -> usize {
        self.words().next().map_or(self.value.len(), |length| usize::try_from(length).unwrap_or(0))
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let (words, _) = self.pieces.as_chunks::<WORD_BYTES>();
        words.iter().map(|word| u64::from_le_bytes(*word))
    }
}

/// Makes the list of a value's pieces, if it has any: the number of bytes of the value, and the names of the pieces.
pub(in crate::table) fn list_of_pieces(value_bytes: usize, pieces: &[Slot]) -> Vec<u8> {
    let words = std::iter::once(value_bytes as u64).chain(pieces.iter().map(|piece| piece.0));
    if pieces.is_empty() { Vec::new() } else { words.flat_map(u64::to_le_bytes).collect() }
}

/// Returns the number of bytes that a block needs for a key, the list of `pieces` pieces, and `value` bytes of a value.
pub(in crate::table) fn bytes_of(key: usize, pieces: usize, value: usize) -> u64 {
    let list = if pieces == 0 { 0 } else { (pieces + 1) * WORD_BYTES };
    (HEADER_BYTES + key + list + value) as u64
}

fn header(version: Version, value: &[u8]) -> Header {
    Header {
        checksum: U64::ZERO,
        expires_or_first: U64::ZERO,
        version: U32::new(version.number()),
        value_bytes: U32::new(u32::try_from(value.len()).expect("the length was checked")),
        key_bytes: U16::ZERO,
        kind: FIRST,
        renewals: 0,
        list_words: U32::ZERO,
    }
}

fn sealed(header: Header, parts: [&[u8]; 3], block_id: BlockId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>());
    bytes.extend_from_slice(header.as_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    let checksum = checksum(&bytes[CHECKSUM_BYTES..], block_id);
    bytes[..CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Encodes the block that a slot names.
pub(in crate::table) fn encode(content: &Content<'_>, version: Version, block_id: BlockId) -> Vec<u8> {
    let Content { key, value, expires, pieces, renewals } = *content;
    let header = Header {
        expires_or_first: U64::new(expires.map_or(0, |at| at.0.max(1))),
        key_bytes: U16::new(u16::try_from(key.len()).expect("the length was checked")),
        renewals,
        list_words: U32::new(u32::try_from(pieces.len() / WORD_BYTES).expect("the length was checked")),
        ..header(version, value)
    };
    sealed(header, [key, pieces, value], block_id)
}

/// Encodes a piece of the value whose first block has this name.
pub(in crate::table) fn encode_piece(
    value: &[u8],
    first: Slot,
    version: Version,
    block_id: BlockId,
) -> Vec<u8> {
    let header = Header { expires_or_first: U64::new(first.0), kind: PIECE, ..header(version, value) };
    sealed(header, [&[], &[], value], block_id)
}

/// Checks that a block of this version and kind is whole. Returns its header, and the bytes after that.
fn whole(bytes: &[u8], version: Version, block_id: BlockId, kind: u8) -> Option<(Header, &[u8])> {
    let (header, rest) = Header::read_from_prefix(bytes).ok()?;
    let compared = header.version.get() == version.number() || planted!(VersionNotCompared);
    if !compared || header.kind != kind {
        return None;
    }
    let list = (header.list_words.get() as usize).checked_mul(WORD_BYTES)?;
    let length = usize::from(header.key_bytes.get()).checked_add(header.value_bytes.get() as usize)?;
    let length = length.checked_add(list)?;
    let used = bytes.get(CHECKSUM_BYTES..HEADER_BYTES.checked_add(length)?)?;
    (header.checksum.get() == checksum(used, block_id)).then(|| (header, &rest[..length]))
}

/// Decodes a block that was read under a slot with this version. `None`: the block was used again meanwhile, or is
/// being written.
pub(in crate::table) fn decode(bytes: &[u8], version: Version, block_id: BlockId) -> Option<Content<'_>> {
    let (header, rest) = whole(bytes, version, block_id, FIRST)?;
    let (key, rest) = rest.split_at(usize::from(header.key_bytes.get()));
    let (pieces, value) = rest.split_at(header.list_words.get() as usize * WORD_BYTES);
    let expires = header.expires_or_first.get();
    let expires = (expires != 0).then_some(Moment(expires));
    Some(Content { key, value, expires, pieces, renewals: header.renewals })
}

/// Decodes a piece that was read under this name. `None`: the block was used again meanwhile.
pub(in crate::table) fn decode_piece(bytes: &[u8], name: Slot, first: Slot) -> Option<&[u8]> {
    let (header, rest) = whole(bytes, name.version(), name.block_id(), PIECE)?;
    (header.expires_or_first.get() == first.0).then_some(rest)
}

/// Returns the name of the first block of the value that a block is a piece of. The block may be a piece only if it was
/// written under this version. `bytes` is the block's header.
pub(in crate::table) fn first_of_piece(bytes: &[u8], version: Version) -> Option<Slot> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    let is_piece = header.version.get() == version.number() && header.kind == PIECE;
    is_piece.then(|| Slot(header.expires_or_first.get()))
}

/// Returns the number of bytes of the key of a block that is known to be whole. `None`: the block was used again
/// meanwhile.
pub(in crate::table) fn key_bytes(bytes: &[u8], version: Version) -> Option<usize> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    (header.version.get() == version.number()).then(|| usize::from(header.key_bytes.get()))
}

/// Computes a block's checksum. The checksum includes the block's identifier, so that a block that was read from
/// another place is invalid.
fn checksum(bytes: &[u8], block_id: BlockId) -> u64 {
    XxHash3_64::oneshot_with_seed(u64::from(block_id.extent) << 32 | u64::from(block_id.block), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::words::Claim;
    use proptest::prelude::*;

    const BLOCK_ID: BlockId = BlockId { extent: 3, block: 9 };

    fn name(version: u32) -> Slot {
        Slot::new(0, Claim(version.into()).taken().version(), BLOCK_ID)
    }

    proptest! {
        #[test]
        fn a_block_reads_back_and_any_changed_byte_is_noticed(
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..200),
            expires in prop::option::of(1u64..),
            pieces in prop::collection::vec(any::<u64>().prop_map(Slot), 0..4),
            (changed, bit) in (any::<prop::sample::Index>(), 0u32..8),
            behind in 0usize..20,
        ) {
            let version = name(0).version();
            let (length, expires) = (value.len() + 5 * pieces.len(), expires.map(Moment));
            let list = list_of_pieces(length, &pieces);
            let content = Content { key: &key, value: &value, expires, pieces: &list, renewals: 3 };
            prop_assert_eq!((content.length(), content.piece_names().collect::<Vec<_>>()), (length, pieces));
            let mut bytes = encode(&content, version, BLOCK_ID);
            let at = changed.index(bytes.len());
            bytes.extend(std::iter::repeat_n(0xAA, behind));
            prop_assert_eq!(decode(&bytes, version, BLOCK_ID), Some(content));
            prop_assert_eq!(decode(&bytes, name(1).version(), BLOCK_ID), None);
            prop_assert_eq!(decode(&bytes, version, BlockId { block: 8, ..BLOCK_ID }), None);
            prop_assert_eq!(decode_piece(&bytes, name(0), name(0)), None, "a slot names no piece");
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode(&bytes, version, BLOCK_ID), None);
        }

        #[test]
        fn a_piece_belongs_to_one_first_block(value in prop::collection::vec(any::<u8>(), 0..200)) {
            let first = name(7);
            let bytes = encode_piece(&value, first, name(0).version(), BLOCK_ID);
            prop_assert_eq!(decode_piece(&bytes, name(0), first), Some(&value[..]));
            prop_assert_eq!(decode_piece(&bytes, name(0), name(8)), None);
            prop_assert_eq!(decode_piece(&bytes, name(1), first), None);
            prop_assert_eq!(decode(&bytes, name(0).version(), BLOCK_ID), None);
            prop_assert_eq!(first_of_piece(&bytes[..HEADER_BYTES], name(0).version()), Some(first));
        }

        #[test]
        fn garbage_is_no_block(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&bytes, name(0).version(), BLOCK_ID), None);
            prop_assert_eq!(decode_piece(&bytes, name(0), name(0)), None);
        }
    }
}
