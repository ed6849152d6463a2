//! The sockets of a node, on the engine's thread: datagrams come in and go out in batches, and whatever is refused is told to
//! the node.

use portcullis_nic::{Memory, Nic};
use portcullis_node::Node;
use portcullis_onerma::{NodeSocket, Refused, Responder};
use portcullis_protocol::{Lifetime, Moment};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a sleeping engine leaves answers alone for which a socket had no room: nothing announces that there is room again.
const AGAIN_AFTER: Lifetime = Lifetime::millis(1);

/// A node's sockets and its end of operations.
#[derive(Debug)]
pub(crate) struct UdpEnd<M> {
    responder: Arc<Mutex<Responder<M>>>,
    sockets: Vec<NodeSocket>,
    /// When a socket is asked again that had no room for answers.
    again: Option<Moment>,
}

impl<M: Memory> UdpEnd<M> {
    pub fn new(responder: Arc<Mutex<Responder<M>>>, sockets: Vec<NodeSocket>) -> Self {
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
        let is_behind = self.sockets.iter().any(NodeSocket::is_behind);
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

/// Has the node charge a refused operation. Of what no key has sealed the node hears nothing.
fn tell<N: Nic>(node: &mut Node<N>, refused: &Refused, now: Moment) {
    if let Some((client, packet, access)) = refused.to_charge() {
        node.handle_refused_operation(client, packet, access, now);
    }
}
