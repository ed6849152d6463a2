//! The sockets of a node, on the engine's thread: datagrams come in and go out in batches, and whatever is refused is told to
//! the node.

use portcullis_nic::{Memory, Nic};
use portcullis_node::Node;
use portcullis_onerma::{Refused, Responder, UdpSocket};
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Batches of datagrams that one turn takes from a socket: others' operations wait meanwhile.
const BATCHES_PER_TURN: usize = 2;

/// How long a sleeping engine leaves answers alone for which a socket had no room: nothing announces that there is room again.
const AGAIN_AFTER: Lifetime = Lifetime::millis(1);

/// A node's sockets and its end of operations.
#[derive(Debug)]
pub(crate) struct UdpEnd<M> {
    responder: Arc<Mutex<Responder<M>>>,
    sockets: Vec<Socket>,
    /// When a socket is asked again that had no room for answers.
    again: Option<Moment>,
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
        Self { responder, sockets, again: None }
    }

    /// Takes in what has come, answers it, and tells the node what was refused. Returns whether there was anything.
    pub fn turn<N: Nic>(&mut self, node: &mut Node<N>, now: Moment) -> bool {
        let at = Duration::from_micros(now.0);
        let mut responder = self.responder.lock().unwrap_or_else(PoisonError::into_inner);
        let mut worked = false;
        for socket in &mut self.sockets {
            worked |= socket.turn(&mut responder, at);
        }
        let is_behind = self.sockets.iter().any(Socket::is_behind);
        self.again = is_behind.then(|| Moment(now.0.saturating_add(AGAIN_AFTER.0)));
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
        let due = self.responder.lock().unwrap_or_else(PoisonError::into_inner).next_timeout();
        let due = due.map(|due| Moment(u64::try_from(due.as_micros()).unwrap_or(u64::MAX).saturating_add(1)));
        due.into_iter().chain(self.again).min()
    }
}

impl Socket {
    fn turn<M: Memory>(&mut self, responder: &mut Responder<M>, now: Duration) -> bool {
        let mut worked = self.is_behind() && self.answer(responder);
        for _ in 0..BATCHES_PER_TURN {
            // What comes waits in the system while answers do: they would fill the node's memory.
            if self.is_behind() {
                return worked;
            }
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

    /// Whether answers wait until the system has room for them.
    fn is_behind(&self) -> bool {
        !self.unsent.is_empty() || self.socket.is_behind()
    }

    /// Sends all answers. Returns whether there were any.
    fn answer<M: Memory>(&mut self, responder: &mut Responder<M>) -> bool {
        let Self { socket, unsent } = self;
        let mut some = false;
        // What the system refuses is lost. What is behind it is for others, and goes on its way all the same.
        while let Err(error) = socket.send(|packet| {
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
    if let Some((client, packet, access)) = refused.to_charge() {
        node.handle_refused_operation(client, packet, access, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_memory::{ArenaMemory, Mapping};
    use portcullis_onerma::{RegionTable, ResponderLimits};

    /// Nobody can be sent anything at port 0, but datagrams can come from there: the system refuses their answers.
    #[test]
    fn what_cannot_be_sent_to_one_client_does_not_keep_others_from_their_answers() {
        let bind = || UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
        let (own, mut honest) = (bind(), bind());
        let to = honest.local_address().expect("its address");
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let waiting =
            [(nowhere, 1), (nowhere, 2), (to, 3)].map(|(to, byte)| (to, vec![byte; 100 - usize::from(byte)]));
        let mut socket = Socket { socket: own, unsent: waiting.into() };
        let limits = ResponderLimits {
            packet_max: 1500,
            waiting_max: 4096,
            changes_max: 4,
            client_changes_max: 2,
            change_timeout: Duration::from_millis(50),
            finished_max: 4,
        };
        let memory = ArenaMemory::whole(Mapping::private(4096).expect("memory"), 4096);
        let mut responder = Responder::new(memory, RegionTable::new(1, 1), limits);
        socket.turn(&mut responder, Duration::ZERO);
        honest.wait(Duration::from_secs(5)).expect("it waits");
        let mut came = Vec::new();
        honest.receive(|_, packet| came.push(packet.to_vec())).expect("received");
        assert_eq!(came, [vec![3; 97]]);
        assert!(!socket.is_behind());
    }
}
