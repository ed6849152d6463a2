//! The mechanisms by which a node enforces permissions.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;

/// The mechanism that enforces a permission. For clients that have queue pairs it is chosen when the node starts, among
/// the systems that Patronus §7 compares, on one code base. For clients over UDP it is always [`Mechanism::RegionKey`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mechanism {
    /// A type-1 memory window is bound per permission. Range, rights and time are enforced by the NIC.
    #[default]
    MemoryWindow,
    /// A type-2 memory window is bound per permission and data queue pair of its holder (OneSidedMW). Range, rights,
    /// time and the identity of the holder are enforced by the NIC: a key opens nothing on any other queue pair.
    WindowGroup,
    /// A memory region is registered per permission. This is as strong, and slower.
    MemoryRegion,
    /// The access flags of the client's queue pairs follow its permissions. The NIC enforces only whether the client
    /// may read, write or do atomics **at all**: there is no byte range.
    QueuePair,
    /// No one-sided access: the node's CPU checks and copies.
    NodeCopy,
    /// Nothing is enforced: the permission is an address and a key that works for the whole pool.
    None,
    /// A region table entry is taken per permission, and the holder gets a key that is derived for it (1RMA). Range,
    /// rights, time and holder are enforced by the node's end of encrypted operations: a packet that another key has
    /// sealed is refused.
    RegionKey,
}

impl Mechanism {
    /// All mechanisms among which a node can choose for clients with queue pairs.
    pub const ALL: [Self; 6] = [
        Self::MemoryWindow,
        Self::WindowGroup,
        Self::MemoryRegion,
        Self::QueuePair,
        Self::NodeCopy,
        Self::None,
    ];

    /// The name used on the command line, in reports and in audit records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryWindow => "memory-window",
            Self::WindowGroup => "window-group",
            Self::MemoryRegion => "memory-region",
            Self::QueuePair => "queue-pair",
            Self::NodeCopy => "node-copy",
            Self::None => "none",
            Self::RegionKey => "region-key",
        }
    }

    /// Whether an access outside a permission's byte range is refused.
    #[must_use]
    pub fn enforces_range(self) -> bool {
        !matches!(self, Self::QueuePair | Self::None)
    }

    /// Whether an access after a permission's end is refused.
    #[must_use]
    pub fn enforces_time(self) -> bool {
        !matches!(self, Self::None)
    }

    pub(crate) fn wire(self) -> u8 {
        match self {
            Self::MemoryWindow => 1,
            Self::MemoryRegion => 2,
            Self::QueuePair => 3,
            Self::NodeCopy => 4,
            Self::None => 5,
            Self::WindowGroup => 6,
            Self::RegionKey => 7,
        }
    }

    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::RegionKey]).find(|mechanism| mechanism.wire() == byte)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|mechanism| mechanism.name() == name)
            .ok_or_else(|| UnknownMechanism(name.to_owned()))
    }
}

/// The name is not the name of a protection mechanism.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no protection mechanism is called {0:?}: use memory-window, window-group, memory-region, queue-pair, node-copy or \
     none"
)]
pub struct UnknownMechanism(String);

impl Coded for UnknownMechanism {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownMechanism
    }
}
