//! Sealing and opening of packets under a derived key, and the source of their nonces. `keys.rs` explains why no nonce
//! is used twice.

#[cfg(not(feature = "dangerous-plain"))]
mod aes;
#[cfg(feature = "dangerous-plain")]
mod plain;

#[cfg(not(feature = "dangerous-plain"))]
pub(crate) use aes::Cipher;
#[cfg(feature = "dangerous-plain")]
pub(crate) use plain::Cipher;

use portcullis_planted::planted;

/// Bytes of a packet's tag.
pub const TAG_BYTES: usize = 16;

/// Whether packets are encrypted and authenticated. They are, unless this crate was built to measure the cost of that.
pub const IS_ENCRYPTED: bool = cfg!(not(feature = "dangerous-plain"));

/// The role of the packet's sender: a part of its nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    Initiator = 1,
    Responder = 2,
}

/// A sender's counter, which has each value once.
#[derive(Debug)]
pub(crate) struct Counter {
    next: u64,
    step: u64,
}

impl Counter {
    /// Creates a counter that begins at one: zero stands for no packet.
    pub fn new() -> Self {
        Self { next: 1, step: 1 }
    }

    /// Creates the counter of number `part` of `parts` that share all values above zero. No two have a value in common.
    pub fn part(part: u64, parts: u64) -> Self {
        assert!(part < parts, "a counter is one of its parts");
        let part = if planted!(LanesShareCounters) { part % 2 } else { part };
        Self { next: 1 + part, step: parts }
    }

    /// Returns the next value. `None`: no value is left, and no packet may be sent any more.
    pub fn next(&mut self) -> Option<u64> {
        let value = self.next;
        self.next = value.checked_add(self.step)?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_ends_instead_of_beginning_anew() {
        let mut counter = Counter { next: u64::MAX - 1, step: 1 };
        assert_eq!((counter.next(), counter.next(), counter.next()), (Some(u64::MAX - 1), None, None));
    }

    #[test]
    fn parts_of_a_counter_have_no_value_in_common() {
        let mut all: Vec<u64> = (0..3)
            .map(|part| Counter::part(part, 3))
            .flat_map(|mut counter| (0..10).filter_map(move |_| counter.next()))
            .collect();
        all.sort_unstable();
        assert_eq!(all, (1..=30).collect::<Vec<u64>>());
    }
}
