//! The size classes of slabs: 64 bytes to 1 MiB, in powers of two and the steps half-way between them. Each alignment
//! beyond that of a header has all these classes again.

use super::{HOLE_ALIGNMENT, PAGE_BYTES};
use portcullis_protocol::Header;

/// Number of sizes.
const SIZES: usize = 29;

/// Number of alignments that have classes of their own: from twice a header's to a page's.
const ALIGNMENTS: usize = (PAGE_BYTES.ilog2() - HOLE_ALIGNMENT.ilog2()) as usize;

/// Number of classes: each size without an alignment, then each with the smallest, and so on.
pub(super) const CLASSES: usize = SIZES * (1 + ALIGNMENTS);

/// Number of bytes of the smallest class.
const SMALLEST: u64 = 64;

/// Number of bytes of the largest class. Larger objects take pages of their own.
const LARGEST: u64 = 1 << 20;

/// The least number of objects of a span, if the pool is large enough.
const SPAN_OBJECTS_MIN: u64 = 8;

/// Divisor of a span's bytes: at most one sixteenth of them is unused.
const SPAN_WASTE_PART: u64 = 16;

/// Divisor of the pool's pages: a span takes at most this part, so that a few classes with one object each do not take
/// the whole pool.
const SPAN_POOL_PART: u64 = 64;

/// Returns the smallest class that fits `size` bytes, aligned to `alignment`. `None`: the size or the alignment is
/// larger than the largest.
pub(super) fn class_of(size: u64, alignment: u64) -> Option<usize> {
    if alignment > PAGE_BYTES {
        return None;
    }
    let doublings = alignment.max(HOLE_ALIGNMENT).ilog2() - HOLE_ALIGNMENT.ilog2();
    Some(SIZES * usize::try_from(doublings).ok()? + size_class(size)?)
}

fn size_class(size: u64) -> Option<usize> {
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

/// Returns the alignment of the buffers of a class.
pub(super) fn alignment(class: usize) -> u64 {
    HOLE_ALIGNMENT << (class / SIZES)
}

/// Returns the distance in bytes between objects of a class: header hole, buffer, and rounding for the alignment.
pub(super) fn stride(class: usize) -> u64 {
    (buffer_bytes(class) + Header::BYTES).next_multiple_of(alignment(class))
}

/// Returns the number of bytes of a span before its first header hole, which align the buffer behind the hole.
pub(super) fn lead(class: usize) -> u64 {
    alignment(class) - Header::BYTES
}

/// Returns the least number of bytes of a buffer of a class.
pub(super) fn buffer_bytes(class: usize) -> u64 {
    let class = class % SIZES;
    let power = SMALLEST << (class / 2);
    if class.is_multiple_of(2) { power } else { power + power / 2 }
}

/// Returns the number of pages that hold one object of a class.
pub(super) fn span_pages_min(class: usize) -> u64 {
    (lead(class) + stride(class)).div_ceil(PAGE_BYTES)
}

/// Returns the number of pages of a span of a class, in a pool of `pool_pages` pages.
pub(super) fn span_pages(class: usize, pool_pages: u64) -> u64 {
    let (stride, lead) = (stride(class), lead(class));
    let fewest = (lead + SPAN_OBJECTS_MIN * stride).div_ceil(PAGE_BYTES);
    let waste = |pages: u64| lead + (pages * PAGE_BYTES - lead) % stride;
    let dense = |pages: &u64| waste(*pages) <= pages * PAGE_BYTES / SPAN_WASTE_PART;
    let wanted = (fewest..=4 * fewest).find(dense).unwrap_or(fewest);
    let (least, most) = (span_pages_min(class), pool_pages / SPAN_POOL_PART);
    if wanted <= most {
        return wanted.max(least);
    }
    // A small pool gets the span that leaves the smallest part of its bytes unused, and the shortest of those.
    let part = |pages: &u64| (waste(*pages) << 32) / (pages * PAGE_BYTES);
    (least..=most).min_by_key(part).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for class in 0..CLASSES {
            let (bytes, alignment) = (buffer_bytes(class), alignment(class));
            assert_eq!(class_of(bytes, alignment), Some(class), "{bytes} bytes");
            let next = Some(class + 1).filter(|&next| !next.is_multiple_of(SIZES));
            assert_eq!(class_of(bytes + 1, alignment), next, "{bytes} + 1");
            assert_eq!(bytes % 32, 0);
            assert_eq!((lead(class) + Header::BYTES) % alignment, 0);
        }
        assert_eq!(class_of(1, 1), Some(0));
        assert_eq!(class_of(u64::MAX, 1), None);
        assert_eq!(class_of(1, 2 * PAGE_BYTES), None);
    }

    #[test]
    fn a_span_of_a_large_pool_holds_eight_objects_and_wastes_little() {
        for class in 0..CLASSES {
            let bytes = span_pages(class, 1 << 20) * PAGE_BYTES;
            let (stride, lead) = (stride(class), lead(class));
            assert!((bytes - lead) / stride >= SPAN_OBJECTS_MIN, "class {class}");
            let waste = lead + (bytes - lead) % stride;
            assert!(waste * SPAN_WASTE_PART <= bytes, "class {class} wastes {waste}");
        }
    }

    #[test]
    fn a_span_of_a_small_pool_leaves_most_of_the_pool_to_others() {
        for class in 0..CLASSES {
            for pool_pages in [64, 256, 1024] {
                let pages = span_pages(class, pool_pages);
                let part = (pool_pages / SPAN_POOL_PART).max(span_pages_min(class));
                assert!(pages <= part, "class {class}: {pages} of {pool_pages} pages");
            }
        }
    }
}
