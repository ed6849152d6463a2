//! The sockets of a node, on the engine's thread: datagrams are received and sent in batches, and refused operations
//! are reported to the node.

use super::table::NodeRegions;
use portcullis_nic::Nic;
use portcullis_node::{Node, Regions};
use portcullis_onerma::{NodeSocket, Refused};
use portcullis_protocol::{Lifetime, Moment};
use std::time::Duration;

/// Time after which a sleeping engine sends again the answers for which a socket had no room: no event announces that
/// there is room again.
const AGAIN_AFTER: Lifetime = Lifetime::millis(1);
/// Reason that a node with sockets has the responder.
const LENT: &str = "a node with sockets over UDP was given the responder";

/// A node's sockets. They drive the responder, which the node owns.
#[derive(Debug)]
pub(crate) struct UdpEnd {
    sockets: Vec<NodeSocket>,
    /// The moment at which a socket that had no room for answers is tried again.
    again: Option<Moment>,
}

impl UdpEnd {
    pub fn new(sockets: Vec<NodeSocket>) -> Self {
        Self { sockets, again: None }
    }

    /// Receives datagrams, answers them, and reports refused operations to the node. Returns whether there was anything
    /// to do.
    pub fn turn<N: Nic>(&mut self, node: &mut Node<N>, now: Moment) -> bool
    where
        NodeRegions<N::Memory>: Regions,
    {
        let at = Duration::from_micros(now.0);
        let NodeRegions(responder) = node.regions_mut::<NodeRegions<N::Memory>>().expect(LENT);
        let mut worked = false;
        for socket in &mut self.sockets {
            worked |= socket.turn(responder, at);
        }
        let is_behind = self.sockets.iter().any(NodeSocket::is_behind);
        self.again = is_behind.then(|| Moment(now.0.saturating_add(AGAIN_AFTER.0)));
        responder.handle_timeout(at);
        // The node may close regions when it handles a refusal.
        let refusals: Vec<Refused> = std::iter::from_fn(|| responder.poll_refusal()).collect();
        for refused in refusals {
            tell(node, &refused, now);
        }
        worked
    }

    /// The next moment at which this end needs a turn without being called.
    pub fn next_wake<N: Nic>(&self, node: &Node<N>) -> Option<Moment>
    where
        NodeRegions<N::Memory>: Regions,
    {
        let NodeRegions(responder) = node.regions::<NodeRegions<N::Memory>>().expect(LENT);
        let due = responder.next_timeout();
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
