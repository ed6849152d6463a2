//! The client's end of a port.

use super::completions::PortCompletions;
use super::layout::{PortLayout, SLEEPING};
use crate::core::{ReceivePoster, Ring, SendPoster};
use portcullis_memory::{ArenaMemory, Doorbell, Mapping, Watched};
use portcullis_nic::{
    ASKING_DEPTH, AskingQueuePairs, Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointQueue,
    EndpointSize, Lkey, Pollable, QpId, ReceiveRequest, VerbsEndpoint, WorkRequest,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A client's end of a port: see [`Endpoint`].
#[derive(Debug)]
pub struct PortEndpoint {
    memory: Mapping,
    arena: ArenaMemory,
    arena_key: Lkey,
    size: EndpointSize,
    data: Vec<SendPoster<Mapping>>,
    control: SendPoster<Mapping>,
    control_receive: ReceivePoster<Mapping>,
    /// The queue pairs on which the client requests chunks.
    asking: Vec<(SendPoster<Mapping>, ReceivePoster<Mapping>)>,
    completions: PortCompletions,
    doorbell: Doorbell,
    watched: Watched,
    /// Whether the node has destroyed this port.
    is_over: bool,
    /// The connection of the attach: when it is closed, the node treats the client as having left. `None` in the node's
    /// own process.
    _connection: Option<OwnedFd>,
}

impl PortEndpoint {
    /// Makes the client's end of a port of this size in `memory`. `bells` has the doorbell that wakes the node, and the
    /// descriptor that the node rings for a program that waits for it.
    #[must_use]
    pub fn new(
        memory: Mapping,
        size: EndpointSize,
        arena_key: Lkey,
        bells: (Doorbell, Watched),
        connection: Option<OwnedFd>,
    ) -> Self {
        let (doorbell, watched) = bells;
        let layout = PortLayout::new(size);
        let ring = |offset, depth| Ring::new(memory.clone(), offset, depth);
        Self {
            arena: ArenaMemory::part(memory.clone(), layout.arena(), size.arena_bytes),
            arena_key,
            size,
            data: (0..size.data_queue_pairs + size.chunk_queue_pairs)
                .map(|number| SendPoster::new(ring(layout.data_send(number), size.send_depth)))
                .collect(),
            control: SendPoster::new(ring(layout.control_send(), size.control_depth)),
            control_receive: ReceivePoster::new(ring(layout.control_receive(), size.control_depth)),
            asking: (0..size.asking_queue_pairs())
                .map(|place| {
                    let send = SendPoster::new(ring(layout.asking_send(place), ASKING_DEPTH));
                    (send, ReceivePoster::new(ring(layout.asking_receive(place), ASKING_DEPTH)))
                })
                .collect(),
            completions: PortCompletions::new(&memory, &layout),
            memory,
            doorbell,
            watched,
            is_over: false,
            _connection: connection,
        }
    }

    /// The whole shared file: the memory that a hostile client would write to.
    #[must_use]
    pub fn dangerous_memory(&self) -> &Mapping {
        &self.memory
    }

    fn retire(&mut self, completion: &Completion, taken: u32) {
        let asking = ASKING_LABELS.iter().position(|&label| label == completion.queue_pair);
        if let Some((send, receive)) = asking.and_then(|place| self.asking.get_mut(place)) {
            return match completion.kind {
                CompletionKind::Receive { .. } => receive.retire(),
                CompletionKind::Send => send.retire(taken),
            };
        }
        match completion.kind {
            CompletionKind::Receive { .. } => self.control_receive.retire(),
            CompletionKind::Send if completion.queue_pair == Self::CONTROL => self.control.retire(taken),
            CompletionKind::Send => {
                if let Some(queue) = self.data.get_mut(completion.queue_pair.0 as usize) {
                    queue.retire(taken);
                }
            }
        }
    }
}

impl Endpoint for PortEndpoint {
    type Memory = ArenaMemory;

    fn arena(&self) -> &ArenaMemory {
        &self.arena
    }

    fn wait(&mut self, at_most: Duration) {
        self.memory.sleep(SLEEPING, at_most, || self.completions.waiting());
    }

    fn node_alive(&mut self) -> bool {
        // The node drops its end of the alarm with the port. If the node's process ends, the kernel does so.
        self.is_over |= !self.watched.quiet();
        !self.is_over
    }
}

impl Pollable for PortEndpoint {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.node_alive() && self.memory.watch(SLEEPING, || self.completions.waiting())
    }
}

impl VerbsEndpoint for PortEndpoint {
    fn size(&self) -> EndpointSize {
        self.size
    }

    fn arena_key(&self) -> Lkey {
        self.arena_key
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        let posted = self.control.post(requests);
        self.doorbell.ring();
        posted
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        // No doorbell: the node does not sleep for want of a receive.
        self.control_receive.post(requests)
    }

    #[inline]
    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        let mut polled = 0;
        while polled < most {
            let Some((completion, taken)) = self.completions.take() else { break };
            self.retire(&completion, taken);
            into.push(completion);
            polled += 1;
            if completion.status.breaks() {
                // The flushes can wait until the client has switched to a spare.
                break;
            }
        }
        if polled > 0 {
            self.completions.publish();
        }
        polled
    }

    #[inline]
    fn data_queue_pairs(&mut self) -> Option<impl DataQueuePairs> {
        Some(self)
    }

    fn asking_queue_pairs(&mut self) -> Option<impl AskingQueuePairs> {
        (!self.asking.is_empty()).then_some(self)
    }
}

impl DataQueuePairs for PortEndpoint {
    #[inline]
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        let Some(queue) = self.data.get_mut(queue_pair as usize) else { return 0 };
        let posted = queue.post(requests);
        self.doorbell.ring();
        posted
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        if let Some(queue) = self.data.get_mut(queue_pair as usize) {
            queue.reset();
        }
    }
}

impl AskingQueuePairs for PortEndpoint {
    fn post_asking(&mut self, place: usize, requests: &[WorkRequest]) -> usize {
        let Some((send, _)) = self.asking.get_mut(place) else { return 0 };
        let posted = send.post(requests);
        self.doorbell.ring();
        posted
    }

    fn post_asking_receive(&mut self, place: usize, requests: &[ReceiveRequest]) -> usize {
        self.asking.get_mut(place).map_or(0, |(_, receive)| receive.post(requests))
    }

    fn asking_rebuilt(&mut self, place: usize) {
        if let Some((send, receive)) = self.asking.get_mut(place) {
            send.reset();
            receive.reset();
        }
    }
}

pub(crate) const CONTROL_LABEL: QpId = <PortEndpoint as VerbsEndpoint>::CONTROL;
pub(crate) const ASKING_LABELS: [QpId; 2] =
    [EndpointQueue::Asking(0).label(), EndpointQueue::Asking(1).label()];
