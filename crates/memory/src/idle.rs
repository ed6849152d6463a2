//! What a thread that polls does while there is nothing to do: spin, then yield, then sleep.

use std::time::Duration;

/// Turns without work before the thread begins to yield.
const SPIN_TURNS: u32 = 2_000;
/// How long it yields before it sleeps.
const YIELD_FOR: Duration = Duration::from_millis(1);

/// How long there has been nothing to do.
#[derive(Debug, Default)]
pub struct Idle {
    turns: u32,
    since: Option<Duration>,
}

impl Idle {
    /// Called when there was work.
    #[inline]
    pub fn reset(&mut self) {
        self.turns = 0;
        self.since = None;
    }

    /// Whether the thread keeps the processor from others.
    #[inline]
    #[must_use]
    pub fn is_spinning(&self) -> bool {
        self.turns < SPIN_TURNS
    }

    /// Passes some time. `now` is any clock's. Returns whether the thread should sleep.
    #[inline]
    pub fn spin_or_yield(&mut self, now: impl FnOnce() -> Duration) -> bool {
        if self.turns < SPIN_TURNS {
            self.turns += 1;
            std::hint::spin_loop();
            return false;
        }
        let now = now();
        let since = *self.since.get_or_insert(now);
        std::thread::yield_now();
        now.saturating_sub(since) > YIELD_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_then_yields_and_then_sleeps_until_there_was_work() {
        let mut idle = Idle::default();
        for _ in 0..2 {
            let mut turns = 0;
            while idle.is_spinning() {
                assert!(!idle.spin_or_yield(|| unreachable!("no clock is read while it spins")));
                turns += 1;
            }
            assert_eq!(turns, SPIN_TURNS);
            assert!(!idle.spin_or_yield(|| Duration::from_secs(5)));
            assert!(!idle.spin_or_yield(|| Duration::from_secs(5) + YIELD_FOR));
            assert!(idle.spin_or_yield(|| Duration::from_secs(6)));
            idle.reset();
        }
    }
}
