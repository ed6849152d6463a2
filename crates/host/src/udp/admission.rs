//! Admitting clients over UDP.

use super::{Port, UdpConfig, terms};
use crate::fabric::{Fabric, NodeEngine};
use portcullis_attach::tls::{AdmissionPolicy, Listener, Offer, OneShotTerms, Peer, TlsHandshake};
use portcullis_attach::{Acceptor, Limits, Reason};
use portcullis_onerma::{HostAddress, UdpSocket};
use portcullis_protocol::{ClientId, MESSAGE_BYTES};

/// Admits clients that come over TCP.
#[derive(Debug)]
struct UdpPolicy<F: Fabric> {
    engine: NodeEngine<F>,
    /// By listener: what its clients have to know, and the tenant that they act for if they have no certificates.
    listeners: Vec<(OneShotTerms, Option<String>)>,
}

/// A control message has a fixed size.
#[derive(Debug, thiserror::Error)]
#[error("a message of {0} bytes, where {MESSAGE_BYTES} are said")]
struct MessageLength(usize);

impl<F: Fabric> AdmissionPolicy for UdpPolicy<F> {
    fn offer(&self, peer: &Peer) -> Result<Offer, Reason> {
        Ok(Offer::OneShots(self.listeners[peer.listener].0))
    }

    fn admit_without_queue_pairs(&self, peer: &Peer) -> Result<u64, Reason> {
        let (terms, named) = &self.listeners[peer.listener];
        let tenant = peer.tenant_or(named.as_deref());
        let host = HostAddress::from(peer.address.ip());
        let client = self.engine.admit_without_queue_pairs(&tenant, host.0, terms.control_depth)?;
        Ok(client.0)
    }

    fn heard(&self, client: u64, message: &[u8]) -> Result<(), Reason> {
        let message: [u8; MESSAGE_BYTES] = message.try_into().map_err(|_| MessageLength(message.len()))?;
        Ok(self.engine.hear(ClientId(client), message)?)
    }

    fn depart(&self, client: u64) {
        self.engine.depart(ClientId(client));
    }
}

/// Starts taking clients in. Returns the acceptor and the sockets for their datagrams.
///
/// # Errors
/// The machine refuses a thread or descriptors.
pub(crate) fn start_acceptor<F: Fabric>(
    config: &UdpConfig,
    ports: Vec<Listener>,
    terms: Vec<OneShotTerms>,
    engine: NodeEngine<F>,
) -> std::io::Result<Acceptor> {
    let tenants = config.listen.iter().map(|listen| listen.tenant.clone());
    let policy = UdpPolicy { engine, listeners: terms.into_iter().zip(tenants).collect() };
    Acceptor::start::<TlsHandshake>(ports, Box::new(policy), Limits::TCP)
}

/// Takes ports apart: their listeners, what their clients have to know, and their sockets.
pub(crate) fn apart(
    config: &UdpConfig,
    ports: Vec<Port>,
    control_depth: u32,
) -> (Vec<Listener>, Vec<OneShotTerms>, Vec<UdpSocket>) {
    let of_each: Vec<OneShotTerms> = ports.iter().map(|port| terms(config, port, control_depth)).collect();
    let (listeners, sockets) = ports.into_iter().map(|Port { listener, socket }| (listener, socket)).unzip();
    (listeners, of_each, sockets)
}
