//! The software NIC as a fabric: each client shares a file with the node, and attaches at a Unix socket.

mod admission;
mod client;
mod driver;
mod ports;
mod worker_threads;

pub use client::{AttachedPort, attach};
pub use portcullis_attach::unix::AttachError;

use crate::backend::{NodeOn, Started};
use crate::engine::{Engine, EngineOptions};
use crate::fabric::{Fabric, Made, NodeEngine, ThreadLoads};
use crate::outlet::Outlet;
use crate::resident::{Departure, NodeResident};
#[cfg(feature = "udp")]
use crate::udp::UdpListeners;
use crate::{
    HostConfig, HostError, LocalAdmission, LocalClient, LocalError, Run, SessionEndpoint, ThreadCount,
    machine,
};
use admission::{OfferedPort, Offers, SocketPolicy};
use driver::SoftwareDriver;
use portcullis_attach::unix::{DESCRIPTORS_EACH, Listener, UnixHandshake};
use portcullis_attach::{Acceptor, AcceptorList, Limits, Reason};
use portcullis_memory::{Alarm, Crowd, Doorbell, Mapping, Waker, Watched, WatchedEvent};
use portcullis_nic::{EndpointSize, GuaranteeSet, Lkey, VerbsError};
use portcullis_node::{Admission, ChunkEnds, ClientEnds};
use portcullis_softnic::core::copy_units::{PieceSizes, Pieces};
use portcullis_softnic::core::engines::Seat;
use portcullis_softnic::{PortEndpoint, PortId, PortResources, SoftNic};
use ports::PortShare;
use std::sync::Arc;
use std::thread::available_parallelism;
use worker_threads::WorkerThreads;

/// The fabric of the software NIC: a client's end is a port.
#[derive(Debug)]
pub(crate) struct Software;

impl Fabric for Software {
    type Nic = SoftNic;
    type Driver = SoftwareDriver;
    /// The port's memory, its size, and the alarm that wakes a program that waits for a descriptor.
    type Request = (Mapping, EndpointSize, Alarm);
    /// The key of the client's arena.
    type Reply = Lkey;
    type End = PortId;
    /// The port's memory: unmapping it takes milliseconds.
    type Leftovers = Mapping;

    fn make(
        nic: &mut SoftNic,
        admission: Admission,
        (memory, size, alarm): (Mapping, EndpointSize, Alarm),
    ) -> Result<Made<Self>, VerbsError> {
        let Admission { pd, chunks, cq, data_sends, .. } = admission;
        let resources = PortResources { pd, chunks, cq, data_sends };
        let (end, ends, reply) = nic.create_port(memory, size, resources)?;
        nic.set_alarm(end, alarm);
        let queue_pairs = ClientEnds {
            control: ends.control,
            data: ends.data,
            peers: ends.peers,
            chunks: ChunkEnds { access: ends.chunks, asking: ends.asking },
            control_depth: size.control_depth,
            message_bytes: size.message_bytes,
        };
        Ok(Made { end, queue_pairs, reply })
    }

    fn destroy(nic: &mut SoftNic, end: PortId) -> Option<Mapping> {
        nic.destroy_port(end)
    }

    fn thread_loads(nic: &mut SoftNic) -> ThreadLoads {
        let core = nic.core();
        ThreadLoads { copy_units: core.copy_unit_loads(), engines: core.engine_loads() }
    }
}

/// Starts a node on the software NIC.
pub(crate) fn start(config: &HostConfig, run: Run, records: Option<Outlet>) -> Result<Started, HostError> {
    let mut listeners = Vec::new();
    for listen in &config.listen {
        let bound = Listener::bind(&listen.path, config.sockets.access(listen));
        let failed = |source| HostError::Socket { path: listen.path.clone(), source };
        listeners.push(bound.map_err(failed)?);
    }
    let copy_units = config.copy_units.copy_units_on(config.processors.to_spare());
    #[cfg(feature = "udp")]
    let mut udp = UdpListeners::listen(config, &run, copy_units + engine_count(config, copy_units))?;
    let no_engine = || machine("cannot start the node's thread".to_owned());
    let mut nic = SoftNic::new();
    let threads = NicThreads::start(&mut nic, config, copy_units)?;
    let waker = Waker::new().map_err(|error| no_engine()(std::io::Error::other(error)))?;
    let acceptors = AcceptorList::default();
    let (mechanism, zero) = (run.config.mechanism, run.zero);
    let offers = Arc::new(Offers::new(&run.config, config.port, waker.clone()));
    #[cfg_attr(not(feature = "udp"), expect(unused_mut, reason = "it serves no UDP"))]
    let mut resident = NodeResident::new(&mut nic, run, records, acceptors.clone())?;
    #[cfg(feature = "udp")]
    if let Some(udp) = &mut udp {
        udp.serve(&mut resident, Arc::new(waker.clone()), |socket| waker.watch(socket))?;
    }
    let driver = SoftwareDriver { nic, waker, threads };
    let options = EngineOptions { processor: config.processors.of_node(), zero };
    let engine: NodeEngine<Software> = Engine::start(driver, resident, options).map_err(no_engine())?;
    if !listeners.is_empty() {
        let tenants = config.listen.iter().map(|listen| listen.tenant.clone()).collect();
        let policy = SocketPolicy { engine: engine.clone(), offers: Arc::clone(&offers), tenants };
        let limits = Limits::UNIX.within_descriptors(DESCRIPTORS_EACH);
        let started = Acceptor::start::<UnixHandshake<SocketPolicy>>(listeners, policy, limits);
        acceptors.put(started.map_err(machine("cannot accept clients".to_owned()))?);
    }
    #[cfg(feature = "udp")]
    let addresses = match udp {
        Some(udp) => udp.start(engine.clone(), &acceptors)?,
        None => Vec::new(),
    };
    #[cfg(not(feature = "udp"))]
    let addresses = Vec::new();
    Ok(Started {
        node: Arc::new(NodeOn { engine: engine.clone(), acceptors }),
        local_admission: Arc::new(LocalPorts { engine, offers }),
        mechanism,
        unenforced: Vec::new(),
        tenants_max: None,
        addresses,
    })
}

