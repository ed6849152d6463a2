//! The layout of a connection's mailbox: an object of the node. The client writes one part of it and reads the other.
//!
//! ```text
//! terms | replies | results          the server writes, the client reads
//! requests | cancels | arguments     the client writes, the server reads
//! ```
//!
//! Numbers are in the machine's byte order, as in a heap. Both ends have the same order, or the terms' first word shows
//! the difference.

use super::sealed::{REPLY_WORDS, REQUEST_WORDS};
use crate::channel::ends::DEPTH;
use crate::heap::{HeapError, HeapPlace, PAGE_BYTES};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The first word of terms and hellos: «prcmail», and the version of the whole layout.
const MAGIC: u64 = u64::from_be_bytes(*b"prcmail1");
/// Maximal number of bytes of a refusal's text.
const REASON_MAX: usize = 200;

/// Bytes of a request.
pub(super) const REQUEST_BYTES: u64 = 8 * REQUEST_WORDS as u64;
/// Bytes of a reply.
pub(super) const REPLY_BYTES: u64 = 8 * REPLY_WORDS as u64;
/// Bytes of the page with the terms. A client that holds a permission over it is present.
pub(super) const TERMS_BYTES: u64 = PAGE_BYTES;
/// Offset of the server's clock in the terms, which the server updates again and again.
pub(super) const CLOCK_AT: u64 = 16;
/// Offset of the replies in the part that the client reads, and of the results behind them.
pub(super) const REPLIES_AT: u64 = TERMS_BYTES;
pub(super) const RESULTS_AT: u64 = REPLIES_AT + REPLY_BYTES * DEPTH as u64;
/// Offset of the cancelled calls in the part that the client writes: a word for each line of the requests, which are
/// before them.
pub(super) const CANCELS_AT: u64 = REQUEST_BYTES * DEPTH as u64;
pub(super) const ARGUMENTS_AT: u64 = (CANCELS_AT + 8 * DEPTH as u64).next_multiple_of(PAGE_BYTES);

const _: () = assert!(std::mem::offset_of!(TermsLayout, now) as u64 == CLOCK_AT);
const _: () =
    assert!(RESULTS_AT.is_multiple_of(PAGE_BYTES) && size_of::<TermsLayout>() as u64 <= TERMS_BYTES);

/// The addresses of a connection's heap, which determine the size of its mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeapHalves {
    /// The half that the client allocates.
    pub arguments: HeapPlace,
    /// The half that the server allocates.
    pub results: HeapPlace,
}

impl HeapHalves {
    /// The part of the mailbox that the client reads: its offset, and its bytes.
    pub fn read_part(self) -> (u64, u64) {
        (0, RESULTS_AT + self.results.length)
    }

    /// The part of the mailbox that the client writes: its offset, and its bytes.
    pub fn written_part(self) -> (u64, u64) {
        let (_, before) = self.read_part();
        (before, ARGUMENTS_AT + self.arguments.length)
    }

    /// Total bytes of the mailbox.
    pub fn bytes(self) -> u64 {
        let (start, length) = self.written_part();
        start + length
    }
}

/// A server's answer to a hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Terms {
    /// The mailbox is this object. The number is the time of the server's clock when the hello was received.
    Welcome(HeapHalves, u64),
    Refused(String),
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct TermsLayout {
    magic: u64,
    is_refused: u64,
    now: u64,
    arguments: [u64; 2],
    results: [u64; 2],
    reason_length: u64,
    reason: [u8; REASON_MAX],
}

/// Bytes of the terms.
pub(super) const TERMS_READ: usize = size_of::<TermsLayout>();

impl Terms {
    pub fn encode(&self) -> [u8; TERMS_READ] {
        let mut layout = TermsLayout::new_zeroed();
        layout.magic = MAGIC;
        match self {
            Self::Welcome(HeapHalves { arguments, results }, now) => {
                layout.now = *now;
                layout.arguments = [arguments.start(), arguments.length];
                layout.results = [results.start(), results.length];
            }
            Self::Refused(reason) => {
                layout.is_refused = 1;
                let length = reason.floor_char_boundary(REASON_MAX);
                layout.reason[..length].copy_from_slice(&reason.as_bytes()[..length]);
                layout.reason_length = length as u64;
            }
        }
        zerocopy::transmute!(layout)
    }

