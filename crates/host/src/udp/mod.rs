//! Clients over UDP, on a node of any fabric. Their accesses are encrypted operations without connections (crate
//! `onerma`). They attach over TCP with mutual TLS, and that connection carries their control messages as well.
//!
//! Such a client has no queue pairs, so the node makes no end for it. The node keeps only the client's place among the
//! clients and the regions of its permissions.

mod admission;
mod end;
mod lane;
mod lane_threads;
mod table;

pub(crate) use admission::UdpListeners;
pub(crate) use end::UdpEnd;

use crate::NetworkListen;
use crate::thread_count::ThreadCount;
use portcullis_attach::tls::{DATAGRAM_BYTES_MAX, ListenError, Listener, OneShotTerms};
use portcullis_onerma::{NodeSocket, ResponderLimits};
use std::net::SocketAddr;
use std::time::Duration;

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
    /// The number of lanes: threads that receive, decrypt and answer packets while the node's thread does other work.
    pub lanes: ThreadCount,
}

impl UdpConfig {
    /// The default number of entries of the table of regions.
    pub const REGIONS_MAX: u32 = 1 << 16;
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            regions_max: Self::REGIONS_MAX,
            datagram_max: DATAGRAM_BYTES_MAX,
            lanes: ThreadCount::Auto,
        }
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
    /// A socket for each lane.
    sockets: Vec<NodeSocket>,
}

/// Opens a port with a socket for each of `lanes` threads, or one for the node's own thread if there are none.
fn open(listen: &NetworkListen, lanes: u32) -> Result<Port, ListenError> {
    let NetworkListen { address, security, plain_anywhere, .. } = listen;
    let mut tries = 0;
    loop {
        let listener = Listener::bind(address, security.clone(), *plain_anywhere)?;
        let local = listener.local_address();
        tries += 1;
        let sockets = match lanes {
            0 => NodeSocket::bind(local).map(|socket| vec![socket]),
            _ => NodeSocket::bind_lanes(local, lanes),
        };
        match sockets {
            Ok(sockets) => return Ok(Port { listener, sockets }),
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

/// Returns the terms of a port, which its clients need.
fn terms(config: &UdpConfig, port: &Port, control_depth: u32) -> OneShotTerms {
    OneShotTerms { port: port.address().port(), control_depth, datagram_max: config.datagram_max }
}
