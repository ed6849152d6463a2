//! Atomics on a word of a region, which 1RMA does not have. They have the four hops of every change, and are performed
//! once or not at all.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a word.
pub(crate) const WORD_BYTES: u32 = 8;
/// Bytes of an atomic's operands.
pub(crate) const ATOMIC_BYTES: usize = size_of::<Operands>();

/// An atomic on a word of eight bytes, little-endian, at an address that eight divides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomic {
    /// Stores `new` if the word equals `expected`.
    CompareAndSwap {
        /// The value that the word must have.
        expected: u64,
        /// The value of the word afterwards.
        new: u64,
    },
    /// Adds to the word, modulo 2⁶⁴.
    FetchAndAdd {
        /// The number to add.
        add: u64,
    },
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Operands {
    verb: U64,
    first: U64,
    second: U64,
}

impl Atomic {
    pub(crate) fn encode(self) -> [u8; ATOMIC_BYTES] {
        let (verb, first, second): (u64, u64, u64) = match self {
            Self::CompareAndSwap { expected, new } => (1, expected, new),
            Self::FetchAndAdd { add } => (2, add, 0),
        };
        zerocopy::transmute!(Operands { verb: verb.into(), first: first.into(), second: second.into() })
    }

    /// Decodes the operands. `None`: no client of this protocol sends such operands.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let operands = Operands::ref_from_bytes(bytes).ok()?;
        match (operands.verb.get(), operands.first.get(), operands.second.get()) {
            (1, expected, new) => Some(Self::CompareAndSwap { expected, new }),
            (2, add, 0) => Some(Self::FetchAndAdd { add }),
            _ => None,
        }
    }
}
