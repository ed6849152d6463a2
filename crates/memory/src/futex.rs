//! Sleep and wake-up on a half word of shared memory: how a client waits for the NIC.
//!
//! Each write of the half word is an exchange. So of a client that begins to wait and the threads of a node that wake it, each
//! acts on what was written last: no thread takes back a wait that has begun since the thread looked.

use crate::{Alarm, Mapping};
use rustix::event::Timespec;
use rustix::thread::futex;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Values of the half word: the client is awake, a thread sleeps on the half word, or an event loop waits for an
/// [`Alarm`].
const AWAKE: u32 = 0;
const SLEEPS: u32 = 1;
const WATCHES: u32 = 2;

impl Mapping {
    /// Writes into the half word at `offset` that this thread sleeps. Then the thread sleeps until it is woken there,
    /// for `at_most` at the most, unless something is `waiting` for it already.
    pub fn sleep(&self, offset: u64, at_most: Duration, waiting: impl FnOnce() -> bool) {
        let sleeping = self.half_word(offset);
        sleeping.swap(SLEEPS, Ordering::Relaxed);
        // The protocol of Doorbell::ring, with the roles exchanged.
        fence(Ordering::SeqCst);
        if !waiting() {
            let timeout = Timespec::try_from(at_most).ok();
            // Woken, timed out or interrupted: the caller checks again in any case.
            let _ = futex::wait(sleeping, futex::Flags::empty(), SLEEPS, timeout.as_ref());
        }
        sleeping.swap(AWAKE, Ordering::Relaxed);
    }

    /// Writes into the half word at `offset` that an event loop waits for the [`Alarm`], unless something is `waiting`
    /// already. Returns whether the event loop may wait.
    pub fn watch(&self, offset: u64, waiting: impl FnOnce() -> bool) -> bool {
        let sleeping = self.half_word(offset);
        sleeping.swap(WATCHES, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if waiting() {
            sleeping.swap(AWAKE, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Wakes the client if the half word at `offset` shows that the client sleeps, or waits for `alarm`. The caller
    /// needs a fence between the change that it announces and this call.
    pub fn wake_sleeper(&self, offset: u64, alarm: Option<&Alarm>) {
        let sleeping = self.half_word(offset);
        if sleeping.load(Ordering::Relaxed) == AWAKE {
            return;
        }
        match (sleeping.swap(AWAKE, Ordering::Relaxed), alarm) {
            // The client has woken by itself, or another thread of the node wakes it.
            (AWAKE, _) => {}
            (WATCHES, Some(alarm)) => alarm.ring(),
            // If the client's process has ended, there is no thread to wake.
            _ => drop(futex::wake(sleeping, futex::Flags::empty(), 1)),
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
                peer.wake_sleeper(64, None);
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

    /// How often an alarm rings in all. `run` gets a function that waits until the alarm has rung.
    fn rings(run: impl FnOnce(&Mapping, &Alarm, &dyn Fn())) -> usize {
        let mapping = Mapping::private(4096).unwrap();
        let (alarm, theirs) = Alarm::pair(&crate::Ringer::start().unwrap()).unwrap();
        let is_rung = || {
            let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
            let mut ends = [rustix::event::PollFd::new(&theirs, rustix::event::PollFlags::IN)];
            assert!(rustix::event::poll(&mut ends, Some(&timeout)).unwrap() > 0);
        };
        run(&mapping, &alarm, &is_rung);
        drop(alarm);
        let mut rung = 0;
        loop {
            match rustix::net::recv(&theirs, &mut [0; 64], rustix::net::RecvFlags::empty()).unwrap() {
                (_, 0) => return rung,
                (_, bytes) => rung += bytes,
            }
        }
    }

    #[test]
    fn who_waits_for_an_alarm_hears_one_ring_and_who_does_not_hears_none() {
        let nobody_waits = rings(|mapping, alarm, _| mapping.wake_sleeper(0, Some(alarm)));
        let there_already = rings(|mapping, alarm, _| {
            assert!(!mapping.watch(0, || true));
            mapping.wake_sleeper(0, Some(alarm));
        });
        let waits = rings(|mapping, alarm, is_rung| {
            assert!(mapping.watch(0, || false));
            mapping.wake_sleeper(0, Some(alarm));
            is_rung();
            mapping.wake_sleeper(0, Some(alarm));
        });
        assert_eq!((nobody_waits, there_already, waits), (0, 0, 1));
    }
}
