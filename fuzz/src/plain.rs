//! Memory for a single thread, for fuzzing the NIC.

use portcullis_nic::Memory;
use portcullis_softnic::core::Bytes;
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes behind a shared handle.
#[derive(Clone, Debug)]
pub struct Plain {
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl Plain {
    pub fn new(length: usize) -> Self {
        Self { bytes: Rc::new(RefCell::new(vec![0; length])) }
    }

    /// A copy of all bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes.borrow().clone()
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset into memory")
}

impl Memory for Plain {
    fn length(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.borrow()[index(offset)..][..into.len()]);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.bytes.borrow_mut()[index(offset)..][..from.len()].copy_from_slice(from);
    }

    fn zero(&self, offset: u64, length: u64) {
        self.bytes.borrow_mut()[index(offset)..][..index(length)].fill(0);
    }

    fn load(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        let mut word = [0; 8];
        self.read(offset, &mut word);
        u64::from_le_bytes(word)
    }

    fn store(&self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        self.write(offset, &value.to_le_bytes());
    }
}

impl Bytes for Plain {
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64) {
        let bytes = self.bytes.borrow()[index(from)..][..index(length)].to_vec();
        to.write(at, &bytes);
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
        let mut words = [0; N];
        for (at, word) in (offset..).step_by(8).zip(&mut words) {
            *word = self.load(at);
        }
        words
    }

    fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]) {
        for (at, word) in (offset..).step_by(8).zip(words) {
            self.store(at, word);
        }
    }
}
