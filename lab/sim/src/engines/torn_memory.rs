//! Memory whose copies can be interrupted: another thread's steps happen when a part of the bytes has arrived.

use crate::memory::SimMemory;
use portcullis_nic::{Memory, VerbsError};
use portcullis_softnic::NicMemory;
use portcullis_softnic::core::Bytes;
use std::cell::RefCell;

/// The steps of another thread, and the part of a copy after which they happen, in thousandths.
type Interruption = (u64, Box<dyn FnOnce()>);

thread_local! {
    static INTERRUPTION: RefCell<Option<Interruption>> = const { RefCell::new(None) };
}

/// Lets `steps` happen within the first copy that `work` makes, after `per_mille` of its bytes.
pub(super) fn interrupted<T>(per_mille: u64, steps: impl FnOnce() + 'static, work: impl FnOnce() -> T) -> T {
    INTERRUPTION.set(Some((per_mille, Box::new(steps))));
    let result = work();
    INTERRUPTION.take();
    result
}

/// Bytes of the simulator, copied in parts.
#[derive(Clone, Debug)]
pub(super) struct TornMemory(SimMemory);

impl Memory for TornMemory {
    fn length(&self) -> u64 {
        self.0.length()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.0.read(offset, into);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.0.write(offset, from);
    }

    fn zero(&self, offset: u64, length: u64) {
        self.0.zero(offset, length);
    }

    fn load(&self, offset: u64) -> u64 {
        self.0.load(offset)
    }

    fn store(&self, offset: u64, value: u64) {
        self.0.store(offset, value);
    }
}

impl Bytes for TornMemory {
    fn copy(&self, from: u64, to: &Self, at: u64, length: u64) {
        let Some((per_mille, steps)) = INTERRUPTION.take() else {
            return self.0.copy(from, &to.0, at, length);
        };
        // Words do not tear.
        let first = (length * per_mille / 1000).next_multiple_of(8).min(length);
        self.0.copy(from, &to.0, at, first);
        steps();
        self.0.copy(from + first, &to.0, at + first, length - first);
    }

    fn compare_exchange(&self, offset: u64, old: u64, new: u64) -> u64 {
        self.0.compare_exchange(offset, old, new)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.0.fetch_add(offset, add)
    }

    fn load_words<const N: usize>(&self, offset: u64) -> [u64; N] {
        self.0.load_words(offset)
    }

    fn store_words<const N: usize>(&self, offset: u64, words: [u64; N]) {
        self.0.store_words(offset, words);
    }
}

impl NicMemory for TornMemory {
    type Alarm = ();

    fn allocate(length: u64) -> Result<Self, VerbsError> {
        Ok(Self(SimMemory::new(length)))
    }

    fn wake(&self, _: u64, _: Option<&()>) {}
}
