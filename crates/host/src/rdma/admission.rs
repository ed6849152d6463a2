//! Admission of clients, and the terms on which they are admitted.

use super::Rdma;
use super::peer_probe::PeerProbe;
use crate::PortLimits;
use crate::fabric::NodeEngine;
use portcullis_attach::tls::{AdmissionPolicy, Admitted, Ends, Offer, Peer, Terms};
use portcullis_attach::{Reason, RefusedPeer};
use portcullis_nic::{EndpointSize, Guarantee};
use portcullis_node::NodeConfig;
use portcullis_protocol::ClientId;
use std::sync::Arc;

/// Returns the terms that a client's end must meet on this node.
pub(super) fn terms(config: &NodeConfig, limits: PortLimits, unenforced: &[Guarantee]) -> Terms {
    let EndpointSize { data_queue_pairs, send_depth, control_depth, message_bytes, .. } = limits.size(config);
    let unenforced = unenforced.iter().copied().collect();
    Terms { data_queue_pairs, send_depth, control_depth, message_bytes, unenforced }
}

/// Admits clients of this process and of others.
#[derive(Debug)]
pub(super) struct Entry {
    pub engine: NodeEngine<Rdma>,
    pub probe: PeerProbe,
    pub terms: Terms,
}

impl Entry {
    /// Admits a client whose queue pairs are at `theirs`. Returns the addresses of the node's queue pairs.
    pub fn admit(
        &self,
        tenant: &str,
        process: Option<u32>,
        theirs: Ends,
    ) -> Result<(ClientId, Ends), Reason> {
        self.probe.look(&theirs)?;
        // The client's buffers are in its own memory and do not count.
        let size = self.terms.size(0);
        Ok(self.engine.admit(tenant, process, (theirs, size))?)
    }
}

/// Admits clients that attach over TCP.
#[derive(Debug)]
pub(super) struct TcpPolicy {
    pub entry: Arc<Entry>,
    /// The tenant that clients of each listener act for, if they have no certificates.
    pub tenants: Vec<Option<String>>,
}

impl AdmissionPolicy for TcpPolicy {
    fn offer(&self, _peer: &Peer) -> Result<Offer, Reason> {
        Ok(Offer::QueuePairs(self.entry.terms))
    }

    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, Reason> {
        let tenant = peer.tenant_or(self.tenants.get(peer.listener).and_then(Option::as_deref));
        // The client's process is on another machine.
        let (client, ends) = self.entry.admit(&tenant, None, ends)?;
        Ok(Admitted { client: client.0, ends })
    }

    fn depart(&self, client: u64) {
        self.entry.engine.depart(ClientId(client));
    }

    fn report(&self, refused: RefusedPeer) {
        self.entry.engine.report(refused);
    }
}
