//! The messages of an attach (see [the conversation](super)).

use portcullis_nic::EndpointSize;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Marks a message of an attach. The last byte is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"PORTCUL\x07");

/// The longest text of a refusal, in bytes.
const REASON_BYTES: usize = 192;

/// A message from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachRequest {
    /// The client requests a port with an arena of `arena_bytes` bytes.
    Hello {
        /// Bytes of the arena.
        arena_bytes: u64,
    },
    /// The client has mapped the port's file.
    Mapped,
}

/// A message from the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachReply {
    /// An offer of a port. The port's file, the engine's page, an event and an alarm are sent with this message, in
    /// that order. The node waits until the client has mapped the file.
    Offer {
        /// The size of the port.
        size: EndpointSize,
        /// Bytes of the port's file.
        memory_bytes: u64,
    },
    /// The port works.
    Welcome {
        /// The client's number on the node.
        client: u64,
        /// The key of the client's arena.
        arena_key: u32,
    },
    /// The node refuses, for this reason.
    Refused(String),
    /// The client's time for the attach is up.
    TooLate,
}

const HELLO: u32 = 1;
const MAPPED: u32 = 2;
const OFFER: u32 = 3;
const WELCOME: u32 = 4;
const REFUSED: u32 = 5;
const TOO_LATE: u32 = 6;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RequestFrame {
    magic: U64,
    kind: U32,
    reserved: U32,
    arena_bytes: U64,
    more_reserved: [U64; 5],
}

pub(super) const REQUEST_BYTES: usize = size_of::<RequestFrame>();
const _: () = assert!(REQUEST_BYTES == 64);

impl AttachRequest {
    /// Encodes the request.
    #[must_use]
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let (kind, arena_bytes) = match self {
            Self::Hello { arena_bytes } => (HELLO, arena_bytes),
            Self::Mapped => (MAPPED, 0),
        };
        let frame = RequestFrame {
            magic: U64::new(MAGIC),
            kind: U32::new(kind),
            arena_bytes: U64::new(arena_bytes),
            ..RequestFrame::new_zeroed()
        };
        zerocopy::transmute!(frame)
    }

    /// Parses a request, if the bytes are one of this version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let frame = RequestFrame::read_from_bytes(bytes).ok()?;
        if frame.magic.get() != MAGIC {
            return None;
        }
        match frame.kind.get() {
            HELLO => Some(Self::Hello { arena_bytes: frame.arena_bytes.get() }),
            MAPPED => Some(Self::Mapped),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct ReplyFrame {
    magic: U64,
    kind: U32,
    reason_bytes: U32,
    client: U64,
    arena_key: U32,
    data_queue_pairs: U32,
    send_depth: U32,
    control_depth: U32,
    message_bytes: U32,
    chunk_queue_pairs: U32,
    arena_bytes: U64,
    memory_bytes: U64,
    reason: [u8; REASON_BYTES],
}

pub(super) const REPLY_BYTES: usize = size_of::<ReplyFrame>();

impl AttachReply {
    /// Encodes the reply. A reason that is too long is cut off between two letters.
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let frame = ReplyFrame { magic: U64::new(MAGIC), ..ReplyFrame::new_zeroed() };
        let frame = match self {
            Self::Offer { size, memory_bytes } => ReplyFrame {
                kind: U32::new(OFFER),
                data_queue_pairs: U32::new(size.data_queue_pairs),
                chunk_queue_pairs: U32::new(size.chunk_queue_pairs),
                send_depth: U32::new(size.send_depth),
                control_depth: U32::new(size.control_depth),
                message_bytes: U32::new(size.message_bytes),
                arena_bytes: U64::new(size.arena_bytes),
                memory_bytes: U64::new(*memory_bytes),
                ..frame
            },
            Self::Welcome { client, arena_key } => ReplyFrame {
                kind: U32::new(WELCOME),
                client: U64::new(*client),
                arena_key: U32::new(*arena_key),
                ..frame
            },
            Self::Refused(reason) => refusal(frame, reason),
            Self::TooLate => ReplyFrame { kind: U32::new(TOO_LATE), ..frame },
        };
        zerocopy::transmute!(frame)
    }

    /// Parses a reply, if the bytes are one of this version and its values make sense.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let frame = ReplyFrame::read_from_bytes(bytes).ok()?;
        if frame.magic.get() != MAGIC {
            return None;
        }
        match frame.kind.get() {
            OFFER => frame.offer(),
            WELCOME => Some(Self::Welcome { client: frame.client.get(), arena_key: frame.arena_key.get() }),
            REFUSED => {
                let length = usize::try_from(frame.reason_bytes.get()).ok()?.min(REASON_BYTES);
                Some(Self::Refused(String::from_utf8_lossy(&frame.reason[..length]).into_owned()))
            }
            TOO_LATE => Some(Self::TooLate),
            _ => None,
        }
    }
}

fn refusal(frame: ReplyFrame, text: &str) -> ReplyFrame {
    let mut reason = [0; REASON_BYTES];
    let mut length = text.len().min(REASON_BYTES);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    reason[..length].copy_from_slice(&text.as_bytes()[..length]);
    let reason_bytes = U32::new(u32::try_from(length).unwrap_or(0));
    ReplyFrame { kind: U32::new(REFUSED), reason_bytes, reason, ..frame }
}

impl ReplyFrame {
    fn offer(&self) -> Option<AttachReply> {
        let size = EndpointSize {
            data_queue_pairs: self.data_queue_pairs.get(),
            chunk_queue_pairs: self.chunk_queue_pairs.get(),
            send_depth: self.send_depth.get(),
            control_depth: self.control_depth.get(),
            message_bytes: self.message_bytes.get(),
            arena_bytes: self.arena_bytes.get(),
        };
        size.is_sound().then(|| AttachReply::Offer { size, memory_bytes: self.memory_bytes.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = AttachRequest::parse(&bytes);
            if let Some(AttachReply::Offer { size, .. }) = AttachReply::parse(&bytes) {
                prop_assert!(size.is_sound());
            }
        }

        #[test]
        fn requests_and_replies_read_back(arena_bytes: u64, client: u64, arena_key: u32) {
            for request in [AttachRequest::Hello { arena_bytes }, AttachRequest::Mapped] {
                prop_assert_eq!(AttachRequest::parse(&request.encode()), Some(request));
            }
            let welcome = AttachReply::Welcome { client, arena_key };
            prop_assert_eq!(AttachReply::parse(&welcome.encode()), Some(welcome));
            prop_assert_eq!(AttachReply::parse(&AttachReply::TooLate.encode()), Some(AttachReply::TooLate));
        }

        #[test]
        fn a_reason_arrives_whole_or_cut_at_a_letter(reason in ".{0,120}") {
            let refused = AttachReply::Refused(reason.clone()).encode();
            let Some(AttachReply::Refused(text)) = AttachReply::parse(&refused) else {
                panic!("a refusal is a refusal");
            };
            prop_assert!(reason.starts_with(&text) && (text.len() == reason.len() || text.len() > REASON_BYTES - 4));
        }
    }
}
