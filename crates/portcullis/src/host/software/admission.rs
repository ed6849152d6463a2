//! Who gets in, and with what.

use super::resident::NodeResident;
use crate::host::PortLimits;
use portcullis_nic::EndpointSize;
use portcullis_node::NodeConfig;
use portcullis_softnic::attach::{Admission, Admitted, Peer};
use portcullis_softnic::engine::Engine;
use portcullis_softnic::shared::Mapping;
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
}

impl Gate {
    pub fn new(
        engine: Engine<NodeResident>,
        tenants: Vec<Option<String>>,
        config: &NodeConfig,
        limits: PortLimits,
    ) -> Self {
        Self { engine, tenants, size: limits.size(config), arena_bytes_max: limits.arena_bytes_max }
    }

    /// The port that a client with an arena of `arena_bytes` gets. What messages take comes on top.
    pub fn size(&self, arena_bytes: u64) -> Result<EndpointSize, String> {
        let most = self.arena_bytes_max;
        if arena_bytes > most {
            return Err(format!("an arena of {arena_bytes} bytes is beyond this node's limit of {most}"));
        }
        let size = self.size.with_buffers(arena_bytes);
        if size.is_sound() { Ok(size) } else { Err(format!("the node's limits make no port: {size:?}")) }
    }

    pub fn admit(
        &self,
        tenant: &str,
        process: u32,
        memory: Mapping,
        size: EndpointSize,
    ) -> Result<Admitted, String> {
        let tenant = tenant.to_owned();
        self.engine
            .call(move |nic, node, now| node.admit(nic, (&tenant, process), memory, size, now))
            .map_err(|gone| gone.to_string())?
    }

    /// What is set when the node shows this client of its own process out.
    pub fn farewell(&self, client: u32) -> Arc<AtomicBool> {
        let shown_out = Arc::new(AtomicBool::new(false));
        let kept = Arc::clone(&shown_out);
        // When the engine is gone, its own end says so.
        let _ = self.engine.call(move |_, node, _| node.on_farewell(client, kept));
        shown_out
    }

    pub fn depart(&self, client: u32) {
        // When the engine is gone, so is the client.
        let _ = self.engine.call(move |nic, node, now| node.depart(nic, client, now));
    }
}

/// The gate as the attach server knows it.
#[derive(Debug)]
pub(super) struct Desk(pub Arc<Gate>);

impl Admission for Desk {
    fn size(&self, _peer: &Peer, arena_bytes: u64) -> Result<EndpointSize, String> {
        self.0.size(arena_bytes)
    }

    fn admit(&self, peer: &Peer, memory: Mapping, size: EndpointSize) -> Result<Admitted, String> {
        let named = self.0.tenants.get(peer.listener).cloned().flatten();
        let tenant = named.unwrap_or_else(|| format!("uid:{}", peer.user));
        self.0.admit(&tenant, peer.process, memory, size)
    }

    fn depart(&self, client: u32) {
        self.0.depart(client);
    }
}
