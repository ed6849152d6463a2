//! The clocks of simulated machines. Each runs at its own rate, and can jump.

use portcullis_protocol::Moment;
use std::time::Duration;

/// Virtual time in ns from the beginning of the run. No machine can read it.
pub(crate) type Nanos = u64;

pub(crate) const MICROSECOND: Nanos = 1000;
pub(crate) const MILLISECOND: Nanos = 1_000_000;

/// A machine's clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// The time that the clock showed at `since`, in ns.
    base: u64,
    since: Nanos,
    /// The clock's rate, in millionths.
    rate: u64,
    /// The latest time that the clock has shown: it never goes back.
    last: u64,
}

impl Clock {
    /// A clock that shows `start` ns at the beginning and gains `drift` millionths.
    pub fn new(start: u64, drift: i32) -> Self {
        let rate = 1_000_000u64.saturating_add_signed(drift.into());
        Self { base: start, since: 0, rate, last: start }
    }

    fn nanos(&self, now: Nanos) -> u64 {
        let passed = u128::from(now - self.since) * u128::from(self.rate) / 1_000_000;
        self.base + u64::try_from(passed).unwrap_or(u64::MAX)
    }

    /// Returns the time that the clock shows.
    pub fn read(&mut self, now: Nanos) -> Moment {
        self.read_finely(now);
        Moment(self.last / 1000)
    }

    /// Returns the time that the clock shows, to the nanosecond.
    pub fn read_finely(&mut self, now: Nanos) -> Duration {
        self.last = self.last.max(self.nanos(now));
        Duration::from_nanos(self.last)
    }

    /// Makes the clock jump ahead by `ahead` ns.
    pub fn jump(&mut self, now: Nanos, ahead: u64) {
        self.base = self.nanos(now) + ahead;
        self.since = now;
    }

    /// Makes the clock run at another rate from now on.
    pub fn drift(&mut self, now: Nanos, drift: i32) {
        self.base = self.nanos(now);
        self.since = now;
        self.rate = 1_000_000u64.saturating_add_signed(drift.into());
    }

    /// Returns the virtual time at which the clock will show `moment` if nothing disturbs it. Never before now.
    pub fn when(&self, moment: Moment, now: Nanos) -> Nanos {
        self.when_finely(Duration::from_micros(moment.0), now)
    }

    /// Returns the virtual time at which the clock will show `shown`, to the nanosecond. Never before now.
    pub fn when_finely(&self, shown: Duration, now: Nanos) -> Nanos {
        let target = u64::try_from(shown.as_nanos()).unwrap_or(u64::MAX);
        let shown = self.nanos(now);
        if target <= shown {
            return now;
        }
        let wait = u128::from(target - shown) * 1_000_000 / u128::from(self.rate) + 1;
        now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_gains_and_a_jump_stays() {
        let mut clock = Clock::new(5_000_000, 500_000);
        assert_eq!(clock.read(2 * MILLISECOND), Moment(8_000));
        clock.jump(2 * MILLISECOND, MILLISECOND);
        assert_eq!(clock.read(2 * MILLISECOND), Moment(9_000));
        let at = clock.when(Moment(12_000), 2 * MILLISECOND);
        assert_eq!(clock.read(at), Moment(12_000));
        assert_eq!(clock.read(at - 2 * MICROSECOND), Moment(12_000), "it does not go back");
    }
}
