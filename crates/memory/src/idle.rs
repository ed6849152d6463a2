//! Waiting of a thread that polls while there is no work: it spins, then yields, then sleeps (RPCool §5.8).

use crate::Crowd;
use std::time::Duration;

/// Turns without work before the thread begins to yield.
const SPIN_TURNS: u32 = 2_000;
/// Turns without work before the thread sleeps, if other threads want the processor. A thread that has spun for less
/// has more of the processor left when it is woken.
const SPIN_TURNS_BUSY: u32 = 200;
/// Turns between two checks whether other threads want a processor.
const LOOK_TURNS: u32 = 256;
const _: () = assert!(LOOK_TURNS > SPIN_TURNS_BUSY, "a thread that has found others sleeps in the same turn");
/// Time that the thread yields before it sleeps.
const YIELD_FOR: Duration = Duration::from_millis(1);
/// Time above which a yield counts as slow: it has given the processor away. The other thread keeps the processor for
/// the scheduler's whole slice, some milliseconds, and the awaited event happens long before that. A thread that sleeps
/// is woken for it at once.
const YIELD_SLOW: Duration = Duration::from_micros(200);
/// How often the thread sleeps at once after a slow yield before it tries another one. The number doubles with each
/// slow yield, up to the maximum.
const SLEEPS_FIRST: u32 = 64;
const SLEEPS_MOST: u32 = 1 << 14;

/// Time without work, and the experience with former yields. A thread has one for as long as it polls.
#[derive(Debug, Default)]
pub struct Idle {
    turns: u32,
    since: Option<Duration>,
    /// Sleeps that are left before the thread tries a yield again, and their number at the start.
    sleeps_left: u32,
    sleeps: u32,
}

impl Idle {
    /// Records that there was work.
    #[inline]
    pub fn reset(&mut self) {
        self.turns = 0;
        self.since = None;
    }

    /// Whether the thread occupies the processor.
    #[inline]
    #[must_use]
    pub fn is_spinning(&self) -> bool {
        self.turns < if self.sleeps_left > 0 { SPIN_TURNS_BUSY } else { SPIN_TURNS }
    }

    /// Checks now and then by `crowd` whether more threads are runnable than there are processors. If so, the thread is
    /// to sleep soon, this time and the next ones: it would keep others from a processor, perhaps the very threads
    /// whose work it waits for. A check costs more than a turn, so there are few.
    #[inline]
    pub fn look_for(&mut self, crowd: &Crowd) {
        if self.turns % LOOK_TURNS == LOOK_TURNS - 1 && self.sleeps_left == 0 && crowd.is_there() {
            self.sleeps_left = SLEEPS_FIRST;
        }
    }

    /// Passes some time. Returns whether the thread should sleep. `now` may be any clock; a clock that stands still
    /// meanwhile shows no slow yields.
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
            // The awaited event has probably happened.
            return false;
        }
        self.sleeps = 0;
        before.saturating_sub(since) > YIELD_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spins and yields until the thread is to sleep. Each yield takes `each`. Returns the number of yields.
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
        // The thread finds out that the others do not want the processor any more.
        while wait(&mut idle, Duration::ZERO.max(YIELD_FOR / 10)) == 0 {}
        assert_eq!(wait(&mut idle, slow), 1, "one slow yield is the first one again");
        assert!((1..64).all(|_| wait(&mut idle, slow) == 0));
        assert_eq!(wait(&mut idle, YIELD_FOR / 10), 12);
    }
}
