//! What an engine does while there is nothing to do: spin, then yield, then sleep.

use portcullis_protocol::{Lifetime, Moment};
use std::time::Duration;

/// Turns without work before the thread begins to yield.
const SPIN_TURNS: u32 = 2_000;
/// How long it yields before it sleeps.
const YIELD_FOR: Lifetime = Lifetime::millis(1);
/// The longest sleep: it bounds the cost of a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// The longest sleep while a request waits for a peer that does not ring.
const SLEEP_BLOCKED_MAX: Duration = Duration::from_millis(2);

/// How long there has been nothing to do.
#[derive(Debug, Default)]
pub(super) struct Idle {
    turns: u32,
    since: Option<Moment>,
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
    pub fn is_spinning(&self) -> bool {
        self.turns < SPIN_TURNS
    }

    /// Passes some time. Returns whether the thread should sleep.
    pub fn spin_or_yield(&mut self, now: Moment) -> bool {
        if self.turns < SPIN_TURNS {
            self.turns += 1;
            std::hint::spin_loop();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        std::thread::yield_now();
        now.since(since) > YIELD_FOR
    }
}

/// How long to sleep when the next thing to do comes at `wake`.
pub(super) fn sleep_for(now: Moment, wake: Option<Moment>, blocked: bool) -> Duration {
    let longest = if blocked { SLEEP_BLOCKED_MAX } else { SLEEP_MAX };
    wake.map_or(longest, |wake| Duration::from(wake.since(now)).min(longest))
}
