//! Clients in the node's own process: they get their ends of the fabric without a socket.

use crate::SessionEndpoint;
use portcullis_attach::Reason;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::GuaranteeSet;
use std::fmt;

/// A client in the node's own process.
pub struct LocalClient {
    /// Its end.
    pub end: SessionEndpoint,
    /// Its number on the node.
    pub number: u64,
    /// What its permissions rest on and the device does not keep.
    pub unenforced: GuaranteeSet,
    /// Dropping this, after `end`, tells the node that the client has gone.
    pub departure: Box<dyn Send>,
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClient").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Why a client in the node's own process is not admitted.
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

/// Where clients in the node's own process attach. It may outlive the host, and is then of no use.
pub trait LocalDoor: fmt::Debug + Send + Sync {
    /// Admits a client of the tenant called `tenant`, with an arena of `arena_bytes`.
    ///
    /// # Errors
    /// The node refuses, or has ended.
    fn open(&self, tenant: &str, arena_bytes: u64) -> Result<LocalClient, LocalError>;
}
