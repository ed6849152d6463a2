//! What a client knows of its server's clock, by which a request says until when its caller waits.

/// Two sound clocks differ by less than one part in this many: each may be off by a thousandth.
const CLOCKS_DIFFER: i128 = 500;

/// How far this machine's clock is before the server's, at most. Both count nanoseconds from some moment of their own.
///
/// When the client hears what the server's clock said, that clock says more. How much more is not known, so deadlines are too early at
/// the server by as much, and never too late: a caller that waits no more may use its arguments' place for something else. What comes
/// quickest tells the most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ServerClock {
    /// `None`: nothing was heard.
    ahead: Option<i128>,
    /// When that was found out, by this machine's clock.
    at: u64,
}

impl ServerClock {
    /// What is still sure of it: the clocks may have drifted apart since.
    fn ahead(self, now: u64) -> Option<i128> {
        Some(self.ahead? + i128::from(now.saturating_sub(self.at)) / CLOCKS_DIFFER)
    }

    /// It is heard now what the server's clock said before.
    pub fn hear(&mut self, now: u64, said: u64) {
        let ahead = i128::from(now) - i128::from(said);
        if self.ahead(now).is_none_or(|known| ahead <= known) {
            *self = Self { ahead: Some(ahead), at: now };
        }
    }

    /// What the server's clock says at a moment of this machine's clock, or somewhat less.
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
