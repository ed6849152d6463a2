//! Errors of a gateway.

use portcullis::ConnectError;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_structures::table::TableError;
use std::io;

/// Reason for which a gateway does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// There is no node, or the node rejects the gateway.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The table could be neither opened nor made.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The text is not an address, or the gateway cannot listen at it.
    #[error("cannot listen at {address}: {error}")]
    Listen {
        /// The address, as `tcp:HOST:PORT` or `unix:PATH`.
        address: String,
        /// The reason.
        error: io::Error,
    },
    /// The operating system refused a thread or a descriptor.
    #[error("the machine refuses the gateway: {0}")]
    Machine(#[from] io::Error),
}

impl Coded for GatewayError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Connect(error) => error.code(),
            Self::Table(error) => error.code(),
            Self::Listen { .. } => ErrorCode::ListenAddress,
            Self::Machine(_) => ErrorCode::Socket,
        }
    }
}
