//! A host: the real ends of operations, and the times of its own hardware.

use crate::time::Nanos;
use portcullis_onerma::{Executor, Initiator, Responder};
use portcullis_sim::SimMemory;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The times that a host takes for its work on a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostTimes {
    /// Time from a command's first byte on the bus to the datagram at the port.
    pub command: Nanos,
    /// Time of a read of the host's memory by the NIC, before it can send what it has read.
    pub fetch: Nanos,
    /// Time of a write into the host's memory by the NIC, after it has received what it writes.
    pub store: Nanos,
    /// The NIC's time for a datagram that it receives, one after the other.
    pub packet: Nanos,
}

/// A client's end of operations.
#[derive(Debug)]
pub(super) enum Client {
    /// A client with congestion control.
    Executor(Box<Executor>),
    /// A client without congestion control.
    Initiator(Box<Initiator>),
}

impl Client {
    pub fn poll_transmit(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let mut packet = Vec::new();
        let to = match self {
            Self::Executor(it) => it.poll_transmit(&mut packet),
            Self::Initiator(it) => it.poll_transmit(&mut packet),
        };
        Some((to?, packet))
    }

    pub fn next_timeout(&self) -> Option<Duration> {
        match self {
            Self::Executor(it) => it.next_timeout(),
            Self::Initiator(it) => it.next_timeout(),
        }
    }

    pub fn handle_timeout(&mut self, now: Duration) {
        match self {
            Self::Executor(it) => it.handle_timeout(now),
            Self::Initiator(it) => it.handle_timeout(now),
        }
    }

    /// Handles a packet. Returns the data of a read, if it brings some, and the offset of the data within the read.
    pub fn handle_packet<'a>(
        &mut self,
        from: SocketAddr,
        packet: &'a mut [u8],
        now: Duration,
    ) -> Option<(usize, &'a [u8])> {
        match self {
            Self::Executor(it) => it.handle_packet(from, packet, now).map(|data| (data.offset, data.bytes)),
            Self::Initiator(it) => it.handle_packet(from, packet, now).map(|data| (data.offset, data.bytes)),
        }
    }
}

/// A host with a client, a responder, or both.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub client: Option<Client>,
    /// Data of the client's reads: the latest byte at each offset within a read.
    pub read: Vec<u8>,
    pub responder: Option<Responder<SimMemory>>,
    /// Time at which the client's next time-out is due, if an event stands for it.
    pub client_timer: Option<Nanos>,
    pub responder_timer: Option<Nanos>,
    /// Whether an event stands for the next datagram of the responder.
    pub is_serving: bool,
    /// Time at which the NIC has received all datagrams that have arrived so far.
    pub received: Nanos,
}

/// The end of a host that a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Responder,
    Client,
}

const RESPONDER_PORT: u16 = 1;
const CLIENT_PORT: u16 = 2;

/// Returns the address of an end of a host.
pub(super) fn address(host: usize, end: End) -> SocketAddr {
    let number = u16::try_from(host).expect("hosts are few").to_be_bytes();
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, number[0], number[1]));
    SocketAddr::new(ip, if end == End::Responder { RESPONDER_PORT } else { CLIENT_PORT })
}

/// Returns the host and its end with this address.
pub(super) fn end_of(address: SocketAddr) -> Option<(usize, End)> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let [_, _, high, low] = ip.octets();
    let end = match address.port() {
        RESPONDER_PORT => End::Responder,
        CLIENT_PORT => End::Client,
        _ => return None,
    };
    Some((usize::from(u16::from_be_bytes([high, low])), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_host_and_end() {
        for host in [0, 1, 255, 256, 40_000] {
            for end in [End::Responder, End::Client] {
                assert_eq!(end_of(address(host, end)), Some((host, end)));
            }
        }
    }
}
