//! The client's end of a port.

use super::layout::{POLLED, PortLayout, SLEEPING};
use crate::core::{CompletionPoller, ReceivePoster, Ring, SendPoster};
use portcullis_memory::{ArenaMemory, Doorbell, Mapping};
use portcullis_nic::{
    Completion, CompletionKind, Endpoint, EndpointSize, Lkey, QpId, ReceiveRequest, VerbsEndpoint,
    WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a client knows that its node lives.
#[derive(Debug)]
pub enum PortLife {
    /// The attached socket: the kernel hangs up when the node ends, however it ends.
    Socket(OwnedFd),
    /// In one process: one of them is set when the engine ends, the other when the node shows this client out.
    Local([Arc<AtomicBool>; 2]),
}

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
    completions: CompletionPoller<Mapping>,
    doorbell: Doorbell,
    life: PortLife,
}

impl PortEndpoint {
    /// The client's end of a port of this size in `memory`.
    #[must_use]
    pub fn new(
        memory: Mapping,
        size: EndpointSize,
        arena_key: Lkey,
        doorbell: Doorbell,
        life: PortLife,
    ) -> Self {
        let layout = PortLayout::new(size);
        let ring = |offset, depth| Ring::new(memory.clone(), offset, depth);
        Self {
            arena: ArenaMemory::part(memory.clone(), layout.arena(), size.arena_bytes),
            arena_key,
            size,
            data: (0..size.data_queue_pairs)
                .map(|number| SendPoster::new(ring(layout.data_send(number), size.send_depth)))
                .collect(),
            control: SendPoster::new(ring(layout.control_send(), size.control_depth)),
            control_receive: ReceivePoster::new(ring(layout.control_receive(), size.control_depth)),
            completions: CompletionPoller::new(ring(layout.completions(), layout.completion_depth()), POLLED),
            memory,
            doorbell,
            life,
        }
    }

    /// The whole of the shared file: what a hostile client would write to.
    #[must_use]
    pub fn dangerous_memory(&self) -> &Mapping {
        &self.memory
    }

    fn retire(&mut self, completion: &Completion, taken: u32) {
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
        match &self.life {
            PortLife::Local(ends) => !ends.iter().any(|end| end.load(Ordering::Acquire)),
            PortLife::Socket(socket) => {
                let mut fds = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                // The node says nothing on the socket after the welcome: any readiness is its end.
                !matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
            }
        }
    }
}

impl VerbsEndpoint for PortEndpoint {
    fn size(&self) -> EndpointSize {
        self.size
    }

    fn arena_key(&self) -> Lkey {
        self.arena_key
    }

    #[inline]
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        let Some(queue) = self.data.get_mut(queue_pair as usize) else { return 0 };
        let posted = queue.post(requests);
        self.doorbell.ring();
        posted
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        let posted = self.control.post(requests);
        self.doorbell.ring();
        posted
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        // No doorbell: nobody sleeps waiting for a receive.
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
                // A queue pair broke. Its flushes can wait until the client has taken to a spare one.
                break;
            }
        }
        if polled > 0 {
            self.completions.publish();
        }
        polled
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        if let Some(queue) = self.data.get_mut(queue_pair as usize) {
            queue.reset();
        }
    }
}

/// The number that completions of a port's control queue pair carry.
pub(crate) const CONTROL_LABEL: QpId = <PortEndpoint as VerbsEndpoint>::CONTROL;
