//! A host on an RDMA device: a thread with the node and its NIC, and the ports at which clients tell where their queue
//! pairs are.

mod choice;
mod desk;
mod engine;
mod scout;

pub use choice::Unenforced;
pub use portcullis_attach::ListenError;
pub use portcullis_ibverbs::{MemlockTooLow, NoLibrary, OpenError};

use super::admin::Way;
use super::backend::Backend;
use super::outlet::Outlet;
use super::{HostConfig, HostError, Run, machine};
use crate::{ClientEnd, LocalClient, LocalDoor, LocalError};
use choice::choose;
use desk::Desk;
use engine::Engine;
use portcullis_attach::{Ends, Listener, NodeSecurity, Server, ServerLimits, Terms};
use portcullis_ibverbs::{
    DeviceChoice, IbEndpoint, IbNic, NodeLife, WorkRequests, check_memlock, check_memlock_of_node,
};
use portcullis_nic::Guarantee;
use portcullis_protocol::Mechanism;
use rustix::fd::BorrowedFd;
use scout::Scout;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A node's place on an RDMA device.
#[derive(Clone, Debug, Default)]
pub struct RdmaConfig {
    /// The device.
    pub device: DeviceChoice,
    /// Where clients come to.
    pub listen: Vec<RdmaListen>,
    /// Take the best mechanism that the device keeps, whatever [`NodeConfig::mechanism`](portcullis_node::NodeConfig::mechanism)
    /// says.
    pub pick_mechanism: bool,
    /// Guarantees that the node goes without if the device does not keep them.
    pub allow_unenforced: Vec<Guarantee>,
}

/// A TCP port that clients come to.
#[derive(Clone, Debug)]
pub struct RdmaListen {
    /// `HOST:PORT`; port 0 is any free one.
    pub address: String,
    /// How node and clients prove who they are.
    pub security: NodeSecurity,
    /// Without certificates also where other machines can come from.
    pub plain_anywhere: bool,
    /// Whom its clients act for, if they have no certificates. Without: for the address that they come from.
    pub tenant: Option<String>,
}

/// A running node.
#[derive(Debug)]
pub(super) struct RdmaHost {
    engine: Arc<Engine>,
    desk: Arc<Desk>,
    server: Arc<Mutex<Option<Server>>>,
    device: DeviceChoice,
    addresses: Vec<SocketAddr>,
    mechanism: Mechanism,
    unenforced: Vec<Guarantee>,
    tenants_max: Option<u64>,
}

impl RdmaHost {
    pub fn start(
        config: &HostConfig,
        rdma: &RdmaConfig,
        mut run: Run,
        records: Option<Outlet>,
    ) -> Result<Self, HostError> {
        if !config.listen.is_empty() {
            return Err(HostError::Config(
                "a node on an RDMA device has no port in shared memory: let clients come to rdma:HOST:PORT",
            ));
        }
        let mut listeners = Vec::new();
        for RdmaListen { address, security, plain_anywhere, .. } in &rdma.listen {
            listeners.push(Listener::bind(address, security.clone(), *plain_anywhere)?);
        }
        let nic = IbNic::open(&rdma.device, WorkRequests::default())?;
        let tenants_max = check_memlock_of_node(run.config.memory_bytes(), tenants_at_least(&rdma.listen))?;
        let (mechanism, unenforced) = choose(rdma, run.config.mechanism)?;
        run.config.mechanism = mechanism;
        let addresses = listeners.iter().map(Listener::local_address).collect();
        let server = Arc::new(Mutex::new(None));
        let tenants = rdma.listen.iter().map(|listen| listen.tenant.clone()).collect();
        let terms = desk::terms(&run.config, config.port, &unenforced);
        let engine = Engine::start(nic, run, records, Arc::clone(&server), config.processor)?;
        let engine = Arc::new(engine);
        let scout = Scout::new(IbNic::open(&rdma.device, WorkRequests::default())?)?;
        let desk = Arc::new(Desk::new(Arc::clone(&engine), scout, tenants, terms));
        if !listeners.is_empty() {
            let started = Server::start(listeners, desk::Counter(Arc::clone(&desk)), ServerLimits::default());
            let started = started.map_err(machine("cannot take clients in".to_owned()))?;
            *server.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        }
        let device = rdma.device.clone();
        Ok(Self { engine, desk, server, device, addresses, mechanism, unenforced, tenants_max })
    }
}

