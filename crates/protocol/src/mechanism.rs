//! The mechanisms by which a node enforces permissions.

use portcullis_errors::{Coded, ErrorCode};
use std::fmt;

/// The protection mechanism of a node, chosen when it starts, for all its permissions. These are the systems that
/// Patronus §7 compares, on one code base.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mechanism {
    /// A type-1 memory window is bound per permission. Range, rights and time are enforced by the NIC.
    #[default]
    MemoryWindow,
    /// A type-2 memory window is bound per permission and data queue pair of its holder (OneSidedMW). Range, rights and
    /// time are enforced by the NIC, and who the holder is as well: a key opens nothing on any other queue pair.
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
}

impl Mechanism {
    /// All of them.
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
        }
    }

    /// Whether an access outside a permission's byte range is refused.
    #[must_use]
    pub fn enforces_range(self) -> bool {
        matches!(self, Self::MemoryWindow | Self::WindowGroup | Self::MemoryRegion | Self::NodeCopy)
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
        }
    }

    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.wire() == byte)
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

/// The name is not that of a protection mechanism.
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
