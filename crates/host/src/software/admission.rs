//! Who gets in, and with what.

use super::ports::{PortMemory, PortShare};
use super::resident::NodeResident;
use crate::PortLimits;
use portcullis_memory::Mapping;
use portcullis_nic::EndpointSize;
use portcullis_node::NodeConfig;
use portcullis_softnic::PortLayout;
use portcullis_softnic::attach::{Admission, Admitted, Peer};
use portcullis_softnic::engine::Engine;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The door of a host.
#[derive(Debug)]
pub(super) struct Gate {
    engine: Engine<NodeResident>,
    /// Whom the clients of each listener act for.
    tenants: Vec<Option<String>>,
    /// What clients get, but for their buffers.
    size: EndpointSize,
    arena_bytes_max: u64,
    memory: Arc<PortMemory>,
}

impl Gate {
    pub fn new(
        engine: Engine<NodeResident>,
        tenants: Vec<Option<String>>,
        config: &NodeConfig,
        limits: PortLimits,
    ) -> Self {
        Self {
            engine,
            tenants,
            size: limits.size(config),
            arena_bytes_max: limits.arena_bytes_max,
            memory: PortMemory::new(limits.ports_bytes_max),
        }
    }

    /// The port that a client of a tenant gets for an arena of `arena_bytes`. What messages take comes on top.
    pub fn offer(&self, tenant: &str, arena_bytes: u64) -> Result<(EndpointSize, PortShare), String> {
        let most = self.arena_bytes_max;
        if arena_bytes > most {
            return Err(format!("an arena of {arena_bytes} bytes is beyond this node's limit of {most}"));
        }
        let size = self.size.with_buffers(arena_bytes);
        if !size.is_sound() {
            return Err(format!("the node's limits make no port: {size:?}"));
        }
        Ok((size, self.memory.take(tenant, PortLayout::new(size).bytes())?))
    }

    /// Whom a client of another process acts for.
    fn tenant_of(&self, peer: &Peer) -> Result<String, String> {
        match (&self.tenants[peer.listener], peer.user) {
            (Some(tenant), _) => Ok(tenant.clone()),
            (None, Some(user)) => Ok(format!("uid:{user}")),
            // All users of other user namespaces look like one another here: they would be one tenant.
            (None, None) => {
                Err("this socket is for users that the kernel can name here, and yours has no number \
                                 (another user namespace, or nobody): ask for a socket with ?tenant=NAME"
                    .to_owned())
            }
        }
    }

    pub fn admit(
        &self,
        tenant: &str,
        process: Option<u32>,
        memory: Mapping,
        size: EndpointSize,
    ) -> Result<Admitted, String> {
        let tenant = tenant.to_owned();
        // If there is no place, it is unmapped here and not by the engine.
        let _mapped = memory.clone();
        self.engine
            .call(move |nic, node, now| node.admit(nic, (&tenant, process), memory, size, now))
            .map_err(|gone| gone.to_string())?
    }

    /// What is set when the node shows this client of its own process out.
    pub fn farewell(&self, client: u64) -> Arc<AtomicBool> {
        let shown_out = Arc::new(AtomicBool::new(false));
        let kept = Arc::clone(&shown_out);
        // When the engine is gone, its own end says so.
        let _ = self.engine.call(move |_, node, _| node.on_farewell(client, kept));
        shown_out
    }

    pub fn depart(&self, client: u64) {
        // When the engine is gone, so is the client.
        let _ = self.engine.call(move |nic, node, now| node.depart(nic, client, now));
    }
}

/// The gate as the attach server knows it.
#[derive(Debug)]
pub(super) struct Desk(pub Arc<Gate>);

impl Admission for Desk {
    type Place = PortShare;

    fn offer(&self, peer: &Peer, arena_bytes: u64) -> Result<(EndpointSize, PortShare), String> {
        self.0.offer(&self.0.tenant_of(peer)?, arena_bytes)
    }

    fn admit(&self, peer: &Peer, memory: Mapping, size: EndpointSize) -> Result<Admitted, String> {
        self.0.admit(&self.0.tenant_of(peer)?, peer.process, memory, size)
    }

    fn depart(&self, client: u64) {
        self.0.depart(client);
    }
}
