//! Addresses of heaps in address spaces.

use super::{HeapError, PAGE_BYTES};
use std::num::NonZeroUsize;

/// The addresses of a heap: the same in every process of the cluster (RPCool §4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HeapPlace {
    /// The address of the heap's first byte.
    pub address: NonZeroUsize,
    /// The heap's length in bytes.
    pub length: u64,
}

/// Addresses that heaps may have. Below them lie programs that are linked to fixed addresses, above them the kernel's
/// mappings.
pub const HEAP_ADDRESSES: std::ops::Range<u64> = 0x1000_0000_0000..0x5000_0000_0000;
/// Bytes of the smallest heap.
pub const HEAP_BYTES_MIN: u64 = 16 * PAGE_BYTES;
/// Bytes of the largest heap.
pub const HEAP_BYTES_MAX: u64 = 1 << 40;

impl HeapPlace {
    /// Checks and returns the addresses of a heap.
    ///
    /// # Errors
    /// No heap can have these addresses.
    pub fn new(address: u64, length: u64) -> Result<Self, HeapError> {
        let end = address.checked_add(length);
        let is_inside = address >= HEAP_ADDRESSES.start && end.is_some_and(|end| end <= HEAP_ADDRESSES.end);
        let are_pages = address.is_multiple_of(PAGE_BYTES) && length.is_multiple_of(PAGE_BYTES);
        let fits = (HEAP_BYTES_MIN..=HEAP_BYTES_MAX).contains(&length);
        let pointer = usize::try_from(address).ok().and_then(NonZeroUsize::new);
        match pointer {
            Some(address) if is_inside && are_pages && fits => Ok(Self { address, length }),
            _ => Err(HeapError::NoPlace { address, length }),
        }
    }

    /// The address of the heap's first byte, as a number.
    #[must_use]
    pub fn start(self) -> u64 {
        self.address.get() as u64
    }

    /// The address behind the heap's last byte.
    #[must_use]
    pub fn end(self) -> u64 {
        self.start() + self.length
    }

    /// Offset in the heap of bytes at an address. `None`: they do not all lie in the heap.
    #[must_use]
    pub fn offset(self, address: u64, length: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start())?;
        (offset.checked_add(length)? <= self.length).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_has_pages_between_programs_and_what_the_kernel_maps() {
        let start = HEAP_ADDRESSES.start;
        assert!(HeapPlace::new(start, HEAP_BYTES_MIN).is_ok());
        for (address, length) in [
            (start + 1, HEAP_BYTES_MIN),
            (start, HEAP_BYTES_MIN + 1),
            (start - PAGE_BYTES, HEAP_BYTES_MIN),
            (HEAP_ADDRESSES.end - PAGE_BYTES, HEAP_BYTES_MIN),
            (start, 0),
            (start, HEAP_BYTES_MAX + PAGE_BYTES),
            (u64::MAX - PAGE_BYTES + 1, HEAP_BYTES_MIN),
            (0, HEAP_BYTES_MIN),
        ] {
            assert!(HeapPlace::new(address, length).is_err(), "{address:#x} {length:#x}");
        }
    }
}
