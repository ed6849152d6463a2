//! Times, unique numbers, and the effect of `flush_all` on items.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const MICROS: u64 = 1_000_000;
/// Bits of a unique number that distinguish gateways.
const GATEWAY_BITS: u32 = 12;

/// Time after which a gateway's commands respect another gateway's `flush_all`.
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

    /// Returns the microseconds until a second begins.
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
    /// Creates a source of stamps. `gateway` distinguishes this gateway from others on the same table.
    pub fn new(gateway: u64) -> Self {
        Self { last: AtomicU64::new(0), gateway: gateway & ((1 << GATEWAY_BITS) - 1) }
    }

    /// Returns the next stamp: microseconds since 1970, and always greater than the last one.
    pub fn next(&self, now: Now) -> u64 {
        let next = |last: u64| Some(now.micros.max(last + 1));
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        now.micros.max(before.unwrap_or(0) + 1)
    }

    /// Returns the unique number of the change with this stamp.
    pub fn cas(&self, stamp: u64) -> u64 {
        stamp << GATEWAY_BITS | self.gateway
    }
}

/// Combined effect of all flushes: the items that are out of date, and those that a delayed flush will affect. The
/// record lies in the table, where all gateways change it one after another.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flushes {
    /// Number of flushes.
    pub count: u64,
    /// Items with stamps up to here are out of date.
    done: u64,
    /// Items with stamps up to here become out of date at the beginning of the second that contains this stamp. Zero:
    /// no flush is due.
    due: u64,
}

impl Flushes {
    /// Parses the bytes of the table. The value may have been lengthened. Returns `None` if the bytes contain no
    /// flushes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let &[count, done, due, ..] = words else { return None };
        let [count, done, due] = [count, done, due].map(u64::from_le_bytes);
        Some(Self { count, done, due })
    }

    /// Returns the bytes for the table.
    pub fn to_bytes(self) -> Vec<u8> {
        [self.count, self.done, self.due].map(u64::to_le_bytes).concat()
    }

    /// Returns the record with one more flush: everything up to `stamp` is out of date. A delayed flush is cancelled,
    /// as in memcached.
    #[must_use]
    pub fn at_once(self, stamp: u64, now: Now) -> Self {
        let with = self.with_due(0, now);
        Self { done: with.done.max(stamp), ..with }
    }

    /// Returns the record with one more flush: everything that is stored until the end of the second `seconds - 1` is
    /// out of date from the beginning of that second on. So `flush_all 1` affects the existing items at once, and the
    /// items that are stored in the same second, as in memcached.
    #[must_use]
    pub fn later(self, seconds: u32, now: Now) -> Self {
        self.with_due((u64::from(seconds) * MICROS).saturating_sub(1), now)
    }

    /// Returns the record with another flush in place of the delayed one. Items that a flush has affected already stay
    /// out of date.
    fn with_due(self, due: u64, now: Now) -> Self {
        let taken = if has_come(self.due, now) { self.due.min(now.micros) } else { 0 };
        Self { count: self.count + 1, done: self.done.max(taken), due }
    }
}

/// The flushes that the threads of a gateway know.
#[derive(Debug, Default)]
pub struct Flush {
    /// Number of flushes in the latest known record.
    count: Mutex<u64>,
    done: AtomicU64,
    due: AtomicU64,
    /// Time at which the table's flushes were last read: the `micros` of a [`Now`].
    read_at: AtomicU64,
}

impl Flush {
    /// Whether the flushes of other gateways were last read too long ago.
    pub fn is_to_be_read(&self, now: Now) -> bool {
        // The time of day may have been set back.
        now.micros.abs_diff(self.read_at()) >= READ_EVERY_MICROS
    }

    /// Returns the time of the last read, as a mark: if the value has changed, clients have sent commands meanwhile.
    pub fn read_at(&self) -> u64 {
        self.read_at.load(Ordering::Acquire)
    }

    /// Records that the flushes of other gateways up to `now` were read.
    pub fn note_read(&self, now: Now) {
        self.read_at.store(now.micros, Ordering::Release);
    }

    /// Whether a flush has made an item out of date.
    pub fn has(&self, stamp: u64, now: Now) -> bool {
        // In this order: a replaced flush is added to `done` before it is removed from `due`.
        let due = self.due.load(Ordering::Acquire);
        (has_come(due, now) && stamp <= due) || stamp <= self.done.load(Ordering::Acquire)
    }

    /// Takes over the table's record, unless a later one is known.
    pub fn learn(&self, flushes: Flushes) {
        let mut known = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if flushes.count > *known {
            self.set(&mut known, flushes);
        }
    }

    /// Takes over the record of another table.
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

/// Whether the second of a delayed flush has begun.
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
