//! Clients in the node's own process: they get their ends of the fabric without a socket.

use crate::SessionEndpoint;
use portcullis_attach::Reason;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::GuaranteeSet;
use std::fmt;

/// A client in the node's own process.
pub struct LocalClient {
    /// The client's end of the fabric.
    pub end: SessionEndpoint,
    /// The client's number on the node.
    pub number: u64,
    /// The guarantees that the client's permissions rest on and that the device does not keep.
    pub unenforced: GuaranteeSet,
    /// A guard. Dropping it, after `end`, notifies the node that the client has left.
    pub departure: Box<dyn Send>,
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClient").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Error of a client in the node's own process that is not admitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The node has ended, or refuses.
    #[error("{0}")]
    Refused(#[source] Reason),
    /// The client's RDMA device does not connect to the node's.
    #[cfg(feature = "rdma")]
    #[error("the RDMA device fails: {0}")]
    Device(#[from] portcullis_nic::VerbsError),
}

impl Coded for LocalError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(_) => ErrorCode::AttachRefused,
            #[cfg(feature = "rdma")]
            Self::Device(error) => error.code(),
        }
    }
}

/// The gate at which clients in the node's own process attach. It may outlive the host, and is of no use then.
pub trait LocalAdmission: fmt::Debug + Send + Sync {
    /// Admits a client of the tenant called `tenant`, with an arena of `arena_bytes`.
    ///
    /// # Errors
    /// The node refuses, or has ended.
    fn open(&self, tenant: &str, arena_bytes: u64) -> Result<LocalClient, LocalError>;
}
