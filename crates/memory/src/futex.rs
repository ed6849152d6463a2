//! Sleeping and waking on a half word of shared memory: a client, until the NIC has something for it.

use crate::Mapping;
use rustix::event::Timespec;
use rustix::thread::futex;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

impl Mapping {
    /// Says in the half word at `offset` that this thread sleeps, and sleeps until it is woken there, for `at_most` this
    /// long, unless something is `waiting` for it already.
    pub fn sleep(&self, offset: u64, at_most: Duration, waiting: impl FnOnce() -> bool) {
        let sleeping = self.half_word(offset);
        sleeping.store(1, Ordering::Relaxed);
        // See Doorbell::ring: the same bargain, with the roles changed.
        fence(Ordering::SeqCst);
        if !waiting() {
            let timeout = Timespec::try_from(at_most).ok();
            // Woken, timed out or interrupted: the caller looks again in any case.
            let _ = futex::wait(sleeping, futex::Flags::empty(), 1, timeout.as_ref());
        }
        sleeping.store(0, Ordering::Relaxed);
    }

    /// Wakes whoever says in the half word at `offset` that it sleeps. A fence stands between what it is woken for and this.
    pub fn wake_sleeper(&self, offset: u64) {
        let sleeping = self.half_word(offset);
        if sleeping.load(Ordering::Relaxed) != 0 {
            sleeping.store(0, Ordering::Relaxed);
            // A client that is not there any more has nobody to wake.
            let _ = futex::wake(sleeping, futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_sleeper_is_woken_through_any_mapping_of_its_memory() {
        let mapping = Mapping::shareable("test", 4096).unwrap();
        let file = mapping.file().unwrap().try_clone_to_owned().unwrap();
        let peer = Mapping::of_peer(file, 4096, true).unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| mapping.sleep(64, LONG, || false));
            while !sleeper.is_finished() {
                fence(Ordering::SeqCst);
                peer.wake_sleeper(64);
                std::thread::yield_now();
            }
        });
        assert_eq!(peer.half_word(64).load(Ordering::Relaxed), 0, "nobody sleeps");
    }

    #[test]
    fn nobody_sleeps_while_something_waits_or_for_longer_than_was_said() {
        let mapping = Mapping::private(4096).unwrap();
        let start = Instant::now();
        mapping.sleep(0, LONG, || true);
        mapping.sleep(0, Duration::from_millis(1), || false);
        assert!(start.elapsed() < LONG);
    }
}
