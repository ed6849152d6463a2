//! A client's end on an RDMA device: queue pairs on a NIC of its own, connected to the node's.

use crate::{DeviceChoice, IbNic, WorkRequests};
use portcullis_memory::{ArenaMemory, Mapping};
use portcullis_nic::{
    ClientQueues, Completion, Endpoint, EndpointSize, Lkey, Nic, QpAddress, ReceiveRequest, VerbsEndpoint,
    VerbsError, WorkRequest,
};
use rustix::fd::BorrowedFd;
use std::time::Duration;

/// How a client knows that its node is there.
pub trait NodeLife: Send {
    /// Whether it is, as far as can be told without waiting.
    fn node_alive(&mut self) -> bool;

    /// Readable once it is not, if there is such a descriptor.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A client's end: see [`Endpoint`]. What it made on the device goes with it.
pub struct IbEndpoint {
    nic: IbNic,
    queues: ClientQueues<Mapping>,
    arena: ArenaMemory,
    life: Option<Box<dyn NodeLife>>,
    /// The device failed this end: nothing can be relied on any more.
    failed: bool,
}

impl std::fmt::Debug for IbEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IbEndpoint").field("nic", &self.nic).finish_non_exhaustive()
    }
}

impl IbEndpoint {
    /// Opens the device and makes the queue pairs. They are connected by [`IbEndpoint::connect`].
    ///
    /// # Errors
    /// No such device, or it has not enough of something.
    pub fn new(device: &DeviceChoice, size: EndpointSize) -> Result<Self, VerbsError> {
        let mut nic = IbNic::open(device, WorkRequests::default())?;
        let queues = ClientQueues::new(&mut nic, size)?;
        let arena = ArenaMemory::whole(queues.arena().clone(), size.arena_bytes);
        Ok(Self { nic, queues, arena, life: None, failed: false })
    }

    /// Where its queue pairs are: the control queue pair, and the data queue pairs.
    ///
    /// # Errors
    /// The device fails.
    pub fn addresses(&self) -> Result<(QpAddress, Vec<QpAddress>), VerbsError> {
        self.queues.addresses(&self.nic)
    }

    /// Connects it to the node's ends.
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
        self.life = Some(life);
        Ok(())
    }

    /// The NIC underneath and the queue pairs on it: what a hostile client would use by itself.
    pub fn dangerous_nic(&mut self) -> (&mut IbNic, &mut ClientQueues<Mapping>) {
        (&mut self.nic, &mut self.queues)
    }

    fn unless_failed<T: Default>(&mut self, said: Result<T, VerbsError>) -> T {
        said.unwrap_or_else(|error| {
            tracing::warn!(%error, "the RDMA device fails this session");
            self.failed = true;
            T::default()
        })
    }
}

impl Endpoint for IbEndpoint {
    type Memory = ArenaMemory;

    fn arena(&self) -> &ArenaMemory {
        &self.arena
    }

    fn wait(&mut self, at_most: Duration) {
        // A client learns from its completions what broke; what the device says about it is taken off its hands here,
        // or it would be woken by it for ever.
        while self.nic.poll_event().is_some() {}
        self.nic.sleep(at_most, self.life.as_ref().and_then(|life| life.descriptor()));
    }

    fn node_alive(&mut self) -> bool {
        !self.failed && self.life.as_mut().is_none_or(|life| life.node_alive())
    }
}

impl VerbsEndpoint for IbEndpoint {
    fn size(&self) -> EndpointSize {
        *self.queues.size()
    }

    fn arena_key(&self) -> Lkey {
        self.queues.arena_key()
    }

    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        let said = self.queues.post(&mut self.nic, queue_pair, requests);
        self.unless_failed(said)
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

    fn rebuilt(&mut self, queue_pair: u32) {
        let said = self.queues.rebuilt(&mut self.nic, queue_pair);
        self.unless_failed(said);
    }
}
