//! Steps of a heap's user, of which any can be its last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many more times a process changes what its heaps' allocators and values are, before it is dead: what it does afterwards has no
/// effect on the heap. This is for simulators and tests, in which one process plays several ([`Heap::dying`](super::Heap::dying)).
/// Clones are those of one process.
#[derive(Clone, Debug)]
pub struct Steps(Arc<AtomicU64>);

impl Default for Steps {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Steps {
    /// The process dies after so many more steps.
    pub fn die_after(&self, steps: u64) {
        self.0.store(steps, Ordering::Relaxed);
    }

    /// Whether it is dead.
    #[must_use]
    pub fn are_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Takes a step, if there is one left. One thread plays a process.
    fn take(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left != u64::MAX {
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        left > 0
    }
}

/// What a real process has: it takes steps until it ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life(Option<Steps>);

impl Life {
    pub fn of(steps: Steps) -> Self {
        Self(Some(steps))
    }

    /// Whether the process takes its next step.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.0.as_ref().is_none_or(Steps::take)
    }
}
