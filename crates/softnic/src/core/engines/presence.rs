//! The quiescent points of engines: has every turn ended that may have read a key before it was changed?
//!
//! An engine enters a turn and leaves it ([`Presence`]). The NIC's thread changes a key, begins a new generation, and waits
//! until each engine is in no turn of an earlier one. Of the two fences one comes first: either the NIC's thread sees the
//! engine's turn, or the engine sees the change.

use crate::core::keys::Word;
use std::sync::atomic::{AtomicU64, Ordering};

/// The presence of an engine that is in no turn: later than all generations.
const ABSENT: u64 = u64::MAX;

/// The number of the present generation of keys. Only the NIC's thread begins one.
#[derive(Debug)]
#[repr(align(128))]
pub struct Generation<W = AtomicU64>(W);

impl<W: Word> Default for Generation<W> {
    fn default() -> Self {
        Self(W::new(0))
    }
}

impl<W: Word> Generation<W> {
    /// Begins the next generation, after keys were changed, and returns its number.
    pub fn begin_next(&self) -> u64 {
        let next = self.0.load(Ordering::Relaxed) + 1;
        self.0.store(next, Ordering::Release);
        W::fence(Ordering::SeqCst);
        next
    }

    /// Returns the number of the present generation. Only the NIC's thread calls this.
    pub fn present(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The generation in which an engine's present turn began, if it is in one.
#[derive(Debug)]
#[repr(align(128))]
pub struct Presence<W = AtomicU64>(W);

impl<W: Word> Default for Presence<W> {
    fn default() -> Self {
        Self(W::new(ABSENT))
    }
}

impl<W: Word> Presence<W> {
    /// Enters a turn. The engine reads keys only afterwards.
    #[inline]
    pub fn enter(&self, generation: &Generation<W>) {
        let present = generation.0.load(Ordering::Acquire);
        // A release: a thread that sees this turn sees all bytes that the turn before it has moved.
        self.0.store(present, Ordering::Release);
        W::fence(Ordering::SeqCst);
    }

    /// Leaves the turn. The engine has moved all bytes.
    #[inline]
    pub fn leave(&self) {
        self.0.store(ABSENT, Ordering::Release);
    }

    /// Whether the engine is in no turn that began before this generation.
    pub fn has_left(&self, generation: u64) -> bool {
        self.0.load(Ordering::Acquire) >= generation
    }
}
