//! The number of operations that may be in progress (1RMA §6, Algorithm 1): additive increase and multiplicative
//! decrease by measured delay.
//!
//! A client has one window for congestion on its own host, fed with `issue_delay`, and one for each destination and
//! direction, fed with the rest of `total_delay`. The narrower of the two holds.

use std::time::Duration;

/// The parameters of Algorithm 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CongestionParameters {
    /// The delay towards which the window is steered.
    pub target: Duration,
    /// Increase of the window for a window's worth of operations below the target (`AI`).
    pub increase: f64,
    /// The smallest factor by which a delay decreases the window (`MD`).
    pub decrease: f64,
    /// Strength with which a delay beyond the target decreases the window (`β`).
    pub strength: f64,
    /// The smallest window, in operations. Below one, operations are spaced out.
    pub least: f64,
    /// The largest window, in operations (`CWND_MAX`).
    pub most: f64,
    /// The window before the first measurement, in operations. The paper gives no number. A window grows by a quarter
    /// of an operation in a round trip, so one that begins far below the capacity of the path takes long to get there.
    pub initial: f64,
}

impl CongestionParameters {
    /// Divisor of the window when load was shed.
    const SHED: f64 = 10.0;

    /// Returns the paper's constants, for this target. The window begins with one operation.
    #[must_use]
    pub fn new(target: Duration) -> Self {
        Self { target, increase: 0.25, decrease: 0.5, strength: 0.8, least: 0.01, most: 256.0, initial: 1.0 }
    }
}

/// A congestion window.
#[derive(Clone, Debug)]
pub struct Congestion {
    parameters: CongestionParameters,
    window: f64,
    /// Time of the last decrease of the window.
    decreased: Option<Duration>,
}

impl Congestion {
    /// Creates a window in its state before the first measurement.
    #[must_use]
    pub fn new(parameters: CongestionParameters) -> Self {
        let CongestionParameters { initial, least, most, .. } = parameters;
        Self { parameters, window: initial.min(most).max(least), decreased: None }
    }

    /// Number of operations that may be in progress.
    #[must_use]
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Whether another operation may be in progress. A window below one allows one operation at a time, further apart.
    #[must_use]
    pub fn has_room(&self, under_way: u32) -> bool {
        f64::from(under_way) < self.window.max(1.0).floor()
    }

    /// Updates the window after an operation that has succeeded with this delay. `rtt` is the measured round trip.
    pub fn succeed(&mut self, delay: Duration, rtt: Duration, now: Duration) {
        let CongestionParameters { target, decrease, strength, least, .. } = self.parameters;
        if delay < target {
            self.grow();
        } else if self.may_decrease(rtt, now) {
            let beyond = (delay - target).as_secs_f64() / delay.as_secs_f64().max(f64::MIN_POSITIVE);
            self.window = ((1.0 - strength * beyond).max(decrease) * self.window).max(least);
            self.decreased = Some(now);
        }
    }

    /// Updates the window after an operation that was refused with this delay. The window never shrinks for that: the
    /// delay of a refusal also depends on the time at which the permission has ended.
    pub fn refused(&mut self, delay: Duration) {
        if delay < self.parameters.target {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let CongestionParameters { increase, most, .. } = self.parameters;
        self.window += if self.window >= 1.0 { increase / self.window } else { increase };
        self.window = self.window.min(most);
    }

    /// Shrinks the window when load was shed: after a DISPATCH_TIMEOUT for the window of this host; after a NACK or a
    /// TIMEOUT for a destination's.
    pub fn shed(&mut self, rtt: Duration, now: Duration) {
        if self.may_decrease(rtt, now) {
            self.window = (self.window / CongestionParameters::SHED).max(self.parameters.least);
            self.decreased = Some(now);
        }
    }

    fn may_decrease(&self, rtt: Duration, now: Duration) -> bool {
        self.decreased.is_none_or(|before| now.saturating_sub(before) >= rtt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_micros(5);
    const TARGET: Duration = Duration::from_micros(10);

    fn at(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn a_window_grows_by_a_quarter_for_each_round_below_the_target() {
        let mut window = Congestion::new(CongestionParameters::new(TARGET));
        for round in 1..=40u32 {
            let before = window.window();
            let mut left = before;
            while left >= 1.0 {
                window.succeed(at(1), RTT, at(u64::from(round) * 5));
                left -= 1.0;
            }
            let grown = window.window() - before;
            assert!((0.1..=0.25).contains(&grown), "round {round}: {grown}");
        }
    }

    #[test]
    fn a_window_begins_where_its_parameters_say_and_within_its_bounds() {
        let begin = |initial| {
            Congestion::new(CongestionParameters { initial, most: 64.0, ..CongestionParameters::new(TARGET) })
                .window()
        };
        let windows = [begin(15.0), begin(500.0), begin(0.0)];
        assert!(
            windows.iter().zip([15.0, 64.0, 0.01]).all(|(it, expected)| (it - expected).abs() < 1e-9),
            "{windows:?}"
        );
        assert!((Congestion::new(CongestionParameters::new(TARGET)).window() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_window_shrinks_by_half_at_most_and_once_in_a_round_trip() {
        let mut window =
            Congestion::new(CongestionParameters { most: 64.0, ..CongestionParameters::new(TARGET) });
        window.window = 64.0;
        window.succeed(at(10_000), RTT, at(100));
        assert!((window.window() - 32.0).abs() < 1e-9, "{window:?}");
        window.succeed(at(10_000), RTT, at(104));
        assert!((window.window() - 32.0).abs() < 1e-9, "less than a round trip has passed");
        window.succeed(at(12), RTT, at(105));
        let expected = 32.0 * (1.0 - 0.8 * (2.0 / 12.0));
        assert!((window.window() - expected).abs() < 1e-9, "by as much as the delay is beyond the target");
    }

    #[test]
    fn shed_load_leaves_a_tenth_and_never_nothing() {
        let mut window = Congestion::new(CongestionParameters::new(TARGET));
        window.window = 50.0;
        window.shed(RTT, at(0));
        assert!((window.window() - 5.0).abs() < 1e-9);
        for round in 1..20 {
            window.shed(RTT, at(5 * round));
        }
        assert!(window.window() >= 0.01);
    }
}
