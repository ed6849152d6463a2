//! Classes of items by their memory, like memcached's slab classes: four classes for each doubling.

use crate::counters::Counter;

/// Logarithm of the largest size in the class of the smallest items, in bytes.
const SMALLEST_BITS: u32 = 6;
/// Number of classes. The last class contains all items that are larger than those of the others.
const COUNT: usize = 96;
/// Bytes of a page in memcached's sense.
const PAGE_BYTES: u64 = 1 << 20;

/// Counters of a class.
#[derive(Debug, Default)]
pub struct Class {
    /// Items that were stored.
    pub sets: Counter,
    /// Items that were requested and found.
    pub get_hits: Counter,
    /// Items that were stored by their unique number.
    pub cas_hits: Counter,
    /// Items that were not stored, since they had another unique number.
    pub cas_badval: Counter,
}

/// The classes, with their counters.
#[derive(Debug)]
pub struct Classes([Class; COUNT]);

impl Default for Classes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Class::default()))
    }
}

impl Classes {
    /// Returns the class of an item that takes this many bytes.
    pub fn of(&self, takes: u64) -> &Class {
        &self.0[number_of(takes) - 1]
    }
}

/// Returns the number of the class of an item that takes this many bytes. The first class is 1.
pub fn number_of(takes: u64) -> usize {
    let Some(bits) = takes.saturating_sub(1).checked_ilog2().filter(|bits| *bits >= SMALLEST_BITS) else {
        return 1;
    };
    let quarter = (takes - (1_u64 << bits)).div_ceil(1_u64 << (bits - 2));
    let number = u64::from(bits - SMALLEST_BITS) * 4 + quarter + 1;
    usize::try_from(number).unwrap_or(COUNT).min(COUNT)
}

/// Returns the maximum size of an item of a class.
pub fn bytes_of(number: usize) -> u64 {
    let above = number as u64 - 1;
    let Some(last) = above.checked_sub(1) else { return 1 << SMALLEST_BITS };
    let base = 1_u64 << (u64::from(SMALLEST_BITS) + last / 4);
    base + (last % 4 + 1) * (base / 4)
}

/// Returns the number of items of a class that fit into a page of memory: at least one.
pub fn items_per_page(number: usize) -> u64 {
    (PAGE_BYTES / bytes_of(number)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_in_the_smallest_class_that_has_room_for_it() {
        for takes in (1..100_000).chain([1 << 20, (1 << 20) + 1, 128 << 20]) {
            let number = number_of(takes);
            assert!(bytes_of(number) >= takes, "{takes} in class {number}");
            assert!(number == 1 || bytes_of(number - 1) < takes, "{takes} in class {number}");
        }
        assert_eq!((number_of(0), number_of(64), number_of(65), bytes_of(2)), (1, 1, 2, 80));
        assert!(number_of(u64::MAX) <= COUNT);
    }
}
