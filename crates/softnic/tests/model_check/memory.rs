//! Memory made of the model checker's words.

use crate::orderings::Orderings;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use portcullis_nic::Memory;
use portcullis_softnic::core::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Zeroed words that several ends share, accessed as a `Mapping` is. It must be made inside the model.
#[derive(Clone, Debug)]
pub struct LoomMemory {
    words: Arc<[AtomicU64]>,
    orderings: Orderings,
    /// The range that this end may read; `writable` is the range that it may write. Other accesses panic.
    readable: Range<u64>,
    writable: Range<u64>,
}

impl LoomMemory {
    /// Makes `bytes` of memory.
    pub fn new(bytes: u64, orderings: Orderings) -> Self {
        let words = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words, orderings, readable: 0..bytes, writable: 0..bytes }
    }

    /// Returns a handle to the same memory for an end that must not access any byte outside these ranges.
    pub fn confined(&self, readable: Range<u64>, writable: Range<u64>) -> Self {
        Self { readable, writable, ..self.clone() }
    }

    fn span(&self, offset: u64, count: usize, allowed: &Range<u64>) -> &[AtomicU64] {
        let end = offset + count as u64 * 8;
        assert!(offset.is_multiple_of(8), "a word at {offset} is not aligned");
        assert!(allowed.start <= offset && end <= allowed.end, "{offset}..{end} lies outside {allowed:?}");
        let first = usize::try_from(offset / 8).expect("the memory is small");
        &self.words[first..first + count]
    }

    fn readable(&self, offset: u64, count: usize) -> &[AtomicU64] {
        self.span(offset, count, &self.readable)
    }

    fn writable(&self, offset: u64, count: usize) -> &[AtomicU64] {
        self.span(offset, count, &self.writable)
    }
}

impl Memory for LoomMemory {
    fn length(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn read(&self, _: u64, _: &mut [u8]) {
        unreachable!("a ring reads words");
    }

    fn write(&self, _: u64, _: &[u8]) {
        unreachable!("a ring writes words");
    }

    fn zero(&self, _: u64, _: u64) {
        unreachable!("a ring is zero from the start");
    }

    fn load(&self, offset: u64) -> u64 {
        self.readable(offset, 1)[0].load(self.orderings.load)
    }

    fn store(&self, offset: u64, value: u64) {
        self.writable(offset, 1)[0].store(value, self.orderings.store);
    }
}

impl Bytes for LoomMemory {
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64) {
        if self.orderings.copy.before {
            fence(Ordering::Release);
        }
        let count = usize::try_from(length / 8).expect("the memory is small");
        for (source, target) in self.readable(from, count).iter().zip(to.writable(at, count)) {
            target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if self.orderings.copy.after {
            fence(Ordering::Acquire);
        }
    }

    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64 {
        let [success, failure] = Orderings::OF_COMPARE_EXCHANGE;
        match self.writable(offset, 1)[0].compare_exchange(old, new, success, failure) {
            Ok(before) | Err(before) => before,
        }
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.writable(offset, 1)[0].fetch_add(add, Orderings::OF_FETCH_ADD)
    }

    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        let words = self.readable(offset, N);
        std::array::from_fn(|index| words[index].load(self.orderings.load_words))
    }

    fn store_words<const N: usize>(&self, offset: u64, values: [u64; N]) {
        for (word, value) in self.writable(offset, N).iter().zip(values) {
            word.store(value, self.orderings.store_words);
        }
    }
}