    /// Decodes terms. `None`: the server is of another version.
    ///
    /// # Errors
    /// No heap can have the places.
    pub fn parse(bytes: &[u8; TERMS_READ]) -> Option<Result<Self, HeapError>> {
        let layout: TermsLayout = zerocopy::transmute!(*bytes);
        if layout.magic != MAGIC {
            return None;
        }
        if layout.is_refused != 0 {
            let reason = layout.reason.get(..usize::try_from(layout.reason_length).ok()?)?;
            return Some(Ok(Self::Refused(String::from_utf8_lossy(reason).into_owned())));
        }
        let place = |[address, length]: [u64; 2]| HeapPlace::new(address, length);
        let halves = place(layout.arguments)
            .and_then(|arguments| Ok(HeapHalves { arguments, results: place(layout.results)? }));
        Some(halves.map(|halves| Self::Welcome(halves, layout.now)))
    }
}

/// A client's request for a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// Bytes of both halves of the heap together. Zero: the server's default.
    pub heap_bytes: u64,
}

/// Bytes of a hello.
pub(super) const HELLO_BYTES: usize = 16;
/// The prefix of the names of hellos and of mailboxes.
pub(super) const NAME: &str = "call ";

impl Hello {
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        zerocopy::transmute!([MAGIC, self.heap_bytes])
    }

    pub fn parse(bytes: [u8; HELLO_BYTES]) -> Option<Self> {
        let [magic, heap_bytes]: [u64; 2] = zerocopy::transmute!(bytes);
        (magic == MAGIC).then_some(Self { heap_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::{HEAP_ADDRESSES, HEAP_BYTES_MIN};
    use proptest::prelude::*;

    #[test]
    fn terms_and_hellos_read_back() {
        let place = |at: u64| HeapPlace::new(HEAP_ADDRESSES.start + at, HEAP_BYTES_MIN).expect("a place");
        let halves = HeapHalves { arguments: place(0), results: place(HEAP_BYTES_MIN) };
        let long = "ü".repeat(REASON_MAX);
        for terms in
            [Terms::Welcome(halves, 5), Terms::Refused("full".to_owned()), Terms::Refused(String::new())]
        {
            assert_eq!(Terms::parse(&terms.encode()).expect("its version").expect("places"), terms);
        }
        let cut = Terms::parse(&Terms::Refused(long).encode()).expect("its version").expect("a reason");
        assert_eq!(cut, Terms::Refused("ü".repeat(REASON_MAX / 2)));
        let hello = Hello { heap_bytes: 1 << 20 };
        assert_eq!(Hello::parse(hello.encode()), Some(hello));
        assert!(Hello::parse([0; HELLO_BYTES]).is_none() && Terms::parse(&[0; TERMS_READ]).is_none());
    }

    #[test]
    fn the_parts_lie_one_behind_the_other() {
        let place = |at: u64| HeapPlace::new(HEAP_ADDRESSES.start + at, HEAP_BYTES_MIN).expect("a place");
        let halves = HeapHalves { arguments: place(0), results: place(HEAP_BYTES_MIN) };
        let ((read, first), (written, second)) = (halves.read_part(), halves.written_part());
        assert_eq!((read, read + first, written + second), (0, written, halves.bytes()));
        assert!(written.is_multiple_of(PAGE_BYTES));
    }

    proptest! {
        #[test]
        fn any_bytes_are_terms_or_none(bytes in prop::collection::vec(any::<u8>(), TERMS_READ), ours: bool) {
            let mut bytes: [u8; TERMS_READ] = bytes.try_into().expect("as many");
            if ours {
                bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            }
            let _ = Terms::parse(&bytes);
        }
    }
}
