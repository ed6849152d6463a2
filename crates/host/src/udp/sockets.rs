//! The sockets of a node, on the engine's thread: datagrams are received and sent in batches, and refused operations
//! are reported to the node.

use portcullis_nic::{Memory, Nic};
use portcullis_node::Node;
use portcullis_onerma::{NodeSocket, Refused, Responder};
use portcullis_protocol::{Lifetime, Moment};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time after which a sleeping engine sends again the answers for which a socket had no room: no event announces that
/// there is room again.
const AGAIN_AFTER: Lifetime = Lifetime::millis(1);

/// A node's sockets and its end of operations.
#[derive(Debug)]
pub(crate) struct UdpEnd<M> {
    responder: Arc<Mutex<Responder<M>>>,
    sockets: Vec<NodeSocket>,
    /// The moment at which a socket that had no room for answers is tried again.
    again: Option<Moment>,
}

impl<M: Memory> UdpEnd<M> {
    pub fn new(responder: Arc<Mutex<Responder<M>>>, sockets: Vec<NodeSocket>) -> Self {
        Self { responder, sockets, again: None }
    }

    /// Receives datagrams, answers them, and reports refused operations to the node. Returns whether there was anything
    /// to do.
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
        // The node may close regions when it handles a refusal, and closing takes the lock.
        drop(responder);
        for refused in refusals {
            tell(node, &refused, now);
        }
        worked
    }

    /// The next moment at which this end needs a turn without being called.
    pub fn next_wake(&self) -> Option<Moment> {
        let due = self.responder.lock().unwrap_or_else(PoisonError::into_inner).next_timeout();
        let due = due.map(|due| Moment(u64::try_from(due.as_micros()).unwrap_or(u64::MAX).saturating_add(1)));
        due.into_iter().chain(self.again).min()
    }
}

/// Makes the node charge a refused operation. An operation that no key has sealed is dropped without a report.
fn tell<N: Nic>(node: &mut Node<N>, refused: &Refused, now: Moment) {
    if let Some((client, packet, access)) = refused.to_charge() {
        node.handle_refused_operation(client, packet, access, now);
    }
}