/// Returns the number of the node's engines, beside this many copy units.
fn engine_count(config: &HostConfig, copy_units: u32) -> u32 {
    let spare = config.processors.to_spare();
    // On a part of a machine, as in a container, it cannot be seen whether its processors are taken.
    let is_whole =
        available_parallelism().is_ok_and(|all| u32::try_from(all.get()) == Ok(Crowd::new().processors()));
    if config.engines == ThreadCount::Auto && config.processors.numbers().is_empty() && !is_whole {
        return 0;
    }
    #[cfg(feature = "udp")]
    let lanes = config.udp.as_ref().map_or(0, |udp| udp.lanes.lanes_on(spare));
    #[cfg(not(feature = "udp"))]
    let lanes = 0;
    config.engines.engines_on(spare, copy_units + lanes)
}

/// The threads that work for the software NIC.
#[derive(Debug)]
struct NicThreads {
    #[expect(dead_code, reason = "the threads end with it")]
    copy_units: WorkerThreads<Pieces<Mapping>>,
    #[expect(dead_code, reason = "the threads end with it")]
    engines: WorkerThreads<Seat<Mapping>>,
}

impl NicThreads {
    /// Gives the NIC its copy units and its engines, and starts their threads.
    fn start(nic: &mut SoftNic, config: &HostConfig, copy_units: u32) -> Result<Self, HostError> {
        let queues: Vec<Arc<Pieces<Mapping>>> = (0..copy_units).map(|_| Arc::default()).collect();
        let mut units = WorkerThreads::new(queues.iter().cloned());
        if !queues.is_empty() {
            nic.core().set_copy_units(queues, units.runner(Crowd::none()), PieceSizes::default());
        }
        let mut engines = WorkerThreads::new([]);
        let count = engine_count(config, copy_units) as usize;
        // An operator's own number is taken as it is, and processors of a list are the node's.
        let is_own = config.engines != ThreadCount::Auto || !config.processors.numbers().is_empty();
        let crowd = if is_own { Crowd::none() } else { Crowd::new() };
        if count > 0 {
            nic.core().set_engines(count, |seats| {
                engines = WorkerThreads::new(seats.iter().cloned());
                engines.runner(crowd)
            });
        }
        let failed = |what: &str| machine(format!("cannot start the threads of {what}"));
        units.start(&config.processors, 0).map_err(failed("copy units"))?;
        engines.start(&config.processors, copy_units as usize).map_err(failed("engines"))?;
        Ok(Self { copy_units: units, engines })
    }
}

/// Makes ports for clients in the node's own process.
#[derive(Debug)]
struct LocalPorts {
    engine: NodeEngine<Software>,
    offers: Arc<Offers>,
}

impl LocalAdmission for LocalPorts {
    fn open(&self, tenant: &str, arena_bytes: u64) -> Result<LocalClient, LocalError> {
        let mut port = self.offers.offer(tenant, arena_bytes).map_err(refused)?;
        port.memory.make_resident().map_err(refused)?;
        let process = Some(std::process::id());
        let (alarm, watched) = port.take_alarm();
        let watched = Watched::new(watched);
        let admitted = self.engine.admit(tenant, process, (port.memory.clone(), port.size, alarm));
        let (client, arena_key) = admitted.map_err(refused)?;
        let departure = Departure::new(self.engine.clone(), client);
        let (page, event) = port.take_event();
        let doorbell = Doorbell::new(page, event.event().map_err(refused)?);
        let connection = None;
        let OfferedPort { memory, size, share, .. } = port;
        let endpoint = PortEndpoint::new(memory, size, arena_key, (doorbell, watched), connection);
        Ok(LocalClient {
            end: SessionEndpoint::Port(endpoint),
            number: client.0,
            unenforced: GuaranteeSet::NONE,
            departure: Box::new(LocalDeparture { _event: event, _departure: departure, _share: share }),
        })
    }
}

fn refused(error: impl Into<Reason>) -> LocalError {
    LocalError::Refused(error.into())
}

/// The objects that end with a client in the node's own process, in this order.
struct LocalDeparture {
    _event: WatchedEvent,
    _departure: Departure<Software>,
    _share: PortShare,
}
