//! Errors of stores of blocks.

use portcullis::{Error, Refusal};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_structures::table::TableError;

/// An error of a store of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// The session failed, or the node refused.
    #[error(transparent)]
    Session(#[from] Error),
    /// The table of the keys failed.
    #[error("the table of the keys: {0}")]
    Table(TableError),
    /// There is no room for the block, and no block can be evicted. Nothing was stored.
    #[error(
        "there is no room for a block of {bytes} bytes, and no other block can be evicted ({reason}): remove some, \
         raise the tenant's quota, or lend more memory"
    )]
    NoRoom {
        /// Bytes of the block.
        bytes: u64,
        /// The node's refusal.
        reason: Error,
    },
    /// The block is too long for a view. This is the caller's mistake: `get` reads it.
    #[error("a view has less than 4 GiB, and the block has {bytes} bytes: read it into a buffer")]
    TooLong {
        /// Bytes of the block.
        bytes: u64,
    },
    /// The node has not answered an earlier request in time, and no other one was begun.
    #[error("the node has not answered an earlier request in time")]
    Silent,
    /// Another client holds the block exclusively: it stores it now, or evicts it. Nothing was stored.
    #[error("another client stores the block now, or evicts it")]
    Busy,
    /// Fewer nodes can be reached now than the block is to have copies.
    #[error("fewer nodes can be reached now than a block has copies: start more, or ask for fewer copies")]
    TooFewNodes,
    /// The block is empty. This is the caller's mistake: nothing was sent.
    #[error("a block has at least one byte")]
    Empty,
}

impl From<TableError> for BlockError {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Session(error) => Self::Session(error),
            error => Self::Table(error),
        }
    }
}

impl Coded for BlockError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Session(error) => error.code(),
            Self::Table(error) => error.code(),
            Self::NoRoom { reason, .. } => reason.code(),
            Self::Silent => ErrorCode::TimedOut,
            Self::Busy => ErrorCode::Conflict,
            Self::TooFewNodes => ErrorCode::NodeGone,
            Self::TooLong { .. } | Self::Empty => ErrorCode::OutsideRange,
        }
    }
}

/// Returns whether a request failed since there is no room for an object, or for the permission on it.
pub(crate) fn is_no_room(error: &Error) -> bool {
    matches!(
        error,
        Error::Quota { .. }
            | Error::Refused(Refusal::Quota { .. } | Refusal::OutOfMemory { .. } | Refusal::NodeFull { .. })
    )
}
