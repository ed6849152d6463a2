//! The table's entry of a block: where the block is.

use portcullis::ObjectRef;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first word of an entry. Another layout gets another one, and counts as no block.
const LAYOUT: [u8; 8] = *b"PCBLOCK2";

/// The bit of the flags of a block that no client evicts.
const PINNED: u64 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Wire {
    layout: [u8; 8],
    length: U64,
    flags: U64,
    object: [u8; ObjectRef::BYTES],
}

/// The place of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub length: u64,
    pub is_pinned: bool,
    /// The object, which has the block's bytes and nothing else.
    pub object: ObjectRef,
}

impl Entry {
    pub fn to_bytes(self) -> Vec<u8> {
        let flags = if self.is_pinned { PINNED } else { 0 };
        let object = self.object.to_bytes();
        Wire { layout: LAYOUT, length: self.length.into(), flags: flags.into(), object }.as_bytes().to_vec()
    }

    /// Reads an entry. `None`: another program of the tenant has written something else, or another version has. The
    /// length may be any but 0: only the object shows whether it is true.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let wire = Wire::read_from_bytes(bytes).ok()?;
        let object = ObjectRef::from_bytes(wire.object);
        let is_known = wire.layout == LAYOUT && wire.flags.get() & !PINNED == 0;
        (is_known && wire.length.get() > 0).then_some(Self {
            length: wire.length.get(),
            is_pinned: wire.flags.get() & PINNED != 0,
            object,
        })
    }
}
