//! A client's end: what it has on every fabric, and which parts it has besides.

use crate::endpoint_parts::{AskingQueuePairs, DataQueuePairs, OneShotOperations};
use crate::{Completion, EndpointQueue, EndpointSize, Lkey, Memory, QpId, ReceiveRequest, WorkRequest};
use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// A client's end on any fabric: an arena that accesses move bytes from and to, a way to wait, and a check of the node.
pub trait Endpoint: 'static {
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

/// A client's end with verbs: a control queue pair, the completions of all that the end does, and the parts in
/// which accesses and requests for chunks travel. An end has the parts that its fabric has.
///
/// The control queue pair carries only SEND and RECV.
pub trait VerbsEndpoint: Endpoint {
    /// The number of the control queue pair in completions ([`Completion::queue_pair`]).
    const CONTROL: QpId = EndpointQueue::Control.label();

    /// The sizes of this end.
    fn size(&self) -> EndpointSize;

    /// The key that names the registered arena in local spans.
    fn arena_key(&self) -> Lkey;

    /// Posts requests to the control queue pair, as many as it has room for, and returns their number.
    fn post_control(&mut self, requests: &[WorkRequest]) -> usize;

    /// Posts receives to the control queue pair, as many as it has room for, and returns their number.
    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize;

    /// Appends at most `most` completions to `into` and returns their number. It may stop early, for example after a
    /// completion that reports a broken queue pair, so that the client can act on that first.
    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize;

    /// The queue pairs for accesses, if this end has some.
    fn data_queue_pairs(&mut self) -> Option<impl DataQueuePairs> {
        None::<Infallible>
    }

    /// The queue pairs on which the client requests chunks, if this end has some.
    fn asking_queue_pairs(&mut self) -> Option<impl AskingQueuePairs> {
        None::<Infallible>
    }

    /// The operations without queue pairs, if this end has them.
    fn one_shots(&mut self) -> Option<impl OneShotOperations> {
        None::<Infallible>
    }
}
