//! Who gets in, and with what.

use super::resident::NodeResident;
use crate::host::PortLimits;
use portcullis_node::NodeConfig;
use portcullis_protocol::{DATA_BYTES_MAX, MESSAGE_BYTES, Mechanism};
use portcullis_softnic::PortSize;
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
    data_queue_pairs: u32,
    message_bytes: u32,
    limits: PortLimits,
}

impl Gate {
    pub fn new(
        engine: Engine<NodeResident>,
        tenants: Vec<Option<String>>,
        config: &NodeConfig,
        limits: PortLimits,
    ) -> Self {
        let data = if config.mechanism == Mechanism::Rpc { DATA_BYTES_MAX } else { 0 };
        Self {
            engine,
            tenants,
            data_queue_pairs: 1 + config.spare_queue_pairs,
            message_bytes: u32::try_from(MESSAGE_BYTES + data).unwrap_or(u32::MAX),
            limits,
        }
    }

    /// The port that a client with an arena of `arena_bytes` gets. What messages take comes on top.
    pub fn size(&self, arena_bytes: u64) -> Result<PortSize, String> {
        let most = self.limits.arena_bytes_max;
        if arena_bytes > most {
            return Err(format!("an arena of {arena_bytes} bytes is beyond this node's limit of {most}"));
        }
        let messages = 2 * u64::from(self.limits.control_depth) * u64::from(self.message_bytes);
        let size = PortSize {
            data_queue_pairs: self.data_queue_pairs,
            send_depth: self.limits.send_depth,
            control_depth: self.limits.control_depth,
            message_bytes: self.message_bytes,
            arena_bytes: (arena_bytes + messages).next_multiple_of(4096),
        };
        if size.is_sound() { Ok(size) } else { Err(format!("the node's limits make no port: {size:?}")) }
    }

    pub fn admit(
        &self,
        tenant: &str,
        process: u32,
        memory: Mapping,
        size: PortSize,
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
    fn size(&self, _peer: &Peer, arena_bytes: u64) -> Result<PortSize, String> {
        self.0.size(arena_bytes)
    }

    fn admit(&self, peer: &Peer, memory: Mapping, size: PortSize) -> Result<Admitted, String> {
        let named = self.0.tenants.get(peer.listener).cloned().flatten();
        let tenant = named.unwrap_or_else(|| format!("uid:{}", peer.user));
        self.0.admit(&tenant, peer.process, memory, size)
    }

    fn depart(&self, client: u32) {
        self.0.depart(client);
    }
}