impl Backend for RdmaHost {
    fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    fn unenforced(&self) -> &[Guarantee] {
        &self.unenforced
    }

    fn tenants_max(&self) -> Option<u64> {
        self.tenants_max
    }

    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn local_door(&self) -> Arc<dyn LocalDoor> {
        Arc::new(SideDoor { desk: Arc::clone(&self.desk), device: self.device.clone() })
    }

    fn way(&self) -> Arc<Way> {
        let engine = Arc::clone(&self.engine);
        Arc::new(move |order| {
            let turns = engine.turn_times();
            engine
                .call(move |life| {
                    let now = life.now();
                    order.carry_out(&mut life.node, turns, now)
                })
                .ok()
        })
    }

    fn stop(&self) {
        // Out of the lock before it goes: its thread may be waiting for the engine, and the engine for the lock.
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(server);
        self.engine.stop();
    }
}

/// Tenants that are known before anybody comes: those that have a name, and one more where others may come.
fn tenants_at_least(listen: &[RdmaListen]) -> u64 {
    let tenants: HashSet<Option<&str>> = listen.iter().map(|listen| listen.tenant.as_deref()).collect();
    tenants.len().max(1) as u64
}

/// Makes a client's end that meets the node's terms, with an arena of `arena_bytes`, and says where its queue pairs are.
///
/// # Errors
/// Why this machine cannot meet them.
pub fn client_end(
    terms: &Terms,
    arena_bytes: u64,
    device: &DeviceChoice,
) -> Result<(Ends, IbEndpoint), String> {
    let size = terms.size(arena_bytes);
    check_memlock(size.arena_bytes).map_err(|error| error.to_string())?;
    let endpoint = IbEndpoint::new(device, size).map_err(|error| error.to_string())?;
    let (control, data) = endpoint.addresses().map_err(|error| error.to_string())?;
    Ok((Ends { control, data }, endpoint))
}

/// The way in for clients of the node's own process.
struct SideDoor {
    desk: Arc<Desk>,
    device: DeviceChoice,
}

impl LocalDoor for SideDoor {
    fn open(&self, tenant: &str, arena_bytes: u64) -> Result<LocalClient, LocalError> {
        let (ends, mut endpoint) =
            client_end(self.desk.terms(), arena_bytes, &self.device).map_err(LocalError::Refused)?;
        let admitted = self.desk.admit(tenant.to_owned(), Some(std::process::id()), ends);
        let admitted = admitted.map_err(LocalError::Refused)?;
        let leave = Leave { desk: Arc::clone(&self.desk), client: admitted.client };
        let life = Local([self.desk.engine().over(), self.desk.farewell(admitted.client)]);
        endpoint.connect(admitted.ends.control, admitted.ends.data, Box::new(life))?;
        Ok(LocalClient {
            end: ClientEnd::Rdma(endpoint),
            number: admitted.client,
            unenforced: self.desk.terms().unenforced,
            departure: Box::new(leave),
        })
    }
}

/// In one process: one of them is set when the node ends, the other when it shows this client out.
struct Local([Arc<AtomicBool>; 2]);

impl NodeLife for Local {
    fn node_alive(&mut self) -> bool {
        !self.0.iter().any(|end| end.load(Ordering::Acquire))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Tells the node, when it is dropped, that a client of this process is gone.
struct Leave {
    desk: Arc<Desk>,
    client: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.desk.show_out(self.client);
    }
}
