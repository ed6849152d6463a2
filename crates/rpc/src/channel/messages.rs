//! What a client and a server say to each other until the connection's memory is shared.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Letters of a refusal.
const REASON_MAX: usize = 200;
/// What the messages of this version begin with.
const VERSION: u32 = u32::from_be_bytes(*b"prc1");

/// Bytes of a client's message.
pub(super) const ASKED_BYTES: usize = size_of::<AskedLayout>();
/// Bytes of a server's message.
pub(super) const TOLD_BYTES: usize = size_of::<ToldLayout>();

/// From the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// It wants a connection with a heap of so many bytes. Zero: of what the server gives.
    Hello { heap_bytes: u64 },
    /// It has the heap at its addresses.
    Mapped,
    /// It has something else at these addresses.
    Taken,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct AskedLayout {
    version: u32,
    kind: u32,
    heap_bytes: u64,
}

impl Asked {
    pub fn encode(self) -> [u8; ASKED_BYTES] {
        let (kind, heap_bytes) = match self {
            Self::Hello { heap_bytes } => (1, heap_bytes),
            Self::Mapped => (2, 0),
            Self::Taken => (3, 0),
        };
        zerocopy::transmute!(AskedLayout { version: VERSION, kind, heap_bytes })
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let layout = AskedLayout::read_from_bytes(bytes).ok()?;
        let asked = match layout.kind {
            1 => Self::Hello { heap_bytes: layout.heap_bytes },
            2 => Self::Mapped,
            3 => Self::Taken,
            _ => return None,
        };
        (layout.version == VERSION).then_some(asked)
    }
}

/// From the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// A heap for the connection, who the client is in it, and, as descriptors, ring, heap, the page that says whether the server
    /// sleeps, and what wakes it.
    Offer { address: u64, length: u64, owner: u16 },
    /// Calls can begin.
    Welcome,
    /// The client is not let in.
    Refused(String),
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct ToldLayout {
    version: u32,
    kind: u32,
    address: u64,
    length: u64,
    owner: u32,
    reason_length: u32,
    reason: [u8; REASON_MAX],
}

impl Told {
    pub fn encode(&self) -> [u8; TOLD_BYTES] {
        let mut layout = ToldLayout::new_zeroed();
        layout.version = VERSION;
        match self {
            Self::Offer { address, length, owner } => {
                layout.kind = 1;
                (layout.address, layout.length, layout.owner) = (*address, *length, u32::from(*owner));
            }
            Self::Welcome => layout.kind = 2,
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
                let owner = u16::try_from(layout.owner).ok()?;
                Some(Self::Offer { address: layout.address, length: layout.length, owner })
            }
            2 => Some(Self::Welcome),
            3 => {
                let reason = layout.reason.get(..usize::try_from(layout.reason_length).ok()?)?;
                Some(Self::Refused(String::from_utf8_lossy(reason).into_owned()))
            }
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
        for asked in [Asked::Hello { heap_bytes: 7 }, Asked::Mapped, Asked::Taken] {
            assert_eq!(Asked::parse(&asked.encode()), Some(asked));
        }
        let long = "ü".repeat(REASON_MAX);
        let offer = Told::Offer { address: 1 << 44, length: 1 << 20, owner: 2 };
        for told in [offer, Told::Welcome, Told::Refused("no room".to_owned())] {
            assert_eq!(Told::parse(&told.encode()), Some(told));
        }
        let cut = Told::parse(&Told::Refused(long).encode());
        assert_eq!(cut, Some(Told::Refused("ü".repeat(REASON_MAX / 2))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..6) {
            let mut bytes = bytes;
            if let Some(head) = bytes.first_chunk_mut::<8>() {
                head[..4].copy_from_slice(&VERSION.to_ne_bytes());
                head[4..].copy_from_slice(&u32::from(kind).to_ne_bytes());
            }
            let _ = (Asked::parse(&bytes), Told::parse(&bytes));
        }
    }
}
