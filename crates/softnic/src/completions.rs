//! The owner's end of a completion queue, which can forget a destroyed queue pair's entries.

use crate::core::{Bytes, CompletionPoller};
use portcullis_nic::{Completion, QpId};
use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(crate) struct Completions<M> {
    poller: CompletionPoller<M>,
    /// Completions taken off the queue that the owner has not polled yet.
    held: VecDeque<(Completion, u32)>,
}

impl<M: Bytes> Completions<M> {
    pub fn new(poller: CompletionPoller<M>) -> Self {
        Self { poller, held: VecDeque::new() }
    }

    /// Takes the next completion and, for send queues, the lower half of the number of requests that the NIC has taken.
    #[inline]
    pub fn take(&mut self) -> Option<(Completion, u32)> {
        self.held.pop_front().or_else(|| self.poller.take())
    }

    /// Publishes the owner's progress: see [`CompletionPoller::publish`].
    pub fn publish(&self) {
        self.poller.publish();
    }

    /// Drops the completions of a queue pair, as destroying it does on real NICs: another queue pair may soon have its
    /// number.
    pub fn forget(&mut self, qp: QpId) {
        self.held.retain(|(completion, _)| completion.queue_pair != qp);
        let mut taken = false;
        while let Some(entry) = self.poller.take() {
            taken = true;
            if entry.0.queue_pair != qp {
                self.held.push_back(entry);
            }
        }
        if taken {
            self.poller.publish();
        }
    }
}
