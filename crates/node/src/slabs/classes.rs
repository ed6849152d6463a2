//! The sizes that slabs come in: 64 bytes to 1 MiB, powers of two and the steps half-way between them.

use super::{PAGE_BYTES, stride_of};

/// How many size classes there are.
pub(super) const CLASSES: usize = 29;

/// Bytes of the smallest class.
const SMALLEST: u64 = 64;

/// Bytes of the largest class. What is larger takes pages of its own.
const LARGEST: u64 = 1 << 20;

/// Objects a span holds at least, where the pool is large enough.
const SPAN_OBJECTS_MIN: u64 = 8;

/// A span leaves at most this part of its bytes unused: one sixteenth.
const SPAN_WASTE_PART: u64 = 16;

/// A span takes at most this part of the pool, so that a few classes with one object each do not take it all.
const SPAN_POOL_PART: u64 = 64;

/// The smallest class that `size` bytes fit, or `None` above the largest.
pub(super) fn class_of(size: u64) -> Option<usize> {
    if size > LARGEST {
        return None;
    }
    if size <= SMALLEST {
        return Some(0);
    }
    let power = (size - 1).ilog2();
    let half_way = (1 << power) + (1 << (power - 1));
    let doublings = usize::try_from(power - SMALLEST.ilog2()).ok()?;
    Some(2 * doublings + if size <= half_way { 1 } else { 2 })
}

/// Bytes of the buffers of a class.
pub(super) fn buffer_bytes(class: usize) -> u64 {
    let power = SMALLEST << (class / 2);
    if class.is_multiple_of(2) { power } else { power + power / 2 }
}

/// Pages that hold one object of a class.
pub(super) fn span_pages_min(class: usize) -> u64 {
    stride_of(buffer_bytes(class)).div_ceil(PAGE_BYTES)
}

/// Pages of a span of a class, in a pool of so many pages.
pub(super) fn span_pages(class: usize, pool_pages: u64) -> u64 {
    let stride = stride_of(buffer_bytes(class));
    let fewest = (SPAN_OBJECTS_MIN * stride).div_ceil(PAGE_BYTES);
    let dense = |pages: &u64| (pages * PAGE_BYTES) % stride <= pages * PAGE_BYTES / SPAN_WASTE_PART;
    let wanted = (fewest..=4 * fewest).find(dense).unwrap_or(fewest);
    wanted.min(pool_pages / SPAN_POOL_PART).max(span_pages_min(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for class in 0..CLASSES {
            let bytes = buffer_bytes(class);
            assert_eq!(class_of(bytes), Some(class), "{bytes} bytes");
            assert_eq!(class_of(bytes + 1), Some(class + 1).filter(|&next| next < CLASSES), "{bytes} + 1");
            assert_eq!(bytes % 32, 0);
        }
        assert_eq!(class_of(1), Some(0));
        assert_eq!(class_of(u64::MAX), None);
    }

    #[test]
    fn a_span_of_a_large_pool_holds_eight_objects_and_wastes_little() {
        for class in 0..CLASSES {
            let bytes = span_pages(class, 1 << 20) * PAGE_BYTES;
            let stride = stride_of(buffer_bytes(class));
            assert!(bytes / stride >= SPAN_OBJECTS_MIN, "class {class}");
            assert!((bytes % stride) * SPAN_WASTE_PART <= bytes, "class {class} wastes {}", bytes % stride);
        }
    }
}
