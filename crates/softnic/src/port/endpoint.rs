//! The client's end of a port.

use super::layout::{CompletionRing, PortLayout, SLEEPING};
use crate::core::{CompletionPoller, ReceivePoster, Ring, SendPoster};
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

/// The client's end of a port's completion queues.
///
/// An engine of the node may post to the queue of the data queue pairs while the NIC's thread posts to the other. The client
/// takes a message only after all completions of data queue pairs that were posted before it.
#[derive(Debug)]
struct PortCompletions {
    data: CompletionPoller<Mapping>,
    others: CompletionPoller<Mapping>,
    /// Number of entries of the queue of the data queue pairs.
    depth: u32,
    /// Number of completions of data queue pairs that were taken since the other queue was looked at.
    taken_since: u32,
    /// Whether the other queue had an entry then, behind at most `depth` completions of data queue pairs.
    is_due: bool,
}

impl PortCompletions {
    fn new(memory: &Mapping, layout: &PortLayout) -> Self {
        let poller = |CompletionRing { offset, depth, cell }| {
            CompletionPoller::new(Ring::new(memory.clone(), offset, depth), cell)
        };
        let (data, others) = (layout.data_completions(), layout.completions());
        let depth = data.depth;
        Self { data: poller(data), others: poller(others), depth, taken_since: 0, is_due: false }
    }

    fn waiting(&self) -> bool {
        self.data.waiting() || self.others.waiting()
    }

    #[inline]
    fn take(&mut self) -> Option<(Completion, u32)> {
        if self.taken_since >= self.depth
            && let Some(other) = self.take_due()
        {
            return Some(other);
        }
        match self.data.take() {
            Some(completion) => {
                self.taken_since += 1;
                Some(completion)
            }
            None => self.take_other(),
        }
    }

    /// Takes an entry of the other queue that all completions of data queue pairs before it have passed. A node that completes
    /// as fast as the client polls keeps no message from the client.
    #[cold]
    fn take_due(&mut self) -> Option<(Completion, u32)> {
        self.taken_since = 0;
        let due = if self.is_due { self.others.take() } else { None };
        // The entry behind it may have come only now, with completions of data queue pairs before it.
        self.is_due = self.others.waiting();
        due
    }

    #[inline]
    fn take_other(&mut self) -> Option<(Completion, u32)> {
        (self.taken_since, self.is_due) = (0, false);
        if !self.others.waiting() {
            return None;
        }
        // One of a data queue pair may have arrived since the first check, and before the message.
        self.data.take().or_else(|| self.others.take())
    }

    fn publish(&self) {
        self.data.publish();
        self.others.publish();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CompletionPoster;
    use portcullis_nic::Status;

    /// Both queues of a port, with room for two completions of data queue pairs.
    struct Queues {
        client: PortCompletions,
        data: CompletionPoster<Mapping>,
        others: CompletionPoster<Mapping>,
        posted: u64,
    }

    impl Queues {
        fn new() -> Self {
            let size = EndpointSize {
                chunk_queue_pairs: 0,
                data_queue_pairs: 1,
                send_depth: 2,
                control_depth: 1,
                message_bytes: 128,
                arena_bytes: 256,
            };
            let layout = PortLayout::new(size);
            let memory = Mapping::private(layout.bytes()).expect("memory");
            let poster = |CompletionRing { offset, depth, cell }| {
                CompletionPoster::new(Ring::new(memory.clone(), offset, depth), cell)
            };
            let (data, others) = (poster(layout.data_completions()), poster(layout.completions()));
            Self { client: PortCompletions::new(&memory, &layout), data, others, posted: 0 }
        }

        fn post(&mut self, is_message: bool) {
            self.posted += 1;
            let kind = CompletionKind::Send;
            let completion =
                Completion { request: self.posted, queue_pair: QpId(0), status: Status::Success, kind };
            let poster = if is_message { &mut self.others } else { &mut self.data };
            assert!(poster.has_room(1), "the queue has room");
            poster.post(&completion, self.posted);
        }

        /// Number of completions of data queue pairs that were posted before this one and are not taken.
        fn older_than(&self, message: u64) -> usize {
            let mut client = self.client.data.clone();
            std::iter::from_fn(|| client.take()).filter(|(it, _)| it.request < message).count()
        }

        /// Takes a completion and returns its place in the order in which all were posted.
        fn take(&mut self) -> Option<u64> {
            let taken = self.client.take().map(|(completion, _)| completion.request);
            self.client.publish();
            taken
        }
    }

    #[test]
    fn a_message_is_taken_after_the_completions_before_it_and_is_not_kept_back_by_those_behind_it() {
        for period in 6..16 {
            let mut queues = Queues::new();
            let mut waiting = Vec::new();
            // The node always completes something before the client finds the queue of the data queue pairs empty.
            queues.post(false);
            for step in 0..200 {
                if step % period == 0 {
                    queues.post(true);
                    waiting.push(queues.posted);
                }
                queues.post(false);
                let mut taken = queues.take().expect("there is one");
                if waiting.first() == Some(&taken) {
                    let older = queues.older_than(taken);
                    assert_eq!(
                        older, 0,
                        "{period}, {step}: completions before message {taken} are not taken"
                    );
                    waiting.remove(0);
                    taken = queues.take().expect("there is one");
                }
                assert!(!waiting.contains(&taken), "messages keep their order");
                assert!(waiting.len() <= 1, "{period}, {step}: {waiting:?} wait");
            }
        }
    }
}
