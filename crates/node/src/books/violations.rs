//! The cost of a violation, and whether the client or its tenant pays.
//!
//! Three kinds of access look alike to a NIC. An honest client is *late* now and then: its access arrives after its
//! permission has ended, one to ten times a second at worst (Patronus §5.5). A broken client *strays*: it uses a key
//! that it holds in a place that the key does not open. A dishonest client *guesses* keys, of which a window has 256.
//! Only the client pays for the first two. Guesses are counted for the tenant, because a guesser can use many clients.
//! A tenant has some free guesses, is then paused for longer and longer, and is barred in the end.

use crate::config::ViolationLimits;
use portcullis_protocol::{Lifetime, Moment, Refusal};

/// The kind of a refused access, as it looks to the node. It decides whether the client or its tenant pays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Charge {
    /// The client held the key until a moment ago. Only the client is slowed, and never barred for it.
    Late,
    /// The client holds the key, and used it in a place that the key does not open. Only the client is slowed, and in
    /// the end evicted.
    Stray,
    /// The client never had the key. Its tenant is paused, and in the end barred.
    Guess,
}

impl Charge {
    /// The reason that the audit log gives for a violation, and for the pauses and bars that follow.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Late => "late access",
            Self::Stray => "access outside what it holds",
            Self::Guess => "guess of a key",
        }
    }
}

/// A client's refused accesses since it attached, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Violations {
    /// Accesses of the kind [`Charge::Late`].
    pub late: u64,
    /// Accesses of the kind [`Charge::Stray`].
    pub stray: u64,
    /// Accesses of the kind [`Charge::Guess`].
    pub guesses: u64,
}

impl Violations {
    pub(crate) fn count(&mut self, charge: Charge) {
        *match charge {
            Charge::Late => &mut self.late,
            Charge::Stray => &mut self.stray,
            Charge::Guess => &mut self.guesses,
        } += 1;
    }
}

/// Whether a node serves a tenant, or a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The tenant or client is served.
    Good,
    /// The tenant or client is not served before that moment.
    Paused {
        /// End of the pause.
        until: Moment,
    },
    /// The tenant or client is not served before that moment, and all its permissions have ended.
    Barred {
        /// End of the bar.
        until: Moment,
    },
}

impl Standing {
    /// Checks whether a client or tenant with this standing is served now.
    ///
    /// # Errors
    /// The client or tenant is barred, or paused for the time in the refusal.
    pub(crate) fn check(self, now: Moment) -> Result<(), Refusal> {
        match self {
            Self::Good => Ok(()),
            Self::Paused { until } => Err(Refusal::Paused { wait: until.since(now) }),
            Self::Barred { .. } => Err(Refusal::Barred),
        }
    }

    pub(crate) fn is_barred(self) -> bool {
        matches!(self, Self::Barred { .. })
    }

    /// Returns the standing of a client to which both standings apply.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Barred { until: one }, Self::Barred { until: other }) => {
                Self::Barred { until: one.max(other) }
            }
            (Self::Barred { until }, _) | (_, Self::Barred { until }) => Self::Barred { until },
            (Self::Paused { until: one }, Self::Paused { until: other }) => {
                Self::Paused { until: one.max(other) }
            }
            (Self::Paused { until }, _) | (_, Self::Paused { until }) => Self::Paused { until },
            (Self::Good, Self::Good) => Self::Good,
        }
    }
}

/// Tokens that come back one by one, up to a maximum.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    /// The moment up to which `left` was counted.
    counted: Moment,
}

impl Bucket {
    fn full(most: u32) -> Self {
        Self { left: most, counted: Moment(0) }
    }

    /// Adds the tokens that have come back since the last count. Returns whether the bucket is full.
    fn refill(&mut self, most: u32, again: Lifetime, now: Moment) -> bool {
        let again = again.0.max(1);
        let back = now.since(self.counted).0 / again;
        let left = u64::from(self.left).saturating_add(back);
        match u32::try_from(left) {
            Ok(left) if left < most => {
                self.left = left;
                self.counted = self.counted.after(Lifetime(back * again));
                false
            }
            // A full bucket accumulates nothing.
            _ => {
                self.left = most;
                self.counted = self.counted.max(now);
                true
            }
        }
    }

    fn take(&mut self) -> bool {
        let some = self.left > 0;
        self.left -= u32::from(some);
        some
    }
}

