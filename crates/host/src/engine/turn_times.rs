//! Durations of the engine's turns: any operation may have to wait for a turn.

use portcullis_protocol::Lifetime;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of the histogram: turns of less than 1 µs, 2 µs, 4 µs and so on, up to half an hour.
const BUCKETS: usize = 32;

/// Turns at least this long are also measured in processor time, which takes a system call.
const LONG: Lifetime = Lifetime(100);
/// Turns between two readings of the processor time: up to this many short turns may be counted with a long one. A
/// reading is a system call, and the client of that turn waits for the call. With a reading in one turn of 128, such
/// waits decided the 99th percentile of a read.
const TURNS_PER_LOOK: u32 = 1024;

/// A histogram of turns. One thread writes it; all threads may read it.
#[derive(Debug, Default)]
pub(super) struct TurnTimes {
    counts: [AtomicU64; BUCKETS],
    longest: AtomicU64,
    longest_of_processor: AtomicU64,
}

/// A copy of [`TurnTimes`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnCounts {
    /// Turns shorter than 2^index µs, and not in an earlier bucket.
    pub counts: [u64; BUCKETS],
    /// The longest of all turns.
    pub longest: Lifetime,
    /// The longest turn in processor time of the thread. Time in which other programs ran is not included, nor, as far
    /// as the kernel knows, time in which other virtual machines had the processor.
    pub longest_of_processor: Lifetime,
}

/// The processor time that the calling thread has used.
#[derive(Debug)]
pub(super) struct ThreadTime {
    last: Timespec,
    turns: u32,
}

impl TurnTimes {
    /// Records a turn of duration `time`. Only the thread that turns calls this.
    pub fn record(&self, time: Lifetime, thread: &mut ThreadTime) {
        if let Some(own) = thread.of_turn(time) {
            self.longest_of_processor.fetch_max(own.0.min(time.0), Ordering::Relaxed);
        }
        let bucket = (u64::BITS - time.0.leading_zeros()) as usize;
        let count = &self.counts[bucket.min(BUCKETS - 1)];
        // This thread is the only writer.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if time.0 > self.longest.load(Ordering::Relaxed) {
            self.longest.store(time.0, Ordering::Relaxed);
        }
    }

    /// Returns a copy of the present counts.
    pub fn counts(&self) -> TurnCounts {
        TurnCounts {
            counts: std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed)),
            longest: Lifetime(self.longest.load(Ordering::Relaxed)),
            longest_of_processor: Lifetime(self.longest_of_processor.load(Ordering::Relaxed)),
        }
    }
}

impl Default for ThreadTime {
    fn default() -> Self {
        Self { last: clock_gettime(ClockId::ThreadCPUTime), turns: 0 }
    }
}

impl ThreadTime {
    /// Returns the processor time since the last reading, if that reading is recent and the turn was long.
    fn of_turn(&mut self, time: Lifetime) -> Option<Lifetime> {
        self.turns += 1;
        if time < LONG && self.turns < TURNS_PER_LOOK {
            return None;
        }
        let now = clock_gettime(ClockId::ThreadCPUTime);
        let had = Duration::try_from(now - self.last).unwrap_or_default();
        (self.last, self.turns) = (now, 0);
        (time >= LONG).then(|| Lifetime(u64::try_from(had.as_micros()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_counted_below_the_next_power_of_two() {
        let times = TurnTimes::default();
        let mut thread = ThreadTime::default();
        for micros in [0, 1, 2, 3, 4, 7, 8, 1 << 40] {
            times.record(Lifetime(micros), &mut thread);
        }
        let counted = times.counts();
        assert_eq!(counted.counts[..5], [1, 1, 2, 2, 1]);
        assert_eq!((counted.counts[BUCKETS - 1], counted.longest), (1, Lifetime(1 << 40)));
        assert_eq!(counted.counts.iter().sum::<u64>(), 8);
        assert!(
            counted.longest_of_processor < Lifetime::seconds(60),
            "the thread has not run for {counted:?}"
        );
    }
}
