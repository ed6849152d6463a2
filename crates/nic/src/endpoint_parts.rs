//! The parts that a client's end has on some fabrics only: see [`VerbsEndpoint`](crate::VerbsEndpoint).
//!
//! [`Infallible`] stands for a part that an end does not have: there is no value of it.

use crate::{OneShotRequest, ReceiveRequest, WorkRequest};
use std::convert::Infallible;

/// Queue pairs for accesses: the data queue pairs and, numbered behind them, those for accesses to chunks.
///
/// The client names them by their numbers, from zero, and chooses which of them it uses (Patronus §5.5, virtual queue
/// pair numbers).
pub trait DataQueuePairs {
    /// Posts requests to a queue pair with one doorbell, as many as it has room for, and returns their number.
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize;

    /// Notifies this end that the node has rebuilt a queue pair: the queue pair starts empty.
    fn rebuilt(&mut self, queue_pair: u32);
}

/// The two queue pairs on which the client requests chunks: at place 0, one to allocate a chunk; at place 1, one to
/// free a chunk ([`EndpointQueue::Asking`](crate::EndpointQueue)).
pub trait AskingQueuePairs {
    /// Posts requests to the queue pair of a place, as many as it has room for, and returns their number.
    fn post_asking(&mut self, place: usize, requests: &[WorkRequest]) -> usize;

    /// Posts receives to the queue pair of a place, as many as it has room for, and returns their number.
    fn post_asking_receive(&mut self, place: usize, requests: &[ReceiveRequest]) -> usize;

    /// Notifies this end that the node has connected the queue pair of a place anew: the queue pair starts empty.
    fn asking_rebuilt(&mut self, place: usize);
}

/// Operations without queue pairs. They have no order among each other.
pub trait OneShotOperations {
    /// Begins operations, as many as there is room for, and returns their number. Three statuses have a special
    /// meaning:
    /// - [`Status::RetryExceededError`](crate::Status): the operation may have been carried out or not, and will not be
    ///   carried out any more.
    /// - [`Status::RnrRetryExceededError`](crate::Status): the node has not answered in time or was too busy, and no part
    ///   of the operation has been or will be carried out.
    /// - [`Status::RemoteAccessError`](crate::Status): the operation has not been carried out, since the node does not
    ///   know its key or the key does not open this memory.
    fn post_one_shot(&mut self, requests: &[OneShotRequest]) -> usize;
}

impl<Q: DataQueuePairs> DataQueuePairs for &mut Q {
    #[inline]
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        Q::post(self, queue_pair, requests)
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        Q::rebuilt(self, queue_pair);
    }
}

impl DataQueuePairs for Infallible {
    fn post(&mut self, _: u32, _: &[WorkRequest]) -> usize {
        match *self {}
    }

    fn rebuilt(&mut self, _: u32) {
        match *self {}
    }
}

impl<Q: AskingQueuePairs> AskingQueuePairs for &mut Q {
    fn post_asking(&mut self, place: usize, requests: &[WorkRequest]) -> usize {
        Q::post_asking(self, place, requests)
    }

    fn post_asking_receive(&mut self, place: usize, requests: &[ReceiveRequest]) -> usize {
        Q::post_asking_receive(self, place, requests)
    }

    fn asking_rebuilt(&mut self, place: usize) {
        Q::asking_rebuilt(self, place);
    }
}

impl AskingQueuePairs for Infallible {
    fn post_asking(&mut self, _: usize, _: &[WorkRequest]) -> usize {
        match *self {}
    }

    fn post_asking_receive(&mut self, _: usize, _: &[ReceiveRequest]) -> usize {
        match *self {}
    }

    fn asking_rebuilt(&mut self, _: usize) {
        match *self {}
    }
}

impl<O: OneShotOperations> OneShotOperations for &mut O {
    fn post_one_shot(&mut self, requests: &[OneShotRequest]) -> usize {
        O::post_one_shot(self, requests)
    }
}

impl OneShotOperations for Infallible {
    fn post_one_shot(&mut self, _: &[OneShotRequest]) -> usize {
        match *self {}
    }
}
