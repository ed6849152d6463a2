//! The node on its engine's thread.

use crate::Run;
use crate::outlet::Outlet;
use portcullis_memory::Mapping;
use portcullis_nic::EndpointSize;
use portcullis_node::{ClientEnds, Node, StartError};
use portcullis_protocol::{ClientId, Moment};
use portcullis_softnic::attach::{Admitted, Server};
use portcullis_softnic::engine::Resident;
use portcullis_softnic::{PortId, SoftNic};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Clients that are shown out in one turn.
const SHOWN_OUT_PER_TURN: u32 = 8;

/// A node and the ports of its clients.
#[derive(Debug)]
pub(super) struct NodeResident {
    node: Node<SoftNic>,
    ports: HashMap<ClientId, PortId>,
    /// Told to clients of this process that are shown out: they have no socket that could be closed.
    farewells: HashMap<ClientId, Arc<AtomicBool>>,
    /// Memory of ports that are gone, of clients that have been shown out and have not hung up yet: to unmap it takes
    /// milliseconds, which others' operations would wait for here.
    unmapped: HashMap<u64, Mapping>,
    /// Shown out by the node, and still connected.
    evicted: Vec<u64>,
    records: Option<Outlet>,
    server: Arc<Mutex<Option<Server>>>,
}

impl NodeResident {
    pub fn new(
        nic: &mut SoftNic,
        run: Run,
        records: Option<Outlet>,
        server: Arc<Mutex<Option<Server>>>,
    ) -> Result<Self, StartError> {
        Ok(Self {
            node: Node::new(nic, run.config, run.incarnation, run.secret)?,
            ports: HashMap::new(),
            farewells: HashMap::new(),
            unmapped: HashMap::new(),
            evicted: Vec::new(),
            records,
            server,
        })
    }

    /// Lets a client in: its tenant's domain, its port, its place on the node.
    pub fn admit(
        &mut self,
        nic: &mut SoftNic,
        (tenant, process): (&str, Option<u32>),
        memory: Mapping,
        size: EndpointSize,
        now: Moment,
    ) -> Result<Admitted, String> {
        let admission = self.node.admit(nic, tenant, now).map_err(|refusal| refusal.to_string())?;
        let port = nic.create_port(memory, size, admission.pd, admission.cq);
        let (port, ends, key) = match port {
            Ok(port) => port,
            Err(error) => {
                self.node.abandon(nic, admission.tenant, now);
                return Err(error.to_string());
            }
        };
        let ends = ClientEnds {
            control: ends.control,
            data: ends.data,
            peers: ends.peers,
            control_depth: size.control_depth,
            message_bytes: size.message_bytes,
        };
        match self.node.attach(nic, admission.tenant, process, ends, now) {
            Ok(client) => {
                self.ports.insert(client, port);
                Ok(Admitted { client: client.0, arena_key: key.0 })
            }
            Err(error) => {
                nic.destroy_port(port);
                self.node.abandon(nic, admission.tenant, now);
                Err(error.to_string())
            }
        }
    }

    /// A client has left, or whoever was shown out has hung up. Returns the memory of its port, for the caller's thread to
    /// unmap.
    pub fn depart(&mut self, nic: &mut SoftNic, client: u64, now: Moment) -> Option<Mapping> {
        self.take_down(nic, client, now);
        self.unmapped.remove(&client)
    }

    fn take_down(&mut self, nic: &mut SoftNic, client: u64, now: Moment) {
        self.node.detach(nic, ClientId(client), now);
        if let Some(port) = self.ports.remove(&ClientId(client)) {
            self.unmapped.extend(nic.destroy_port(port).map(|memory| (client, memory)));
        }
        if let Some(shown_out) = self.farewells.remove(&ClientId(client)) {
            shown_out.store(true, Ordering::Release);
        }
    }

    /// `shown_out` is to be set when the client is shown out, or is gone already.
    pub fn on_farewell(&mut self, client: u64, shown_out: Arc<AtomicBool>) {
        if self.ports.contains_key(&ClientId(client)) {
            self.farewells.insert(ClientId(client), shown_out);
        } else {
            shown_out.store(true, Ordering::Release);
        }
    }

    pub fn node(&mut self) -> &mut Node<SoftNic> {
        &mut self.node
    }

    /// Shows some of those out that the node cannot serve any more. Returns whether there may be more.
    fn show_out_evicted(&mut self, nic: &mut SoftNic, now: Moment) -> bool {
        let mut shown_out = 0;
        while shown_out < SHOWN_OUT_PER_TURN
            && let Some(client) = self.node.poll_evicted()
        {
            self.take_down(nic, client.0, now);
            self.evicted.push(client.0);
            shown_out += 1;
        }
        // Never waits: the lock is held for a moment only, and who holds it may be waiting for us. A later turn tries
        // again.
        if !self.evicted.is_empty()
            && let Ok(server) = self.server.try_lock()
        {
            for client in self.evicted.drain(..) {
                if let Some(server) = server.as_ref() {
                    server.evict(client);
                }
            }
        }
        shown_out == SHOWN_OUT_PER_TURN
    }
}

impl Resident for NodeResident {
    fn turn(&mut self, nic: &mut SoftNic, now: Moment) -> bool {
        let mut worked = self.node.turn(nic, now);
        if worked || !self.evicted.is_empty() {
            worked |= self.show_out_evicted(nic, now);
        }
        if let Some(records) = &mut self.records {
            worked |= records.fill(|| self.node.poll_audit());
        }
        worked
    }

    fn next_wake(&self) -> Option<Moment> {
        self.node.next_wake()
    }

    fn end(&mut self, nic: &mut SoftNic, now: Moment) {
        self.node.end(nic, now);
        for (_, port) in self.ports.drain() {
            nic.destroy_port(port);
        }
        if let Some(records) = self.records.take() {
            records.drain(|| self.node.poll_audit());
        }
    }
}
