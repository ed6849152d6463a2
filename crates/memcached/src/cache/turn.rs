//! Work that one operation of a thread does for all others of that thread, which wait meanwhile.

use super::Store;
use std::cell::Cell;

/// A turn at the work. When it is dropped, the waiting operations continue.
pub(super) struct Turn<'c, S: Store> {
    taken: &'c Cell<bool>,
    store: &'c S,
}

impl<'c, S: Store> Turn<'c, S> {
    /// Begins a turn. Returns `None` if another operation has the turn.
    pub fn begin(taken: &'c Cell<bool>, store: &'c S) -> Option<Self> {
        (!taken.replace(true)).then_some(Self { taken, store })
    }
}

impl<S: Store> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        self.taken.set(false);
        self.store.wake_waiting();
    }
}
