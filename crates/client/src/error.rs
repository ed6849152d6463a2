//! Errors, which name what ended and whose fault it is.

use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::Status;
use portcullis_protocol::{BadName, Lifetime, Refusal, Rights};
use std::fmt;

/// Possible effect of an operation that was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Effect {
    /// The operation changes nothing, or was not begun.
    Nothing,
    /// The operation may have been carried out, or may still be; for an access, until its permission ends.
    Perhaps,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing was changed",
            Self::Perhaps => "it may have been carried out, and may still be",
        })
    }
}

/// The reason why an operation or a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The permission's deadline on this client's clock has passed. Acquire it again.
    #[error("the permission has expired: acquire it again")]
    Expired,
    /// The node ended the permission before its deadline.
    #[error("the node ended the permission before its deadline: acquire it again")]
    Revoked,
    /// The caller's mistake, found here: the permission lives longer than the requested extension. Nothing was sent.
    #[error(
        "the permission lives for another {left}: an extension does not shorten it, a revocation ends it"
    )]
    LivesLonger {
        /// The time that the permission has left.
        left: Lifetime,
    },
    /// The caller's mistake, found here: nothing was sent.
    #[error("{length} bytes at {offset} reach outside the permission's {size}")]
    OutsideRange {
        /// Offset of the access in the permission's bytes.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Number of bytes that the permission covers.
        size: u64,
    },
    /// The caller's mistake, found here: nothing was copied.
    #[error("{length} bytes at {offset} reach outside the buffer's {size}")]
    OutsideBuffer {
        /// Offset of the copy in the buffer.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Number of bytes that the buffer holds.
        size: u64,
    },
    /// The caller's mistake, found here: the buffer comes from another session's arena. Nothing was sent.
    #[error("the buffer is another session's: take one from this session")]
    ForeignBuffer,
    /// The caller's mistake, found here: the permission was granted to another session, and its keys work on that
    /// session's queue pairs only (mechanism `window-group`). Nothing was sent.
    #[error(
        "the permission is another session's, and its keys work there only: acquire one with this session"
    )]
    ForeignPermission,
    /// The caller's mistake, found here: nothing was sent.
    #[error("the permission does not hold the right that the access needs ({})", needed.letters())]
    WrongRight {
        /// The right that is missing.
        needed: Rights,
    },
    /// The caller's mistake, found here: nothing was sent.
    #[error("atomics need an address that is a multiple of 8")]
    Misaligned,
    /// The node's NIC refused an access without local checks, as it should.
    #[error("the node's NIC refused the access: no live permission of this tenant covers it")]
    Violation,
    /// The connection broke under the operation, which may or may not have been carried out. The node has stopped its
    /// end of the connection: if the operation was not carried out by now, it never will be.
    #[error("the connection broke under the operation: it may or may not have happened")]
    Interrupted,
    /// No answer of the node has arrived within the session's limit. The session continues: a permission that arrives
    /// later is given back.
    #[error(
        "{what} has not ended within {within}: the node or the network to it is too slow or stands still; {effect}. Try again later, \
         or raise the limit (within)"
    )]
    TimedOut {
        /// The operation or request that has not ended.
        what: &'static str,
        /// The effect that it may have had.
        effect: Effect,
        /// The limit.
        within: Lifetime,
    },
    /// The node has not answered in time, or has refused for too long to take the operation in, and no part of the
    /// operation was carried out. Only operations without a connection end with this error. Try again.
    #[error("the node has not answered in time, and nothing was carried out: try again")]
    Unanswered,
    /// The caller's mistake, found here: the text is no name. Nothing was sent.
    #[error(transparent)]
    Name(#[from] BadName),
    /// A queue is full: nothing was begun. Take what is finished, then try again.
    #[error("the queue is full ({limit}): take what is finished, then try again")]
    QueueFull {
        /// Number of operations or calls that the queue has room for, if the calls begin in batches.
        limit: u64,
    },
    /// The arena has no free piece of this size: nothing was begun.
    #[error("{}", arena_full(*asked, *needed, *arena))]
    ArenaFull {
        /// The requested bytes.
        asked: u64,
        /// Bytes of the smallest arena that has such a piece, while no other buffer is held.
        needed: u64,
        /// Bytes of this session's arena.
        arena: u64,
    },
    /// This machine's fault: the client's NIC could not carry out the request.
    #[error("the local NIC failed with {0}")]
    LocalFault(Status),
    /// The tenant has committed too many violations, and has to wait.
    #[error("the tenant is paused for {wait} after too many violations")]
    Paused {
        /// The time to wait, from the node's answer on.
        wait: Lifetime,
    },
    /// The client or its tenant has committed so many violations that the node no longer serves it.
    #[error("the tenant is barred from this node: its operator can say why")]
    Barred,
    /// The tenant's quota is used up.
    #[error("the tenant's quota is used up: {used} of {limit}")]
    Quota {
        /// The amount in use, in the unit of the limit: bytes, objects, permissions, names or tenants that share a
        /// name.
        used: u64,
        /// The most that the tenant may hold.
        limit: u64,
    },
    /// No chunk is free for this client. Try again.
    #[error("the node has no free chunk: free one, or try again later")]
    NoFreeChunk,
    /// The chunk does not belong to this client. Nothing has changed.
    #[error("the chunk is not this client's: it frees only what it has allocated")]
    ForeignChunk,
    /// The caller's mistake, found here: a small object lies in one chunk. Nothing was sent.
    #[error(
        "a small object has at most the {limit} bytes of a chunk, not {bytes}: allocate memory of the node instead"
    )]
    SmallObjectTooLong {
        /// The requested bytes.
        bytes: u64,
        /// Bytes of a chunk.
        limit: u64,
    },
    /// The caller's mistake, found here: the small object was freed before, or belongs to another allocator. Nothing
    /// has changed.
    #[error(
        "the small object was freed before, or comes from another allocator: free it once, where it comes from"
    )]
    NoSuchSmallObject,
    /// The node refused for another reason.
    #[error(transparent)]
    Refused(Refusal),
    /// The control queue pair broke, or the node sent an answer that does not fit the request. This session is over:
    /// attach again.
    ///
    /// Operations that were under way may or may not have been carried out. They may still be carried out, until the
    /// node has removed this client or their permission has ended at the node.
    #[error("the session with the node is lost: attach again")]
    SessionLost,
    /// The node is gone, and everything on it. A restarted node is another node.
    #[error("the node is gone: it has ended, or has started anew, and what it held is lost. Connect again")]
    NodeGone,
}

