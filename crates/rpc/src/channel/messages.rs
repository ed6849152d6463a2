//! Messages between a client and a server until the connection's memory is shared, and later about one-shot scopes.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Maximal number of bytes of a refusal's text.
const REASON_MAX: usize = 204;
/// The first word of the messages of this version.
const VERSION: u32 = u32::from_be_bytes(*b"prc2");

/// Bytes of a client's message.
pub(super) const ASKED_BYTES: usize = size_of::<AskedLayout>();
/// Bytes of a server's message.
pub(super) const TOLD_BYTES: usize = size_of::<ToldLayout>();

/// A message from the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// The client requests a connection with a heap of `heap_bytes` bytes. Zero: the server's default.
    Hello { heap_bytes: u64 },
    /// The client has mapped the heap at its addresses.
    Mapped,
    /// Other memory of the client is at these addresses.
    Taken,
    /// The client requests a file of `bytes` bytes, for a scope that it will seal.
    File { bytes: u64 },
    /// The client has sealed the file with this number, so that the server may read it.
    Sealed { number: u64 },
    /// The client does not need the file with this number any more. There is no answer.
    Release { number: u64 },
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct AskedLayout {
    version: u32,
    kind: u32,
    value: u64,
}

impl Asked {
    pub fn encode(self) -> [u8; ASKED_BYTES] {
        let (kind, value) = match self {
            Self::Hello { heap_bytes } => (1, heap_bytes),
            Self::Mapped => (2, 0),
            Self::Taken => (3, 0),
            Self::File { bytes } => (4, bytes),
            Self::Sealed { number } => (5, number),
            Self::Release { number } => (6, number),
        };
        zerocopy::transmute!(AskedLayout { version: VERSION, kind, value })
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let layout = AskedLayout::read_from_bytes(bytes).ok()?;
        let asked = match layout.kind {
            1 => Self::Hello { heap_bytes: layout.value },
            2 => Self::Mapped,
            3 => Self::Taken,
            4 => Self::File { bytes: layout.value },
            5 => Self::Sealed { number: layout.value },
            6 => Self::Release { number: layout.value },
            _ => return None,
        };
        (layout.version == VERSION).then_some(asked)
    }
}

/// A message from the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// A heap for the connection, and the client's owner number in it. The descriptors are those of the ring, the heap,
    /// the page that records whether the server sleeps, and the event that wakes it. The addresses behind the heap are
    /// for one-shot scopes, `one_shot_bytes` of them.
    Offer { address: u64, length: u64, owner: u16, one_shot_bytes: u64 },
    /// Calls can begin.
    Welcome,
    /// Calls can begin, and there is a heap that all clients have: the client's owner number in it, and the heap as a
    /// descriptor.
    WelcomeToAll { address: u64, length: u64, owner: u16 },
    /// The client is not admitted, or its request is refused.
    Refused(String),
    /// A file for a scope, as a descriptor, with its number and the addresses where both sides map it.
    File { number: u64, address: u64, length: u64 },
    /// The server has checked that a file is sealed, and has mapped it.
    Held,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct ToldLayout {
    version: u32,
    kind: u32,
    address: u64,
    length: u64,
    number: u64,
    one_shot_bytes: u64,
    reason_length: u32,
    reason: [u8; REASON_MAX],
}

impl Told {
    pub fn encode(&self) -> [u8; TOLD_BYTES] {
        let mut layout = ToldLayout::new_zeroed();
        layout.version = VERSION;
        match self {
            Self::Offer { address, length, owner, one_shot_bytes } => {
                layout.kind = 1;
                (layout.address, layout.length) = (*address, *length);
                (layout.number, layout.one_shot_bytes) = (u64::from(*owner), *one_shot_bytes);
            }
            Self::File { number, address, length } => {
                layout.kind = 4;
                (layout.number, layout.address, layout.length) = (*number, *address, *length);
            }
            Self::Held => layout.kind = 5,
            Self::Welcome => layout.kind = 2,
            Self::WelcomeToAll { address, length, owner } => {
                layout.kind = 6;
                (layout.address, layout.length, layout.number) = (*address, *length, u64::from(*owner));
            }
            Self::Refused(reason) => {
                layout.kind = 3;
                let length = reason.floor_char_boundary(REASON_MAX);
                layout.reason[..length].copy_from_slice(&reason.as_bytes()[..length]);
                layout.reason_length = u32::try_from(length).unwrap_or(0);
            }
        }
        zerocopy::transmute!(layout)
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let layout = ToldLayout::read_from_bytes(bytes).ok().filter(|it| it.version == VERSION)?;
        match layout.kind {
            1 => {
                let owner = u16::try_from(layout.number).ok()?;
                let ToldLayout { address, length, one_shot_bytes, .. } = layout;
                Some(Self::Offer { address, length, owner, one_shot_bytes })
            }
            2 => Some(Self::Welcome),
            6 => {
                let owner = u16::try_from(layout.number).ok()?;
                Some(Self::WelcomeToAll { address: layout.address, length: layout.length, owner })
            }
            3 => {
                let reason = layout.reason.get(..usize::try_from(layout.reason_length).ok()?)?;
                Some(Self::Refused(String::from_utf8_lossy(reason).into_owned()))
            }
            4 => {
                let ToldLayout { number, address, length, .. } = layout;
                Some(Self::File { number, address, length })
            }
            5 => Some(Self::Held),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_read_back() {
        let asked = [Asked::Hello { heap_bytes: 7 }, Asked::Mapped, Asked::Taken, Asked::File { bytes: 5 }];
        for asked in asked.into_iter().chain([Asked::Sealed { number: 3 }, Asked::Release { number: 4 }]) {
            assert_eq!(Asked::parse(&asked.encode()), Some(asked));
        }
        let long = "ü".repeat(REASON_MAX);
        let offer = Told::Offer { address: 1 << 44, length: 1 << 20, owner: 2, one_shot_bytes: 1 << 21 };
        let file = Told::File { number: 9, address: 1 << 45, length: 4096 };
        let to_all = Told::WelcomeToAll { address: 1 << 45, length: 1 << 21, owner: 3 };
        for told in [offer, file, to_all, Told::Held, Told::Welcome, Told::Refused("no room".to_owned())] {
            assert_eq!(Told::parse(&told.encode()), Some(told));
        }
        let cut = Told::parse(&Told::Refused(long).encode());
        assert_eq!(cut, Some(Told::Refused("ü".repeat(REASON_MAX / 2))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..9) {
            let mut bytes = bytes;
            if let Some(head) = bytes.first_chunk_mut::<8>() {
                head[..4].copy_from_slice(&VERSION.to_ne_bytes());
                head[4..].copy_from_slice(&u32::from(kind).to_ne_bytes());
            }
            let _ = (Asked::parse(&bytes), Told::parse(&bytes));
        }
    }
}
