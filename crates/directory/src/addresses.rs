//! Addresses of heaps: each heap has one range in the whole cluster (RPCool §4.1), so that every process can map it
//! there.
//!
//! Heaps of about the same size (of one power of two) share a part of the address space of their own, divided into
//! places. So the first byte alone identifies a place, and to allocate a place to only one heap is to make one entry
//! only once, which every directory can do. Addresses are plentiful: a heap may use up to twice as many addresses as it
//! has bytes, and that costs nothing.

use portcullis_errors::{Coded, ErrorCode};
use std::ops::Range;

/// The addresses of a heap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeapRange {
    /// The address of the first byte: a multiple of the next power of two of `bytes`.
    pub address: u64,
    /// Number of bytes of the heap.
    pub bytes: u64,
}

/// All addresses that heaps of a cluster can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    start: u64,
    end: u64,
    smallest: u64,
    largest: u64,
    /// Number of addresses of each class but the last, which has the rest.
    part: u64,
}

/// Heaps cannot be placed at these addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "heaps of {smallest} to {largest} bytes cannot be placed in {start:#x}..{end:#x}: both sizes must be powers of two of at \
     least a page, the addresses begin and end at multiples of the larger one, and have room for one such heap for each power \
     of two between them"
)]
pub struct SpaceError {
    start: u64,
    end: u64,
    smallest: u64,
    largest: u64,
}

impl Coded for SpaceError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Configuration
    }
}

/// The smallest page of the machines that heaps are for. A heap's bytes are a multiple of it.
const PAGE: u64 = 4096;

impl Space {
    /// Creates the space of heaps of `smallest` to `largest` bytes at these addresses. All users of a directory must
    /// have the same space.
    ///
    /// # Errors
    /// The sizes are not powers of two, the addresses are not multiples of the larger size, or there are too few of
    /// them.
    pub fn new(addresses: Range<u64>, smallest: u64, largest: u64) -> Result<Self, SpaceError> {
        let Range { start, end } = addresses;
        let error = SpaceError { start, end, smallest, largest };
        let sizes_fit = smallest.is_power_of_two() && largest.is_power_of_two();
        if !sizes_fit || smallest < PAGE || smallest > largest || start >= end || start == 0 {
            return Err(error);
        }
        let classes = u64::from(largest.trailing_zeros() - smallest.trailing_zeros() + 1);
        let share = (end - start) / classes;
        if share < largest || !start.is_multiple_of(largest) || !end.is_multiple_of(largest) {
            return Err(error);
        }
        // A power of two not below the largest size, so that each place lies at a multiple of its size.
        let part = 1 << share.ilog2();
        Ok(Self { start, end, smallest, largest, part })
    }

    /// Returns the space of a cluster that has chosen no other: heaps of 64 KiB to 1 TiB, between the addresses that
    /// programs are linked to and those that the kernel maps.
    ///
    /// # Panics
    /// Never: the arguments are valid.
    #[must_use]
    pub fn usual() -> Self {
        Self::new(0x1000_0000_0000..0x5000_0000_0000, 1 << 16, 1 << 40).expect("64 TiB have room")
    }

    /// Returns the addresses of the space.
    #[must_use]
    pub const fn addresses(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Returns the bytes of the smallest and the largest heap.
    #[must_use]
    pub const fn sizes(&self) -> (u64, u64) {
        (self.smallest, self.largest)
    }

    /// Returns the class for heaps of `bytes` bytes, and the bytes rounded up to whole pages. `None`: no heap can have
    /// this size.
    pub(crate) fn class(&self, bytes: u64) -> Option<(Class, u64)> {
        if bytes < self.smallest || bytes > self.largest {
            return None;
        }
        let size = bytes.next_power_of_two();
        let at = u64::from(size.trailing_zeros() - self.smallest.trailing_zeros());
        let start = self.start + at * self.part;
        let end = if size == self.largest { self.end } else { start + self.part };
        Some((Class { start, size, places: (end - start) / size }, bytes.next_multiple_of(PAGE)))
    }
}

/// The places for heaps of one power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class {
    start: u64,
    size: u64,
    places: u64,
}

