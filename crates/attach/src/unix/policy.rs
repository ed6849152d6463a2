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
    /// Its number on the node.
    pub client: u64,
    /// The key of its arena.
    pub arena_key: u32,
}

/// What a client is offered, and keeps if it is admitted. It is dropped on the thread of the client's user, when the
/// connection is closed.
pub trait Place: Send + 'static {
    /// The size of the port.
    fn size(&self) -> EndpointSize;

    /// Bytes of the port's file.
    fn memory_bytes(&self) -> u64;

    /// The port's file, the engine's page, an event, and the client's end of an alarm.
    fn descriptors(&self) -> [BorrowedFd<'_>; 4];

    /// They have been sent: those that only the client needs can be closed.
    fn was_offered(&mut self);

    /// Makes the port's memory such that no page can be taken away any more. Done on the thread of the client's user,
    /// after the client has mapped it.
    fn preparation(&self) -> Errand;

    /// The connection is over: from here on nothing of the client's wakes the node.
    fn give_up(&mut self);
}

/// Decides which clients get a port.
pub trait AdmissionPolicy: Send + 'static {
    /// What is offered.
    type Place: Place;

    /// What a peer that asks for `arena_bytes` of arena would get.
    ///
    /// # Errors
    /// Why it is refused. The peer is told.
    fn offer(&self, peer: &Peer, arena_bytes: u64) -> Result<Self::Place, Reason>;

    /// Makes the port in the memory that was offered and that the client has mapped.
    ///
    /// # Errors
    /// Why the peer is refused: it is told. Nothing is left behind.
    fn admit(&self, peer: &Peer, place: &mut Self::Place) -> Result<Admitted, Reason>;

    /// The client has gone, or broke the rules of the socket. Called exactly once for every client that was admitted.
    fn depart(&self, client: u64);

    /// Takes in that a peer was refused, or hung up on for what it sent. Does not wait.
    fn report(&self, _refused: RefusedPeer) {}
}
