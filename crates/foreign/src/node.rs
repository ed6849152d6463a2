//! A node inside the program, for tests of programs in other languages.

use crate::Attached;
use portcullis::host::{Host, HostConfig, HostError, Listen};
use portcullis::{ConnectError, NodeConfig, SessionOptions};
use std::path::PathBuf;

/// A node on the software NIC, in this process. It ends when the value is dropped.
#[derive(Debug)]
pub struct LocalNode {
    host: Host,
    socket: Option<PathBuf>,
}

impl LocalNode {
    /// Starts a node that lends `memory` bytes. With a socket, other processes of this user can connect to it too, at
    /// `shm:` and the socket's path.
    ///
    /// # Errors
    /// The machine lacks the memory, or the socket is taken.
    pub fn start(memory: u64, socket: Option<PathBuf>) -> Result<Self, HostError> {
        let listen = socket.iter().map(|path| Listen { path: path.clone(), tenant: None });
        let config = HostConfig {
            node: NodeConfig { pool_bytes: memory, ..NodeConfig::default() },
            listen: listen.collect(),
            ..HostConfig::default()
        };
        Ok(Self { host: Host::start(config)?, socket })
    }

    /// The node's address for other processes, if it has a socket.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        self.socket.as_ref().map(|path| format!("shm:{}", path.display()))
    }

    /// Opens a session with the node for a tenant of any name.
    ///
    /// # Errors
    /// The node refuses, or has ended.
    pub fn connect(&self, tenant: &str, options: SessionOptions) -> Result<Attached, ConnectError> {
        self.host.connect(tenant, options).map(Attached::new)
    }
}
