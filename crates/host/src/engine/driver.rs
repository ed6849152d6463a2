//! The interface of a NIC to the engine's thread.

use std::fmt::Debug;
use std::time::Duration;

/// A NIC, as the engine's thread drives it.
pub(crate) trait Driver: Send + 'static {
    /// The type of the NIC.
    type Nic;
    /// The type of the handle that wakes the thread while it sleeps in [`Driver::sleep`].
    type Bell: Bell;

    /// Turns of the NIC for each turn of its resident while the resident has nothing to do: the resident's turn adds to
    /// the next request's latency.
    const TURNS_PER_RESIDENT: u32;
    /// Turns between two readings of the clock while nothing happens.
    const TURNS_PER_CLOCK: u32;

    /// The NIC.
    fn nic(&mut self) -> &mut Self::Nic;

    /// Returns the handle that wakes the thread. Called once, before the thread starts.
    fn bell(&self) -> Self::Bell;

    /// Lets the NIC do a part of its work. Returns whether anything was done.
    fn turn(&mut self) -> bool;

    /// Whether the NIC has something for the resident: a completion or an event. Called after each [`Driver::turn`]
    /// that has done something.
    fn has_news(&mut self) -> bool;

    /// Sleeps briefly, without an announcement, if the thread may not sleep until it is woken: while data engines serve clients,
    /// each of their requests would ring the bell of a thread that has announced its sleep, and a data engine does not wake the
    /// thread when a client is to go home. Returns whether the NIC has then done something; `None`: the thread has not slept.
    fn sleep_briefly(&mut self) -> Option<bool> {
        None
    }

    /// Announces that the thread is about to sleep: from here on, posters ring the bell.
    fn announce(&mut self);

    /// Checks all sources of work once, before the thread sleeps. Returns whether anything was done.
    fn turn_all(&mut self) -> bool;

    /// Whether some work is under way for which no client will ring the bell.
    fn waits_for_time(&self) -> bool;

    /// Sleeps until there is something to do, the bell rings, or `at_most` is over.
    fn sleep(&mut self, at_most: Duration);

    /// Announces that the thread does not sleep any more.
    fn awake(&mut self);
}

/// Wakes an engine's thread from other threads.
pub(crate) trait Bell: Debug + Send + Sync + 'static {
    /// Wakes the thread if it sleeps, or keeps it from falling asleep. Never waits.
    fn ring(&self);
}
