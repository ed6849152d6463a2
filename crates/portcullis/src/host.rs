//! A node inside a program, on the software NIC or on an RDMA device. A host has a thread that drives the node, the
//! addresses at which clients attach, and the audit log.

#[cfg(feature = "udp")]
pub use portcullis_host::UdpConfig;
pub use portcullis_host::software::{AttachedPort, attach as attach_port};
pub use portcullis_host::{
    AuditStatus, ConfigError, HostConfig, HostError, LentMemory, Listen, NoProcessorList, NoThreadCount,
    NoWallTime, NodeCounters, NotEnoughMemory, PortLimits, ProcessorList, Scarce, SocketAccess,
    SocketListener, Sockets, StartError, ThreadCount, WallTime, admin, available_memory, log_file, pin,
};
#[cfg(any(feature = "rdma", feature = "udp"))]
pub use portcullis_host::{ListenError, NetworkListen};
#[cfg(feature = "rdma")]
pub use portcullis_host::{MemlockTooLow, NoLibrary, OpenError, RdmaConfig, Unenforced};

use crate::session::Opener;
use crate::{ConnectError, Session, SessionOptions};
use portcullis_host::{LocalAdmission, LocalClient, LocalError};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A running node. The node ends when the host is dropped.
#[derive(Debug)]
pub struct Host(portcullis_host::Host);

impl Host {
    /// Starts a node.
    ///
    /// # Errors
    /// The configuration contradicts itself, the device does not give a necessary guarantee, or the machine refuses a
    /// resource.
    pub fn start(config: HostConfig) -> Result<Self, HostError> {
        portcullis_host::Host::start(config).map(Self)
    }

    /// Opens a session with this node in this process, for a tenant of any name.
    ///
    /// # Errors
    /// The node refuses, or has ended.
    pub fn connect(&self, tenant: &str, options: SessionOptions) -> Result<Session, ConnectError> {
        open(self.local_admission(), tenant.to_owned(), options)
    }
}

/// Gives access to the part of a host that needs no sessions.
impl Deref for Host {
    type Target = portcullis_host::Host;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Host {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

fn open(
    admission: Arc<dyn LocalAdmission>,
    tenant: String,
    options: SessionOptions,
) -> Result<Session, ConnectError> {
    let LocalClient { end, number, unenforced, departure } = admission.open(&tenant, options.arena_bytes)?;
    let (client, within) = (options.client, options.within);
    let opener: Opener = Box::new(move || open(Arc::clone(&admission), tenant.clone(), options.clone()));
    Ok(Session::new(end, number, client, opener, Some(departure))?.limited_to(within).without(unenforced))
}

impl From<LocalError> for ConnectError {
    fn from(error: LocalError) -> Self {
        match error {
            #[cfg(feature = "rdma")]
            LocalError::Device(error) => Self::Device(error),
            refused => Self::Host(refused.to_string()),
        }
    }
}
