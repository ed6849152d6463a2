//! An attach without a socket, for fuzzers that feed it arbitrary bytes. It has no other use.

use crate::tls::channel::Channel;
pub use crate::tls::frames::{Frames, framed};
pub use crate::tls::handshake::Breach;
use crate::tls::handshake::ServerSide;
pub use crate::tls::messages::{ClientSays, NodeSays, REASON_BYTES_MAX, VERSION};
use crate::tls::policy::{AdmissionPolicy, Peer};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// The node's side of one attach, without TLS.
#[derive(Debug)]
pub struct Conversation<A> {
    visit: ServerSide,
    policy: A,
}

impl<A: AdmissionPolicy> Conversation<A> {
    /// Begins an attach with a peer that has until `deadline`.
    #[must_use]
    pub fn new(policy: A, deadline: Instant) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let peer = Peer { tenant: None, address, listener: 0 };
        Self { visit: ServerSide::new(peer, Channel::plain(), deadline), policy }
    }

    /// Handles bytes received from the peer.
    ///
    /// # Errors
    /// The reason for which the peer must be hung up on.
    pub fn hear(&mut self, bytes: &[u8]) -> Result<(), Breach> {
        self.visit.hear(bytes, &self.policy)
    }

    /// Takes the next bytes to be sent, at most `most`.
    pub fn send(&mut self, most: usize) -> Vec<u8> {
        let bytes = self.visit.outgoing();
        let bytes = bytes[..most.min(bytes.len())].to_vec();
        self.visit.sent(bytes.len());
        bytes
    }

    /// Whether to close this end's half of the connection now. `true` only once.
    pub fn take_half_close(&mut self) -> bool {
        self.visit.take_half_close()
    }

    /// Whether the peer's time is up.
    #[must_use]
    pub fn is_late(&self, now: Instant) -> bool {
        self.visit.is_late(now)
    }

    /// The client that the peer has become, if it has.
    #[must_use]
    pub fn client(&self) -> Option<u64> {
        self.visit.client()
    }

    /// Whether the client has been sent its welcome.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.visit.is_attached()
    }
}