impl Class {
    /// Returns the address of a place. Numbers beyond the last place wrap around.
    pub(crate) const fn place(&self, number: u64) -> u64 {
        self.start + number % self.places * self.size
    }

    /// Number of addresses of a place.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of the place after this one.
    pub(crate) const fn behind(&self, address: u64) -> u64 {
        (address - self.start) / self.size + 1
    }

    /// Returns the places from this one to the last, and those before it.
    pub(crate) const fn from(&self, address: u64) -> [Range<u64>; 2] {
        [address..self.start + self.places * self.size, self.start..address]
    }

    /// Returns the first place of `among` that is not in `taken`. `taken` must be the first of the taken places, in
    /// order. `None`: all places of `among` are taken.
    pub(crate) fn first_free(&self, among: Range<u64>, taken: impl IntoIterator<Item = u64>) -> Option<u64> {
        let mut free = among.start;
        for place in taken {
            if place != free {
                break;
            }
            free += self.size;
        }
        (free < among.end).then_some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALLEST: u64 = 1 << 16;
    const LARGEST: u64 = 1 << 40;
    const ADDRESSES: Range<u64> = 0x1000_0000_0000..0x5000_0000_0000;

    fn space() -> Space {
        Space::new(ADDRESSES, SMALLEST, LARGEST).expect("64 TiB have room")
    }

    #[test]
    fn a_space_that_cannot_be_has_no_heaps() {
        let unfit = [
            (ADDRESSES, SMALLEST + 1, LARGEST),
            (ADDRESSES, SMALLEST, LARGEST - 1),
            (ADDRESSES, LARGEST, SMALLEST),
            (ADDRESSES, 2048, LARGEST),
            (0..0x5000_0000_0000, SMALLEST, LARGEST),
            (0x1000_0000_1000..0x5000_0000_0000, SMALLEST, LARGEST),
            (0x1000_0000_0000..0x1100_0000_0000, SMALLEST, LARGEST),
            (0x1000_0000_0000..0x1000_0000_0000, SMALLEST, LARGEST),
        ];
        for (addresses, smallest, largest) in unfit {
            assert!(
                Space::new(addresses.clone(), smallest, largest).is_err(),
                "{addresses:x?} {smallest} {largest}"
            );
        }
    }

    proptest! {
        #[test]
        fn places_lie_inside_at_multiples_of_their_size_and_apart(
            sizes in prop::array::uniform2(SMALLEST..=LARGEST),
            numbers in prop::array::uniform2(any::<u64>()),
        ) {
            let mut places = [0, 1].map(|at| {
                let (class, bytes) = space().class(sizes[at]).expect("a size");
                (class.place(numbers[at] % class.places), bytes, class.size)
            });
            for (address, bytes, size) in places {
                prop_assert!(address >= ADDRESSES.start && address + size <= ADDRESSES.end);
                prop_assert!(bytes <= size && address % size == 0 && bytes % PAGE == 0);
            }
            places.sort_unstable();
            let [(one, _, size), (other, _, other_size)] = places;
            prop_assert!((one, size) == (other, other_size) || one + size <= other);
        }
    }

    #[test]
    fn what_no_heap_can_have_has_no_place() {
        for bytes in [0, SMALLEST - 1, LARGEST + 1, u64::MAX] {
            assert_eq!(space().class(bytes), None);
        }
    }

    #[test]
    fn the_first_free_place_is_found() {
        let (class, _) = space().class(LARGEST).expect("a size");
        let all: Vec<_> = (0..class.places).map(|number| class.place(number)).collect();
        let [behind, before] = class.from(all[2]);
        assert_eq!(class.first_free(behind.clone(), []), Some(all[2]));
        assert_eq!(class.first_free(behind.clone(), [all[2], all[3], all[5]]), Some(all[4]));
        assert_eq!(class.first_free(behind, all[2..].iter().copied()), None);
        assert_eq!(class.first_free(before.clone(), [all[0]]), Some(all[1]));
        assert_eq!(class.first_free(before, [all[0], all[1]]), None);
        assert_eq!(class.place(class.behind(all[all.len() - 1])), all[0]);
    }
}
