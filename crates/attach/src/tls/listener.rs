//! The port that clients on other machines connect to.

use crate::tls::address::{HostPort, is_loopback};
use crate::tls::identity::NodeIdentity;
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::{AsFd, BorrowedFd};
use std::net::{SocketAddr, TcpListener};

/// Connections that the kernel queues for the acceptor.
const BACKLOG: i32 = 1024;

/// Method by which a node identifies its clients.
#[derive(Clone, Debug)]
pub enum NodeSecurity {
    /// Certificates, in both directions.
    Tls(NodeIdentity),
    /// No identification: every client that reaches the port is admitted, and machines on the path can read the traffic
    /// and inject their own. For a single machine, or a network without strangers.
    Plain,
}

/// Reason for which a node does not listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The text is not an address to listen at.
    #[error("{0:?} is not an address to listen at: write HOST:PORT, for example 0.0.0.0:7471 or [::]:7471")]
    Address(String),
    /// The address can be reached from other machines, and the node uses no certificates.
    #[error(
        "{0} can be reached from other machines, and without certificates any client that reaches it is \
         admitted: give certificates (see `portcullis certificates --help`), listen at 127.0.0.1, or, if no \
         other machine is on that network, add --dangerous-no-certificates"
    )]
    PlainBeyondLoopback(SocketAddr),
    /// The machine refused.
    #[error("cannot listen at {address}: {source}")]
    Machine {
        /// The address.
        address: String,
        /// The machine's error.
        source: std::io::Error,
    },
}

impl Coded for ListenError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Address(_) => ErrorCode::ListenAddress,
            Self::PlainBeyondLoopback(_) => ErrorCode::PlainBeyondLoopback,
            Self::Machine { .. } => ErrorCode::Machine,
        }
    }
}

/// A port that clients connect to.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    pub(crate) security: NodeSecurity,
    local: SocketAddr,
}

impl Listener {
    /// Listens at `HOST:PORT`; port 0 means any free port. Without certificates it listens only where no other machine
    /// can connect, unless `plain_anywhere`.
    ///
    /// # Errors
    /// The address is not valid, may not be used without certificates, or the machine refuses it.
    pub fn bind(address: &str, security: NodeSecurity, plain_anywhere: bool) -> Result<Self, ListenError> {
        let place = HostPort::parse(address).ok_or_else(|| ListenError::Address(address.to_owned()))?;
        let machine = |source| ListenError::Machine { address: format!("{address} (TCP)"), source };
        let addresses = place.addresses().map_err(machine)?;
        if matches!(security, NodeSecurity::Plain)
            && !plain_anywhere
            && let Some(outside) = addresses.iter().find(|address| !is_loopback(address))
        {
            return Err(ListenError::PlainBeyondLoopback(*outside));
        }
        let socket = TcpListener::bind(&addresses[..]).map_err(machine)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| machine(error.into()))?;
        socket.set_nonblocking(true).map_err(machine)?;
        let local = socket.local_addr().map_err(machine)?;
        Ok(Self { socket, security, local })
    }

    /// Returns the address at which the listener accepts connections, with the port that the kernel assigned.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
