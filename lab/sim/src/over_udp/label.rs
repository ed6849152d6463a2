//! The header of a packet, which is in clear. It is read by code of its own here, so that the checkers do not call
//! the code that they check.

use portcullis_protocol::RegionName;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 64;
const VERSION: u8 = 1;

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub kind: u8,
    pub of: u8,
    pub length: u32,
    pub client: u64,
    pub region: RegionName,
    pub operation: u64,
    pub counter: u64,
    pub salt: u64,
    pub address: u64,
    pub offset: u32,
    pub slot: u32,
}

impl Label {
    /// To a node: a client requests an operation.
    pub const REQUEST: u8 = 1;
    /// To a client: a part of what is read.
    pub const READ_DATA: u8 = 2;
    /// To a node: a part of the data of a change.
    pub const CHANGE_DATA: u8 = 4;
    /// The type of operation that writes.
    pub const WRITE: u8 = 2;
    /// To a client: the node does not know the key. This kind is not sealed.
    pub const UNKNOWN: u8 = 7;
    /// The number of kinds.
    pub const KINDS: u8 = 10;

    /// Reads the header of a packet. `None`: the packet has none.
    pub fn read(packet: &[u8]) -> Option<Self> {
        if packet.len() < HEADER_BYTES || packet[0] != VERSION || !(1..=Self::KINDS).contains(&packet[1]) {
            return None;
        }
        let word = |at: usize| packet[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let long = |at: usize| packet[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        Some(Self {
            kind: packet[1],
            of: packet[2],
            length: word(4)?,
            client: long(8)?,
            region: RegionName { index: word(16)?, generation: word(20)? },
            operation: long(24)?,
            counter: long(32)?,
            salt: long(40)?,
            address: long(48)?,
            offset: word(56)?,
            slot: word(60)?,
        })
    }

    /// Whether the packet claims to have data of a write, for a node.
    pub fn is_data_of_write(&self) -> bool {
        (self.kind, self.of) == (Self::CHANGE_DATA, Self::WRITE)
    }

    /// Whether a packet of this kind is sealed, and so has a nonce.
    pub fn is_sealed(&self) -> bool {
        self.kind != Self::UNKNOWN
    }
}
