//! The memory of a system whose states are all explored: one arena, whose contents can be saved and restored.

use crate::memory::{Words, index};
use portcullis_nic::{Memory, VerbsError};
use portcullis_softnic::NicMemory;
use portcullis_softnic::core::Bytes;
use std::cell::RefCell;

/// Number of words that are restored together.
const BLOCK: usize = 64;

/// A span of this thread's arena. A thread has one system at a time.
#[derive(Clone, Debug)]
pub(super) struct ArenaMemory {
    /// The first word.
    first: usize,
    words: usize,
}

#[derive(Default)]
struct Arena {
    words: Vec<u64>,
    /// The words as they were when the system was complete.
    base: Vec<u64>,
    /// Blocks that may differ from the base. `is_touched` marks them.
    touched: Vec<usize>,
    is_touched: Vec<bool>,
}

/// The words of the arena that differ from its base: the index and the value of each.
pub(super) type Difference = Box<[(u32, u64)]>;

impl Arena {
    fn set(&mut self, at: usize, value: u64) {
        self.words[at] = value;
        let block = at / BLOCK;
        if let Some(is_touched) = self.is_touched.get_mut(block)
            && !std::mem::replace(is_touched, true)
        {
            self.touched.push(block);
        }
    }

    /// Takes the present contents as the base.
    fn settle(&mut self) {
        self.base.clone_from(&self.words);
        self.touched.clear();
        self.is_touched = vec![false; self.words.len().div_ceil(BLOCK)];
    }

    /// Makes the base cover the whole arena. Memory that was allocated since the base was taken counts as zero there.
    fn cover_all(&mut self) {
        self.base.resize(self.words.len(), 0);
        let blocks = self.words.len().div_ceil(BLOCK);
        let new = self.is_touched.len()..blocks;
        self.is_touched.resize(blocks, true);
        self.touched.extend(new);
    }

    fn difference(&mut self) -> Difference {
        self.cover_all();
        let mut words = Vec::new();
        for &block in &self.touched {
            let first = block * BLOCK;
            let last = (first + BLOCK).min(self.words.len());
            let differs = (first..last).filter(|&at| self.words[at] != self.base[at]);
            words.extend(differs.map(|at| (u32::try_from(at).unwrap_or(u32::MAX), self.words[at])));
        }
        words.into()
    }

    fn put_back(&mut self, length: usize, difference: &Difference) {
        self.cover_all();
        for block in std::mem::take(&mut self.touched) {
            let first = block * BLOCK;
            let last = (first + BLOCK).min(self.words.len());
            self.words[first..last].copy_from_slice(&self.base[first..last]);
            self.is_touched[block] = false;
        }
        self.words.resize(length, 0);
        self.base.resize(length, 0);
        self.is_touched.resize(length.div_ceil(BLOCK), false);
        for &(at, value) in difference {
            self.set(at as usize, value);
        }
    }
}

thread_local! {
    static ARENA: RefCell<Arena> = RefCell::default();
}

fn with<T>(act: impl FnOnce(&mut Arena) -> T) -> T {
    ARENA.with_borrow_mut(act)
}

/// Begins with an empty arena. The contents of the old one are lost.
pub(super) fn clear() {
    with(|arena| *arena = Arena::default());
}

/// Takes the present contents as the base of differences.
pub(super) fn settle() {
    with(Arena::settle);
}

/// Returns the present contents.
pub(super) fn note() -> (usize, Difference) {
    with(|arena| (arena.words.len(), arena.difference()))
}

/// Restores contents.
pub(super) fn put_back((length, difference): &(usize, Difference)) {
    with(|arena| arena.put_back(*length, difference));
}

impl ArenaMemory {
    fn at(&self, offset: u64) -> usize {
        assert!(offset.is_multiple_of(8), "a word lies on a multiple of 8, not at {offset}");
        let word = index(offset / 8);
        assert!(word < self.words, "word {word} lies outside of {} words", self.words);
        self.first + word
    }
}

impl Words for ArenaMemory {
    fn word(&self, number: usize) -> u64 {
        assert!(number < self.words, "word {number} lies outside of {} words", self.words);
        with(|arena| arena.words[self.first + number])
    }

    fn set_word(&self, number: usize, value: u64) {
        assert!(number < self.words, "word {number} lies outside of {} words", self.words);
        with(|arena| arena.set(self.first + number, value));
    }
}

impl Memory for ArenaMemory {
    fn length(&self) -> u64 {
        self.words as u64 * 8
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.peek(offset, into);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.poke(offset, from);
    }

    fn zero(&self, offset: u64, length: u64) {
        self.poke(offset, &vec![0; index(length)]);
    }

    fn load(&self, offset: u64) -> u64 {
        let at = self.at(offset);
        with(|arena| arena.words[at])
    }

    fn store(&self, offset: u64, value: u64) {
        let at = self.at(offset);
        with(|arena| arena.set(at, value));
    }
}

impl Bytes for ArenaMemory {
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64) {
        if from.is_multiple_of(8) && at.is_multiple_of(8) && length.is_multiple_of(8) {
            for offset in (0..length).step_by(8) {
                to.store(at + offset, self.load(from + offset));
            }
            return;
        }
        let mut bytes = vec![0; index(length)];
        self.peek(from, &mut bytes);
        to.poke(at, &bytes);
    }

    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64 {
        let before = self.load(offset);
        if before == old {
            self.store(offset, new);
        }
        before
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let before = self.load(offset);
        self.store(offset, before.wrapping_add(add));
        before
    }

    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        let first = self.at(offset);
        with(|arena| std::array::from_fn(|word| arena.words[first + word]))
    }

    fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]) {
        let first = self.at(offset);
        with(|arena| (first..).zip(words).for_each(|(at, word)| arena.set(at, word)));
    }
}

impl NicMemory for ArenaMemory {
    type Alarm = ();

    fn allocate(length: u64) -> Result<Self, VerbsError> {
        // Blocks are restored as a whole, so memories do not share one.
        let words = index(length.div_ceil(8));
        let first = with(|arena| {
            let first = arena.words.len();
            arena.words.resize(first + words.next_multiple_of(BLOCK), 0);
            first
        });
        Ok(Self { first, words })
    }

    fn wake(&self, _: u64, _: Option<&()>) {}
}
