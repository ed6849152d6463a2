//! The layout of a heap. All numbers are in the machine's byte order: a heap does not leave the machine as bytes.
//!
//! ```text
//! header | an entry for each data page | data pages
//! ```

use super::PAGE_BYTES;
use super::pages::ENTRY_BYTES;
use super::place::HeapPlace;
use portcullis_memory::{Mapping, Memory};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Alignment of the smallest piece.
pub(crate) const DATA_ALIGN: u64 = 64;
/// The first word of a heap («portcull»), and the version of its layout.
const MAGIC: u64 = u64::from_be_bytes(*b"portcull");
const VERSION: u64 = 1;

/// The first bytes of a heap.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Header {
    magic: u64,
    version: u64,
    /// The address of the heap's first byte.
    address: u64,
    /// Bytes of the heap.
    length: u64,
}

const _: () = assert!(size_of::<Header>() as u64 <= DATA_ALIGN);

/// Offset of the first page's entry.
pub(crate) const ENTRIES: u64 = DATA_ALIGN;

/// Offset of the first data page of a heap, and the number of data pages.
pub(crate) fn data(length: u64) -> (u64, u32) {
    let count = length.saturating_sub(ENTRIES) / (PAGE_BYTES + ENTRY_BYTES);
    let start = (ENTRIES + count * ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
    let count = count.min(length.saturating_sub(start) / PAGE_BYTES);
    (start, u32::try_from(count).unwrap_or(u32::MAX))
}

/// Writes the header of a new heap, whose memory is zeros.
pub(crate) fn found(memory: &Mapping, place: HeapPlace) {
    let header =
        Header { magic: MAGIC, version: VERSION, address: place.address.get() as u64, length: place.length };
    memory.write(0, header.as_bytes());
}

/// Whether the memory holds a heap for that place.
pub(crate) fn is_heap(memory: &Mapping, place: HeapPlace) -> bool {
    let mut header = Header::new_zeroed();
    memory.read(0, header.as_mut_bytes());
    let Header { magic, version, address, length } = header;
    (magic, version, address, length) == (MAGIC, VERSION, place.address.get() as u64, place.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_pages_fit_and_do_not_overlap() {
        for pages in 2..3000 {
            let length = pages * PAGE_BYTES;
            let (start, count) = data(length);
            assert!(start >= ENTRIES + u64::from(count) * ENTRY_BYTES && start.is_multiple_of(PAGE_BYTES));
            assert!(start + u64::from(count) * PAGE_BYTES <= length);
            // Less than a page is lost.
            assert!(start + (u64::from(count) + 2) * PAGE_BYTES > length, "{pages}");
        }
    }
}
