//! The sizes of blocks, and the division of an extent into blocks of one size.
//!
//! The bytes of an extent depend on its number alone, never on the size of its blocks. So the memory of an extent without
//! blocks in use serves blocks of any other size. Values that are longer than [`WHOLE_BYTES_MAX`] lie in several blocks.

use crate::table::shape::WORD;
use crate::table::words::{BLOCKS_MAX, EXTENTS_MAX};

/// Number of bytes of the smallest block.
const BLOCK_BYTES_MIN: u64 = 64;
/// Number of steps from one power of two to the next.
const STEPS: u64 = 8;
/// Largest number of blocks of an extent up to which each number has a class.
const FEW: u64 = 16;
/// Number of bytes that the node has before an object: they are part of the pages that an extent takes.
const BEFORE_BYTES: u64 = 64;
/// Number of bytes of the smallest extents, including the node's bytes before them.
const EXTENT_PAGES_BYTES: u64 = 256 << 10;
/// Number of extents that have one size. The next ones are twice as long, so that a large table needs no more numbers.
const EXTENTS_OF_A_SIZE: u32 = EXTENTS_MAX / 8;

/// Largest number of bytes of a block that has a whole value. A longer value lies in pieces.
pub(in crate::table) const WHOLE_BYTES_MAX: u64 = PIECE_BYTES;
/// Number of bytes of the pieces of a value of up to [`MANY_BYTES`], and of a longer one.
const PIECE_BYTES: u64 = block_of(8);
const LONG_PIECE_BYTES: u64 = block_of(4);
const MANY_BYTES: usize = 1 << 20;
/// Sizes of the blocks in which there can be pieces.
pub(in crate::table) const PIECE_BLOCKS: [u64; 2] = [PIECE_BYTES, LONG_PIECE_BYTES];

const fn claims_bytes(blocks: u64) -> u64 {
    (blocks * WORD).next_multiple_of(64)
}

/// Returns the number of blocks of `block_bytes` bytes for which an extent has room, beside their claims.
const fn blocks_in(extent_bytes: u64, block_bytes: u64) -> u64 {
    let mut blocks = extent_bytes / (block_bytes + WORD);
    while claims_bytes(blocks) + blocks * block_bytes > extent_bytes {
        blocks -= 1;
    }
    blocks
}

/// Returns the number of bytes of each of `blocks` blocks that fill the smallest extent.
const fn block_of(blocks: u64) -> u64 {
    (EXTENT_PAGES_BYTES - BEFORE_BYTES - claims_bytes(blocks)) / blocks / WORD * WORD
}

/// Returns the nominal size of a class: eighths of powers of two.
const fn nominal(step: u64) -> u64 {
    ((STEPS + step % STEPS) << (step / STEPS)) * (BLOCK_BYTES_MIN / STEPS)
}

/// Writes the sizes of the classes, ascending and each once, and returns their number.
const fn fill(sizes: &mut [u32]) -> usize {
    let (mut count, mut step, mut last) = (0, 0, 0);
    let mut few = FEW;
    while few > 0 {
        let blocks = blocks_in(EXTENT_PAGES_BYTES - BEFORE_BYTES, nominal(step));
        let size = if blocks > FEW {
            step += 1;
            block_of(blocks)
        } else {
            few -= 1;
            block_of(few + 1)
        };
        if size > last {
            if count < sizes.len() {
                #[expect(clippy::cast_possible_truncation, reason = "an extent is far shorter")]
                let size = size as u32;
                sizes[count] = size;
            }
            count += 1;
            last = size;
        }
    }
    count
}

const CLASSES: usize = fill(&mut []);

/// Sizes in bytes of the blocks of each class. The first sizes are eighths of powers of two, each widened to the size
/// at which as many blocks fill the extent. Then follow the sixteenth of an extent, the fifteenth, up to the whole.
const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    fill(&mut sizes);
    sizes
};

/// A size of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(in crate::table) struct SizeClass(u8);

impl SizeClass {
    /// Returns the smallest class with room for `bytes` bytes, which are no more than an extent has.
    pub fn of(bytes: u64) -> Self {
        let class = SIZES.partition_point(|size| u64::from(*size) < bytes);
        Self(u8::try_from(class).ok().filter(|_| class < CLASSES).expect("no block is longer than an extent"))
    }

    pub fn from_number(number: u64) -> Option<Self> {
        u8::try_from(number).ok().filter(|number| usize::from(*number) < CLASSES).map(Self)
    }

