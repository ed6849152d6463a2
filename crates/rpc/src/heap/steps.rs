//! Steps of a process that uses a heap, any of which can be its last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of changes that a process can still make to the allocators and values of its heaps. Then it is dead, and
/// later changes have no effect on the heap. This is for simulators and tests, in which one process plays several
/// ([`Heap::dying`](super::Heap::dying)). Clones count for the same process.
#[derive(Clone, Debug)]
pub struct Steps(Arc<AtomicU64>);

impl Default for Steps {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Steps {
    /// Makes the process die after `steps` more steps.
    pub fn die_after(&self, steps: u64) {
        self.0.store(steps, Ordering::Relaxed);
    }

    /// Whether the process is dead.
    #[must_use]
    pub fn are_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Takes a step, if one is left. One thread plays a process, so the count needs no atomic update.
    fn take(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left != u64::MAX {
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        left > 0
    }
}

/// The steps that a user of a heap may take. A real process takes steps until it ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life(Option<Steps>);

impl Life {
    pub fn of(steps: Steps) -> Self {
        Self(Some(steps))
    }

    /// Takes a step. Returns whether the process was still alive.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.0.as_ref().is_none_or(Steps::take)
    }
}
