//! Errors of far memory.

use portcullis::Error;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::userfault::{HandoverError, UserfaultError};
use rustix::io::Errno;

/// Reason for which a program could not start with far memory, or could not continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FarError {
    /// The node refuses memory, or does not return the program's bytes.
    #[error("{what}: {source}")]
    Node {
        /// The operation that failed.
        what: &'static str,
        /// The node's reason.
        source: Error,
    },
    /// The node's chunks are too small.
    #[error(
        "the node's chunks have {chunk_bytes} bytes, and far memory needs {needed}: serve with --chunk-bytes 1MiB"
    )]
    SmallChunks {
        /// Bytes of one of the node's chunks.
        chunk_bytes: u64,
        /// Bytes of a segment.
        needed: u64,
    },
    /// Pages cannot be filled.
    #[error(transparent)]
    Faults(#[from] UserfaultError),
    /// The program's kernel did not map the range.
    #[error("the program could not map its far memory: {0}")]
    Range(Errno),
    /// The program's side of far memory sent a message that makes no sense.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// The kernel cannot report which pages are pinned.
    #[error(
        "this kernel cannot report the pages that a device or the kernel itself is writing to: bytes that \
         arrive in a page while it is taken out would be lost. Use Linux 6.8 or later, or add \
         --risk-pinned-pages if no program does direct I/O or uses io_uring"
    )]
    CannotMove,
    /// The machine refused a call.
    #[error("cannot {what}: {source}")]
    Machine {
        /// The operation that failed.
        what: &'static str,
        /// The machine's reason.
        source: std::io::Error,
    },
}

impl FarError {
    pub(crate) fn machine<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |source| Self::Machine { what, source: source.into() }
    }

    pub(crate) fn node(what: &'static str) -> impl Fn(Error) -> Self {
        move |source| Self::Node { what, source }
    }
}

impl Coded for FarError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Node { source, .. } => source.code(),
            Self::SmallChunks { .. } => ErrorCode::LimitTooSmall,
            Self::Faults(error) => error.code(),
            Self::Handover(error) => error.code(),
            Self::Range(_) | Self::CannotMove | Self::Machine { .. } => ErrorCode::Machine,
        }
    }
}
