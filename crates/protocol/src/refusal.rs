//! Why a node says no. Each says whose fault it is and what to do.

use crate::Lifetime;

/// A node's answer to a control message that it will not carry out. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The message could not be read as a request.
    #[error("the node could not read the message: the client is of another version, or broken")]
    Malformed,
    /// No live permission has this id, or it belongs to another client: it expired, or was revoked already.
    #[error("the permission is not live any more: acquire it again")]
    NotLive,
    /// The address is not the start of an object of this tenant, or the size is not its size.
    #[error("no object of this tenant starts at that address with that size: acquire whole objects only")]
    NoSuchObject,
    /// The size or the rights asked for mean nothing.
    #[error("the request asks for nothing: give a size above zero and at least one right")]
    Nothing,
    /// The permission's longest lifetime is reached, or somebody waits for its object.
    #[error("the permission cannot be extended any more: let it end and acquire it again")]
    NotExtendable,
    /// The lifetime asked for is beyond the node's limit.
    #[error("the lifetime is beyond this node's longest, {longest}")]
    LifetimeTooLong {
        /// The node's limit.
        longest: Lifetime,
    },
    /// Others hold the object, and the wait that the request allowed is over.
    #[error("others held the object for longer than the request was ready to wait")]
    Conflict,
    /// The tenant's quota of bytes or permissions is used up.
    #[error("the tenant's quota is used up: {used} of {limit}")]
    Quota {
        /// What the tenant holds: bytes or permissions, as the limit.
        used: u64,
        /// The most it may hold.
        limit: u64,
    },
    /// The pool has no run of free bytes of this size.
    #[error("the pool has no {size} bytes free in one piece")]
    OutOfMemory {
        /// The size asked for, in bytes.
        size: u64,
    },
    /// The node has no header, window or postponed-request slot left.
    #[error("the node has reached a limit of its own ({limit}): try again when other permissions have ended")]
    NodeFull {
        /// The limit.
        limit: u64,
    },
    /// The tenant broke the rules too often, and waits.
    #[error("the tenant is paused for {wait} after too many violations")]
    Paused {
        /// How long from now.
        wait: Lifetime,
    },
    /// The tenant broke the rules so often that the node serves it no more.
    #[error("the tenant is barred from this node: its operator can say why")]
    Barred,
    /// The operation reaches outside the permission (only where the node itself checks: mechanism `rpc`).
    #[error("the access reaches outside the permission's bytes")]
    OutsideRange,
    /// The permission lacks the right (only where the node itself checks: mechanism `rpc`).
    #[error("the permission does not hold the right that the access needs")]
    WrongRight,
    /// The node's NIC failed to carry out the request.
    #[error("the node's NIC failed: nothing was granted")]
    NicFailed,
}

impl Refusal {
    /// The number on the wire, and its two operands.
    pub(crate) fn wire(self) -> (u8, u64, u64) {
        match self {
            Self::Malformed => (1, 0, 0),
            Self::NotLive => (2, 0, 0),
            Self::NoSuchObject => (3, 0, 0),
            Self::Nothing => (4, 0, 0),
            Self::NotExtendable => (5, 0, 0),
            Self::LifetimeTooLong { longest } => (6, longest.0, 0),
            Self::Conflict => (7, 0, 0),
            Self::Quota { used, limit } => (8, used, limit),
            Self::OutOfMemory { size } => (9, size, 0),
            Self::NodeFull { limit } => (10, limit, 0),
            Self::Paused { wait } => (11, wait.0, 0),
            Self::Barred => (12, 0, 0),
            Self::OutsideRange => (13, 0, 0),
            Self::WrongRight => (14, 0, 0),
            Self::NicFailed => (15, 0, 0),
        }
    }

    pub(crate) fn from_wire((number, a, b): (u8, u64, u64)) -> Option<Self> {
        Some(match number {
            1 => Self::Malformed,
            2 => Self::NotLive,
            3 => Self::NoSuchObject,
            4 => Self::Nothing,
            5 => Self::NotExtendable,
            6 => Self::LifetimeTooLong { longest: Lifetime(a) },
            7 => Self::Conflict,
            8 => Self::Quota { used: a, limit: b },
            9 => Self::OutOfMemory { size: a },
            10 => Self::NodeFull { limit: a },
            11 => Self::Paused { wait: Lifetime(a) },
            12 => Self::Barred,
            13 => Self::OutsideRange,
            14 => Self::WrongRight,
            15 => Self::NicFailed,
            _ => return None,
        })
    }
}
