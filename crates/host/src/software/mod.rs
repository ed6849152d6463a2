//! A host on the software NIC: its engine with the node on its thread, and the sockets that clients come to.

mod admission;
mod ports;
mod resident;

use super::admin::Way;
use super::backend::Backend;
use super::outlet::Outlet;
use super::{HostConfig, HostError, Run, machine};
use crate::{ClientEnd, LocalClient, LocalDoor, LocalError};
use admission::Gate;
use portcullis_memory::{Doorbell, Mapping, Waker};
use portcullis_nic::{EndpointSize, GuaranteeSet, Lkey};
use portcullis_protocol::Mechanism;
use portcullis_softnic::attach::{Admitted, Listener, Server, ServerLimits};
use portcullis_softnic::engine::{Engine, EngineOptions};
use portcullis_softnic::{Life, PortEndpoint, PortLayout, SoftNic};
use ports::PortShare;
use resident::NodeResident;
use std::sync::{Arc, Mutex, PoisonError};

/// A running node.
#[derive(Debug)]
pub(super) struct SoftwareHost {
    engine: Engine<NodeResident>,
    gate: Arc<Gate>,
    server: Arc<Mutex<Option<Server>>>,
    mechanism: Mechanism,
}

impl SoftwareHost {
    pub fn start(config: &HostConfig, run: Run, records: Option<Outlet>) -> Result<Self, HostError> {
        let mut listeners = Vec::new();
        for listen in &config.listen {
            let bound = Listener::bind(&listen.path, config.sockets.access(listen));
            let failed = |source| HostError::Socket { path: listen.path.clone(), source };
            listeners.push(bound.map_err(failed)?);
        }
        let mut nic = SoftNic::new();
        let server = Arc::new(Mutex::new(None));
        let options = EngineOptions { processor: config.processor, zero: Some(run.zero) };
        let node_config = run.config.clone();
        let resident = NodeResident::new(&mut nic, run, records, Arc::clone(&server))?;
        let engine =
            Engine::start(nic, resident, options).map_err(machine("cannot start the engine".to_owned()))?;
        let tenants = config.listen.iter().map(|listen| listen.tenant.clone()).collect();
        let gate = Arc::new(Gate::new(engine.clone(), tenants, &node_config, config.port));
        if !listeners.is_empty() {
            let desk = admission::Desk(Arc::clone(&gate));
            let waker = engine.waker().clone();
            let started = Server::start(listeners, desk, waker, ServerLimits::default().within_descriptors())
                .map_err(machine("cannot take clients in".to_owned()))?;
            *server.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        }
        Ok(Self { engine, gate, server, mechanism: node_config.mechanism })
    }
}

impl Backend for SoftwareHost {
    fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    fn local_door(&self) -> Arc<dyn LocalDoor> {
        Arc::new(SideDoor { engine: self.engine.clone(), gate: Arc::clone(&self.gate) })
    }

    fn way(&self) -> Arc<Way> {
        let engine = self.engine.clone();
        Arc::new(move |order| {
            let turns = engine.turn_times();
            engine.call(move |_, resident, now| order.carry_out(resident.node(), turns, now)).ok()
        })
    }

    fn stop(&self) {
        // Out of the lock before it goes: its thread may be waiting for the engine, and the engine for the lock.
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(server);
        self.engine.stop();
    }
}

/// The way in for clients of the node's own process.
struct SideDoor {
    engine: Engine<NodeResident>,
    gate: Arc<Gate>,
}

impl LocalDoor for SideDoor {
    fn open(&self, tenant: &str, arena_bytes: u64) -> Result<LocalClient, LocalError> {
        let (size, share) = self.gate.offer(tenant, arena_bytes).map_err(LocalError::Refused)?;
        let memory = Mapping::shareable("portcullis-port", PortLayout::new(size).bytes()).map_err(refused)?;
        memory.make_resident().map_err(refused)?;
        self.port(tenant, memory, size, share)
    }
}

impl SideDoor {
    fn port(
        &self,
        tenant: &str,
        memory: Mapping,
        size: EndpointSize,
        share: PortShare,
    ) -> Result<LocalClient, LocalError> {
        let waker = self.engine.waker().clone();
        let event = waker.new_event().map_err(refused)?;
        let again = event.try_clone().map_err(refused)?;
        let admitted = self.gate.admit(tenant, Some(std::process::id()), memory.clone(), size);
        let Admitted { client, arena_key } = admitted.map_err(LocalError::Refused)?;
        let doorbell = Doorbell::new(waker.page().clone(), event);
        let life = Life::Local([self.engine.over(), self.gate.farewell(client)]);
        let endpoint = PortEndpoint::new(memory, size, Lkey(arena_key), doorbell, life);
        let leave = Leave { gate: Arc::clone(&self.gate), client, waker, event: again, _share: share };
        Ok(LocalClient {
            end: ClientEnd::Port(endpoint),
            number: client,
            unenforced: GuaranteeSet::NONE,
            departure: Box::new(leave),
        })
    }
}

fn refused(error: impl ToString) -> LocalError {
    LocalError::Refused(error.to_string())
}

/// Tells the node, when it is dropped, that a client of this process is gone.
struct Leave {
    gate: Arc<Gate>,
    client: u64,
    waker: Waker,
    event: std::os::fd::OwnedFd,
    _share: PortShare,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.waker.forget_event(&self.event);
        self.gate.depart(self.client);
    }
}
