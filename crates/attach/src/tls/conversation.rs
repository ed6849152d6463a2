//! An attach without a socket, seen by those who try what bytes can do to it: fuzzers. Not for anything else.

use crate::handshake::Reason;
use crate::tls::channel::Channel;
pub use crate::tls::frames::{Frames, framed};
pub use crate::tls::handshake::Breach;
use crate::tls::handshake::{Gate, ServerSide};
pub use crate::tls::messages::{ClientSays, NodeSays, REASON_BYTES_MAX, VERSION};
use crate::tls::policy::{AdmissionPolicy, Admitted, Peer};
use crate::tls::terms::{Ends, Terms};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// The node's side of one attach, without TLS.
#[derive(Debug)]
pub struct Conversation<A> {
    visit: ServerSide,
    policy: A,
}

struct Open<'a, A>(&'a A);

impl<A: AdmissionPolicy> Gate for Open<'_, A> {
    fn terms(&self, peer: &Peer) -> Result<Terms, Reason> {
        self.0.terms(peer)
    }

    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, Reason> {
        self.0.admit(peer, ends)
    }

    fn depart(&self, client: u64) {
        self.0.depart(client);
    }
}

impl<A: AdmissionPolicy> Conversation<A> {
    /// Somebody has come, and has until `deadline`.
    #[must_use]
    pub fn new(policy: A, deadline: Instant) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let peer = Peer { tenant: None, address, listener: 0 };
        Self { visit: ServerSide::new(peer, Channel::plain(), deadline), policy }
    }

    /// Bytes came.
    ///
    /// # Errors
    /// The peer has to go at once, and why.
    pub fn hear(&mut self, bytes: &[u8]) -> Result<(), Breach> {
        self.visit.hear(bytes, &Open(&self.policy))
    }

    /// Sends so much of what is to be said, at the most.
    pub fn send(&mut self, most: usize) -> Vec<u8> {
        let bytes = self.visit.outgoing();
        let bytes = bytes[..most.min(bytes.len())].to_vec();
        self.visit.sent(bytes.len());
        bytes
    }

    /// Whether the own half of the connection is to be closed now. Says so once.
    pub fn take_farewell(&mut self) -> bool {
        self.visit.take_farewell()
    }

    /// Whether its time is up.
    #[must_use]
    pub fn is_late(&self, now: Instant) -> bool {
        self.visit.is_late(now)
    }

    /// The client that it has become.
    #[must_use]
    pub fn client(&self) -> Option<u64> {
        self.visit.client()
    }

    /// Whether it has been told all.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.visit.is_attached()
    }
}
