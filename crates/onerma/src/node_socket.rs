//! A node's socket for operations: it passes received datagrams to a responder, and sends its answers.
//!
//! Any process may send any number of datagrams to a port, and datagrams that find no room there are lost, honest ones
//! among them. So while a port is flooded with datagrams that no key has sealed, each sender that has proven itself
//! gets a socket of its own at the same address. The system separates its datagrams before they take room from others,
//! and the node reads them first. None of this affects what a packet may do.

use crate::responder::Responder;
use crate::udp::UdpSocket;
use portcullis_memory::Bytes;
use rustix::event::{Timespec, epoll};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Bursts of datagrams that one turn reads from the port: other work waits meanwhile.
const BURSTS_PER_TURN: usize = 2;
/// Number of datagrams that make a burst large: so many are pending only if the node falls behind.
const LARGE_BURST: usize = 32;
/// Time that a port counts as flooded after a large burst of which most datagrams were sealed by no key.
const FLOODED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of senders of a port with a socket of their own, over all lanes. The system compares each datagram with their addresses.
const SENDER_SOCKETS_MAX: usize = 64;
/// Silence of a sender after which another sender may have its place.
const SILENT_FOR: Duration = Duration::from_secs(1);
/// Silence of a sender after which its socket is closed.
const CLOSED_AFTER: Duration = Duration::from_secs(10);
/// Number of turns of which one reads the port, while it is flooded and proven senders keep the node busy.
const TURNS_PER_LOOK: u32 = 16;
/// Identifier of the port's own socket among the watched sockets.
const PORT: u64 = 0;

/// A port of a node, with the sockets for senders of their own.
#[derive(Debug)]
pub struct NodeSocket {
    port: UdpSocket,
    /// Maximum number of senders with a socket of their own.
    senders_max: usize,
    watched: OwnedFd,
    senders: BTreeMap<u64, SenderSocket>,
    next_sender: u64,
    flooded_until: Duration,
    turns_without_look: u32,
    /// Datagrams for which the port had no room. They are sent from the port at which their requests arrived.
    unsent: VecDeque<(SocketAddr, Vec<u8>)>,
}

/// One sender's socket.
#[derive(Debug)]
struct SenderSocket {
    socket: UdpSocket,
    sender: SocketAddr,
    /// The local address to which the sender sends its datagrams.
    own: IpAddr,
    /// Whether datagrams may be pending.
    is_ready: bool,
    /// Time of the last datagram.
    heard: Duration,
}

impl AsFd for NodeSocket {
    /// Returns a descriptor that is readable when a datagram has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

impl NodeSocket {
    /// Creates a port of the node at an address. With port 0 the system chooses one.
    ///
    /// # Errors
    /// The system refuses the address, or a feature that the socket needs.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::over(UdpSocket::bind(address)?, SENDER_SOCKETS_MAX)
    }

    /// Creates `lanes` sockets that are a port of the node together. With port 0 the system chooses one.
    ///
    /// # Errors
    /// The system refuses the address, or a feature that the sockets need.
    pub fn bind_lanes(address: SocketAddr, lanes: u32) -> io::Result<Vec<Self>> {
        let senders_max = (SENDER_SOCKETS_MAX / lanes as usize).max(1);
        let sockets = UdpSocket::bind_lanes(address, lanes)?.into_iter();
        sockets.map(|socket| Self::over(socket, senders_max)).collect()
    }

