//! A client's end: the part that it has on every fabric, and the part with queue pairs.

use crate::{
    Completion, EndpointQueue, EndpointSize, Lkey, Memory, OneShotRequest, QpId, ReceiveRequest, WorkRequest,
};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A client's end on any fabric: an arena that accesses move bytes from and to, a way to wait, and a check of the node.
pub trait Endpoint {
    /// Memory of the arena.
    type Memory: Memory;

    /// The arena, for local use at addresses that start at zero.
    fn arena(&self) -> &Self::Memory;

    /// Sleeps until something may have arrived, the node has ended, or `at_most` is over.
    fn wait(&mut self, at_most: Duration);

    /// Whether the node still runs, as far as this end can determine without waiting.
    fn node_alive(&mut self) -> bool;
}

/// An end whose waits can be left to a program's own event loop.
pub trait Pollable: Endpoint {
    /// A descriptor that becomes readable, after [`arm`](Self::arm), when something may have arrived or the node has
    /// ended. Only `arm` reads it.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Makes the descriptor become readable when something arrives from now on. Returns `false` if something has
    /// arrived already, or the node has ended.
    fn arm(&mut self) -> bool;
}

/// A client's end of verbs: a control queue pair, some data queue pairs, and one completion queue for all of them.
///
/// The client names its data queue pairs by their numbers, from zero, and chooses which of them it uses (Patronus §5.5,
/// virtual queue pair numbers). The control queue pair carries only SEND and RECV.
pub trait VerbsEndpoint: Endpoint {
    /// The number of the control queue pair in completions ([`Completion::queue_pair`]).
    const CONTROL: QpId = EndpointQueue::Control.label();

    /// The numbers, in completions, of the queue pairs on which the client requests chunks: one to allocate a chunk,
    /// one to free a chunk.
    const ASKING: [QpId; 2] = [EndpointQueue::Asking(0).label(), EndpointQueue::Asking(1).label()];

    /// The number, in completions, of operations that used no queue pair ([`VerbsEndpoint::post_one_shot`]).
    const ONE_SHOT: QpId = EndpointQueue::OneShot.label();

    /// The sizes of this end.
    fn size(&self) -> EndpointSize;

    /// The key that names the registered arena in local spans.
    fn arena_key(&self) -> Lkey;

    /// Posts requests to a data queue pair with one doorbell, as many as it has room for, and returns their number.
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize;

    /// Posts requests to the control queue pair, as many as it has room for, and returns their number.
    fn post_control(&mut self, requests: &[WorkRequest]) -> usize;

    /// Posts receives to the control queue pair, as many as it has room for, and returns their number.
    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize;

    /// Posts requests to the queue pair of this place in [`VerbsEndpoint::ASKING`], as many as it has room for, and
    /// returns their number. An end without such queue pairs has room for none.
    fn post_asking(&mut self, place: usize, requests: &[WorkRequest]) -> usize {
        let _ = (place, requests);
        0
    }

    /// Posts receives to the queue pair of this place in [`VerbsEndpoint::ASKING`], as many as it has room for, and
    /// returns their number.
    fn post_asking_receive(&mut self, place: usize, requests: &[ReceiveRequest]) -> usize {
        let _ = (place, requests);
        0
    }

    /// Notifies this end that the node has connected the queue pair of this place in [`VerbsEndpoint::ASKING`] anew:
    /// the queue pair starts empty.
    fn asking_rebuilt(&mut self, place: usize) {
        let _ = place;
    }

    /// Whether this end carries operations without queue pairs.
    fn has_one_shots(&self) -> bool {
        false
    }

    /// Begins operations without queue pairs, as many as there is room for, and returns their number. They have no
    /// order among each other. Three statuses have a special meaning:
    /// - [`Status::RetryExceededError`](crate::Status): the operation may have been carried out or not, and will not be
    ///   carried out any more.
    /// - [`Status::RnrRetryExceededError`](crate::Status): the node has not answered in time or was too busy, and no part
    ///   of the operation has been or will be carried out.
    /// - [`Status::RemoteAccessError`](crate::Status): the operation has not been carried out, since the node does not
    ///   know its key or the key does not open this memory.
    fn post_one_shot(&mut self, requests: &[OneShotRequest]) -> usize {
        let _ = requests;
        0
    }

    /// Appends at most `most` completions to `into` and returns their number. It may stop early, for example after a
    /// completion that reports a broken queue pair, so that the client can act on that first.
    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize;

    /// Notifies this end that the node has rebuilt a data queue pair: the queue pair starts empty.
    fn rebuilt(&mut self, queue_pair: u32);
}