/// The violations of one kind that are charged to a client or tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViolationBudget {
    limits: ViolationLimits,
    free: Bucket,
    /// Number of violations that cost a pause.
    paused: u32,
    /// Start of the present pause or bar. `until` is its end.
    since: Moment,
    until: Moment,
}

impl ViolationBudget {
    /// The budget of a client or tenant that has broken no rule yet.
    pub(crate) fn new(limits: ViolationLimits) -> Self {
        let (since, until) = (Moment(0), Moment(0));
        Self { limits, free: Bucket::full(limits.free_max), paused: 0, since, until }
    }

    /// Records a violation. Pauses are not forgiven before a bar has ended, so that slow guessing does not pay. Returns
    /// the resulting standing.
    pub(crate) fn record(&mut self, now: Moment) -> Standing {
        if self.has_served_bar(now) {
            *self = Self::new(self.limits);
        }
        if self.standing(now).is_barred() {
            return self.standing(now);
        }
        self.free.refill(self.limits.free_max, self.limits.free_again, now);
        self.charge(self.limits.pause_max, now);
        if self.is_spent() {
            (self.since, self.until) = (now, now.after(self.limits.bar_for));
        }
        self.standing(now)
    }

    /// Records a late access. It leads to pauses of at most `longest`, and never to a bar. The pauses are forgiven once
    /// all free violations are back.
    pub(crate) fn record_lateness(&mut self, longest: Lifetime, now: Moment) -> Standing {
        if self.free.refill(self.limits.free_max, self.limits.free_again, now) {
            self.paused = 0;
        }
        self.charge(longest, now);
        self.paused = self.paused.min(self.limits.bar_after.saturating_sub(1));
        self.standing(now)
    }

    fn charge(&mut self, longest: Lifetime, now: Moment) {
        if self.free.take() {
            return;
        }
        if now >= self.until {
            self.since = now;
        }
        self.until = self.until.max(now.after(self.pause(longest)));
        self.paused = self.paused.saturating_add(1);
    }

    fn pause(&self, longest: Lifetime) -> Lifetime {
        let factor = 1u64.checked_shl(self.paused).unwrap_or(u64::MAX);
        Lifetime(self.limits.pause_min.0.saturating_mul(factor).min(longest.0))
    }

    /// Returns the standing by this budget.
    pub(crate) fn standing(&self, now: Moment) -> Standing {
        let until = self.until;
        match (now < until, self.is_spent()) {
            (false, _) => Standing::Good,
            (true, false) => Standing::Paused { until },
            (true, true) => Standing::Barred { until },
        }
    }

    /// Returns the start of the present pause or bar.
    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    /// Whether there was a bar that is over now.
    pub(crate) fn has_served_bar(&self, now: Moment) -> bool {
        self.is_spent() && now >= self.until
    }

    fn is_spent(&self) -> bool {
        self.paused >= self.limits.bar_after
    }
}

/// The violations charged to a tenant: the guesses of all its clients, including those that have left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantRecord {
    pub guesses: ViolationBudget,
    /// Tokens for accesses about which the NIC reports nothing: each may be late, or a guess.
    excuses: Bucket,
}

impl TenantRecord {
    pub(crate) fn new(limits: ViolationLimits) -> Self {
        Self { guesses: ViolationBudget::new(limits), excuses: Bucket::full(limits.excuses_max) }
    }

    /// Whether one more access about which the NIC reports nothing may count as late.
    pub(crate) fn excuse(&mut self, now: Moment) -> bool {
        let limits = self.guesses.limits;
        self.excuses.refill(limits.excuses_max, limits.excuse_again, now);
        self.excuses.take()
    }
}

/// The violations charged to a client alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conduct {
    /// All its refused accesses.
    pub violations: Violations,
    late: ViolationBudget,
    strays: ViolationBudget,
}

impl Conduct {
    pub(crate) fn new(limits: ViolationLimits) -> Self {
        let budget = ViolationBudget::new(limits);
        Self { violations: Violations::default(), late: budget, strays: budget }
    }

    /// Records a late access. `told`: whether the NIC reported it as late. If lateness is only assumed, the client is
    /// slowed as much as a guesser.
    pub(crate) fn record_lateness(&mut self, told: bool, now: Moment) -> Standing {
        let limits = self.late.limits;
        self.late.record_lateness(if told { limits.late_pause_max } else { limits.pause_max }, now)
    }

