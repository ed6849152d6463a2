//! The accesses to memory that a software NIC makes.

use crate::Memory;

/// Accesses that a software NIC needs in addition to those of the memory's owner. The rules of [`Memory`] hold: offsets
/// were checked, bytes are copied, and there are no references to them.
pub trait Bytes: Memory {
    /// Copies `length` bytes from `from` here to `at` in `to`. The spans may overlap: a NIC promises nothing about the
    /// result of a transfer onto itself.
    ///
    /// The copies and atomics of one thread are ordered, as the requests of a queue pair are: a peer that acquires bytes
    /// of a later copy (with [`Memory::read`], or with another thread's copy) sees those of an earlier one.
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64);

    /// Stores `new` in the aligned word at `offset` if the word holds `old` (compare and swap). Returns the previous
    /// value.
    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64;

    /// Adds to the aligned word at `offset`, wrapping. Returns the previous value.
    fn fetch_add(&self, offset: u64, add: u64) -> u64;

    /// Reads `N` words from an aligned offset on: each word once, in no particular order.
    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N];

    /// Writes `N` words from an aligned offset on, in no particular order.
    fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]);
}
