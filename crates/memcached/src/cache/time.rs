//! Times, unique numbers, and what a `flush_all` has made out of date.

use std::sync::atomic::{AtomicU64, Ordering};

const MICROS: u64 = 1_000_000;
/// Bits of a unique number that tell gateways apart.
const GATEWAY_BITS: u32 = 12;

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

/// What `flush_all` has made out of date: items with stamps up to a moment.
#[derive(Debug, Default)]
pub struct Flush {
    /// Up to here at once.
    done: AtomicU64,
    /// Up to here, from the beginning of the second on in which this is. Zero: never.
    due: AtomicU64,
}

impl Flush {
    /// Bytes that tell other gateways.
    pub const BYTES: usize = 16;

    /// Whether an item is out of date.
    pub fn has(&self, stamp: u64, now: Now) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        stamp <= self.done.load(Ordering::Relaxed) || (has_come(due, now) && stamp <= due)
    }

    /// Everything up to `stamp` is out of date. A flush that was to come does not come any more, as in memcached.
    pub fn at_once(&self, stamp: u64, now: Now) {
        self.replace_due(0, now);
        self.done.fetch_max(stamp, Ordering::Relaxed);
    }

    /// Everything that is stored until the end of the second before `seconds` is out of date from that second's beginning
    /// on. So `flush_all 1` takes what is there at once, and what is stored in the same second, as in memcached.
    pub fn later(&self, seconds: u32, now: Now) {
        self.replace_due((u64::from(seconds) * MICROS).saturating_sub(1), now);
    }

    /// Puts another flush in the place of the one that was to come. What a flush has taken already stays out of date.
    fn replace_due(&self, due: u64, now: Now) {
        let before = self.due.swap(due, Ordering::Relaxed);
        if has_come(before, now) {
            self.done.fetch_max(before.min(now.micros), Ordering::Relaxed);
        }
    }

    /// What other gateways have to know.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.done.load(Ordering::Relaxed).to_le_bytes());
        bytes[8..].copy_from_slice(&self.due.load(Ordering::Relaxed).to_le_bytes());
        bytes
    }

    /// Takes in what another gateway has flushed.
    pub fn hear(&self, bytes: &[u8], now: Now) {
        let Ok(bytes) = <[u8; Self::BYTES]>::try_from(bytes) else { return };
        let (words, _) = bytes.as_chunks::<8>();
        self.done.fetch_max(u64::from_le_bytes(words[0]), Ordering::Relaxed);
        self.replace_due(u64::from_le_bytes(words[1]), now);
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

    #[test]
    fn a_flush_takes_what_was_before_it_and_nothing_after() {
        let flush = Flush::default();
        assert!(!flush.has(1, NOW));
        flush.at_once(NOW.micros, NOW);
        assert!(flush.has(NOW.micros, NOW) && !flush.has(NOW.micros + 1, NOW));
    }

    #[test]
    fn a_delayed_flush_takes_what_is_stored_until_the_end_of_the_second_before() {
        let flush = Flush::default();
        let at = NOW.seconds() + 2;
        let (begins, ends) = ((u64::from(at) - 1) * MICROS, u64::from(at) * MICROS);
        flush.later(at, NOW);
        assert!(!flush.has(NOW.micros, Now { micros: begins - 1 }), "its second has not begun");
        assert!(flush.has(ends - 1, Now { micros: begins }));
        assert!(!flush.has(ends, Now { micros: ends }));
        let other = Flush::default();
        other.hear(&flush.to_bytes(), NOW);
        assert!(other.has(ends - 1, Now { micros: begins }));
    }

    #[test]
    fn a_flush_in_a_second_takes_at_once_what_is_there() {
        let flush = Flush::default();
        let middle = Now { micros: NOW.micros + MICROS / 2 };
        flush.later(middle.seconds() + 1, middle);
        assert!(flush.has(middle.micros, middle));
        assert!(flush.has(middle.micros + 1, middle), "memcached counts times in whole seconds");
    }

    #[test]
    fn a_later_flush_takes_the_place_of_one_that_is_to_come_and_not_of_one_that_was() {
        let middle = Now { micros: NOW.micros + MICROS / 2 };
        let (flush, far) = (Flush::default(), Now { micros: NOW.micros + 60 * MICROS });
        flush.later(NOW.seconds() + 10, NOW);
        flush.at_once(NOW.micros, NOW);
        assert!(!flush.has(NOW.micros + 1, far), "the one that was to come is gone");
        let other = Flush::default();
        other.later(NOW.seconds() + 10, NOW);
        other.hear(&flush.to_bytes(), NOW);
        assert!(!other.has(NOW.micros + 1, far), "in other gateways too");
        flush.later(middle.seconds() + 1, middle);
        flush.later(middle.seconds() + 1000, middle);
        assert!(flush.has(middle.micros, middle), "what was taken stays out of date");
        assert!(!flush.has(middle.micros + 1, middle));
    }
}
