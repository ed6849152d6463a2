//! How long turns take: what everybody's next operation may have to wait for.

use portcullis_protocol::Lifetime;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of the histogram: turns of less than 1 µs, 2 µs, 4 µs and so on, up to half an hour.
pub const BUCKETS: usize = 32;

/// A histogram of turns, which one thread writes and any may read.
#[derive(Debug, Default)]
pub struct TurnTimes {
    counts: [AtomicU64; BUCKETS],
    longest: AtomicU64,
}

/// What [`TurnTimes`] said at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCounts {
    /// Turns shorter than 2^index µs, and not in an earlier bucket.
    pub counts: [u64; BUCKETS],
    /// The longest of all.
    pub longest: Lifetime,
}

impl TurnTimes {
    /// A turn took so long. Called by the thread that turns, and by no other.
    pub fn record(&self, time: Lifetime) {
        let bucket = (u64::BITS - time.0.leading_zeros()) as usize;
        let count = &self.counts[bucket.min(BUCKETS - 1)];
        // Nobody else writes.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if time.0 > self.longest.load(Ordering::Relaxed) {
            self.longest.store(time.0, Ordering::Relaxed);
        }
    }

    /// What there is now.
    #[must_use]
    pub fn counts(&self) -> TurnCounts {
        TurnCounts {
            counts: std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed)),
            longest: Lifetime(self.longest.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_counted_below_the_next_power_of_two() {
        let times = TurnTimes::default();
        for micros in [0, 1, 2, 3, 4, 7, 8, 1 << 40] {
            times.record(Lifetime(micros));
        }
        let counted = times.counts();
        assert_eq!(counted.counts[..5], [1, 1, 2, 2, 1]);
        assert_eq!((counted.counts[BUCKETS - 1], counted.longest), (1, Lifetime(1 << 40)));
        assert_eq!(counted.counts.iter().sum::<u64>(), 8);
    }
}
