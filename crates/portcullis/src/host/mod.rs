//! A node inside a program: the software NIC's engine with the node on its thread, the sockets that clients come to,
//! and the audit log.

pub use portcullis_node::Counters;
pub use portcullis_softnic::engine::pin;

mod admission;
mod audit;
mod resident;

use crate::session::{Departure, Opener, SessionOptions};
use crate::{ConnectError, Session};
use admission::Gate;
use audit::AuditWriter;
use portcullis_nic::Lkey;
use portcullis_node::{NodeConfig, StartError};
use portcullis_softnic::attach::{Listener, Server, ServerLimits};
use portcullis_softnic::engine::{Engine, EngineOptions, Waker};
use portcullis_softnic::shared::Mapping;
use portcullis_softnic::{Doorbell, Life, PortEndpoint, PortLayout, PortSize, SoftNic};
use resident::NodeResident;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A socket that clients come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub path: PathBuf,
    /// Whom its clients act for. Without: for the user that they run as, as the kernel tells it.
    pub tenant: Option<String>,
}

/// What a client's port is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Requests that each data queue pair holds: a power of two.
    pub send_depth: u32,
    /// Control messages that may be under way, each way: a power of two.
    pub control_depth: u32,
    /// The largest arena that a client gets, in bytes.
    pub arena_bytes_max: u64,
}

impl Default for PortLimits {
    fn default() -> Self {
        Self { send_depth: 256, control_depth: 64, arena_bytes_max: 64 << 20 }
    }
}

/// How a host is set up.
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    /// The node.
    pub node: NodeConfig,
    /// Where clients of other processes come to.
    pub listen: Vec<Listen>,
    /// Where the audit log goes.
    pub audit: Option<PathBuf>,
    /// The processor that the engine's thread stays on.
    pub processor: Option<usize>,
    /// What clients get.
    pub port: PortLimits,
}

/// Why a host does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The node.
    #[error(transparent)]
    Node(#[from] StartError),
    /// A socket, a file or a thread.
    #[error("{what}: {source}")]
    Machine {
        /// What was tried.
        what: String,
        /// What the machine said.
        source: std::io::Error,
    },
}

/// A running node. It ends when this is dropped.
#[derive(Debug)]
pub struct Host {
    engine: Engine<NodeResident>,
    gate: Arc<Gate>,
    server: Arc<Mutex<Option<Server>>>,
    audit: Option<AuditWriter>,
}

impl Host {
    /// Starts a node.
    ///
    /// # Errors
    /// The configuration makes no sense, or the machine refuses.
    pub fn start(config: HostConfig) -> Result<Self, HostError> {
        let machine = |what: String| move |source| HostError::Machine { what, source };
        let mut node_config = config.node.clone();
        let audit = match &config.audit {
            Some(path) => {
                node_config.audit = true;
                let failed = machine(format!("cannot write the audit log {}", path.display()));
                Some(AuditWriter::start(path).map_err(failed)?)
            }
            None => None,
        };
        let mut listeners = Vec::new();
        for listen in &config.listen {
            let failed = machine(format!("cannot listen at {}", listen.path.display()));
            listeners.push(Listener::bind(&listen.path).map_err(failed)?);
        }
        let mut nic = SoftNic::new();
        let server = Arc::new(Mutex::new(None));
        let sink = audit.as_ref().map(AuditWriter::sink);
        let resident = NodeResident::new(&mut nic, node_config.clone(), sink, Arc::clone(&server))?;
        let options = EngineOptions { processor: config.processor };
        let engine =
            Engine::start(nic, resident, options).map_err(machine("cannot start the engine".to_owned()))?;
        let tenants = config.listen.iter().map(|listen| listen.tenant.clone()).collect();
        let gate = Arc::new(Gate::new(engine.clone(), tenants, &node_config, config.port));
        if !listeners.is_empty() {
            let desk = admission::Desk(Arc::clone(&gate));
            let waker = engine.waker().clone();
            let started = Server::start(listeners, desk, waker, ServerLimits::default())
                .map_err(machine("cannot take clients in".to_owned()))?;
            *server.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        }
        Ok(Self { engine, gate, server, audit })
    }

    /// A session with this node, in this process, for a tenant of any name.
    ///
    /// # Errors
    /// The node refuses, or has ended.
    pub fn connect(&self, tenant: &str, options: SessionOptions) -> Result<Session, ConnectError> {
        let door = SideDoor { engine: self.engine.clone(), gate: Arc::clone(&self.gate) };
        door.open(tenant, options)
    }

    /// What the node has counted, and what it holds.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.engine.call(|_, resident, _| resident.counters()).unwrap_or_default()
    }

    /// Ends the node: no more clients, then nothing of it left on the NIC, then the last audit records.
    pub fn stop(&mut self) {
        // Out of the lock before it goes: its thread may be waiting for the engine, and the engine for the lock.
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(server);
        self.engine.stop();
        if let Some(audit) = self.audit.take() {
            audit.finish();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The way in for sessions of the node's own process.
#[derive(Clone)]
struct SideDoor {
    engine: Engine<NodeResident>,
    gate: Arc<Gate>,
}

impl SideDoor {
    fn open(&self, tenant: &str, options: SessionOptions) -> Result<Session, ConnectError> {
        let refused = |reason: String| ConnectError::Host(reason);
        let size = self.gate.size(options.arena_bytes).map_err(refused)?;
        let memory = Mapping::shareable("portcullis-port", PortLayout::new(size).bytes())
            .map_err(|error| refused(error.to_string()))?;
        let (endpoint, number, departure) = self.port(tenant, memory, size)?;
        let (door, tenant) = (self.clone(), tenant.to_owned());
        let opener: Opener = Box::new(move || door.open(&tenant, options));
        Session::new(endpoint, number, options, opener, Some(departure))
    }

    fn port(
        &self,
        tenant: &str,
        memory: Mapping,
        size: PortSize,
    ) -> Result<(PortEndpoint, u32, Departure), ConnectError> {
        let refused = |reason: String| ConnectError::Host(reason);
        let waker = self.engine.waker().clone();
        let event = waker.new_event().map_err(|error| refused(error.to_string()))?;
        let again = event.try_clone().map_err(|error| refused(error.to_string()))?;
        let admitted = self.gate.admit(tenant, std::process::id(), memory.clone(), size).map_err(refused)?;
        let doorbell = Doorbell::new(waker.page().clone(), event);
        let life = Life::Local([self.engine.over(), self.gate.farewell(admitted.client)]);
        let endpoint = PortEndpoint::new(memory, size, Lkey(admitted.arena_key), doorbell, life);
        let leave = Leave { gate: Arc::clone(&self.gate), client: admitted.client, waker, event: again };
        Ok((endpoint, admitted.client, Box::new(leave)))
    }
}

/// Tells the node, when it is dropped, that a client of this process is gone.
struct Leave {
    gate: Arc<Gate>,
    client: u32,
    waker: Waker,
    event: std::os::fd::OwnedFd,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.waker.forget_event(&self.event);
        self.gate.depart(self.client);
    }
}
