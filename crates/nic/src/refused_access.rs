//! What a NIC can tell its owner about an access that it refused.

use crate::{Access, RemoteAddress, Rkey};

/// An access of a peer's that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedAccess {
    /// The first byte that it was for.
    pub address: RemoteAddress,
    /// How many bytes it was for.
    pub length: u64,
    /// The right that it needed: one of those in [`Access::REMOTE`].
    pub needs: Access,
    /// The key that it showed.
    pub rkey: Rkey,
    /// The first reason against it.
    pub fault: AccessFault,
}

/// Why an access was refused. Where several reasons hold, the first in this order is given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessFault {
    /// The upper bits of the key name no region and no window.
    UnknownKey,
    /// They name something in another protection domain.
    WrongDomain,
    /// The low byte is not that of the present key.
    StaleKey,
    /// The key is the present one of a window that is bound to nothing.
    Unbound,
    /// The window is bound to another queue pair.
    WrongQueuePair,
    /// The key, or the queue pair, lacks the right.
    MissingRight,
    /// Some byte lies outside what the key is for.
    OutsideRange,
    /// An atomic is not for eight bytes that lie on a multiple of eight.
    Misaligned,
}

impl AccessFault {
    /// The reason in a few words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::UnknownKey => "unknown key",
            Self::WrongDomain => "wrong domain",
            Self::StaleKey => "stale key",
            Self::Unbound => "unbound window",
            Self::WrongQueuePair => "wrong queue pair",
            Self::MissingRight => "missing right",
            Self::OutsideRange => "outside range",
            Self::Misaligned => "misaligned",
        }
    }
}
