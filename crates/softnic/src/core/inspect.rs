//! What those want to know who try all orders of a NIC's steps. Nothing here changes anything.

use super::layout::decode_operation;
use super::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{Operation, QpId, QpState, Rkey, WindowId};

/// How far a queue has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueProgress {
    /// Requests that were taken off, over all laps.
    pub taken: u64,
    /// How many may be, of a managed queue.
    pub limit: Option<u64>,
}

impl QueueProgress {
    /// Requests that may be executed now, of a managed queue.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.unwrap_or(0).saturating_sub(self.taken)
    }
}

impl<M: Bytes> Core<M> {
    /// How far a send queue has come.
    #[must_use]
    pub fn send_progress(&self, qp: QpId) -> Option<QueueProgress> {
        self.qps.get(qp.0).map(|pair| pair.send.progress())
    }

    /// How far a receive queue has come.
    #[must_use]
    pub fn receive_progress(&self, qp: QpId) -> Option<QueueProgress> {
        self.qps.get(qp.0)?.receive.as_ref().map(super::rings::ReceiveTaker::progress)
    }

    /// What a send queue does next, as the entry is now. `None`: there is nothing that it may do, or the words mean nothing.
    #[must_use]
    pub fn next_operation(&self, qp: QpId) -> Option<Operation> {
        self.qps.get(qp.0)?.send.peek().and_then(|words| decode_operation(&words))
    }

    /// The state of a queue pair.
    #[must_use]
    pub fn state(&self, qp: QpId) -> Option<QpState> {
        self.qps.get(qp.0).map(|pair| pair.state)
    }

    /// To which queue pair a type-2 window is bound, and under which key.
    #[must_use]
    pub fn window_holder(&self, window: WindowId) -> Option<(QpId, Rkey)> {
        self.keys.holder(window)
    }
}
