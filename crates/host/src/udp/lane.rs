//! A lane of a node: its sockets, one for each port, and the responder of their packets.

use portcullis_memory::Mapping;
use portcullis_onerma::{NodeSocket, Refused, Responder, ResponderCounters};
use std::time::Duration;

/// Time after which a sleeping thread sends again the answers for which a socket had no room: no event announces that
/// there is room again.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane {
    sockets: Vec<NodeSocket>,
    responder: Responder<Mapping>,
    /// The time at which a socket that had no room for answers is tried again.
    again: Option<Duration>,
}

impl Lane {
    pub fn new(sockets: Vec<NodeSocket>, responder: Responder<Mapping>) -> Self {
        Self { sockets, responder, again: None }
    }

    /// Returns the sockets.
    pub fn sockets(&self) -> &[NodeSocket] {
        &self.sockets
    }

    /// Receives datagrams and answers them. Returns whether there was anything to do.
    pub fn turn(&mut self, now: Duration) -> bool {
        let mut worked = false;
        for socket in &mut self.sockets {
            worked |= socket.turn(&mut self.responder, now);
        }
        let is_behind = self.sockets.iter().any(NodeSocket::is_behind);
        self.again = is_behind.then_some(now + AGAIN_AFTER);
        self.responder.handle_timeout(now);
        worked
    }

    /// Returns the next operation that was refused.
    pub fn poll_refusal(&mut self) -> Option<Refused> {
        self.responder.poll_refusal()
    }

    /// Returns the next time at which the lane needs a turn without a datagram.
    pub fn next_wake(&self) -> Option<Duration> {
        self.responder.next_timeout().into_iter().chain(self.again).min()
    }

    /// Returns the responder's counters.
    pub fn counters(&self) -> ResponderCounters {
        self.responder.counters()
    }
}
