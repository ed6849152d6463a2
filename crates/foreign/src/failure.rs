//! Errors as other languages see them.

use crate::CudaError;
use portcullis::host::HostError;
use portcullis::{ConnectError, Error};
use portcullis_blocks::BlockError;
use portcullis_blocks::spread_store::SpreadError;
use portcullis_errors::{Coded, ErrorCode, Fault};
use portcullis_structures::queue::QueueError;
use portcullis_structures::table::TableError;

/// A mistake of a caller in another language that Rust's rules would have prevented.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The handle was closed, is of another kind, or never was one.
    #[error("{what} was closed, or never was open: open another one")]
    Closed {
        /// The kind of object that the handle should stand for.
        what: &'static str,
    },
    /// Another thread is in a call on the same handle.
    #[error(
        "another thread uses {what} just now: give each thread a session of its own, or let one call return before the next"
    )]
    InUse {
        /// The object that the handle stands for.
        what: &'static str,
    },
    /// The process is a child of the one that made the handle.
    #[error("{what} belongs to the process that this one was forked from: open one here, after the fork")]
    Forked {
        /// The object that the handle stands for.
        what: &'static str,
    },
    /// A pointer is null.
    #[error("{argument} is null")]
    Null {
        /// The name of the argument.
        argument: &'static str,
    },
    /// A text is not UTF-8.
    #[error("{argument} is no UTF-8 text")]
    NotText {
        /// The name of the argument.
        argument: &'static str,
    },
    /// An argument is invalid.
    #[error("{argument} {wrong}")]
    Argument {
        /// The name of the argument.
        argument: &'static str,
        /// The reason why it is invalid.
        wrong: &'static str,
    },
    /// The caller's memory is too short for the result.
    #[error("the result has {length} bytes, and there is room for {room}: come again with more room")]
    TooShort {
        /// Bytes of the result.
        length: u64,
        /// Bytes that the caller has room for.
        room: u64,
    },
    /// An operation uses the buffer.
    #[error("an operation that is under way uses the buffer: take its completion first")]
    UnderWay,
    /// Portcullis has a bug, which ended the call with a panic.
    #[error("a mistake in Portcullis has ended the call, and the handle is closed: please report it")]
    Panicked,
}

impl Misuse {
    /// Returns the same misuse with another name for its object: the name of what a handle stands for, rather than the
    /// handle's.
    #[must_use]
    pub fn about(self, what: &'static str) -> Self {
        match self {
            Self::Closed { .. } => Self::Closed { what },
            Self::InUse { .. } => Self::InUse { what },
            Self::Forked { .. } => Self::Forked { what },
            other => other,
        }
    }
}

impl Coded for Misuse {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Closed { .. } => ErrorCode::Closed,
            Self::InUse { .. } => ErrorCode::InUse,
            Self::Forked { .. } => ErrorCode::Forked,
            Self::Null { .. } => ErrorCode::NullArgument,
            Self::NotText { .. } => ErrorCode::NotText,
            Self::Argument { .. } => ErrorCode::BadArgument,
            Self::TooShort { .. } => ErrorCode::BufferTooShort,
            Self::UnderWay => ErrorCode::UnderWay,
            Self::Panicked => ErrorCode::Panicked,
        }
    }
}

/// An error as another language sees it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    code: ErrorCode,
    is_retryable: bool,
    text: String,
}

impl Coded for Failure {
    fn code(&self) -> ErrorCode {
        self.code
    }
}

impl Failure {
    fn new(error: &impl Coded, is_retryable: bool) -> Self {
        Self { code: error.code(), is_retryable, text: error.to_string() }
    }

    /// Creates a failure that the same call reports again until the caller changes something.
    #[must_use]
    pub fn lasting(error: &impl Coded) -> Self {
        Self::new(error, false)
    }

    /// Whether the same call may succeed later although the caller changes nothing.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }

    /// Returns the side that is at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.code.fault()
    }

    /// Returns the text: what was wrong, and what to do about it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl From<Misuse> for Failure {
    fn from(error: Misuse) -> Self {
        Self::new(&error, matches!(error, Misuse::InUse { .. } | Misuse::UnderWay))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(&error, error.is_retryable())
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        Self::new(&error, false)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::new(&error, error.is_retryable())
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        Self::new(&error, error.is_retryable())
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Self {
        let is_retryable = match error {
            BlockError::Session(error) | BlockError::Table(TableError::Session(error)) => {
                error.is_retryable()
            }
            BlockError::Busy | BlockError::TooFewNodes | BlockError::Silent => true,
            _ => false,
        };
        Self::new(&error, is_retryable)
    }
}

impl From<SpreadError> for Failure {
    fn from(error: SpreadError) -> Self {
        Self::new(&error, matches!(error, SpreadError::Unreachable { .. } | SpreadError::NoneBelow(_)))
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        Self::new(&error, matches!(error, TableError::Session(error) if error.is_retryable()))
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let is_retryable = match error {
            QueueError::Session(error) => error.is_retryable(),
            QueueError::Full => true,
            _ => false,
        };
        Self::new(&error, is_retryable)
    }
}
