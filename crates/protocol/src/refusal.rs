//! The refusals of a node. Each names the side at fault and the remedy.

use crate::{Lifetime, Rights};
use portcullis_errors::{Coded, ErrorCode};

/// A node's answer to a control message that it does not carry out. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The message could not be read as a request.
    #[error("the node could not read the message: the client is of another version, or broken")]
    Malformed,
    /// No live permission of this client has this id: the permission expired, was revoked, or belongs to another
    /// client.
    #[error("the permission is not live any more: acquire it again")]
    NotLive,
    /// No object of this tenant starts at the address.
    #[error("no object of this tenant starts at that address")]
    NoSuchObject,
    /// The requested size is zero, or the requested rights are empty.
    #[error("the request asks for nothing: give a size above zero and at least one right")]
    Nothing,
    /// The permission's longest lifetime is reached, or another request waits for its object.
    #[error("the permission cannot be extended any more: let it end and acquire it again")]
    NotExtendable,
    /// The requested lifetime is beyond the node's limit.
    #[error("the lifetime is beyond this node's longest, {longest}")]
    LifetimeTooLong {
        /// The node's limit.
        longest: Lifetime,
    },
    /// Other holders have the object, and the wait that the request allowed is over.
    #[error("others held the object for longer than the request was ready to wait")]
    Conflict,
    /// A quota of the tenant is used up: of bytes, objects, permissions or names, or of the tenants that share a name.
    #[error("the tenant's quota is used up: {used} of {limit}")]
    Quota {
        /// The amount that the tenant holds, in the unit of the limit.
        used: u64,
        /// The most that the tenant may hold.
        limit: u64,
    },
    /// The pool has no run of free bytes of this size.
    #[error("the pool has no {size} bytes free in one piece")]
    OutOfMemory {
        /// The requested size, in bytes.
        size: u64,
    },
    /// The node has no free header, window or slot for a waiting request.
    #[error("the node has reached a limit of its own ({limit}): try again when other permissions have ended")]
    NodeFull {
        /// The limit.
        limit: u64,
    },
    /// The client or its tenant broke the rules too often, and is paused.
    #[error("the client or its tenant is paused for {wait} after too many violations")]
    Paused {
        /// The remaining time of the pause.
        wait: Lifetime,
    },
    /// The client or its tenant broke the rules so often that the node does not serve it for a long time.
    #[error("the client or its tenant is barred from this node: its operator can say why, and until when")]
    Barred,
    /// The operation reaches outside the permission (only if the node itself checks: mechanism `node-copy`).
    #[error("the access reaches outside the permission's bytes")]
    OutsideRange,
    /// The permission lacks the right (only if the node itself checks: mechanism `node-copy`).
    #[error("the permission does not hold the right that the access needs")]
    WrongRight,
    /// The node's NIC failed to carry out the request.
    #[error("the node's NIC failed: nothing was granted")]
    NicFailed,
    /// The reference names an object that was freed, or that never belonged to this tenant.
    #[error("the object is gone, or was never this tenant's: get a reference to one that is there")]
    Gone,
    /// The reference is from another run of a node: this node was restarted since, or it is a different node.
    #[error(
        "the reference is from another node, or from before this node's last start: its object is not here"
    )]
    AnotherNode,
    /// The requested bytes do not lie within the object.
    #[error("the part asked for reaches outside the object's {size} bytes")]
    OutsideObject {
        /// The object's size, in bytes.
        size: u64,
    },
    /// The node cannot give this alignment.
    #[error("an object can be aligned to a power of two up to {most} bytes")]
    Alignment {
        /// The largest alignment, in bytes.
        most: u64,
    },
    /// The object was to be kept for longer than the node allows.
    #[error("the node keeps objects for {longest} at the most after their tenant's last client has gone")]
    KeptTooLong {
        /// The node's limit; zero: the node keeps no objects.
        longest: Lifetime,
    },
    /// The tenant has no such name. Another tenant's name is refused in this way too, unless it is shared with the client's
    /// tenant: no tenant may know what another has.
    #[error("there is no such name, or it is not shared with this tenant: list the names that are there")]
    NoSuchName,
    /// Another object of the tenant has the name.
    #[error("the name is taken: unpublish it first, or choose another")]
    NameTaken,
    /// The object has another name already. It can have only one.
    #[error("the object has a name already: unpublish that name first")]
    AlreadyNamed,
    /// The name is shared with that tenant already, with a right that this request would remove.
    #[error("the name is shared with that tenant already, with other rights: unshare it first")]
    AlreadyShared,
    /// The name is not shared with that tenant.
    #[error("the name is not shared with that tenant")]
    NotShared,
    /// The object is shared with this tenant, but with fewer rights than the request requires.
    #[error(
        "the object is shared with this tenant for {} only: ask for no other right, and for exclusive use \
         only with the right to write",
        rights.letters()
    )]
    BeyondShare {
        /// The rights with which the object is shared.
        rights: Rights,
    },
    /// An object was to be shared with its own tenant.
    #[error("the object belongs to that tenant already: share it with another")]
    SharedWithOwner,
    /// The member has a name, members or another head, or the head is a member itself.
    #[error("only an object without a name, members and head can belong to a head, and no member can be one")]
    CannotInclude,
    /// The node has no pool of chunks, or this client has no queue pairs for them.
    #[error("the node has no chunks: its operator starts it with --chunks")]
    NoChunks,
}

