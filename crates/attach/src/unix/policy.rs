//! The decision whether a client gets a port, and what the offer is.

use super::peer::Peer;
use crate::handshake::{Errand, Reason, RefusedPeer};
use portcullis_nic::EndpointSize;
use rustix::fd::BorrowedFd;

/// Descriptors that each client takes: its connection, its port's file and the pipe that holds it, its event, its
/// alarm.
pub const DESCRIPTORS_EACH: u64 = 5;

/// A client that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The client's number on the node.
    pub client: u64,
    /// The key of the client's arena.
    pub arena_key: u32,
}

/// The resources offered to a client, which it keeps if it is admitted. They are dropped on the thread of the client's
/// user, when the connection is closed.
pub trait PortOffer: Send + 'static {
    /// The size of the port.
    fn size(&self) -> EndpointSize;

    /// Bytes of the port's file.
    fn memory_bytes(&self) -> u64;

    /// The port's file, the engine's page, an event, and the client's end of an alarm.
    fn descriptors(&self) -> [BorrowedFd<'_>; 4];

    /// Notes that the descriptors have been sent: those that only the client needs can be closed.
    fn was_offered(&mut self);

    /// Returns the errand that secures the port's memory, so that no page can be taken away any more. It runs on the
    /// thread of the client's user, after the client has mapped the memory.
    fn preparation(&self) -> Errand;

    /// Notes that the connection is over: from here on the client cannot wake the node any more.
    fn give_up(&mut self);
}

/// Decides which clients get a port.
pub trait AdmissionPolicy: Send + 'static {
    /// The resources that are offered.
    type Offer: PortOffer;

    /// Returns the resources for a peer that requests `arena_bytes` of arena.
    ///
    /// # Errors
    /// The reason for which the peer is refused. It is sent to the peer.
    fn offer(&self, peer: &Peer, arena_bytes: u64) -> Result<Self::Offer, Reason>;

    /// Creates the port in the memory that was offered and that the client has mapped.
    ///
    /// # Errors
    /// The reason for which the peer is refused. It is sent to the peer. No state is left behind.
    fn admit(&self, peer: &Peer, offer: &mut Self::Offer) -> Result<Admitted, Reason>;

    /// Notes that the client has left, or broke the rules of the socket. Called exactly once for every client that was
    /// admitted.
    fn depart(&self, client: u64);

    /// Notes that a peer was refused, or hung up on for the bytes that it sent. Does not wait.
    fn report(&self, _refused: RefusedPeer) {}
}
