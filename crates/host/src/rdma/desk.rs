//! Who gets in, and on what terms.

use super::engine::Engine;
use super::scout::Scout;
use crate::PortLimits;
use portcullis_attach::{Admission, Admitted, Ends, Peer, Terms};
use portcullis_nic::{EndpointSize, Guarantee};
use portcullis_node::{ClientEnds, NodeConfig};
use portcullis_protocol::ClientId;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a client of this node has to bring.
pub(super) fn terms(config: &NodeConfig, limits: PortLimits, unenforced: &[Guarantee]) -> Terms {
    let EndpointSize { data_queue_pairs, send_depth, control_depth, message_bytes, .. } = limits.size(config);
    let unenforced = unenforced.iter().copied().collect();
    Terms { data_queue_pairs, send_depth, control_depth, message_bytes, unenforced }
}

/// Where clients get in.
#[derive(Debug)]
pub(super) struct Desk {
    engine: Arc<Engine>,
    scout: Scout,
    /// Whom the clients of each listener act for, if they have no certificates.
    tenants: Vec<Option<String>>,
    terms: Terms,
}

impl Desk {
    pub fn new(engine: Arc<Engine>, scout: Scout, tenants: Vec<Option<String>>, terms: Terms) -> Self {
        Self { engine, scout, tenants, terms }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Lets a client in: its tenant's domain, the node's ends of its queue pairs, its place on the node.
    pub fn admit(&self, tenant: String, process: Option<u32>, theirs: Ends) -> Result<Admitted, String> {
        self.scout.look(&theirs)?;
        // Its buffers are its own affair.
        let size = self.terms.size(0);
        let admitted = self.engine.call(move |life| {
            let now = life.now();
            let (node, nic) = (&mut life.node, &mut life.nic);
            let admission = node.admit(nic, &tenant, now).map_err(|refusal| refusal.to_string())?;
            let made = ClientEnds::connect(nic, admission, &size, theirs.control, &theirs.data);
            let attached = made.and_then(|(ends, control, data)| {
                let attached = node.attach(nic, admission.tenant, process, ends.clone(), now);
                let client = attached.inspect_err(|_| ends.destroy(nic))?;
                Ok((client, ends, Ends { control, data }))
            });
            match attached {
                Ok((client, ends, ours)) => {
                    life.clients.insert(client, ends);
                    Ok(Admitted { client: client.0, ends: ours })
                }
                Err(error) => {
                    life.node.abandon(&mut life.nic, admission.tenant, now);
                    Err(error.to_string())
                }
            }
        });
        admitted.unwrap_or_else(|gone| Err(gone.to_string()))
    }

    /// What is set when the node shows this client of its own process out.
    pub fn farewell(&self, client: u64) -> Arc<AtomicBool> {
        let shown_out = Arc::new(AtomicBool::new(false));
        let kept = Arc::clone(&shown_out);
        // When the engine is gone, its own end says so.
        let _ = self.engine.call(move |life| life.on_farewell(ClientId(client), kept));
        shown_out
    }

    pub fn show_out(&self, client: u64) {
        // When the engine is gone, so is the client.
        let _ = self.engine.call(move |life| life.depart(ClientId(client)));
    }
}

/// The desk as the attach server knows it.
#[derive(Debug)]
pub(super) struct Counter(pub Arc<Desk>);

impl Admission for Counter {
    fn terms(&self, _peer: &Peer) -> Result<Terms, String> {
        Ok(self.0.terms)
    }

    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, String> {
        let named = self.0.tenants.get(peer.listener).cloned().flatten();
        let tenant = peer.tenant.clone().or(named);
        let tenant = tenant.unwrap_or_else(|| format!("address:{}", peer.address.ip().to_canonical()));
        // Its process is on another machine.
        self.0.admit(tenant, None, ends)
    }

    fn depart(&self, client: u64) {
        self.0.show_out(client);
    }
}
