//! A client's end on an RDMA device: queue pairs on a NIC of the client's own, connected to the node's.

use crate::{DeviceChoice, IbNic, WorkRequests};
use portcullis_memory::{ArenaMemory, Mapping};
use portcullis_nic::{
    ClientQueues, Completion, DataQueuePairs, Endpoint, EndpointSize, Lkey, Nic, Pollable, QpAddress,
    ReceiveRequest, VerbsEndpoint, VerbsError, WorkRequest,
};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The source from which a client learns that its node has ended.
pub trait NodeLife: Send {
    /// Whether the node still runs, as far as can be determined without waiting.
    fn node_alive(&mut self) -> bool;

    /// A descriptor that becomes readable when the node has ended, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A client's end: see [`Endpoint`]. Dropping it destroys its objects on the device.
pub struct IbEndpoint {
    nic: IbNic,
    queues: ClientQueues<Mapping>,
    arena: ArenaMemory,
    life: Option<Box<dyn NodeLife>>,
    /// A descriptor that is readable when the device or `life` has something to report.
    watched: OwnedFd,
    /// Whether the device has failed: then it cannot be relied on any more.
    failed: bool,
}

impl std::fmt::Debug for IbEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IbEndpoint").field("nic", &self.nic).finish_non_exhaustive()
    }
}

impl IbEndpoint {
    /// Opens the device and makes the queue pairs. [`IbEndpoint::connect`] connects them.
    ///
    /// # Errors
    /// There is no such device, or it does not have enough resources.
    pub fn new(device: &DeviceChoice, size: EndpointSize) -> Result<Self, VerbsError> {
        let mut nic = IbNic::open(device, WorkRequests::default())?;
        let queues = ClientQueues::new(&mut nic, size)?;
        let arena = ArenaMemory::whole(queues.arena().clone(), size.arena_bytes);
        let watched = epoll::create(CreateFlags::CLOEXEC).map_err(refused)?;
        for descriptor in nic.descriptors() {
            watch(&watched, descriptor)?;
        }
        Ok(Self { nic, queues, arena, life: None, watched, failed: false })
    }

    /// The addresses of the end's queue pairs: the control queue pair, and the data queue pairs.
    ///
    /// # Errors
    /// The device fails.
    pub fn addresses(&self) -> Result<(QpAddress, Vec<QpAddress>), VerbsError> {
        self.queues.addresses(&self.nic)
    }

    /// Connects the queue pairs to the node's ends.
    ///
    /// # Errors
    /// The device refuses, or the number of ends is wrong.
    pub fn connect(
        &mut self,
        control: QpAddress,
        data: Vec<QpAddress>,
        life: Box<dyn NodeLife>,
    ) -> Result<(), VerbsError> {
        self.queues.connect(&mut self.nic, control, data)?;
        if let Some(descriptor) = life.descriptor() {
            watch(&self.watched, descriptor)?;
        }
        self.life = Some(life);
        Ok(())
    }

    /// The NIC underneath and the queue pairs on it: the objects that a hostile client would use directly.
    pub fn dangerous_nic(&mut self) -> (&mut IbNic, &mut ClientQueues<Mapping>) {
        (&mut self.nic, &mut self.queues)
    }

    /// Discards the device's events, which would wake a client for ever: the client learns from its completions which
    /// queue pair broke.
    fn drop_events(&mut self) {
        while self.nic.poll_event().is_some() {}
    }

    fn unless_failed<T: Default>(&mut self, said: Result<T, VerbsError>) -> T {
        said.unwrap_or_else(|error| {
            tracing::warn!(%error, "the RDMA device fails this session");
            self.failed = true;
            T::default()
        })
    }
}

fn watch(watched: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), VerbsError> {
    epoll::add(watched, descriptor, EventData::new_u64(0), EventFlags::IN).map_err(refused)
}

fn refused(error: rustix::io::Errno) -> VerbsError {
    VerbsError::Machine(format!("no descriptor to wait for: {error}"))
}

impl Endpoint for IbEndpoint {
    type Memory = ArenaMemory;

    fn arena(&self) -> &ArenaMemory {
        &self.arena
    }

    fn wait(&mut self, at_most: Duration) {
        self.drop_events();
        self.nic.sleep(at_most, self.life.as_ref().and_then(|life| life.descriptor()));
    }

    fn node_alive(&mut self) -> bool {
        !self.failed && self.life.as_mut().is_none_or(|life| life.node_alive())
    }
}

impl Pollable for IbEndpoint {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.drop_events();
        self.node_alive() && self.nic.arm()
    }
}

impl VerbsEndpoint for IbEndpoint {
    fn size(&self) -> EndpointSize {
        *self.queues.size()
    }

    fn arena_key(&self) -> Lkey {
        self.queues.arena_key()
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        let said = self.queues.post_control(&mut self.nic, requests);
        self.unless_failed(said)
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        let said = self.queues.post_control_receive(&mut self.nic, requests);
        self.unless_failed(said)
    }

    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        let said = self.queues.poll(&mut self.nic, most, into);
        self.unless_failed(said)
    }

    fn data_queue_pairs(&mut self) -> Option<impl DataQueuePairs> {
        Some(self)
    }
}

impl DataQueuePairs for IbEndpoint {
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        let said = self.queues.post(&mut self.nic, queue_pair, requests);
        self.unless_failed(said)
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        let said = self.queues.rebuilt(&mut self.nic, queue_pair);
        self.unless_failed(said);
    }
}
