//! Memory that a NIC may change at any moment.

use std::ops::{Deref, DerefMut};

/// Memory that can be registered with a NIC. Bytes are copied in and out. There are no references into it, since peers
/// may write it at any time.
///
/// Offsets count from the memory's start. Like slices, every method panics when its span lies outside the memory: the
/// code that takes an offset from a peer has to check it.
pub trait Memory: Clone {
    /// Length of the memory in bytes.
    fn length(&self) -> u64;

    /// Copies bytes out, from `offset` on. The bytes are ordered after the caller's earlier loads and before its later
    /// ones (acquire), the bytes among each other are not.
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies bytes in, from `offset` on. The bytes are ordered after the caller's earlier stores and before its later
    /// ones (release), the bytes among each other are not.
    fn write(&self, offset: u64, from: &[u8]);

    /// Overwrites a span with zeros.
    fn zero(&self, offset: u64, length: u64);

    /// Overwrites a span with zeros, and returns its whole pages to the machine if that is possible: they are allocated
    /// again at their next use. It may wait for as long as another thread maps or unmaps memory. The default only
    /// overwrites.
    fn give_back(&self, offset: u64, length: u64) {
        self.zero(offset, length);
    }

    /// The aligned 8-byte word at `offset`, in the machine's byte order; with acquire ordering.
    fn load(&self, offset: u64) -> u64;

    /// Stores an aligned 8-byte word, with release ordering.
    fn store(&self, offset: u64, value: u64);

    /// Copies `N` little-endian words out, from `offset` on. The order is as for [`Memory::read`].
    fn read_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        words_by_bytes(self, offset)
    }

    /// Hints that `length` bytes from `offset` on will be read soon. The default does nothing.
    fn prefetch(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
}

/// Copies little-endian words out, wherever they lie.
pub(crate) fn words_by_bytes<const N: usize>(memory: &impl Memory, offset: u64) -> [u64; N] {
    let mut bytes = [[0; 8]; N];
    memory.read(offset, bytes.as_flattened_mut());
    bytes.map(u64::from_le_bytes)
}

/// Memory that lends its bytes, to be read or filled in place.
///
/// While bytes are lent, an access through the memory or its clones panics if it would break the loan: any access to
/// bytes of an exclusive loan, a change to bytes of a shared one. This is for memory that a NIC writes only at the
/// place and during the time that an operation of its owner specifies: a client's arena.
pub trait Lend: Memory {
    /// Bytes that do not change.
    type Bytes<'a>: Deref<Target = [u8]>
    where
        Self: 'a;
    /// Bytes that only the borrower uses.
    type BytesMut<'a>: DerefMut<Target = [u8]>
    where
        Self: 'a;

    /// Lends `length` bytes from `offset` on, to read.
    fn lend(&self, offset: u64, length: u64) -> Self::Bytes<'_>;

    /// Lends `length` bytes from `offset` on, to change.
    fn lend_mut(&self, offset: u64, length: u64) -> Self::BytesMut<'_>;
}
