//! Clients of the node's own process: they get their ends of the fabric without a socket.

use portcullis_attach::Reason;
#[cfg(feature = "rdma")]
use portcullis_ibverbs::IbEndpoint;
use portcullis_nic::GuaranteeSet;
use portcullis_softnic::PortEndpoint;
use std::fmt;

/// A client's end of the fabric that its node is on.
#[derive(Debug)]
#[cfg_attr(
    feature = "rdma",
    expect(clippy::large_enum_variant, reason = "there is one a client, which keeps it")
)]
pub enum ClientEnd {
    /// Of the software NIC.
    Port(PortEndpoint),
    /// On an RDMA device.
    #[cfg(feature = "rdma")]
    Rdma(IbEndpoint),
}

/// A client of the node's own process.
pub struct LocalClient {
    /// Its end.
    pub end: ClientEnd,
    /// Its number on the node.
    pub number: u64,
    /// What its permissions rest on and the device does not keep.
    pub unenforced: GuaranteeSet,
    /// The node hears that the client is gone when this is dropped: after its end.
    pub departure: Box<dyn Send>,
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClient").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Why a client of the node's own process does not get in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The node has ended, or refuses.
    #[error("{0}")]
    Refused(#[source] Reason),
    /// The RDMA device does not connect to the node's.
    #[cfg(feature = "rdma")]
    #[error("the RDMA device fails: {0}")]
    Device(#[from] portcullis_nic::VerbsError),
}

/// The way in for clients of the node's own process. It may outlive the host, and is of no use then.
pub trait LocalDoor: fmt::Debug + Send + Sync {
    /// Lets a client of the tenant called `tenant` in, with an arena of `arena_bytes`.
    ///
    /// # Errors
    /// The node refuses, or has ended.
    fn open(&self, tenant: &str, arena_bytes: u64) -> Result<LocalClient, LocalError>;
}
