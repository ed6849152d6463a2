//! Read-only views of a NIC's state, for exhaustive exploration of the orders of its steps.

use super::layout::decode_operation;
use super::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{Operation, QpId, QpState, Rkey, WindowId};

/// The progress of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueProgress {
    /// Requests that the NIC has taken off the queue, over all laps.
    pub taken: u64,
    /// The most requests that the NIC may take off, if the queue is managed.
    pub limit: Option<u64>,
}

impl QueueProgress {
    /// Requests that may be executed now, if the queue is managed.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.unwrap_or(0).saturating_sub(self.taken)
    }
}

impl<M: Bytes> Core<M> {
    /// The progress of a send queue.
    #[must_use]
    pub fn send_progress(&self, qp: QpId) -> Option<QueueProgress> {
        self.qps.get(qp.0).map(|pair| pair.send.progress())
    }

    /// The progress of a receive queue.
    #[must_use]
    pub fn receive_progress(&self, qp: QpId) -> Option<QueueProgress> {
        self.qps.get(qp.0)?.receive.as_ref().map(super::rings::ReceiveTaker::progress)
    }

    /// The next operation of a send queue, as its entry is now. `None`: no entry may be executed, or the words mean
    /// nothing.
    #[must_use]
    pub fn next_operation(&self, qp: QpId) -> Option<Operation> {
        self.qps.get(qp.0)?.send.peek().and_then(|words| decode_operation(&words))
    }

    /// The state of a queue pair.
    #[must_use]
    pub fn state(&self, qp: QpId) -> Option<QpState> {
        self.qps.get(qp.0).map(|pair| pair.state)
    }

    /// The queue pair that a type-2 window is bound to, and the window's key.
    #[must_use]
    pub fn window_holder(&self, window: WindowId) -> Option<(QpId, Rkey)> {
        self.keys.holder(window)
    }
}
