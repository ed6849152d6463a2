//! The permission header: 32 bytes in the node's memory, of which the client may access the last eight.

use crate::{Lifetime, Moment, RemoteAddress};
use portcullis_errors::{Coded, ErrorCode};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The offset of the lifetime word in a header: at its end. So the word is contiguous with a buffer that follows the
/// header, and one window can expose both (Patronus §5.4, Fig. 3).
pub const LIFETIME_OFFSET: u64 = 24;

/// Bits of a tagged pointer that carry the address.
const ADDRESS_BITS: u32 = 48;

/// The metadata of one permission, as it lies in remote memory (Patronus §5.2, Fig. 3).
///
/// The node writes the header and never trusts it: a mechanism without byte ranges leaves it open to clients, so the
/// node acts on its own table. The header has two uses: clients change its lifetime word, and it makes memory readable
/// after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    tagged_address: U64,
    header_window: U32,
    buffer_window: U32,
    start: U64,
    lifetime: U64,
}

const _: () = assert!(size_of::<Header>() == 32);
const _: () = assert!(std::mem::offset_of!(Header, lifetime) == 24);

impl Header {
    /// Bytes of a header.
    pub const BYTES: u64 = 32;

    /// Makes a header for the buffer of `length` bytes at `address`, with the indexes of the windows that expose the
    /// header and the buffer.
    ///
    /// `scale` is the unit of the 16-bit length (Patronus §5.6): a power of two. The length is rounded up to it.
    ///
    /// # Errors
    /// The length does not fit into 16 bits in units of `scale`.
    pub fn new(
        address: RemoteAddress,
        length: u64,
        scale: u64,
        windows: (u32, u32),
        start: Moment,
        lifetime: Lifetime,
    ) -> Result<Self, LengthTooLarge> {
        // The length minus one unit, so that 16 bits hold 1 to 65,536 units.
        let units = length.div_ceil(scale).max(1) - 1;
        let tag = u16::try_from(units).map_err(|_| LengthTooLarge { length, scale })?;
        let address = address.0 & ((1 << ADDRESS_BITS) - 1);
        Ok(Self {
            tagged_address: U64::new(u64::from(tag) << ADDRESS_BITS | address),
            header_window: U32::new(windows.0),
            buffer_window: U32::new(windows.1),
            start: U64::new(start.0),
            lifetime: U64::new(lifetime.0),
        })
    }

    /// The header as the four words of memory that it takes, with the lifetime last.
    #[must_use]
    pub fn words(&self) -> [u64; 4] {
        let words: [U64; 4] = zerocopy::transmute!(*self);
        words.map(|word| u64::from_ne_bytes(word.to_bytes()))
    }

    /// The address at which the permission's buffer starts.
    #[must_use]
    pub fn address(&self) -> RemoteAddress {
        RemoteAddress(self.tagged_address.get() & ((1 << ADDRESS_BITS) - 1))
    }

    /// The buffer's length in bytes, rounded up to `scale`.
    #[must_use]
    pub fn length(&self, scale: u64) -> u64 {
        ((self.tagged_address.get() >> ADDRESS_BITS) + 1) * scale
    }

    /// The indexes of the windows over the header and over the buffer.
    #[must_use]
    pub fn windows(&self) -> (u32, u32) {
        (self.header_window.get(), self.buffer_window.get())
    }

    /// The moment at which the permission started.
    #[must_use]
    pub fn start(&self) -> Moment {
        Moment(self.start.get())
    }

    /// The lifetime word: the time that the permission lives from its start. Clients extend it.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        Lifetime(self.lifetime.get())
    }
}

/// A buffer's length does not fit into the 16 bits that a header has for it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a buffer of {length} bytes does not fit a header's 16-bit length in units of {scale} bytes")]
pub struct LengthTooLarge {
    /// The requested length, in bytes.
    pub length: u64,
    /// Bytes per unit.
    pub scale: u64,
}

impl Coded for LengthTooLarge {
    fn code(&self) -> ErrorCode {
        ErrorCode::LengthTooLarge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_says_what_was_put_into_it(
            address in 0u64..1 << 48, length in 1u64..=65_536, windows: (u32, u32), start: u64, lifetime: u64,
        ) {
            let header = Header::new(RemoteAddress(address), length, 1, windows, Moment(start), Lifetime(lifetime));
            let header = header.expect("16 bits hold up to 65,536 bytes");
            prop_assert_eq!(header.address(), RemoteAddress(address));
            prop_assert_eq!(header.length(1), length);
            prop_assert_eq!(header.windows(), windows);
            prop_assert_eq!(header.start(), Moment(start));
            prop_assert_eq!(header.lifetime(), Lifetime(lifetime));
        }
    }

    #[test]
    fn a_length_past_sixteen_bits_needs_a_scale() {
        let make = |scale| Header::new(RemoteAddress(0), 1 << 20, scale, (0, 0), Moment(0), Lifetime(0));
        assert_eq!(make(1), Err(LengthTooLarge { length: 1 << 20, scale: 1 }));
        assert_eq!(make(64).map(|header| header.length(64)), Ok(1 << 20));
    }

    /// The paper states «< 0.02 % with 128 GB» (§5.6). A million headers of 32 bytes are 0.0233 % of 128 GiB: the
    /// paper's figure is that, rounded to two places.
    #[test]
    fn a_million_headers_are_two_hundredths_of_a_percent_of_128_gib() {
        let headers = 1_000_000 * size_of::<Header>() as u64;
        let hundredths_of_a_percent = (headers * 10_000 + (64 << 30)) / (128 << 30);
        assert_eq!(hundredths_of_a_percent, 2);
    }
}
