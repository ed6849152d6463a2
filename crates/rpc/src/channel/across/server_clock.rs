//! A client's estimate of its server's clock. A request states its deadline by this estimate.

/// Two sound clocks differ by less than one part in this many: each may be off by a thousandth.
const CLOCKS_DIFFER: i128 = 500;

/// Upper bound of how far this machine's clock is ahead of the server's. Both count nanoseconds from some moment of
/// their own.
///
/// When the client receives a time of the server's clock, that clock has already advanced by an unknown amount. So
/// deadlines are too early at the server by that amount, and never too late: a caller that no longer waits may use its
/// arguments' place for something else. The quickest answer gives the best estimate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ServerClock {
    /// `None`: no time has been received.
    ahead: Option<i128>,
    /// Time of the estimate, by this machine's clock.
    at: u64,
}

impl ServerClock {
    /// The bound that still holds at `now`: the clocks may have drifted apart since the estimate.
    fn ahead(self, now: u64) -> Option<i128> {
        Some(self.ahead? + i128::from(now.saturating_sub(self.at)) / CLOCKS_DIFFER)
    }

    /// Updates the estimate with a time `said` that the server's clock showed before `now`.
    pub fn hear(&mut self, now: u64, said: u64) {
        let ahead = i128::from(now) - i128::from(said);
        if self.ahead(now).is_none_or(|known| ahead <= known) {
            *self = Self { ahead: Some(ahead), at: now };
        }
    }

    /// Converts a moment of this machine's clock to the server's clock. The result may be somewhat too early.
    pub fn of(self, moment: u64, now: u64) -> u64 {
        let moment = i128::from(moment) - self.ahead(now).unwrap_or(0);
        u64::try_from(moment.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_moment_is_never_too_late_there_and_too_early_by_what_came_quickest(
            offset in 0_u64..1 << 60, times in prop::collection::vec((1_u64..1 << 30, 0_u64..1 << 20), 1..20),
        ) {
            // The server's clock began `offset` later.
            let (mut clock, mut here) = (ServerClock::default(), 1_u64 << 61);
            let (mut best, mut drift) = (u64::MAX, 0);
            for (pause, way) in times {
                here += pause;
                clock.hear(here, here - way - offset);
                (best, drift) = (best.min(way), drift + pause / 500 + 1);
                let there = clock.of(here + (1 << 30), here);
                let right = here + (1 << 30) - offset;
                prop_assert!(there <= right);
                prop_assert!(there + best + drift >= right, "{} {best}", right - there);
            }
        }
    }

    #[test]
    fn any_time_is_heard_and_any_moment_asked_for() {
        for (now, said) in [(0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX), (5, 5)] {
            let mut clock = ServerClock::default();
            assert_eq!(clock.of(7, 7), 7, "as if it were this machine's");
            clock.hear(now, said);
            let _ = [0, u64::MAX].map(|moment| (clock.of(moment, 0), clock.of(moment, u64::MAX)));
        }
    }
}
