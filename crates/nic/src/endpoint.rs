//! A client's end: what it is on every fabric, and what it is where it has queue pairs.

use crate::{Completion, EndpointSize, Lkey, Memory, QpId, ReceiveRequest, WorkRequest};
use std::time::Duration;

/// See [`VerbsEndpoint::CONTROL`].
pub(crate) const CONTROL: QpId = QpId(u32::MAX);

/// A client's end on any fabric: an arena that accesses move bytes from and to, a way to wait, and the node's life.
pub trait Endpoint {
    /// Memory of the arena.
    type Memory: Memory;

    /// The arena: for local use at addresses that start at zero.
    fn arena(&self) -> &Self::Memory;

    /// Sleeps until something may have come, the node is gone, or `at_most` is over.
    fn wait(&mut self, at_most: Duration);

    /// Whether the node is still there, as far as this end can tell without waiting.
    fn node_alive(&mut self) -> bool;
}

/// A client's end of verbs: a control queue pair, some data queue pairs, and one completion queue for all of them.
///
/// The client's own view of its data queue pairs is their numbers, from zero; which of them it uses is its choice
/// (Patronus §5.5, virtual queue pair numbers). The control queue pair carries SEND and RECV only.
pub trait VerbsEndpoint: Endpoint {
    /// The number that completions of the control queue pair carry as [`Completion::queue_pair`].
    const CONTROL: QpId = CONTROL;

    /// What it is made of.
    fn size(&self) -> EndpointSize;

    /// Names the arena, which is registered, in local spans.
    fn arena_key(&self) -> Lkey;

    /// Posts requests to a data queue pair with one doorbell, as many as it has room for, and says how many.
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize;

    /// Posts requests to the control queue pair, as many as it has room for, and says how many.
    fn post_control(&mut self, requests: &[WorkRequest]) -> usize;

    /// Posts receives to the control queue pair, as many as it has room for, and says how many.
    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize;

    /// Appends at most `most` completions to `into` and says how many that were. It may stop early, for example after
    /// one that says that a queue pair broke, so that the client can act on that first.
    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize;

    /// The node has rebuilt a data queue pair: it starts empty.
    fn rebuilt(&mut self, queue_pair: u32);
}
