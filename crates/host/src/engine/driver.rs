//! What the engine's thread needs of a NIC.

use std::fmt::Debug;
use std::time::Duration;

/// A NIC, as the engine's thread drives it.
pub(crate) trait Driver: Send + 'static {
    /// The NIC.
    type Nic;
    /// What wakes the thread while it sleeps in [`Driver::sleep`].
    type Bell: Bell;

    /// Turns of the NIC for each turn of its resident while there is nothing for the resident to do: the resident's turn adds
    /// to the next request's latency.
    const TURNS_PER_RESIDENT: u32;
    /// Turns between two looks at the clock while nothing happens.
    const TURNS_PER_CLOCK: u32;

    /// The NIC.
    fn nic(&mut self) -> &mut Self::Nic;

    /// What wakes the thread. Called once, before the thread starts.
    fn bell(&self) -> Self::Bell;

    /// Has the NIC do a part of its work. Returns whether anything was done.
    fn turn(&mut self) -> bool;

    /// Whether the NIC has something for the resident: a completion or an event. Called after each [`Driver::turn`] that has
    /// done something.
    fn has_news(&mut self) -> bool;

    /// Announces that the thread is about to sleep: posters ring from here on.
    fn announce(&mut self);

    /// Looks everywhere once, before the thread sleeps. Returns whether anything was done.
    fn turn_all(&mut self) -> bool;

    /// Whether something is under way for which the bell will not ring.
    fn waits_for_time(&self) -> bool;

    /// Sleeps until there is something to do, the bell rings, or `at_most` is over.
    fn sleep(&mut self, at_most: Duration);

    /// The thread does not sleep any more.
    fn awake(&mut self);
}

/// Wakes an engine's thread from other threads.
pub(crate) trait Bell: Debug + Send + Sync + 'static {
    /// Wakes the thread if it sleeps, or keeps it from falling asleep. Never waits.
    fn ring(&self);
}
