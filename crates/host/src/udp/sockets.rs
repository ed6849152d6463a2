//! The sockets of a node, on the engine's thread: datagrams come in and go out in batches, and whatever is refused is told to
//! the node.

use portcullis_nic::{Memory, Nic};
use portcullis_node::Node;
use portcullis_onerma::{Refused, Responder, UdpSocket};
use portcullis_protocol::Moment;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Batches of datagrams that one turn takes from a socket: others' operations wait meanwhile.
const BATCHES_PER_TURN: usize = 2;

/// A node's sockets and its end of operations.
#[derive(Debug)]
pub(crate) struct UdpEnd<M> {
    responder: Arc<Mutex<Responder<M>>>,
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    socket: UdpSocket,
    /// What the socket had no room for. It goes out where its request came in.
    unsent: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl<M: Memory> UdpEnd<M> {
    pub fn new(responder: Arc<Mutex<Responder<M>>>, sockets: Vec<UdpSocket>) -> Self {
        let sockets = sockets.into_iter().map(|socket| Socket { socket, unsent: VecDeque::new() }).collect();
        Self { responder, sockets }
    }

    /// Takes in what has come, answers it, and tells the node what was refused. Returns whether there was anything.
    pub fn turn<N: Nic>(&mut self, node: &mut Node<N>, now: Moment) -> bool {
        let at = Duration::from_micros(now.0);
        let mut responder = self.responder.lock().unwrap_or_else(PoisonError::into_inner);
        let mut worked = false;
        for socket in &mut self.sockets {
            worked |= socket.turn(&mut responder, at);
        }
        responder.handle_timeout(at);
        let refusals: Vec<Refused> = std::iter::from_fn(|| responder.poll_refusal()).collect();
        // The node may close regions for what it is told.
        drop(responder);
        for refused in refusals {
            tell(node, &refused, now);
        }
        worked
    }

    /// When it wants a turn without being called.
    pub fn next_wake(&self) -> Option<Moment> {
        let due = self.responder.lock().unwrap_or_else(PoisonError::into_inner).next_timeout()?;
        Some(Moment(u64::try_from(due.as_micros()).unwrap_or(u64::MAX).saturating_add(1)))
    }
}

impl Socket {
    fn turn<M: Memory>(&mut self, responder: &mut Responder<M>, now: Duration) -> bool {
        let mut worked = false;
        for _ in 0..BATCHES_PER_TURN {
            let came = self.socket.receive(|from, packet| responder.handle_packet(from, packet, now));
            let came = came.inspect_err(|error| tracing::debug!(%error, "a UDP socket reports an error"));
            worked |= self.answer(responder);
            match came {
                Ok(came) if came > 0 => worked = true,
                _ => return worked,
            }
        }
        worked
    }

    /// Sends all answers. Returns whether there were any.
    fn answer<M: Memory>(&mut self, responder: &mut Responder<M>) -> bool {
        let Self { socket, unsent } = self;
        let mut some = false;
        let sent = socket.send(|packet| {
            if let Some((to, bytes)) = unsent.pop_front() {
                packet.extend_from_slice(&bytes);
                return Some(to);
            }
            let to = responder.poll_transmit(packet);
            some |= to.is_some();
            to
        });
        if let Err(error) = sent {
            tracing::debug!(%error, "a datagram was not sent");
        }
        // The rest would otherwise leave by another socket.
        let mut packet = Vec::new();
        while let Some(to) = responder.poll_transmit(&mut packet) {
            unsent.push_back((to, std::mem::take(&mut packet)));
        }
        some
    }
}

/// Has the node charge a refused operation. Of what no key has sealed the node hears nothing.
fn tell<N: Nic>(node: &mut Node<N>, refused: &Refused, now: Moment) {
    if let Some((client, region, access)) = refused.to_charge() {
        node.handle_refused_operation(client, region, access, now);
    }
}
