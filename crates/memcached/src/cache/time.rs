//! Times, unique numbers, and what a `flush_all` has made out of date.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const MICROS: u64 = 1_000_000;
/// Bits of a unique number that tell gateways apart.
const GATEWAY_BITS: u32 = 12;

/// How soon a gateway's commands take another gateway's `flush_all` into account.
const READ_EVERY_MICROS: u64 = 100_000;

/// A moment of the day's time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Now {
    /// Microseconds since 1970.
    pub micros: u64,
}

impl Now {
    /// Seconds since 1970, as memcached counts them.
    pub fn seconds(self) -> u32 {
        u32::try_from(self.micros / MICROS).unwrap_or(u32::MAX)
    }

    /// Microseconds from here until a second begins.
    pub fn until(self, seconds: u32) -> u64 {
        (u64::from(seconds) * MICROS).saturating_sub(self.micros)
    }
}

/// Gives each change of an item a stamp, and a number that no other change has.
#[derive(Debug)]
pub struct Stamps {
    last: AtomicU64,
    gateway: u64,
}

impl Stamps {
    /// `gateway`: what tells this gateway from others on the same table.
    pub fn new(gateway: u64) -> Self {
        Self { last: AtomicU64::new(0), gateway: gateway & ((1 << GATEWAY_BITS) - 1) }
    }

    /// The next stamp: microseconds since 1970, and always a greater one.
    pub fn next(&self, now: Now) -> u64 {
        let next = |last: u64| Some(now.micros.max(last + 1));
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        now.micros.max(before.unwrap_or(0) + 1)
    }

    /// The unique number of the change with this stamp.
    pub fn cas(&self, stamp: u64) -> u64 {
        stamp << GATEWAY_BITS | self.gateway
    }
}

/// What flushes have come to: what they have made out of date, and what one of them will. It lies in the table, where all
/// gateways change it one after another.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flushes {
    /// How many there were.
    pub count: u64,
    /// Items with stamps up to here are out of date.
    done: u64,
    /// Items with stamps up to here are, from the beginning of the second on in which this is. Zero: none.
    due: u64,
}

impl Flushes {
    /// Those that bytes of the table say. The value may have been lengthened. `None`: there are none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let &[count, done, due, ..] = words else { return None };
        let [count, done, due] = [count, done, due].map(u64::from_le_bytes);
        Some(Self { count, done, due })
    }

    /// The bytes of the table.
    pub fn to_bytes(self) -> Vec<u8> {
        [self.count, self.done, self.due].map(u64::to_le_bytes).concat()
    }

    /// With one more: everything up to `stamp` is out of date. A flush that was to come does not come any more, as in memcached.
    #[must_use]
    pub fn at_once(self, stamp: u64, now: Now) -> Self {
        let with = self.with_due(0, now);
        Self { done: with.done.max(stamp), ..with }
    }

    /// With one more: everything that is stored until the end of the second before `seconds` is out of date from that second's
    /// beginning on. So `flush_all 1` takes what is there at once, and what is stored in the same second, as in memcached.
    #[must_use]
    pub fn later(self, seconds: u32, now: Now) -> Self {
        self.with_due((u64::from(seconds) * MICROS).saturating_sub(1), now)
    }

    /// With another flush in the place of the one that was to come. What a flush has taken already stays out of date.
    fn with_due(self, due: u64, now: Now) -> Self {
        let taken = if has_come(self.due, now) { self.due.min(now.micros) } else { 0 };
        Self { count: self.count + 1, done: self.done.max(taken), due }
    }
}

/// What the threads of a gateway know of flushes.
#[derive(Debug, Default)]
pub struct Flush {
    /// The latest that is known.
    count: Mutex<u64>,
    done: AtomicU64,
    due: AtomicU64,
    /// When the table's flushes were last read: the `micros` of a [`Now`].
    read_at: AtomicU64,
}

impl Flush {
    /// Whether what other gateways have flushed was last read too long ago.
    pub fn is_to_be_read(&self, now: Now) -> bool {
        // The time of day may have been set back.
        now.micros.abs_diff(self.read_at()) >= READ_EVERY_MICROS
    }

    /// When it was last read, as a mark: another value than before means that clients have asked for something meanwhile.
    pub fn read_at(&self) -> u64 {
        self.read_at.load(Ordering::Acquire)
    }

    /// What other gateways had flushed by `now` has been learnt.
    pub fn note_read(&self, now: Now) {
        self.read_at.store(now.micros, Ordering::Release);
    }