impl Coded for Refusal {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed => ErrorCode::MalformedRequest,
            Self::NotLive => ErrorCode::NotLive,
            Self::NoSuchObject => ErrorCode::NoSuchObject,
            Self::Nothing => ErrorCode::NothingAsked,
            Self::NotExtendable => ErrorCode::NotExtendable,
            Self::LifetimeTooLong { .. } => ErrorCode::LifetimeTooLong,
            Self::Conflict => ErrorCode::Conflict,
            Self::Quota { .. } => ErrorCode::Quota,
            Self::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            Self::NodeFull { .. } => ErrorCode::NodeFull,
            Self::Paused { .. } => ErrorCode::Paused,
            Self::Barred => ErrorCode::Barred,
            Self::OutsideRange => ErrorCode::OutsideRange,
            Self::WrongRight => ErrorCode::WrongRight,
            Self::NicFailed => ErrorCode::NicFailed,
            Self::Gone => ErrorCode::ObjectGone,
            Self::AnotherNode => ErrorCode::AnotherNode,
            Self::OutsideObject { .. } => ErrorCode::OutsideObject,
            Self::Alignment { .. } => ErrorCode::Alignment,
            Self::KeptTooLong { .. } => ErrorCode::KeptTooLong,
            Self::NoSuchName => ErrorCode::NoSuchName,
            Self::NameTaken => ErrorCode::NameTaken,
            Self::AlreadyNamed => ErrorCode::AlreadyNamed,
            Self::AlreadyShared => ErrorCode::AlreadyShared,
            Self::NotShared => ErrorCode::NotShared,
            Self::BeyondShare { .. } => ErrorCode::BeyondShare,
            Self::SharedWithOwner => ErrorCode::SharedWithOwner,
            Self::CannotInclude => ErrorCode::CannotInclude,
            Self::NoChunks => ErrorCode::NoChunks,
        }
    }
}

impl Refusal {
    /// Whether the same request may be granted later, when other permissions have ended.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Conflict
                | Self::Quota { .. }
                | Self::OutOfMemory { .. }
                | Self::NodeFull { .. }
                | Self::Paused { .. }
                | Self::NicFailed
        )
    }

    /// Returns the number of the refusal in a message, and its two operands.
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
            Self::Gone => (16, 0, 0),
            Self::AnotherNode => (17, 0, 0),
            Self::OutsideObject { size } => (18, size, 0),
            Self::Alignment { most } => (19, most, 0),
            Self::KeptTooLong { longest } => (20, longest.0, 0),
            Self::NoSuchName => (21, 0, 0),
            Self::NameTaken => (22, 0, 0),
            Self::AlreadyNamed => (23, 0, 0),
            Self::AlreadyShared => (24, 0, 0),
            Self::NotShared => (25, 0, 0),
            Self::BeyondShare { rights } => (26, rights.bits().into(), 0),
            Self::SharedWithOwner => (27, 0, 0),
            Self::CannotInclude => (28, 0, 0),
            Self::NoChunks => (29, 0, 0),
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
            16 => Self::Gone,
            17 => Self::AnotherNode,
            18 => Self::OutsideObject { size: a },
            19 => Self::Alignment { most: a },
            20 => Self::KeptTooLong { longest: Lifetime(a) },
            21 => Self::NoSuchName,
            22 => Self::NameTaken,
            23 => Self::AlreadyNamed,
            24 => Self::AlreadyShared,
            25 => Self::NotShared,
            26 => Self::BeyondShare { rights: u8::try_from(a).ok().and_then(Rights::from_bits)? },
            27 => Self::SharedWithOwner,
            28 => Self::CannotInclude,
            29 => Self::NoChunks,
            _ => return None,
        })
    }
}
