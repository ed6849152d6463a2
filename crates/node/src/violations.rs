//! How long a node puts up with a tenant that breaks the rules.
//!
//! An honest client is late now and then: its access arrives after the permission has ended, one to ten times a
//! second at worst (Patronus §5.5). One that is not honest guesses keys, of which a window has 256. So a tenant has
//! some violations free, is paused for longer and longer beyond them, and is barred in the end.

use portcullis_protocol::{Lifetime, Moment, Refusal};

/// How many violations cost a tenant how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViolationLimits {
    /// Violations that cost nothing, at most, after a time without any.
    pub free_max: u32,
    /// The time in which one of them comes back.
    pub free_again: Lifetime,
    /// The first pause. Each further one is twice as long.
    pub pause_min: Lifetime,
    /// The longest pause.
    pub pause_max: Lifetime,
    /// Violations that cost a pause, until the last of them bars the tenant.
    pub bar_after: u32,
}

impl Default for ViolationLimits {
    fn default() -> Self {
        Self {
            free_max: 16,
            free_again: Lifetime::millis(100),
            pause_min: Lifetime::millis(1),
            pause_max: Lifetime::seconds(1),
            bar_after: 64,
        }
    }
}

/// Whether a node serves a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It does.
    Good,
    /// Not before that moment.
    Paused {
        /// When the pause ends.
        until: Moment,
    },
    /// Not any more.
    Barred,
}

impl Standing {
    /// Whether a tenant that stands so is served now.
    ///
    /// # Errors
    /// It is barred, or paused for so much longer.
    pub(crate) fn check(self, now: Moment) -> Result<(), Refusal> {
        match self {
            Self::Good => Ok(()),
            Self::Paused { until } => Err(Refusal::Paused { wait: until.since(now) }),
            Self::Barred => Err(Refusal::Barred),
        }
    }
}

/// One tenant's violations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViolationBudget {
    limits: ViolationLimits,
    free: u32,
    /// Up to when `free` has been counted.
    counted: Moment,
    /// Violations that cost a pause. Never forgiven: guessing slowly shall not pay.
    paused: u32,
    until: Moment,
}

impl ViolationBudget {
    /// The budget of a tenant that has broken no rule yet.
    pub(crate) fn new(limits: ViolationLimits) -> Self {
        Self { limits, free: limits.free_max, counted: Moment(0), paused: 0, until: Moment(0) }
    }

    /// The tenant has broken a rule. Says how it stands after that.
    pub(crate) fn record(&mut self, now: Moment) -> Standing {
        self.refill(now);
        if self.free > 0 {
            self.free -= 1;
        } else {
            let doublings = self.paused;
            self.paused = self.paused.saturating_add(1);
            self.until = self.until.max(now.after(self.pause(doublings)));
        }
        self.standing(now)
    }

    /// How the tenant stands.
    pub(crate) fn standing(&self, now: Moment) -> Standing {
        if self.paused >= self.limits.bar_after {
            Standing::Barred
        } else if now < self.until {
            Standing::Paused { until: self.until }
        } else {
            Standing::Good
        }
    }

    fn refill(&mut self, now: Moment) {
        let again = self.limits.free_again.0.max(1);
        let back = now.since(self.counted).0 / again;
        let free = u64::from(self.free).saturating_add(back);
        match u32::try_from(free) {
            Ok(free) if free < self.limits.free_max => {
                self.free = free;
                self.counted = self.counted.after(Lifetime(back * again));
            }
            // A full budget saves nothing up.
            _ => {
                self.free = self.limits.free_max;
                self.counted = self.counted.max(now);
            }
        }
    }

    fn pause(&self, doublings: u32) -> Lifetime {
        let factor = 1u64.checked_shl(doublings).unwrap_or(u64::MAX);
        Lifetime(self.limits.pause_min.0.saturating_mul(factor).min(self.limits.pause_max.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys of a window.
    const KEYS: u64 = 256;

    fn budget() -> ViolationBudget {
        ViolationBudget::new(ViolationLimits::default())
    }

    /// A moment with nothing special about it, in µs.
    const NOW: u64 = 123_456_789;

    #[test]
    fn the_seventeenth_violation_at_once_costs_a_pause_and_each_further_one_twice_as_long() {
        let mut budget = budget();
        for _ in 0..16 {
            assert_eq!(budget.record(Moment(NOW)), Standing::Good);
        }
        for pause_ms in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000] {
            let until = Moment(NOW).after(Lifetime::millis(pause_ms));
            assert_eq!(budget.record(Moment(NOW)), Standing::Paused { until });
        }
        assert_eq!(
            budget.standing(Moment(NOW + 999_999)),
            Standing::Paused { until: Moment(NOW + 1_000_000) }
        );
        assert_eq!(budget.standing(Moment(NOW + 1_000_000)), Standing::Good);
    }

    #[test]
    fn ten_late_accesses_a_second_are_free_for_ever() {
        let mut budget = budget();
        for violation in 0..100_000 {
            assert_eq!(budget.record(Moment(NOW + violation * 100_000)), Standing::Good);
        }
    }

    #[test]
    fn a_quiet_hour_saves_up_no_more_than_the_free_violations() {
        let mut budget = budget();
        let after_an_hour = Moment(NOW).after(Lifetime::seconds(3600));
        budget.record(Moment(NOW));
        let free = (0..100).filter(|_| budget.record(after_an_hour) == Standing::Good).count();
        assert_eq!(free, 16);
    }

    #[test]
    fn a_barred_tenant_stays_barred() {
        let mut budget = budget();
        let served = (0..KEYS).take_while(|_| budget.record(Moment(NOW)) != Standing::Barred).count();
        assert_eq!(served, 16 + 63, "the 64th violation that costs a pause bars");
        assert_eq!(budget.standing(Moment(u64::MAX)), Standing::Barred);
        assert_eq!(budget.record(Moment(u64::MAX)), Standing::Barred);
    }

    proptest! {
        /// Keys move with every bind, and no binding outlives the longest lifetime: what is guessed within it counts.
        #[test]
        fn two_hundred_and_fifty_six_guesses_never_fit_into_the_longest_lifetime(
            gaps in prop::collection::vec(prop_oneof![Just(0u64), 0u64..2_000, 0u64..200_000], 2000),
            quiet in 0u64..100_000_000,
        ) {
            let lifetime = crate::NodeConfig::default().longest_lifetime;
            let mut budget = budget();
            let mut now = Moment(quiet);
            let end = now.after(lifetime);
            let mut guesses = 0u64;
            for gap in gaps {
                now = Moment(now.0 + gap);
                if now > end || budget.record(now) == Standing::Barred {
                    break;
                }
                guesses += 1;
            }
            let limits = ViolationLimits::default();
            let free = u64::from(limits.free_max) + lifetime.0 / limits.free_again.0;
            let most = free + u64::from(limits.bar_after);
            prop_assert!(guesses <= most, "{guesses} guesses");
            prop_assert!(most < KEYS);
        }
    }

    #[test]
    fn a_guesser_that_waits_out_every_pause_is_barred_or_runs_out_of_time() {
        let mut budget = budget();
        let (mut now, end) = (Moment(NOW), Moment(NOW).after(crate::NodeConfig::default().longest_lifetime));
        let mut guesses = 0;
        while now < end {
            guesses += 1;
            match budget.record(now) {
                Standing::Good => {}
                Standing::Paused { until } => now = until,
                Standing::Barred => break,
            }
        }
        assert!(guesses < KEYS, "{guesses} guesses");
    }
}
