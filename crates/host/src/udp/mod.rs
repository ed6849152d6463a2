//! Clients over UDP, on a node of any fabric: their accesses are encrypted operations without connections (crate `onerma`), and
//! they attach over TCP with mutual TLS, over which their control messages travel as well.
//!
//! A client has no queue pairs, and no end here that would have to be made: what the node keeps is its place among the clients
//! and the regions of its permissions.

mod admission;
mod sockets;
mod table;

pub(crate) use admission::UdpListeners;
pub(crate) use sockets::UdpEnd;

use crate::NetworkListen;
use portcullis_attach::tls::{DATAGRAM_BYTES_MAX, ListenError, Listener, OneShotTerms};
use portcullis_onerma::{NodeSocket, RegionTable, Responder, ResponderLimits};
use portcullis_protocol::Incarnation;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use table::SharedRegions;

/// How often a free port is looked for that is free for TCP and for UDP.
const PORTS_TRIED: u32 = 16;

/// A node's places for clients over UDP.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The ports that clients connect to. The UDP port has the same number.
    pub listen: Vec<NetworkListen>,
    /// Places in the table of regions: the most permissions of such clients.
    pub regions_max: u32,
    /// Bytes of the largest datagram that the node sends and takes.
    pub datagram_max: u32,
}

impl UdpConfig {
    /// Places in the table of regions, unless somebody says otherwise.
    pub const REGIONS_MAX: u32 = 1 << 16;
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self { listen: Vec::new(), regions_max: Self::REGIONS_MAX, datagram_max: DATAGRAM_BYTES_MAX }
    }
}

/// The sizes of a node's end. How long a change may take bounds what a client may wait (see `InitiatorLimits::timeout`).
fn limits(config: &UdpConfig) -> ResponderLimits {
    ResponderLimits {
        packet_max: config.datagram_max as usize,
        waiting_max: 4 << 20,
        changes_max: 4096,
        client_changes_max: 256,
        change_timeout: CHANGE_TIMEOUT,
        finished_max: 1 << 16,
    }
}

/// How long a change may be under way at the node.
const CHANGE_TIMEOUT: Duration = Duration::from_millis(50);

/// A port for TCP and for UDP.
#[derive(Debug)]
pub(crate) struct Port {
    listener: Listener,
    socket: NodeSocket,
}

fn open(listen: &NetworkListen) -> Result<Port, ListenError> {
    let NetworkListen { address, security, plain_anywhere, .. } = listen;
    let mut tries = 0;
    loop {
        let listener = Listener::bind(address, security.clone(), *plain_anywhere)?;
        let local = listener.local_address();
        tries += 1;
        match NodeSocket::bind(local) {
            Ok(socket) => return Ok(Port { listener, socket }),
            // Another program has this number for UDP. A number that nobody has asked for is tried again.
            Err(_) if address.ends_with(":0") && tries < PORTS_TRIED => {}
            Err(source) => {
                return Err(ListenError::Machine { address: format!("{local} (UDP)"), source });
            }
        }
    }
}

impl Port {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_address()
    }
}

/// The node's end of operations on `memory`, and the regions for its node.
pub(crate) fn make_end<M: portcullis_nic::Memory>(
    config: &UdpConfig,
    incarnation: Incarnation,
    memory: M,
) -> Arc<Mutex<Responder<M>>> {
    let table = RegionTable::new(incarnation.0, config.regions_max);
    Arc::new(Mutex::new(Responder::new(memory, table, limits(config))))
}

/// The table of that end, for the node.
pub(crate) fn regions<M>(end: &Arc<Mutex<Responder<M>>>) -> SharedRegions<M> {
    SharedRegions::new(Arc::clone(end))
}

/// What clients of a port have to know.
fn terms(config: &UdpConfig, port: &Port, control_depth: u32) -> OneShotTerms {
    OneShotTerms { port: port.address().port(), control_depth, datagram_max: config.datagram_max }
}
