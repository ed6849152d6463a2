//! What a thread that polls does while there is nothing to do: spin, then yield, then sleep (RPCool §5.8).

use crate::Crowd;
use std::time::Duration;

/// Turns without work before the thread begins to yield.
const SPIN_TURNS: u32 = 2_000;
/// The same where others want the processor: whoever has spun for less has more of it left when it is woken.
const SPIN_TURNS_BUSY: u32 = 200;
/// After so many turns it looks whether others want a processor, and again after as many.
const LOOK_TURNS: u32 = 256;
const _: () = assert!(LOOK_TURNS > SPIN_TURNS_BUSY, "who has found others sleeps in the same turn");
/// How long it yields before it sleeps.
const YIELD_FOR: Duration = Duration::from_millis(1);
/// A yield that takes longer has given the processor away: whoever has it keeps it for the scheduler's whole slice, some milliseconds,
/// and what the thread waits for is there long before. One who sleeps is woken for it at once.
const YIELD_SLOW: Duration = Duration::from_micros(200);
/// How often the thread sleeps at once after a slow yield before it tries another one: twice as often with each, up to the most.
const SLEEPS_FIRST: u32 = 64;
const SLEEPS_MOST: u32 = 1 << 14;

/// How long there has been nothing to do, and what became of former yields. A thread has one for as long as it polls.
#[derive(Debug, Default)]
pub struct Idle {
    turns: u32,
    since: Option<Duration>,
    /// Sleeps that are left before a yield is tried again, and how many there were to be.
    sleeps_left: u32,
    sleeps: u32,
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
        self.turns < if self.sleeps_left > 0 { SPIN_TURNS_BUSY } else { SPIN_TURNS }
    }

    /// Looks now and then whether more threads want to run than there are processors, of which `crowd` knows. If so, the thread
    /// is to sleep soon, this time and the next ones: it would keep others from a processor, perhaps the very ones whose work it
    /// waits for. A look costs more than a turn, so there are few.
    #[inline]
    pub fn look_for(&mut self, crowd: &Crowd) {
        if self.turns % LOOK_TURNS == LOOK_TURNS - 1 && self.sleeps_left == 0 && crowd.is_there() {
            self.sleeps_left = SLEEPS_FIRST;
        }
    }

    /// Passes some time. `now` is any clock's; from one that stands still meanwhile nothing is learnt of slow yields. Returns whether the
    /// thread should sleep.
    #[inline]
    pub fn spin_or_yield(&mut self, now: impl FnMut() -> Duration) -> bool {
        if self.is_spinning() {
            self.turns += 1;
            std::hint::spin_loop();
            return false;
        }
        self.yield_or_sleep(now, std::thread::yield_now)
    }

    fn yield_or_sleep(&mut self, mut now: impl FnMut() -> Duration, give_way: impl FnOnce()) -> bool {
        if self.sleeps_left > 0 {
            self.sleeps_left -= 1;
            return true;
        }
        let before = now();
        let since = *self.since.get_or_insert(before);
        give_way();
        let after = now();
        if after.saturating_sub(before) > YIELD_SLOW {
            self.sleeps = (2 * self.sleeps).clamp(SLEEPS_FIRST, SLEEPS_MOST);
            self.sleeps_left = self.sleeps;
            // What the thread waits for has probably come.
            return false;
        }
        self.sleeps = 0;
        before.saturating_sub(since) > YIELD_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns and yields until it is to sleep: a yield takes so long.
    fn wait(idle: &mut Idle, each: Duration) -> u32 {
        let (mut clock, mut yields) = (Duration::from_secs(5), 0);
        while idle.is_spinning() {
            assert!(!idle.spin_or_yield(|| unreachable!("no clock is read while it spins")));
        }
        loop {
            let time = std::cell::Cell::new(clock);
            let give_way = || {
                time.set(time.get() + each);
                yields += 1;
            };
            let sleeps = idle.yield_or_sleep(|| time.get(), give_way);
            clock = time.get();
            if sleeps {
                idle.reset();
                return yields;
            }
        }
    }

    #[test]
    fn it_spins_then_yields_and_then_sleeps_until_there_was_work() {
        let mut idle = Idle::default();
        for _ in 0..2 {
            let yields = wait(&mut idle, YIELD_FOR / 10);
            assert_eq!(yields, 12, "it yields for a millisecond, and once more");
        }
    }

    #[test]
    fn where_others_want_the_processor_it_sleeps_at_once() {
        let mut idle = Idle::default();
        let slow = 2 * YIELD_SLOW;
        for most in [64, 128, 256] {
            assert_eq!(wait(&mut idle, slow), 1);
            assert!((1..most).all(|_| wait(&mut idle, slow) == 0), "no yield is tried");
        }
        // It finds out that they do not want it any more.
        while wait(&mut idle, Duration::ZERO.max(YIELD_FOR / 10)) == 0 {}
        assert_eq!(wait(&mut idle, slow), 1, "one slow yield is the first one again");
        assert!((1..64).all(|_| wait(&mut idle, slow) == 0));
        assert_eq!(wait(&mut idle, YIELD_FOR / 10), 12);
    }
}