    fn over(port: UdpSocket, senders_max: usize) -> io::Result<Self> {
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&watched, &port, epoll::EventData::new_u64(PORT), epoll::EventFlags::IN)?;
        Ok(Self {
            port,
            senders_max,
            watched,
            senders: BTreeMap::new(),
            next_sender: PORT + 1,
            flooded_until: Duration::ZERO,
            turns_without_look: 0,
            unsent: VecDeque::new(),
        })
    }

    /// Returns the port's address.
    ///
    /// # Errors
    /// The system does not report the address.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.port.local_address()
    }

    /// Whether answers wait until the system has room for them. No event announces that.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.unsent.is_empty() || self.port.is_behind()
    }

    /// Number of senders that have a socket of their own now.
    #[must_use]
    pub fn senders_apart(&self) -> usize {
        self.senders.len()
    }

    /// Passes some of the received datagrams to the responder, and sends its answers. Returns whether there was work to
    /// do.
    pub fn turn<M: Bytes>(&mut self, responder: &mut Responder<M>, now: Duration) -> bool {
        let mut worked = self.is_behind() && self.answer(responder);
        // Arriving datagrams wait in the system while answers are pending: their answers would fill the node's memory.
        if self.is_behind() {
            return worked;
        }
        let was_called = !self.senders.is_empty() && self.serve_senders(responder, now);
        worked |= was_called;
        if was_called && now < self.flooded_until && self.turns_without_look + 1 < TURNS_PER_LOOK {
            self.turns_without_look += 1;
            return worked;
        }
        self.turns_without_look = 0;
        let bursts = if now < self.flooded_until { 1 } else { BURSTS_PER_TURN };
        for _ in 0..bursts {
            if self.is_behind() || !self.serve_port(responder, now) {
                break;
            }
            worked = true;
        }
        worked
    }

    /// Reads a burst from the port. Returns whether there was work to do.
    fn serve_port<M: Bytes>(&mut self, responder: &mut Responder<M>, now: Duration) -> bool {
        let (mut proven, mut senders) = (0, Vec::new());
        let is_flooded = now < self.flooded_until;
        let came = self.port.receive(|from, packet| {
            if responder.handle_packet(from, packet, now) {
                proven += 1;
                if is_flooded && senders.last() != Some(&from) {
                    senders.push(from);
                }
            }
        });
        let came = came.inspect_err(|error| tracing::debug!(%error, "a UDP socket reports an error"));
        let came = came.unwrap_or(0);
        if came >= LARGE_BURST && proven < came / 2 {
            self.flooded_until = now + FLOODED_FOR;
        }
        for sender in senders {
            self.set_apart(sender, now);
        }
        self.answer(responder) | (came > 0)
    }

    /// Reads a burst from each sender that has a socket of its own. Returns whether there was work to do.
    fn serve_senders<M: Bytes>(&mut self, responder: &mut Responder<M>, now: Duration) -> bool {
        self.find_ready();
        let mut worked = false;
        for sender_socket in self.senders.values_mut().filter(|sender_socket| sender_socket.is_ready) {
            let came = sender_socket.socket.receive(|from, packet| {
                responder.handle_packet(from, packet, now);
            });
            sender_socket.is_ready = came.is_ok_and(|came| came > 0);
            if sender_socket.is_ready {
                (sender_socket.heard, worked) = (now, true);
                self.port.answer_from(sender_socket.own, sender_socket.sender);
            }
        }
        self.senders.retain(|_, sender_socket| now.saturating_sub(sender_socket.heard) < CLOSED_AFTER);
        if worked {
            self.answer(responder);
        }
        worked
    }

    fn find_ready(&mut self) {
        let mut room = [const { MaybeUninit::uninit() }; SENDER_SOCKETS_MAX + 1];
        match epoll::wait(&self.watched, &mut room, Some(&Timespec::default())) {
            Ok((ready, _)) => {
                for event in ready {
                    if let Some(sender_socket) = self.senders.get_mut(&event.data.u64()) {
                        sender_socket.is_ready = true;
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the readiness of a node's sockets cannot be read"),
        }
    }

    /// Gives a sender a socket of its own, if there is a place for it.
    fn set_apart(&mut self, sender: SocketAddr, now: Duration) {
        if self.senders.values().any(|sender_socket| sender_socket.sender == sender) {
            return;
        }
        if self.senders.len() >= self.senders_max {
            let silent = self.senders.iter().min_by_key(|(_, sender_socket)| sender_socket.heard);
            match silent {
                Some((&name, sender_socket)) if now.saturating_sub(sender_socket.heard) >= SILENT_FOR => {
                    self.senders.remove(&name)
                }
                // A sender that is not silent keeps its place: otherwise copies of its datagrams from other addresses
                // could take it.
                _ => return,
            };
        }
        let name = self.next_sender;
        let others = self.senders.values().map(|sender_socket| &sender_socket.socket);
        let opened = self.port.for_sender(sender, others).and_then(|socket| {
            epoll::add(&self.watched, &socket, epoll::EventData::new_u64(name), epoll::EventFlags::IN)?;
            let own = socket.local_address()?.ip();
            Ok(SenderSocket { socket, sender, own, is_ready: true, heard: now })
        });
        match opened {
            Ok(sender_socket) => {
                self.next_sender += 1;
                self.senders.insert(name, sender_socket);
            }
            Err(error) => tracing::debug!(%error, %sender, "a sender gets no socket of its own"),
        }
    }

    /// Sends all answers. Returns whether there were any.
    fn answer<M: Bytes>(&mut self, responder: &mut Responder<M>) -> bool {
        let Self { port, unsent, .. } = self;
        let mut some = false;
        // A datagram that the system refuses is lost. The datagrams behind it are for other clients, and are sent all
        // the same.
        while let Err(error) = port.send(|packet| {
            if let Some((to, bytes)) = unsent.pop_front() {
                packet.extend_from_slice(&bytes);
                return Some(to);
            }
            let to = responder.poll_transmit(packet);
            some |= to.is_some();
            to
        }) {
            tracing::debug!(%error, "a datagram was not sent");
        }
        // The remaining answers would otherwise be sent from another port.
        let mut packet = Vec::new();
        while let Some(to) = responder.poll_transmit(&mut packet) {
            unsent.push_back((to, std::mem::take(&mut packet)));
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RegionTable, ResponderLimits};
    use portcullis_memory::Mapping;

    /// The system refuses to send to port 0, but datagrams can have port 0 as their source: their answers are refused.
    #[test]
    fn what_cannot_be_sent_to_one_client_does_not_keep_others_from_their_answers() {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut socket = NodeSocket::bind(anywhere).expect("a port");
        let mut honest = UdpSocket::bind(anywhere).expect("a socket");
        let to = honest.local_address().expect("its address");
        let waiting = [(anywhere, 1), (anywhere, 2), (to, 3)];
        socket.unsent = waiting.map(|(to, byte)| (to, vec![byte; 100 - usize::from(byte)])).into();
        let limits = ResponderLimits {
            packet_max: 1500,
            waiting_max: 4096,
            changes_max: 4,
            client_changes_max: 2,
            change_timeout: Duration::from_millis(50),
            finished_max: 4,
        };
        let memory = Mapping::shareable("memory", 4096).expect("memory");
        let mut responder = Responder::new(memory, &RegionTable::new(1, 1), limits);
        socket.turn(&mut responder, Duration::ZERO);
        honest.wait(Duration::from_secs(5)).expect("it waits");
        let mut came = Vec::new();
        honest.receive(|_, packet| came.push(packet.to_vec())).expect("received");
        assert_eq!(came, [vec![3; 97]]);
        assert!(!socket.is_behind());
    }
}
