//! Clients over UDP, on a node of any fabric. Their accesses are encrypted operations without connections (crate
//! `onerma`). They attach over TCP with mutual TLS, and that connection carries their control messages as well.
//!
//! Such a client has no queue pairs, so the node makes no end for it. The node keeps only the client's place among the
//! clients and the regions of its permissions.

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
use std::time::Duration;
use table::NodeRegions;

/// Attempts to find a free port that is free for TCP and for UDP.
const PORTS_TRIED: u32 = 16;

/// The configuration of a node for clients over UDP.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The ports that clients connect to. The UDP port has the same number.
    pub listen: Vec<NetworkListen>,
    /// Entries of the table of regions: the most permissions of such clients.
    pub regions_max: u32,
    /// Bytes of the largest datagram that the node sends and accepts.
    pub datagram_max: u32,
}

impl UdpConfig {
    /// The default number of entries of the table of regions.
    pub const REGIONS_MAX: u32 = 1 << 16;
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self { listen: Vec::new(), regions_max: Self::REGIONS_MAX, datagram_max: DATAGRAM_BYTES_MAX }
    }
}

/// Returns the sizes of a node's end. The longest time of a change bounds the time that a client may wait (see
/// `InitiatorLimits::timeout`).
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

/// The longest time that a change may be under way at the node.
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
            // Another program has this number for UDP. If the configuration requires no particular number, another one
            // is tried.
            Err(_) if address.ends_with(":0") && tries < PORTS_TRIED => {}
            Err(source) => {
                return Err(ListenError::Machine { address: format!("{local} (UDP)"), source });
            }
        }
    }
}

impl Port {
    /// The address at which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_address()
    }
}

/// Makes the end of operations on `memory`, for the node.
pub(crate) fn make_end<M: portcullis_nic::Memory>(
    config: &UdpConfig,
    incarnation: Incarnation,
    memory: M,
) -> NodeRegions<M> {
    let table = RegionTable::new(incarnation.0, config.regions_max);
    NodeRegions(Responder::new(memory, table, limits(config)))
}

/// Returns the terms of a port, which its clients need.
fn terms(config: &UdpConfig, port: &Port, control_depth: u32) -> OneShotTerms {
    OneShotTerms { port: port.address().port(), control_depth, datagram_max: config.datagram_max }
}