    pub fn number(self) -> u64 {
        self.0.into()
    }

    /// Returns the number of bytes of a block of this class.
    pub fn bytes(self) -> u64 {
        SIZES[usize::from(self.0)].into()
    }
}

/// The division of an extent into blocks: the claims, and then the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::table) struct ExtentShape {
    pub class: SizeClass,
    /// Number of blocks of the extent.
    pub blocks: u32,
    /// Number of bytes of a block.
    pub block_bytes: u32,
    /// Number of bytes of the claims at the start of the extent.
    claims_bytes: u32,
}

impl ExtentShape {
    /// Returns the shape of the extent with this number, for blocks of this class.
    pub fn new(class: SizeClass, number: u32) -> Self {
        let blocks = blocks_in(extent_bytes(number), class.bytes()).min(BLOCKS_MAX.into());
        let small = |count| u32::try_from(count).expect("an extent is far shorter");
        Self {
            class,
            blocks: small(blocks),
            block_bytes: small(class.bytes()),
            claims_bytes: small(claims_bytes(blocks)),
        }
    }

    #[inline]
    pub fn claims_bytes(&self) -> u64 {
        self.claims_bytes.into()
    }

    /// Returns the offset of a block in its extent.
    #[inline]
    pub fn block_at(&self, block: u32) -> u64 {
        self.claims_bytes() + u64::from(block) * u64::from(self.block_bytes)
    }
}

/// Returns the number of bytes of the extent with this number.
pub(in crate::table) fn extent_bytes(number: u32) -> u64 {
    (EXTENT_PAGES_BYTES << (number / EXTENTS_OF_A_SIZE)) - BEFORE_BYTES
}

/// Returns the number of bytes of the blocks in which the pieces of a value of `value_bytes` bytes lie.
pub(in crate::table) fn piece_bytes(value_bytes: usize) -> u64 {
    if value_bytes <= MANY_BYTES { PIECE_BYTES } else { LONG_PIECE_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LARGEST: u64 = SIZES[CLASSES - 1] as u64;

    proptest! {
        #[test]
        fn a_class_has_room_for_what_it_was_chosen_for_and_is_the_smallest(bytes in 1..=LARGEST) {
            let class = SizeClass::of(bytes);
            prop_assert!(class.bytes() >= bytes && class.bytes().is_multiple_of(WORD));
            prop_assert!(class.0 == 0 || SizeClass(class.0 - 1).bytes() < bytes);
            prop_assert_eq!(SizeClass::from_number(class.number()), Some(class));
        }

        #[test]
        fn a_block_with_a_whole_value_wastes_an_eighth_at_most(bytes in 64..=WHOLE_BYTES_MAX) {
            let class = SizeClass::of(bytes);
            // The blocks of an extent share the bytes that it leaves over.
            prop_assert!(class.bytes() <= bytes + bytes / 7 + 8, "{} for {bytes}", class.bytes());
        }

        #[test]
        fn blocks_of_an_extent_follow_its_claims_and_fill_it(
            class in prop::sample::select((0..CLASSES).collect::<Vec<_>>()), number in 0..EXTENTS_MAX,
        ) {
            let shape = ExtentShape::new(SizeClass(u8::try_from(class).expect("few")), number);
            let (end, bytes) = (shape.block_at(shape.blocks), extent_bytes(number));
            prop_assert!(shape.claims_bytes() >= u64::from(shape.blocks) * WORD);
            prop_assert!(shape.blocks >= 1 && end <= bytes);
            let left = bytes - end;
            let capped = shape.blocks == BLOCKS_MAX;
            prop_assert!(capped || left * 8 <= bytes, "{left} bytes of {bytes} are left over: {shape:?}");
        }
    }

    #[test]
    fn extents_of_all_sizes_of_blocks_take_the_same_whole_pages() {
        assert_eq!(extent_bytes(0) + BEFORE_BYTES, 4 << 16);
        assert_eq!(extent_bytes(EXTENTS_MAX - 1) + BEFORE_BYTES, 32 << 20);
        assert!(SIZES.is_sorted_by(|one, next| one < next) && SIZES[0] == 64);
    }

    #[test]
    fn pieces_are_blocks_without_waste() {
        for bytes in [1 << 20, (1 << 20) + 1] {
            assert_eq!(SizeClass::of(piece_bytes(bytes)).bytes(), piece_bytes(bytes));
        }
    }
}
