//! Limit of the time for which operations and calls may be under way.
//!
//! A limit is counted in steps, each a fraction of it. A step ends only when the caller calls
//! [`Client::tick`](crate::Client::tick): nothing here reads a clock, so the limit costs no time when an operation
//! begins. A tick ends one step at most. So time in which the caller stood still counts as one step, and no operation
//! is given up whose end the caller had no chance to see.

use portcullis_protocol::{Lifetime, Moment};

/// Number of steps of a limit.
const STEPS: u8 = 16;
/// Number of steps after which an operation is given up: it may begin at the end of a step, and the end of that step
/// may be noticed late.
pub(crate) const GIVEN_UP_AFTER: u8 = STEPS + 2;

/// The limit of a client, and the number of its steps that have passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// `None`: there is no limit.
    within: Option<Lifetime>,
    steps: u64,
    step_began: Moment,
}

impl Limit {
    /// A client without a limit.
    pub(crate) const NONE: Self = Self { within: None, steps: 0, step_began: Moment(0) };

    pub(crate) fn set(&mut self, within: Option<Lifetime>) {
        self.within = within;
    }

    /// The limit. `None`: the client has no limit.
    pub(crate) fn within(&self) -> Option<Lifetime> {
        self.within
    }

    fn step(&self) -> Option<Lifetime> {
        self.within.map(|within| Lifetime((within.0 / u64::from(STEPS)).max(1)))
    }

    /// Number of steps that have passed.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// The step at whose end an operation or a call that begins now is given up. `wait`: the time that it may wait at
    /// the node besides.
    pub(crate) fn last_step(&self, wait: Lifetime) -> u64 {
        self.step().map_or(u64::MAX, |step| {
            self.steps.saturating_add(GIVEN_UP_AFTER.into()).saturating_add(wait.0.div_ceil(step.0))
        })
    }

    /// The end of the present step. `None`: the client has no limit.
    pub(crate) fn step_ends(&self) -> Option<Moment> {
        self.step().map(|step| self.step_began.after(step))
    }

    /// Ends the present step if its time is over, and returns whether it was. The next step begins at the end of this
    /// one, even if the end is noticed a little late, so that many small delays do not add up.
    pub(crate) fn advance(&mut self, now: Moment) -> bool {
        let (Some(step), Some(ends)) = (self.step(), self.step_ends()) else { return false };
        let is_over = now >= ends;
        if is_over {
            self.steps += 1;
            self.step_began = if now.since(ends) < step { ends } else { now };
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit() -> Limit {
        let mut limit = Limit::NONE;
        limit.set(Some(Lifetime::millis(1600)));
        limit
    }

    #[test]
    fn a_caller_that_stood_still_has_lost_one_step() {
        let mut limit = limit();
        assert!(limit.advance(Moment(1_000_000_000)));
        assert!(!limit.advance(Moment(1_000_000_000)));
        assert_eq!(limit.steps(), 1);
    }

    #[test]
    fn steps_that_are_noticed_late_do_not_add_up() {
        let mut limit = limit();
        let mut now = Moment(0);
        while limit.steps() < 16 {
            now = limit.step_ends().expect("there is a limit").after(Lifetime::millis(60));
            limit.advance(now);
        }
        assert!(now <= Moment(1_660_000), "{now:?}");
    }

    #[test]
    fn what_begins_at_the_end_of_a_step_has_the_whole_limit() {
        let mut limit = limit();
        let began = Moment(99_999);
        let last = limit.last_step(Lifetime(0));
        let mut now = began;
        while limit.steps() < last {
            now = now.after(Lifetime(1));
            limit.advance(now);
        }
        assert!(now.since(began) >= Lifetime::millis(1600), "{now:?}");
        assert!(now.since(began) <= Lifetime::millis(1800), "{now:?}");
    }

    #[test]
    fn a_wait_at_the_node_comes_on_top() {
        let limit = limit();
        assert_eq!(limit.last_step(Lifetime::millis(250)), limit.last_step(Lifetime(0)) + 3);
        assert!(limit.last_step(Lifetime(u64::MAX)) > u64::MAX / 1_000_000);
    }

    #[test]
    fn without_a_limit_nothing_is_ever_over() {
        let mut limit = Limit::NONE;
        assert!(!limit.advance(Moment(u64::MAX)));
        assert_eq!(limit.last_step(Lifetime(0)), u64::MAX);
    }
}
