//! An RDMA device as a fabric: clients bring their own queue pairs, and attach at a TCP port.

mod admission;
mod choice;
mod driver;
mod peer_probe;

pub use choice::Unenforced;
pub use portcullis_ibverbs::{MemlockTooLow, NoLibrary, OpenError};

use crate::backend::{NodeOn, Started};
use crate::engine::{Driver, Engine, EngineOptions};
use crate::fabric::{Fabric, Made, NodeEngine};
use crate::outlet::Outlet;
use crate::resident::{Departure, NodeResident};
#[cfg(feature = "udp")]
use crate::udp::UdpListeners;
use crate::{
    HostConfig, HostError, LocalAdmission, LocalClient, LocalError, NetworkListen, Run, SessionEndpoint,
    machine,
};
use admission::{Entry, TcpPolicy};
use choice::choose;
use driver::DeviceDriver;
use peer_probe::PeerProbe;
use portcullis_attach::tls::{Ends, Listener, Terms, TlsHandshake};
use portcullis_attach::{Acceptor, AcceptorList, Limits, Reason};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_ibverbs::{
    DeviceChoice, IbEndpoint, IbNic, NodeLife, WorkRequests, check_memlock, check_memlock_of_node,
};
use portcullis_memory::Watched;
use portcullis_nic::{EndpointSize, Guarantee, VerbsError};
use portcullis_node::{Admission, ClientEnds};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// A node's place on an RDMA device.
#[derive(Clone, Debug, Default)]
pub struct RdmaConfig {
    /// The device.
    pub device: DeviceChoice,
    /// The ports that clients connect to.
    pub listen: Vec<NetworkListen>,
    /// Whether to take the best mechanism whose guarantees the device keeps, instead of
    /// [`NodeConfig::mechanism`](portcullis_node::NodeConfig::mechanism).
    pub pick_mechanism: bool,
    /// Guarantees that the node may do without, if the device does not keep them.
    pub allow_unenforced: Vec<Guarantee>,
}

/// The fabric of RDMA devices: a client's end is a set of connected queue pairs.
#[derive(Debug)]
pub(crate) struct Rdma;

impl Fabric for Rdma {
    type Nic = IbNic;
    type Driver = DeviceDriver;
    /// The addresses of the client's queue pairs, and their depths.
    type Request = (Ends, EndpointSize);
    /// The addresses of the node's queue pairs.
    type Reply = Ends;
    type End = ();
    type Leftovers = ();

    fn make(
        nic: &mut IbNic,
        admission: Admission,
        (theirs, size): (Ends, EndpointSize),
    ) -> Result<Made<Self>, VerbsError> {
        let (queue_pairs, control, data) =
            ClientEnds::connect(nic, admission, &size, theirs.control, &theirs.data)?;
        Ok(Made { queue_pairs, end: (), reply: Ends { control, data } })
    }

    fn destroy(_nic: &mut IbNic, (): ()) -> Option<()> {
        // The queue pairs belong to the node, and the fabric has nothing else for a client.
        None
    }
}

