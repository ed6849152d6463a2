//! The memory of a simulated machine. It can record accesses.

use portcullis_nic::{Memory, VerbsError};
use portcullis_softnic::NicMemory;
use portcullis_softnic::core::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A recorded access, in bytes from the memory's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Bytes were read.
    Read { offset: u64, length: u64 },
    /// Bytes were written.
    Write { offset: u64, bytes: Vec<u8> },
    /// A span was filled with zeros.
    Zero { offset: u64, length: u64 },
    /// An atomic found `before` in a word and left `after` there.
    Change { offset: u64, before: u64, after: u64 },
}

/// A record of the accesses to a memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touches(Arc<Mutex<Vec<Touch>>>);

impl Touches {
    /// The accesses since the previous call.
    pub fn take(&self) -> Vec<Touch> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, touch: Touch) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(touch);
    }
}

/// Memory that is kept in words.
pub(crate) trait Words {
    /// A word, by its number.
    fn word(&self, number: usize) -> u64;

    /// Changes a word.
    fn set_word(&self, number: usize, value: u64);

    /// Reads bytes from anywhere.
    fn peek(&self, offset: u64, into: &mut [u8]) {
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let (skip, word) = (index(at % 8), self.word(index(at / 8)).to_le_bytes());
            let part = (8 - skip).min(rest.len());
            let (head, tail) = rest.split_at_mut(part);
            head.copy_from_slice(&word[skip..skip + part]);
            at += part as u64;
            rest = tail;
        }
    }

    /// Writes bytes to anywhere, and no others.
    fn poke(&self, offset: u64, from: &[u8]) {
        let mut at = offset;
        let mut rest = from;
        while !rest.is_empty() {
            let (skip, number) = (index(at % 8), index(at / 8));
            let part = (8 - skip).min(rest.len());
            let mut word = self.word(number).to_le_bytes();
            word[skip..skip + part].copy_from_slice(&rest[..part]);
            self.set_word(number, u64::from_le_bytes(word));
            at += part as u64;
            rest = &rest[part..];
        }
    }
}

impl Words for SimMemory {
    fn word(&self, number: usize) -> u64 {
        self.words[number].load(Ordering::Relaxed)
    }

    fn set_word(&self, number: usize, value: u64) {
        self.words[number].store(value, Ordering::Relaxed);
    }
}

/// Bytes, stored in words. Clones are the same memory. Only one thread runs at a time, so accesses need no memory
/// ordering.
#[derive(Clone, Debug)]
pub struct SimMemory {
    words: Arc<[AtomicU64]>,
    touches: Option<Touches>,
}

impl SimMemory {
    /// Zeroed memory of at least `length` bytes.
    #[must_use]
    pub fn new(length: u64) -> Self {
        let words = usize::try_from(length.div_ceil(8)).unwrap_or(usize::MAX);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), touches: None }
    }

    /// Returns the same memory. Accesses through the returned value are recorded.
    pub(crate) fn noted(&self) -> (Self, Touches) {
        let touches = Touches::default();
        (Self { words: Arc::clone(&self.words), touches: Some(touches.clone()) }, touches)
    }

    /// Returns the same memory. Accesses through the returned value are not recorded.
    pub(crate) fn unnoted(&self) -> Self {
        Self { words: Arc::clone(&self.words), touches: None }
    }

    /// Whether both values are the same memory.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.words, &other.words)
    }

    fn note(&self, touch: impl FnOnce() -> Touch) {
        if let Some(touches) = &self.touches {
            touches.push(touch());
        }
    }

    fn cell(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word lies on a multiple of 8, not at {offset}");
        &self.words[index(offset / 8)]
    }

    /// Returns the offset of the first word that differs from `other`, if any does.
    pub(crate) fn first_difference(&self, other: &[u64]) -> Option<u64> {
        let differs =
            self.words.iter().zip(other).position(|(mine, its)| mine.load(Ordering::Relaxed) != *its);
        differs.map(|word| word as u64 * 8)
    }
}

pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Memory for SimMemory {
    fn length(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.note(|| Touch::Read { offset, length: into.len() as u64 });
        self.peek(offset, into);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.note(|| Touch::Write { offset, bytes: from.to_vec() });
        self.poke(offset, from);
    }

    fn zero(&self, offset: u64, length: u64) {
        self.note(|| Touch::Zero { offset, length });
        self.poke(offset, &vec![0; index(length)]);
    }

    fn load(&self, offset: u64) -> u64 {
        self.cell(offset).load(Ordering::Relaxed)
    }

    fn store(&self, offset: u64, value: u64) {
        self.note(|| Touch::Write { offset, bytes: value.to_le_bytes().to_vec() });
        self.cell(offset).store(value, Ordering::Relaxed);
    }
}

impl Bytes for SimMemory {
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64) {
        let mut bytes = vec![0; index(length)];
        self.read(from, &mut bytes);
        to.write(at, &bytes);
    }

    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64 {
        let cell = self.cell(offset);
        let before = cell.load(Ordering::Relaxed);
        if before == old {
            cell.store(new, Ordering::Relaxed);
        }
        self.note(|| Touch::Change { offset, before, after: cell.load(Ordering::Relaxed) });
        before
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let cell = self.cell(offset);
        let before = cell.load(Ordering::Relaxed);
        cell.store(before.wrapping_add(add), Ordering::Relaxed);
        self.note(|| Touch::Change { offset, before, after: cell.load(Ordering::Relaxed) });
        before
    }

    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        let first = index(offset / 8);
        std::array::from_fn(|word| self.words[first + word].load(Ordering::Relaxed))
    }

    fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]) {
        let first = index(offset / 8);
        for (cell, word) in self.words[first..first + N].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
    }
}

impl NicMemory for SimMemory {
    type Alarm = ();

    fn allocate(length: u64) -> Result<Self, VerbsError> {
        Ok(Self::new(length))
    }

    fn wake(&self, _: u64, _: Option<&()>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_spans_touch_exactly_their_bytes() {
        let memory = SimMemory::new(64);
        memory.write(0, &[0xff; 64]);
        memory.write(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        memory.zero(20, 7);
        let mut bytes = [0; 64];
        memory.read(0, &mut bytes);
        assert_eq!(bytes[..13], [255, 255, 255, 1, 2, 3, 4, 5, 6, 7, 8, 9, 255]);
        assert_eq!((bytes[19], &bytes[20..27], bytes[27]), (255, &[0; 7][..], 255));
    }

    #[test]
    fn only_the_noted_view_is_noted() {
        let memory = SimMemory::new(64);
        let (noted, touches) = memory.noted();
        memory.store(0, 5);
        assert_eq!(noted.compare_exchange(0, 5, 6), 5);
        assert_eq!(touches.take(), [Touch::Change { offset: 0, before: 5, after: 6 }]);
        assert_eq!(memory.load(0), 6);
    }
}
