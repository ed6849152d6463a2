//! The report of a NIC to its owner about an access that it refused.

use crate::{Access, RemoteAddress, Rkey};

/// A peer's access that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedAccess {
    /// The first byte of the access.
    pub address: RemoteAddress,
    /// The number of bytes of the access.
    pub length: u64,
    /// The right that the access needed: one of those in [`Access::REMOTE`].
    pub needs: Access,
    /// The key that the access showed.
    pub rkey: Rkey,
    /// The first reason against the access.
    pub fault: AccessFault,
}

/// The reason for which an access was refused. If several reasons hold, the first in this order is given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessFault {
    /// The upper bits of the key name no region and no window.
    UnknownKey,
    /// The upper bits of the key name a region or window in another protection domain.
    WrongDomain,
    /// The low byte is not that of the present key.
    StaleKey,
    /// The key is the present one of a window that is bound to nothing.
    Unbound,
    /// The window is bound to another queue pair.
    WrongQueuePair,
    /// The key, or the queue pair, lacks the right.
    MissingRight,
    /// Some byte lies outside the bytes that the key opens.
    OutsideRange,
    /// An atomic is not for eight bytes at a multiple of eight.
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
