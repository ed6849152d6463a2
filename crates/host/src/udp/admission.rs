//! Admission of clients over UDP.

use super::lane::Lane;
use super::lane_threads::LaneThreads;
use super::table::NodeRegions;
use super::{Port, UdpConfig, UdpEnd, limits, open, terms};
use crate::engine::Bell;
use crate::fabric::{Fabric, NodeEngine};
use crate::processors::ProcessorList;
use crate::resident::NodeResident;
use crate::{HostConfig, HostError, Run, machine};
use portcullis_attach::tls::{
    AdmissionPolicy, ListenError, Listener, Offer, OneShotTerms, Peer, TlsHandshake,
};
use portcullis_attach::{Acceptor, AcceptorList, Limits, Reason, RefusedPeer};
use portcullis_onerma::{HostAddress, NodeSocket, RegionTable, Responder};
use portcullis_protocol::{ClientId, Incarnation, MESSAGE_BYTES};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Admits clients that attach over TCP.
#[derive(Debug)]
struct UdpPolicy<F: Fabric> {
    engine: NodeEngine<F>,
    /// For each listener, the terms of its clients, and the tenant that they act for if they have no certificates.
    listeners: Vec<(OneShotTerms, Option<String>)>,
}

/// The message does not have the fixed size of a control message.
#[derive(Debug, thiserror::Error)]
#[error("a message of {0} bytes instead of {MESSAGE_BYTES}")]
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

    fn report(&self, refused: RefusedPeer) {
        self.engine.report(refused);
    }
}

/// The ports of a node for clients over UDP, from before the node exists until it accepts clients.
#[derive(Debug)]
pub(crate) struct UdpListeners {
    config: UdpConfig,
    listeners: Vec<Listener>,
    terms: Vec<OneShotTerms>,
    /// The sockets of each port, one for each lane.
    sockets: Vec<Vec<NodeSocket>>,
    processors: ProcessorList,
    /// Number of the node's threads that have their processors before the lanes.
    threads_before: u32,
    /// The number of threads for lanes.
    lanes: u32,
    incarnation: Incarnation,
    zero: Instant,
}

impl UdpListeners {
    /// Listens at all ports of a node's configuration. The node has `threads_before` other threads in its list of
    /// processors. Returns `None` if the configuration has no ports for such clients.
    ///
    /// # Errors
    /// A port cannot be opened: the error names the port and the reason.
    pub fn listen(config: &HostConfig, run: &Run, threads_before: u32) -> Result<Option<Self>, ListenError> {
        let Some(udp) = &config.udp else { return Ok(None) };
        let lanes = udp.lanes.lanes_on(config.processors.to_spare());
        let ports = udp.listen.iter().map(|listen| open(listen, lanes)).collect::<Result<Vec<Port>, _>>()?;
        let terms =
            ports.iter().map(|port| terms(udp, port, config.port.depth_without_queue_pairs())).collect();
        let (listeners, sockets) =
            ports.into_iter().map(|Port { listener, sockets }| (listener, sockets)).unzip();
        Ok(Some(Self {
            config: udp.clone(),
            listeners,
            terms,
            sockets,
            processors: config.processors.clone(),
            threads_before,
            lanes,
            incarnation: run.incarnation,
            zero: run.zero,
        }))
    }

    /// Makes the node serve the packets that arrive at the ports: on threads of their own, which ring `bell` for the node,
    /// or on the node's thread, which has to wake for them, so that `watch` gets each socket.
    ///
    /// # Errors
    /// The errors of `watch`, or the machine cannot start a thread.
    pub fn serve<F: Fabric>(
        &mut self,
        resident: &mut NodeResident<F>,
        bell: Arc<dyn Bell>,
        watch: impl Fn(&NodeSocket) -> rustix::io::Result<()>,
    ) -> Result<(), HostError> {
        let table = RegionTable::new(self.incarnation.0, self.config.regions_max);
        let count = self.lanes.max(1) as usize;
        let responders = Responder::lanes(&resident.memory(), &table, limits(&self.config), count);
        let mut ports: Vec<_> = std::mem::take(&mut self.sockets).into_iter().map(Vec::into_iter).collect();
        let mut next_sockets = || ports.iter_mut().filter_map(Iterator::next).collect();
        let mut lanes: Vec<Lane> =
            responders.into_iter().map(|responder| Lane::new(next_sockets(), responder)).collect();
        let end = if self.lanes == 0 {
            let lane = lanes.pop().expect("one lane");
            let watched = lane.sockets().iter().try_for_each(watch).map_err(std::io::Error::from);
            watched.map_err(machine("cannot wait for datagrams".to_owned()))?;
            UdpEnd::OnNode(Box::new(lane))
        } else {
            let place = (&self.processors, self.threads_before as usize);
            let started = LaneThreads::start(lanes, place, bell, self.zero);
            UdpEnd::OnThreads(started.map_err(machine("cannot start the threads of lanes".to_owned()))?)
        };
        resident.serve_udp(Box::new(NodeRegions(table)), end);
        Ok(())
    }

    /// Starts to accept clients. Returns the addresses at which they connect.
    ///
    /// # Errors
    /// The machine has no thread or no descriptors left.
    pub fn start<F: Fabric>(
        self,
        engine: NodeEngine<F>,
        acceptors: &AcceptorList,
    ) -> Result<Vec<SocketAddr>, HostError> {
        let Self { config, listeners, terms, .. } = self;
        let addresses = listeners.iter().map(Listener::local_address).collect();
        let tenants = config.listen.iter().map(|listen| listen.tenant.clone());
        let policy = UdpPolicy { engine, listeners: terms.into_iter().zip(tenants).collect() };
        let started = Acceptor::start::<TlsHandshake>(listeners, Box::new(policy), Limits::TCP);
        acceptors.put(started.map_err(machine("cannot accept clients".to_owned()))?);
        Ok(addresses)
    }
}
