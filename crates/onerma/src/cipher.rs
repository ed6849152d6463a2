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
pub(crate) struct Counter(u64);

impl Counter {
    /// Creates a counter that begins at one: zero stands for no packet.
    pub fn new() -> Self {
        Self(1)
    }

    /// Returns the next value. `None`: no value is left, and no packet may be sent any more.
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
