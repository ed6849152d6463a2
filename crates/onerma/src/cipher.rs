//! How packets are sealed and opened under a derived key, and what makes their nonces. `keys.rs` says why no nonce comes
//! twice.

#[cfg(not(feature = "dangerous-plain"))]
mod aes;
#[cfg(feature = "dangerous-plain")]
mod plain;

#[cfg(not(feature = "dangerous-plain"))]
pub(crate) use aes::Cipher;
#[cfg(feature = "dangerous-plain")]
pub(crate) use plain::Cipher;

/// Bytes of a packet's tag.
pub const TAG_BYTES: usize = 16;

/// Whether packets are encrypted and authenticated. They are, unless this crate was built to measure what that costs.
pub const IS_ENCRYPTED: bool = cfg!(not(feature = "dangerous-plain"));

/// Who seals a packet: a part of its nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    Initiator = 1,
    Responder = 2,
}

/// A sender's counter: each value once.
#[derive(Debug)]
pub(crate) struct Counter(u64);

impl Counter {
    /// From one on: zero stands for no packet.
    pub fn new() -> Self {
        Self(1)
    }

    /// The next value. `None`: there are no more, and nothing may be sent any more.
    pub fn next(&mut self) -> Option<u64> {
        let value = self.0;
        self.0 = value.checked_add(1)?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_ends_instead_of_beginning_anew() {
        let mut counter = Counter(u64::MAX - 1);
        assert_eq!((counter.next(), counter.next(), counter.next()), (Some(u64::MAX - 1), None, None));
    }
}
