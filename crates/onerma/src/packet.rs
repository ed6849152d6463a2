//! Packets: a header of fixed size, which is authenticated and not encrypted; an encrypted body; and a tag.
//!
//! Any process can send any bytes. [`Header::parse`] returns the claims of a packet; none of them is trusted before the
//! packet has been opened.

use crate::OPERATION_MAX;
use crate::atomic::{ATOMIC_BYTES, WORD_BYTES};
use crate::cipher::TAG_BYTES;
use crate::keys::{OperationType, REGION_KEY_BYTES};
use crate::probe::EVERY_PATH;
use crate::regions::RegionId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a packet's header.
pub const HEADER_BYTES: usize = size_of::<Layout>();

/// The version of the protocol. Each packet begins with it.
pub(crate) const VERSION: u8 = 1;
/// Unit in which a request states the maximum size of its answers, in bytes.
pub(crate) const ANSWER_UNIT: usize = 64;

/// The offset of the byte of a packet by which it is steered to a lane: the lowest of the client's number.
pub(crate) const LANE_OFFSET: usize = std::mem::offset_of!(Layout, client);

/// Returns the lane that a client's packets are steered to, of `lanes`.
pub(crate) fn lane_of(client: u64, lanes: usize) -> usize {
    usize::from(client.to_le_bytes()[0]) % lanes
}

/// The kinds of packets. A read has two hops; a change has four (1RMA Fig. 3, Fig. 7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// To the responder: a client requests an operation.
    Request = 1,
    /// To the initiator: a part of the data of a read.
    ReadData = 2,
    /// To the initiator: the responder requests the data of a change, and sends its salt.
    Solicit = 3,
    /// To the responder: a part of the data of a change, for that salt. It is the bytes to write, an atomic's operands,
    /// or a region's next key.
    ChangeData = 4,
    /// To the initiator: the change has happened. For an atomic it contains the former value of the word.
    Done = 5,
    /// To the initiator: the responder is congested, and has done nothing.
    Nack = 6,
    /// To the initiator: the responder does not know the key. Without a key it cannot seal a packet, so this kind is
    /// not sealed.
    Unknown = 7,
    /// To the responder: a request for the outcome of the change with that salt. If the change has not happened by
    /// then, it never will.
    Ask = 8,
    /// To the initiator: the change has not happened, and never will.
    NotDone = 9,
    /// To the initiator: the change is too old, and the responder does not know its outcome any more.
    Forgotten = 10,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Request,
        Self::ReadData,
        Self::Solicit,
        Self::ChangeData,
        Self::Done,
        Self::Nack,
        Self::Unknown,
        Self::Ask,
        Self::NotDone,
        Self::Forgotten,
    ];

    pub fn is_to_responder(self) -> bool {
        matches!(self, Self::Request | Self::ChangeData | Self::Ask)
    }

    /// Whether operations of a type have packets of this kind.
    fn is_of(self, operation: OperationType) -> bool {
        match self {
            Self::Request | Self::Nack | Self::Unknown => true,
            Self::ReadData => operation == OperationType::Read,
            Self::Solicit | Self::ChangeData | Self::Done => operation.is_change(),
            Self::Ask | Self::NotDone | Self::Forgotten => operation.is_change(),
        }
    }

    /// Whether a packet of this kind may have a body of this length.
    fn may_have(self, body: usize, of: OperationType) -> bool {
        match self {
            Self::ReadData | Self::ChangeData => body > 0,
            Self::Done if of == OperationType::Atomic => body == WORD_BYTES as usize,
            _ => body == 0,
        }
    }
}

/// Whether operations of a type may have data of this length.
fn has_length(operation: OperationType, length: u32) -> bool {
    match operation {
        OperationType::Read | OperationType::Write => length <= OPERATION_MAX,
        OperationType::Atomic => length as usize == ATOMIC_BYTES,
        OperationType::Rekey => length as usize == REGION_KEY_BYTES,
    }
}

/// The fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub kind: Kind,
    /// The type of the operation.
    pub of: OperationType,
    /// Bytes of the whole operation's data.
    pub length: u32,
    /// The node's number for the client.
    pub client: u64,
    pub region: RegionId,
    /// The counter of the operation's first packet. It distinguishes the operation from all others of the client.
    pub operation: u64,
    /// The initiator's slot for the operation. The responder returns it unchanged, and it has no other meaning.
    pub slot: u32,
    /// The sender's counter for this packet: its nonce.
    pub counter: u64,
    /// The responder's counter of the packet that solicits a change, in that packet and all later ones. A salt is valid
    /// only once, so a replayed packet of a change changes nothing (1RMA §5.1).
    pub salt: u64,
    /// The address of the operation's first byte, from the start of the region.
    pub address: u64,
    /// The offset of the body's first byte, from the start of the operation.
    pub offset: u32,
    /// In a request: the size of the datagrams that its initiator can receive. It has no meaning in other packets.
    pub answers: AnswerSize,
}

/// The size of the datagrams that an initiator can receive, in units that fit a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AnswerSize(u8);

