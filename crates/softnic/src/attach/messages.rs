//! The two messages of an attach.

use portcullis_nic::EndpointSize;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Says that this is an attach and which one: the last byte is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"PORTCUL\x01");

/// Bytes of the text of a refusal.
const REASON_BYTES: usize = 192;

/// What a client says first.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Hello {
    magic: U64,
    arena_bytes: U64,
    reserved: [U64; 6],
}

pub(super) const HELLO_BYTES: usize = size_of::<Hello>();
const _: () = assert!(HELLO_BYTES == 64);

impl Hello {
    pub fn new(arena_bytes: u64) -> Self {
        Self { magic: U64::new(MAGIC), arena_bytes: U64::new(arena_bytes), reserved: [U64::ZERO; 6] }
    }

    /// The bytes of arena asked for, if this is a hello of this version.
    pub fn parse(bytes: &[u8]) -> Option<u64> {
        let hello = Self::read_from_bytes(bytes).ok()?;
        (hello.magic.get() == MAGIC).then(|| hello.arena_bytes.get())
    }
}

/// What the node answers.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Welcome {
    magic: U64,
    /// Zero, or the length of the reason.
    refused: U32,
    client: U32,
    arena_key: U32,
    data_queue_pairs: U32,
    send_depth: U32,
    control_depth: U32,
    message_bytes: U32,
    reserved: U32,
    arena_bytes: U64,
    memory_bytes: U64,
    reason: [u8; REASON_BYTES],
}

pub(super) const WELCOME_BYTES: usize = size_of::<Welcome>();

/// A parsed answer.
pub(super) enum Answer {
    /// A port.
    Port { client: u32, arena_key: u32, size: EndpointSize, memory_bytes: u64 },
    /// No, and why.
    Refused(String),
}

impl Welcome {
    pub fn port(client: u32, arena_key: u32, size: EndpointSize, memory_bytes: u64) -> Self {
        Self {
            magic: U64::new(MAGIC),
            client: U32::new(client),
            arena_key: U32::new(arena_key),
            data_queue_pairs: U32::new(size.data_queue_pairs),
            send_depth: U32::new(size.send_depth),
            control_depth: U32::new(size.control_depth),
            message_bytes: U32::new(size.message_bytes),
            arena_bytes: U64::new(size.arena_bytes),
            memory_bytes: U64::new(memory_bytes),
            ..Self::new_zeroed()
        }
    }

    pub fn refusal(reason: &str) -> Self {
        let mut bytes = [0; REASON_BYTES];
        let mut length = reason.len().min(REASON_BYTES);
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        bytes[..length].copy_from_slice(&reason.as_bytes()[..length]);
        let length = u32::try_from(length.max(1)).unwrap_or(1);
        Self { magic: U64::new(MAGIC), refused: U32::new(length), reason: bytes, ..Self::new_zeroed() }
    }

    /// The answer in these bytes, if they are one that makes sense.
    pub fn parse(bytes: &[u8]) -> Option<Answer> {
        let welcome = Self::read_from_bytes(bytes).ok()?;
        if welcome.magic.get() != MAGIC {
            return None;
        }
        if welcome.refused.get() != 0 {
            let length = usize::try_from(welcome.refused.get()).ok()?.min(REASON_BYTES);
            return Some(Answer::Refused(String::from_utf8_lossy(&welcome.reason[..length]).into_owned()));
        }
        let size = EndpointSize {
            data_queue_pairs: welcome.data_queue_pairs.get(),
            send_depth: welcome.send_depth.get(),
            control_depth: welcome.control_depth.get(),
            message_bytes: welcome.message_bytes.get(),
            arena_bytes: welcome.arena_bytes.get(),
        };
        size.is_sound().then(|| Answer::Port {
            client: welcome.client.get(),
            arena_key: welcome.arena_key.get(),
            size,
            memory_bytes: welcome.memory_bytes.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = Hello::parse(&bytes);
            if let Some(Answer::Port { size, .. }) = Welcome::parse(&bytes) {
                prop_assert!(size.is_sound());
            }
        }

        #[test]
        fn a_reason_arrives_whole_or_cut_at_a_letter(reason in ".{0,120}") {
            let Some(Answer::Refused(text)) = Welcome::parse(Welcome::refusal(&reason).as_bytes()) else {
                panic!("a refusal is a refusal");
            };
            prop_assert!(reason.is_empty() || reason.starts_with(&text));
        }
    }
}
