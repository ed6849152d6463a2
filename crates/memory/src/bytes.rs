//! Memory as what carries out accesses to it uses it: a NIC in software.

use crate::Memory;

/// What a NIC in software needs of memory beyond what its owner does. The rules of [`Memory`] hold: offsets were checked,
/// bytes are copied, nobody gets a reference.
pub trait Bytes: Memory {
    /// Copies `length` bytes from `from` here to `at` in `to`. The spans do not overlap in a way that matters: a NIC
    /// promises nothing about a transfer onto itself.
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64);

    /// Stores `new` in the aligned word at `offset` if it holds `old`; returns what it held.
    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64;

    /// Adds to the aligned word at `offset`, wrapping; returns what it held.
    fn fetch_add(&self, offset: u64, add: u64) -> u64;

    /// Says that the line at `offset` will be read soon. Any offset inside the memory will do; nothing happens where
    /// that means nothing.
    fn prefetch(&self, offset: u64) {
        let _ = offset;
    }

    /// Reads `N` words from an aligned offset on: each word once, in no order.
    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N];

    /// Writes `N` words from an aligned offset on, in no order.
    fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]);
}
