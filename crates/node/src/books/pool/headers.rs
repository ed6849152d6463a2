//! The header pool: 32-byte headers for permissions that have none before their buffer (Patronus §5.2).

use portcullis_protocol::{Header, RemoteAddress};
use std::collections::VecDeque;

/// Free headers, handed out in the order in which they were given back. So each is used again as late as possible, and
/// a delayed unbinding exposes only free headers (Patronus §5.4).
pub(crate) struct HeaderPool {
    base: RemoteAddress,
    count: u32,
    free: VecDeque<u32>,
}

impl HeaderPool {
    /// `count` free headers from `base` on, which is a multiple of 8.
    pub(crate) fn new(base: RemoteAddress, count: u32) -> Self {
        debug_assert!(base.0.is_multiple_of(8), "the lifetime word is the target of atomics");
        Self { base, count, free: (0..count).collect() }
    }

    /// Takes the header that has been free for longest.
    pub(crate) fn take(&mut self) -> Option<RemoteAddress> {
        self.free.pop_front().map(|index| self.address(index))
    }

    /// Takes back a header that was taken from this pool.
    pub(crate) fn give(&mut self, address: RemoteAddress) {
        let index = self.index(address);
        debug_assert!(index.is_some() && self.free() < self.count, "{address} was not taken from this pool");
        self.free.extend(index);
    }

    /// Returns the number of free headers.
    pub(crate) fn free(&self) -> u32 {
        // The length is at most `count`.
        u32::try_from(self.free.len()).unwrap_or(self.count)
    }

    /// Returns the number of all headers, free or not.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the address of a header.
    pub(crate) fn address(&self, index: u32) -> RemoteAddress {
        RemoteAddress(self.base.0 + u64::from(index) * Header::BYTES)
    }

    /// Returns the index of the header that starts at this address. Any address is allowed.
    pub(crate) fn index(&self, address: RemoteAddress) -> Option<u32> {
        let offset = address.0.checked_sub(self.base.0)?;
        let index = u32::try_from(offset / Header::BYTES).ok()?;
        (offset.is_multiple_of(Header::BYTES) && index < self.count).then_some(index)
    }

    /// Whether a header of this pool starts at this address, free or not.
    pub(crate) fn contains(&self, address: RemoteAddress) -> bool {
        self.index(address).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: RemoteAddress = RemoteAddress(0x4000);

    #[test]
    fn a_header_is_used_again_after_all_others() {
        let mut pool = HeaderPool::new(BASE, 3);
        let first = pool.take().expect("three are free");
        pool.give(first);
        let order: Vec<_> = std::iter::from_fn(|| pool.take()).map(|header| header.0 - BASE.0).collect();
        assert_eq!(order, [32, 64, 0]);
        assert_eq!((pool.take(), pool.free(), pool.count()), (None, 0, 3));
    }

    #[test]
    fn only_the_starts_of_its_headers_are_in_the_pool() {
        let pool = HeaderPool::new(BASE, 3);
        for index in 0..3 {
            assert_eq!(pool.index(pool.address(index)), Some(index));
        }
        for address in [0, BASE.0 - 32, BASE.0 + 8, BASE.0 + 31, BASE.0 + 96, BASE.0 + (32 << 32), u64::MAX] {
            assert!(!pool.contains(RemoteAddress(address)), "{address:#x}");
        }
    }
}