impl AnswerSize {
    /// Returns the largest value of at most `bytes` bytes.
    pub fn of(bytes: usize) -> Self {
        Self(u8::try_from(bytes / ANSWER_UNIT).unwrap_or(u8::MAX))
    }

    /// Returns the number of bytes. Every path carries at least the smallest value, so no client can make a node cut
    /// its answers finer.
    pub fn bytes(self) -> usize {
        (usize::from(self.0) * ANSWER_UNIT).max(EVERY_PATH / ANSWER_UNIT * ANSWER_UNIT)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    version: u8,
    kind: u8,
    of: u8,
    answers: u8,
    length: U32,
    client: U64,
    index: U32,
    generation: U32,
    operation: U64,
    counter: U64,
    salt: U64,
    address: U64,
    offset: U32,
    slot: U32,
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let layout = Layout {
            version: VERSION,
            kind: self.kind as u8,
            of: self.of as u8,
            answers: self.answers.0,
            length: self.length.into(),
            client: self.client.into(),
            index: self.region.index.into(),
            generation: self.region.generation.into(),
            operation: self.operation.into(),
            counter: self.counter.into(),
            salt: self.salt.into(),
            address: self.address.into(),
            offset: self.offset.into(),
            slot: self.slot.into(),
        };
        zerocopy::transmute!(layout)
    }

    /// Parses the header that a packet claims to have, and returns it with the length of the body. `None`: no valid
    /// packet of this protocol has this form.
    pub fn parse(packet: &[u8]) -> Option<(Self, usize)> {
        let (layout, rest) = Layout::ref_from_prefix(packet).ok()?;
        let kind = *Kind::ALL.get(usize::from(layout.kind).checked_sub(1)?)?;
        let of = *OperationType::ALL.get(usize::from(layout.of).checked_sub(1)?)?;
        let tag = if kind == Kind::Unknown { 0 } else { TAG_BYTES };
        let body = rest.len().checked_sub(tag)?;
        let header = Self {
            kind,
            of,
            length: layout.length.get(),
            client: layout.client.get(),
            region: RegionId { index: layout.index.get(), generation: layout.generation.get() },
            operation: layout.operation.get(),
            counter: layout.counter.get(),
            salt: layout.salt.get(),
            address: layout.address.get(),
            offset: layout.offset.get(),
            slot: layout.slot.get(),
            answers: AnswerSize(layout.answers),
        };
        let end = u64::from(header.offset) + u64::try_from(body).ok()?;
        let has_sense = has_length(of, header.length)
            && end <= u64::from(header.length)
            && kind.is_of(of)
            && kind.may_have(body, of)
            && header.counter > 0;
        (layout.version == VERSION && has_sense).then_some((header, body))
    }
}

/// Divides an operation into the parts that fit into packets of at most `packet_max` bytes. Returns each part's first
/// byte and length.
pub(crate) fn parts(length: u32, packet_max: usize) -> impl Iterator<Item = (u32, u32)> {
    let room = packet_max.saturating_sub(HEADER_BYTES + TAG_BYTES);
    let room = u32::try_from(room).unwrap_or(OPERATION_MAX).clamp(1, OPERATION_MAX);
    (0..length).step_by(room as usize).map(move |offset| (offset, room.min(length - offset)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: Kind) -> Header {
        let of = OperationType::ALL.into_iter().find(|&it| kind.is_of(it) && has_length(it, 64));
        let (of, length) = of.map_or((OperationType::Atomic, 24), |of| (of, 64));
        let region = RegionId { index: 3, generation: 4 };
        Header {
            kind,
            of,
            length,
            client: 2,
            region,
            operation: 5,
            slot: 9,
            counter: 6,
            salt: 7,
            address: 8,
            offset: 0,
            answers: AnswerSize(9),
        }
    }

    #[test]
    fn a_header_comes_back_as_it_was() {
        for kind in Kind::ALL {
            let body = if matches!(kind, Kind::ReadData | Kind::ChangeData) { 64 } else { 0 };
            let tag = if kind == Kind::Unknown { 0 } else { TAG_BYTES };
            let mut packet = header(kind).encode().to_vec();
            packet.resize(HEADER_BYTES + body + tag, 0);
            assert_eq!(Header::parse(&packet), Some((header(kind), body)), "{kind:?}");
            packet.truncate(packet.len() - 1);
            assert!(Header::parse(&packet).is_none_or(|(_, less)| less < body), "{kind:?}");
        }
    }

    #[test]
    fn the_parts_of_an_operation_are_all_of_it() {
        for (length, packet_max) in [(1, 1280), (4096, 1280), (4096, 9000), (4096, 81), (1200, 1280)] {
            let mut next = 0;
            for (offset, part) in parts(length, packet_max) {
                assert_eq!(offset, next);
                assert!(part > 0 && part as usize + HEADER_BYTES + TAG_BYTES <= packet_max.max(81));
                next += part;
            }
            assert_eq!(next, length);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_keep_within_the_operation(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some((header, body)) = Header::parse(&bytes) {
                prop_assert!(header.length <= OPERATION_MAX);
                prop_assert!(u64::from(header.offset) + body as u64 <= u64::from(header.length));
            }
        }
    }
}