impl Coded for Error {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Expired => ErrorCode::Expired,
            Self::Revoked => ErrorCode::Revoked,
            Self::LivesLonger { .. } => ErrorCode::LivesLonger,
            Self::OutsideRange { .. } => ErrorCode::OutsideRange,
            Self::OutsideBuffer { .. } => ErrorCode::OutsideBuffer,
            Self::ForeignBuffer => ErrorCode::ForeignBuffer,
            Self::ForeignPermission => ErrorCode::ForeignPermission,
            Self::WrongRight { .. } => ErrorCode::WrongRight,
            Self::Misaligned => ErrorCode::Misaligned,
            Self::Violation => ErrorCode::Violation,
            Self::Interrupted => ErrorCode::Interrupted,
            Self::TimedOut { .. } => ErrorCode::TimedOut,
            Self::Unanswered => ErrorCode::NodeSilent,
            Self::Name(bad) => bad.code(),
            Self::QueueFull { .. } => ErrorCode::QueueFull,
            Self::ArenaFull { .. } => ErrorCode::ArenaFull,
            Self::LocalFault(_) => ErrorCode::LocalFault,
            Self::Paused { .. } => ErrorCode::Paused,
            Self::Barred => ErrorCode::Barred,
            Self::Quota { .. } => ErrorCode::Quota,
            Self::NoFreeChunk => ErrorCode::NoFreeChunk,
            Self::ForeignChunk => ErrorCode::ForeignChunk,
            Self::SmallObjectTooLong { .. } => ErrorCode::SmallObjectTooLong,
            Self::NoSuchSmallObject => ErrorCode::NoSuchSmallObject,
            Self::Refused(refusal) => refusal.code(),
            Self::SessionLost => ErrorCode::SessionLost,
            Self::NodeGone => ErrorCode::NodeGone,
        }
    }
}

impl Error {
    /// Returns whether the same call may succeed later in this session, if the caller only waits, takes finished
    /// results, or acquires the permission again.
    ///
    /// An [`Error::Interrupted`] operation may have been carried out, and so may one that has [`Error::TimedOut`] with
    /// [`Effect::Perhaps`]: retry only operations that may be carried out twice.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Expired
            | Self::Revoked
            | Self::Interrupted
            | Self::TimedOut { .. }
            | Self::Unanswered
            | Self::QueueFull { .. }
            | Self::Paused { .. }
            | Self::NoFreeChunk
            | Self::Quota { .. } => true,
            Self::ArenaFull { needed, arena, .. } => needed <= arena,
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::LivesLonger { .. }
            | Self::OutsideRange { .. }
            | Self::OutsideBuffer { .. }
            | Self::ForeignBuffer
            | Self::ForeignPermission
            | Self::ForeignChunk
            | Self::SmallObjectTooLong { .. }
            | Self::NoSuchSmallObject
            | Self::WrongRight { .. }
            | Self::Misaligned
            | Self::Name(_)
            | Self::Violation
            | Self::LocalFault(_)
            | Self::Barred
            | Self::SessionLost
            | Self::NodeGone => false,
        }
    }
}

/// The text of [`Error::ArenaFull`].
fn arena_full(asked: u64, needed: u64, arena: u64) -> String {
    let wrong = if asked == needed {
        format!("a session needs a buffer arena of more than {needed} bytes, and this one has {arena}:")
    } else if needed > arena {
        format!(
            "{asked} bytes in one piece need a buffer arena of {needed} bytes, and the session's has {arena}:"
        )
    } else {
        format!(
            "the session's buffer arena of {arena} bytes has no {asked} bytes in one piece left: drop buffers and views, or"
        )
    };
    format!(
        "{wrong} connect with a larger arena (arena= in Python, arena_bytes in Rust and C), up to the --arena-max of the node, whose \
         --ports-memory has to hold the arenas of all clients"
    )
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Barred => Self::Barred,
            Refusal::Paused { wait } => Self::Paused { wait },
            Refusal::Quota { used, limit } => Self::Quota { used, limit },
            other => Self::Refused(other),
        }
    }
}