    /// Whether an item is out of date.
    pub fn has(&self, stamp: u64, now: Now) -> bool {
        // In this order: a flush that is replaced is among those that are done before it goes.
        let due = self.due.load(Ordering::Acquire);
        (has_come(due, now) && stamp <= due) || stamp <= self.done.load(Ordering::Acquire)
    }

    /// Takes in what the table says, unless something later is known.
    pub fn learn(&self, flushes: Flushes) {
        let mut known = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if flushes.count > *known {
            self.set(&mut known, flushes);
        }
    }

    /// Takes in what another table says.
    pub fn begin(&self, flushes: Flushes) {
        let mut known = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(&mut known, flushes);
    }

    fn set(&self, known: &mut u64, Flushes { count, done, due }: Flushes) {
        self.done.store(done, Ordering::Release);
        self.due.store(due, Ordering::Release);
        *known = count;
    }
}

/// Whether the second of a flush that is due has begun.
fn has_come(due: u64, now: Now) -> bool {
    due != 0 && due / MICROS <= now.micros / MICROS
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { micros: 1_000_000_000 };

    #[test]
    fn stamps_only_grow_whatever_the_clock_does() {
        let stamps = Stamps::new(7);
        let first = stamps.next(NOW);
        let again = stamps.next(NOW);
        let back = stamps.next(Now { micros: 5 });
        assert!(first < again && again < back, "{first} {again} {back}");
        assert!(stamps.cas(first) < stamps.cas(again));
        assert_ne!(stamps.cas(first), Stamps::new(8).cas(first));
    }

    fn known(flushes: Flushes) -> Flush {
        let flush = Flush::default();
        flush.learn(flushes);
        flush
    }

    #[test]
    fn a_flush_takes_what_was_before_it_and_nothing_after() {
        assert!(!Flush::default().has(1, NOW));
        let flush = known(Flushes::default().at_once(NOW.micros, NOW));
        assert!(flush.has(NOW.micros, NOW) && !flush.has(NOW.micros + 1, NOW));
    }

    #[test]
    fn a_delayed_flush_takes_what_is_stored_until_the_end_of_the_second_before() {
        let at = NOW.seconds() + 2;
        let (begins, ends) = ((u64::from(at) - 1) * MICROS, u64::from(at) * MICROS);
        let flush = known(Flushes::default().later(at, NOW));
        assert!(!flush.has(NOW.micros, Now { micros: begins - 1 }), "its second has not begun");
        assert!(flush.has(ends - 1, Now { micros: begins }));
        assert!(!flush.has(ends, Now { micros: ends }));
    }

    #[test]
    fn a_flush_in_a_second_takes_at_once_what_is_there() {
        let middle = Now { micros: NOW.micros + MICROS / 2 };
        let flush = known(Flushes::default().later(middle.seconds() + 1, middle));
        assert!(flush.has(middle.micros, middle));
        assert!(flush.has(middle.micros + 1, middle), "memcached counts times in whole seconds");
    }

    #[test]
    fn a_later_flush_takes_the_place_of_one_that_is_to_come_and_not_of_one_that_was() {
        let middle = Now { micros: NOW.micros + MICROS / 2 };
        let far = Now { micros: NOW.micros + 60 * MICROS };
        let replaced = Flushes::default().later(NOW.seconds() + 10, NOW).at_once(NOW.micros, NOW);
        assert!(!known(replaced).has(NOW.micros + 1, far), "the one that was to come is gone");
        let both = replaced.later(middle.seconds() + 1, middle).later(middle.seconds() + 1000, middle);
        assert!(known(both).has(middle.micros, middle), "what was taken stays out of date");
        assert!(!known(both).has(middle.micros + 1, middle));
    }

    #[test]
    fn what_is_heard_late_takes_nothing_back() {
        let first = Flushes::default().at_once(NOW.micros, NOW);
        let flush = known(first.later(NOW.seconds() + 1, NOW));
        flush.learn(first);
        assert!(flush.has(NOW.micros + 1, NOW), "the later one is known");
        let other = Now { micros: NOW.micros - 5 };
        let merged = Flushes::parse(&first.to_bytes()).expect("flushes").at_once(other.micros, other);
        assert!(known(merged).has(NOW.micros, NOW), "a clock that is behind takes nothing back");
        assert_eq!(Flushes::parse(&[0; 23]), None);
        let lengthened = [merged.to_bytes(), vec![0; 9]].concat();
        assert_eq!(Flushes::parse(&lengthened), Some(merged));
    }
}
