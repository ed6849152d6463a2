//! Messages of clients without queue pairs. They arrive over a connection that the node does not know: its owner passes
//! each message to the node as a value, and takes the replies as values.

use super::Received;
use portcullis_protocol::{ClientId, MESSAGE_BYTES, Reply, messages_in};
use std::collections::{HashMap, VecDeque};

/// Number of a client's requests that have no reply yet.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The most requests without a reply.
    depth: u32,
    unanswered: u32,
}

/// The messages of all clients without queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    clients: HashMap<ClientId, Stream>,
    arrived: VecDeque<(ClientId, [u8; MESSAGE_BYTES])>,
    replies: VecDeque<(ClientId, [u8; MESSAGE_BYTES])>,
    /// Number of messages taken out.
    received: u64,
}

impl Streams {
    /// Adds a client, which may have `depth` requests without a reply.
    pub fn insert(&mut self, client: ClientId, depth: u32) {
        self.clients.insert(client, Stream { depth, unanswered: 0 });
    }

    pub fn remove(&mut self, client: ClientId) {
        if self.clients.remove(&client).is_some() {
            self.arrived.retain(|&(from, _)| from != client);
            self.replies.retain(|&(to, _)| to != client);
        }
    }

    /// Receives a message. Returns whether the client keeps to its terms. Drops messages of a client that has left.
    pub fn hear(&mut self, client: ClientId, message: [u8; MESSAGE_BYTES]) -> bool {
        let Some(stream) = self.clients.get_mut(&client) else { return true };
        if stream.unanswered >= stream.depth {
            return false;
        }
        stream.unanswered += 1;
        self.arrived.push_back((client, message));
        true
    }

    /// Takes out the next message that has arrived, decoded.
    pub fn take_out(&mut self) -> Option<(ClientId, Received)> {
        let (client, message) = self.arrived.pop_front()?;
        self.received += 1;
        // Each message over a stream carries one request.
        let is_whole = messages_in(&message).is_some();
        Some((client, if is_whole { Received::of(&message) } else { Received::CUT }))
    }

    /// Returns the number of messages taken out.
    pub fn received(&self) -> u64 {
        self.received
    }

    pub fn reply(&mut self, client: ClientId, reply: &Reply) {
        if let Some(stream) = self.clients.get_mut(&client) {
            stream.unanswered = stream.unanswered.saturating_sub(1);
            self.replies.push_back((client, reply.encode()));
        }
    }

    /// Takes out the next reply to be sent.
    pub fn poll_reply(&mut self) -> Option<(ClientId, [u8; MESSAGE_BYTES])> {
        self.replies.pop_front()
    }
}
