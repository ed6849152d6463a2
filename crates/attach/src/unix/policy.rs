//! Who decides what a client gets, and what that is.

use super::peer::Peer;
use crate::handshake::{Errand, Reason};
use portcullis_nic::EndpointSize;
use rustix::fd::BorrowedFd;

/// Descriptors that each client takes: its connection, its port's file and what holds it together, its event.
pub const DESCRIPTORS_EACH: u64 = 4;

/// A client that got a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its number on the node.
    pub client: u64,
    /// The key of its arena.
    pub arena_key: u32,
}

/// What a client is offered, and has if it is admitted. It is dropped on the thread of the client's user, when nothing of
/// the connection is left.
pub trait Place: Send + 'static {
    /// What the port has.
    fn size(&self) -> EndpointSize;

    /// Bytes of the port's file.
    fn memory_bytes(&self) -> u64;

    /// The port's file, the engine's page and an event.
    fn descriptors(&self) -> [BorrowedFd<'_>; 3];

    /// Makes the port's memory such that nobody can take its pages away any more. Done on the thread of the client's
    /// user, after the client has mapped it.
    fn preparation(&self) -> Errand;

    /// The connection is over: nothing of the client wakes the node any more.
    fn give_up(&mut self);
}

/// Decides who gets a port.
pub trait AdmissionPolicy: Send + 'static {
    /// What is offered.
    type Place: Place;

    /// What a peer that asks for `arena_bytes` of arena would get.
    ///
    /// # Errors
    /// Why it gets nothing: the peer is told.
    fn offer(&self, peer: &Peer, arena_bytes: u64) -> Result<Self::Place, Reason>;

    /// Makes the port in the memory that was offered, and that the client has mapped.
    ///
    /// # Errors
    /// Why not: the peer is told. Nothing is left behind.
    fn admit(&self, peer: &Peer, place: &Self::Place) -> Result<Admitted, Reason>;

    /// The client is gone, or broke the rules of the socket. Called exactly once for everyone who was admitted.
    fn depart(&self, client: u64);
}