/// Starts a node on an RDMA device.
pub(crate) fn start(
    config: &HostConfig,
    rdma: &RdmaConfig,
    mut run: Run,
    records: Option<Outlet>,
) -> Result<Started, HostError> {
    if !config.listen.is_empty() {
        return Err(HostError::Config(
            "a node on an RDMA device has no port in shared memory: let clients connect to rdma:HOST:PORT",
        ));
    }
    if matches!(config.copy_units, crate::ThreadCount::Fixed(1..)) {
        return Err(HostError::Config(
            "copy units move bytes for the software NIC: a node on an RDMA device has none (--copy-units)",
        ));
    }
    if matches!(config.engines, crate::ThreadCount::Fixed(1..)) {
        return Err(HostError::Config(
            "engines serve clients of the software NIC: a node on an RDMA device has none (--engines)",
        ));
    }
    let mut listeners = Vec::new();
    for NetworkListen { address, security, plain_anywhere, .. } in &rdma.listen {
        listeners.push(Listener::bind(address, security.clone(), *plain_anywhere)?);
    }
    #[cfg_attr(not(feature = "udp"), expect(unused_mut, reason = "no address comes after these"))]
    let mut addresses: Vec<SocketAddr> = listeners.iter().map(Listener::local_address).collect();
    #[cfg(feature = "udp")]
    let mut udp = UdpListeners::listen(config, &run, 0)?;
    let mut nic = IbNic::open(&rdma.device, WorkRequests::default())?;
    let tenants_max = check_memlock_of_node(run.config.memory_bytes(), tenants_at_least(&rdma.listen))?;
    let (mechanism, unenforced) = choose(rdma, run.config.mechanism)?;
    run.config.mechanism = mechanism;
    let terms = admission::terms(&run.config, config.port, &unenforced);
    let acceptors = AcceptorList::default();
    let options = EngineOptions { processor: config.processors.of_node(), zero: run.zero };
    #[cfg_attr(not(feature = "udp"), expect(unused_mut, reason = "it serves no UDP"))]
    let mut resident = NodeResident::new(&mut nic, run, records, acceptors.clone())?;
    let driver = DeviceDriver::new(nic).map_err(machine("no event for the node".to_owned()))?;
    #[cfg(feature = "udp")]
    if let Some(udp) = &mut udp {
        udp.serve(&mut resident, Arc::new(driver.bell()), |socket| driver.watch(socket))?;
    }
    let engine: NodeEngine<Rdma> = Engine::start(driver, resident, options)
        .map_err(machine("cannot start the node's thread".to_owned()))?;
    let probe = PeerProbe::new(IbNic::open(&rdma.device, WorkRequests::default())?)?;
    let entry = Arc::new(Entry { engine: engine.clone(), probe, terms });
    if !listeners.is_empty() {
        let tenants = rdma.listen.iter().map(|listen| listen.tenant.clone()).collect();
        let policy = TcpPolicy { entry: Arc::clone(&entry), tenants };
        let started = Acceptor::start::<TlsHandshake>(listeners, Box::new(policy), Limits::TCP);
        acceptors.put(started.map_err(machine("cannot accept clients".to_owned()))?);
    }
    #[cfg(feature = "udp")]
    if let Some(udp) = udp {
        addresses.extend(udp.start(engine.clone(), &acceptors)?);
    }
    Ok(Started {
        node: Arc::new(NodeOn { engine, acceptors }),
        local_admission: Arc::new(LocalQueuePairs { entry, device: rdma.device.clone() }),
        mechanism,
        unenforced,
        tenants_max,
        addresses,
    })
}

/// Returns the number of tenants known beforehand: those with a name, and one more if a listener has clients of other
/// tenants.
fn tenants_at_least(listen: &[NetworkListen]) -> u64 {
    let tenants: HashSet<Option<&str>> = listen.iter().map(|listen| listen.tenant.as_deref()).collect();
    tenants.len().max(1) as u64
}

/// Error of a machine that cannot meet a node's terms.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientEndError {
    /// The client's memory cannot be registered.
    #[error(transparent)]
    Memlock(#[from] MemlockTooLow),
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] VerbsError),
}

impl Coded for ClientEndError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Memlock(error) => error.code(),
            Self::Device(error) => error.code(),
        }
    }
}

/// Makes a client's end that meets the node's terms, with an arena of `arena_bytes`. Returns the end and the addresses
/// of its queue pairs.
///
/// # Errors
/// This machine cannot meet the terms: the error gives the reason.
pub fn client_end(
    terms: &Terms,
    arena_bytes: u64,
    device: &DeviceChoice,
) -> Result<(Ends, IbEndpoint), ClientEndError> {
    let size = terms.size(arena_bytes);
    check_memlock(size.arena_bytes)?;
    let endpoint = IbEndpoint::new(device, size)?;
    let (control, data) = endpoint.addresses()?;
    Ok((Ends { control, data }, endpoint))
}

/// Makes queue pairs for clients in the node's own process.
#[derive(Debug)]
struct LocalQueuePairs {
    entry: Arc<Entry>,
    device: DeviceChoice,
}

impl LocalAdmission for LocalQueuePairs {
    fn open(&self, tenant: &str, arena_bytes: u64) -> Result<LocalClient, LocalError> {
        let Entry { engine, terms, .. } = &*self.entry;
        let (ends, mut endpoint) = client_end(terms, arena_bytes, &self.device).map_err(refused)?;
        let admitted = self.entry.admit(tenant, Some(std::process::id()), ends);
        let (client, node) = admitted.map_err(refused)?;
        let departure = Departure::<Rdma>::new(engine.clone(), client);
        let life = Local(engine.eviction_alarm(client).map_err(refused)?);
        endpoint.connect(node.control, node.data, Box::new(life))?;
        Ok(LocalClient {
            end: SessionEndpoint::Rdma(endpoint),
            number: client.0,
            unenforced: terms.unenforced,
            departure: Box::new(departure),
        })
    }
}

fn refused(error: impl Into<Reason>) -> LocalError {
    LocalError::Refused(error.into())
}

/// The life of a node in the client's own process: it is over when the engine ends, or when the node evicts the client.
struct Local(Watched);

impl NodeLife for Local {
    fn node_alive(&mut self) -> bool {
        self.0.quiet()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