    pub(crate) fn record_stray(&mut self, now: Moment) -> Standing {
        self.strays.record(now)
    }

    /// Returns the client's own standing.
    pub(crate) fn standing(&self, now: Moment) -> Standing {
        self.late.standing(now).and(self.strays.standing(now))
    }

    /// Returns the kind of violation behind the standing, and the moment since which it lasts.
    pub(crate) fn cause(&self, now: Moment) -> (Charge, Moment) {
        let strays = self.strays.standing(now) == self.standing(now);
        if strays { (Charge::Stray, self.strays.since()) } else { (Charge::Late, self.late.since()) }
    }

    /// Forgets the violations charged to the client. Its refused accesses stay counted.
    pub(crate) fn forgive(&mut self) {
        *self = Self { violations: self.violations, ..Self::new(self.late.limits) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Number of keys of a window.
    const KEYS: u64 = 256;

    fn budget() -> ViolationBudget {
        ViolationBudget::new(ViolationLimits::default())
    }

    /// A moment without special properties, in µs.
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
    fn a_bar_lasts_as_long_as_is_said_whatever_follows_and_then_all_begins_anew() {
        let mut budget = budget();
        let served = (0..KEYS).take_while(|_| !budget.record(Moment(NOW)).is_barred()).count();
        assert_eq!(served, 16 + 63, "the 64th violation that costs a pause bars");
        let until = Moment(NOW).after(ViolationLimits::default().bar_for);
        let last = Moment(until.0 - 1);
        assert_eq!(budget.record(last), Standing::Barred { until });
        assert_eq!((budget.standing(last), budget.since()), (Standing::Barred { until }, Moment(NOW)));
        assert_eq!(budget.standing(until), Standing::Good);
        assert!(budget.has_served_bar(until));
        for _ in 0..16 {
            assert_eq!(budget.record(until), Standing::Good, "free again");
        }
        let pause = Standing::Paused { until: until.after(Lifetime::millis(1)) };
        assert_eq!(budget.record(until), pause, "the first pause is the shortest again");
    }

    #[test]
    fn lateness_is_slowed_up_to_a_limit_never_barred_and_forgiven() {
        let mut budget = budget();
        let longest = Lifetime::millis(16);
        for _ in 0..16 {
            assert_eq!(budget.record_lateness(longest, Moment(NOW)), Standing::Good);
        }
        for pause_ms in [1, 2, 4, 8, 16, 16].into_iter().chain([16; 1000]) {
            let until = Moment(NOW).after(Lifetime::millis(pause_ms));
            assert_eq!(budget.record_lateness(longest, Moment(NOW)), Standing::Paused { until });
        }
        let later = Moment(NOW).after(Lifetime::millis(1600));
        for _ in 0..16 {
            assert_eq!(budget.record_lateness(longest, later), Standing::Good);
        }
        let shortest = Standing::Paused { until: later.after(Lifetime::millis(1)) };
        assert_eq!(budget.record_lateness(longest, later), shortest);
    }

    proptest! {
        /// Keys change with every bind, and no binding outlives the longest lifetime: guesses within it count.
        #[test]
        fn two_hundred_and_fifty_six_guesses_never_fit_into_the_longest_lifetime(
            told: bool,
            gaps in prop::collection::vec(prop_oneof![Just(0u64), 0u64..2_000, 0u64..200_000], 2000),
            quiet in 0u64..100_000_000,
        ) {
            let lifetime = crate::NodeConfig::default().longest_lifetime;
            let mut tenant = TenantRecord::new(ViolationLimits::default());
            let mut now = Moment(quiet);
            let end = now.after(lifetime);
            let mut guesses = 0u64;
            for gap in gaps {
                now = Moment(now.0 + gap);
                // If the NIC reports nothing, a guess may pass as a late access.
                let excused = !told && tenant.excuse(now);
                if now > end || (!excused && tenant.guesses.record(now).is_barred()) {
                    break;
                }
                guesses += 1;
            }
            let limits = ViolationLimits::default();
            let free = u64::from(limits.free_max) + lifetime.0 / limits.free_again.0;
            let excuses = u64::from(limits.excuses_max) + lifetime.0 / limits.excuse_again.0;
            let most = free + u64::from(limits.bar_after) + if told { 0 } else { excuses };
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
                Standing::Barred { .. } => break,
            }
        }
        assert!(guesses < KEYS, "{guesses} guesses");
    }
}
