//! The NIC's interface to the threads that work for it: copy units and engines.

use std::fmt::Debug;

/// The owner's side of the threads. Threads of a kind are numbered from zero on.
pub trait ThreadRunner: Debug + Send + Sync {
    /// Wakes the thread of this number if it sleeps, since it has got work.
    fn wake(&self, number: usize);

    /// Whether the thread of this number sleeps. The NIC gives pieces to copy units that are awake first.
    fn sleeps(&self, _number: usize) -> bool {
        false
    }

    /// Whether more threads want to run than the machine has processors, or would if `more` threads that sleep now ran too. Then
    /// the threads take processors from clients, and engines serve no clients.
    fn is_crowded(&self, _more: usize) -> bool {
        false
    }

    /// Checks that all threads run. A runner whose threads cannot end has nothing to check.
    ///
    /// # Panics
    /// A thread has ended.
    fn check(&self) {}

    /// Passes a short time while the NIC waits for the threads. A test may do a part of their work here.
    fn wait(&self);
}
