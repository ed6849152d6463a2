//! A client's end on a simulated machine: the queues of the machine's own NIC, connected to a node's.

use crate::fiber::FiberClock;
use crate::memory::SimMemory;
use crate::nic::SimNic;
use crate::over_udp::OneShotEnd;
use portcullis_examination::{Around, Hook};
use portcullis_nic::{
    AskingQueuePairs, ClientQueues, Completion, DataQueuePairs, Endpoint, EndpointSize, Lkey, Memory, Nic,
    OneShotOperations, QpAddress, QpId, ReceiveRequest, VerbsEndpoint, VerbsError, WorkRequest,
};
use portcullis_node::{Admission, ClientEnds, Node};
use portcullis_protocol::{ClientId, Moment};
use portcullis_softnic::SoftNic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A NIC that its machine and the clients on that machine share. Only one of them uses it at a time.
#[derive(Clone, Debug, Default)]
pub struct SharedNic(Arc<Mutex<SimNic>>);

impl SharedNic {
    /// Makes a NIC one that can be shared.
    #[must_use]
    pub fn new(nic: SoftNic<SimMemory>) -> Self {
        Self(Arc::new(Mutex::new(nic)))
    }

    pub(crate) fn borrow(&self) -> MutexGuard<'_, SimNic> {
        self.borrow_mut()
    }

    /// Returns the NIC. Waits while another thread uses it.
    pub fn borrow_mut(&self) -> MutexGuard<'_, SoftNic<SimMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node's NIC with a hook.
type AroundSoftNic<H> = Around<SimNic, H>;

/// A switch with which a machine disturbs its client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch(Arc<AtomicBool>);

impl Switch {
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A queue pair for a client's requests for chunks, on the NIC of the client's machine. The node connects it. If both
/// ends are on one NIC, the node does that itself, and here it does that through its NIC's hook.
#[derive(Clone, Debug)]
pub(crate) struct FarEnd {
    pub nic: SharedNic,
    pub qp: QpId,
    /// Whether the client's end is gone, and with it the queue pair.
    pub is_gone: Switch,
}

/// A hook through which a node reaches the queue pairs for its clients' requests for chunks.
pub(crate) trait ReachesClients {
    /// Takes over the queue pairs of a client. Returns the numbers by which the node knows them.
    fn take_over(&mut self, ends: Vec<FarEnd>) -> Vec<QpId>;
}

/// The parts that an end consists of.
#[derive(Debug)]
enum Made {
    /// Queues of the machine's NIC.
    OfQueues { nic: SharedNic, queues: Box<ClientQueues<SimMemory>> },
    /// A socket and a control connection.
    OverUdp(Box<OneShotEnd>),
}

/// A client's end on a simulated machine. Dropping it removes its objects on the NIC.
#[derive(Debug)]
pub struct SimEndpoint {
    made: Made,
    /// Switch for late completions: they arrive late while it is set.
    late: Switch,
    node_gone: Switch,
    is_gone: Switch,
    /// The clock of the end's fiber, if any. Waits hand the turn over to it.
    clock: Option<FiberClock>,
}

impl SimEndpoint {
    /// Creates the end. [`SimEndpoint::connect`] connects it.
    fn new(nic: SharedNic, size: EndpointSize) -> Result<Self, VerbsError> {
        let queues = ClientQueues::new(&mut *nic.borrow_mut(), size)?;
        Ok(Self::made(Made::OfQueues { nic, queues: Box::new(queues) }))
    }

    /// Creates an end over UDP.
    pub(crate) fn over_udp(end: OneShotEnd) -> Self {
        Self::made(Made::OverUdp(Box::new(end)))
    }

    fn made(made: Made) -> Self {
        let (late, node_gone, is_gone) = (Switch::default(), Switch::default(), Switch::default());
        Self { made, late, node_gone, is_gone, clock: None }
    }

    /// Whether the end is over UDP.
    pub(crate) fn is_over_udp(&self) -> bool {
        matches!(self.made, Made::OverUdp(_))
    }

    /// Returns the addresses of the control queue pair and the data queue pairs, with those for chunks.
    pub(crate) fn addresses(&self) -> Result<(QpAddress, Vec<QpAddress>), VerbsError> {
        match &self.made {
            Made::OfQueues { nic, queues } => queues.addresses(&*nic.borrow()),
            Made::OverUdp(_) => Err(NO_QUEUES),
        }
    }

    /// Returns the addresses of the queue pairs for requests for chunks.
    pub(crate) fn asking(&self) -> Result<Vec<QpAddress>, VerbsError> {
        let Made::OfQueues { nic, queues } = &self.made else { return Ok(Vec::new()) };
        let nic = nic.borrow();
        queues.asking().iter().map(|&qp| nic.qp_address(qp)).collect()
    }

    fn far_ends(&self) -> Vec<FarEnd> {
        let Made::OfQueues { nic, queues } = &self.made else { return Vec::new() };
        let end = |&qp| FarEnd { nic: nic.clone(), qp, is_gone: self.is_gone.clone() };
        queues.asking().iter().map(end).collect()
    }

    fn connect(&mut self, control: QpAddress, data: Vec<QpAddress>) -> Result<(), VerbsError> {
        match &mut self.made {
            Made::OfQueues { nic, queues } => queues.connect(&mut *nic.borrow_mut(), control, data),
            Made::OverUdp(_) => Err(NO_QUEUES),
        }
    }

    /// Attaches an admitted client without queue pairs for chunks: makes its end on its machine's NIC, connects it to
    /// the node's end, and registers the client with the node.
    ///
    /// # Errors
    /// One of the NICs refuses. Then the client is not attached, and nothing of it is left.
    ///
    /// # Panics
    /// The size has queue pairs for chunks.
    pub fn join<H: Hook<SoftNic<SimMemory>>>(
        node: &mut Node<Around<SoftNic<SimMemory>, H>>,
        nic: &mut Around<SoftNic<SimMemory>, H>,
        admission: Admission,
        process: u32,
        own: (SharedNic, EndpointSize),
        now: Moment,
    ) -> Result<Self, VerbsError> {
        let no_chunks = |_: &mut H, ends: Vec<FarEnd>| {
            assert!(ends.is_empty(), "no hook reaches the queue pairs for chunks");
            Vec::new()
        };
        join_with((node, nic), admission, process, own, now, no_chunks).map(|(endpoint, ..)| endpoint)
    }

    /// Makes waits hand the turn over to this clock.
    pub fn waits_on(&mut self, clock: FiberClock) {
        self.clock = Some(clock);
    }

    /// Returns the switches with which the machine disturbs the client: one for late completions, and one for a node
    /// that is gone.
    pub(crate) fn switches(&self) -> (Switch, Switch) {
        (self.late.clone(), self.node_gone.clone())
    }
}

/// An end over UDP has no queue pairs.
const NO_QUEUES: VerbsError = VerbsError::NoSuch { what: "queue pair" };

/// Attaches an admitted client: connects ends on both sides, and registers the client with the node.
///
/// # Errors
/// One of the NICs refuses. Then the client is not attached, and nothing of it is left.
pub(crate) fn join<H: Hook<SimNic> + ReachesClients>(
    node: (&mut Node<AroundSoftNic<H>>, &mut AroundSoftNic<H>),
    admission: Admission,
    process: u32,
    own: (SharedNic, EndpointSize),
    now: Moment,
) -> Result<(SimEndpoint, ClientEnds, ClientId), VerbsError> {
    join_with(node, admission, process, own, now, |hook, ends| hook.take_over(ends))
}

fn join_with<H: Hook<SimNic>>(
    (node, nic): (&mut Node<AroundSoftNic<H>>, &mut AroundSoftNic<H>),
    admission: Admission,
    process: u32,
    (own, size): (SharedNic, EndpointSize),
    now: Moment,
    take_over: impl FnOnce(&mut H, Vec<FarEnd>) -> Vec<QpId>,
) -> Result<(SimEndpoint, ClientEnds, ClientId), VerbsError> {
    let joined = SimEndpoint::new(own, size).and_then(|mut endpoint| {
        let (control, data) = endpoint.addresses()?;
        let (mut ends, control, data) = ClientEnds::connect(&mut nic.nic, admission, &size, control, &data)?;
        endpoint.connect(control, data).inspect_err(|_| ends.destroy(nic))?;
        ends.chunks.asking = take_over(&mut nic.hook, endpoint.far_ends());
        let id = node.attach(nic, admission.tenant, Some(process), ends.clone(), now)?;
        Ok((endpoint, ends, id))
    });
    joined.inspect_err(|_| node.abandon(nic, admission.tenant, now))
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.is_gone.set(true);
        if let Made::OfQueues { nic, queues } = &mut self.made {
            queues.end(&mut *nic.borrow_mut());
        }
    }
}

impl Endpoint for SimEndpoint {
    type Memory = SimMemory;

    fn arena(&self) -> &SimMemory {
        match &self.made {
            Made::OfQueues { queues, .. } => queues.arena(),
            Made::OverUdp(end) => end.arena(),
        }
    }

    fn wait(&mut self, at_most: Duration) {
        // A real end over UDP does not sleep while it has completions to take. Late ones cannot be taken.
        if let Made::OverUdp(end) = &mut self.made
            && end.has_completions()
            && !self.late.get()
        {
            return;
        }
        if let Some(clock) = &self.clock {
            clock.pass(u64::try_from(at_most.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    fn node_alive(&mut self) -> bool {
        !self.node_gone.get()
    }
}

impl VerbsEndpoint for SimEndpoint {
    fn size(&self) -> EndpointSize {
        match &self.made {
            Made::OfQueues { queues, .. } => *queues.size(),
            Made::OverUdp(end) => *end.size(),
        }
    }

    fn arena_key(&self) -> Lkey {
        match &self.made {
            Made::OfQueues { queues, .. } => queues.arena_key(),
            Made::OverUdp(_) => Lkey(0),
        }
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        match &mut self.made {
            Made::OfQueues { nic, queues } => {
                queues.post_control(&mut *nic.borrow_mut(), requests).unwrap_or(0)
            }
            Made::OverUdp(end) => end.post_control(requests),
        }
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        match &mut self.made {
            Made::OfQueues { nic, queues } => {
                queues.post_control_receive(&mut *nic.borrow_mut(), requests).unwrap_or(0)
            }
            Made::OverUdp(end) => end.post_receive(requests),
        }
    }

    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        if self.late.get() {
            return 0;
        }
        match &mut self.made {
            Made::OfQueues { nic, queues } => queues.poll(&mut *nic.borrow_mut(), most, into).unwrap_or(0),
            Made::OverUdp(end) => end.poll(most, into),
        }
    }

    fn data_queue_pairs(&mut self) -> Option<impl DataQueuePairs> {
        self.queue_pairs()
    }

    fn asking_queue_pairs(&mut self) -> Option<impl AskingQueuePairs> {
        self.queue_pairs()
    }

    fn one_shots(&mut self) -> Option<impl OneShotOperations> {
        match &mut self.made {
            Made::OfQueues { .. } => None,
            Made::OverUdp(end) => Some(&mut **end),
        }
    }
}

impl SimEndpoint {
    fn queue_pairs(&mut self) -> Option<SimQueuePairs<'_>> {
        match &mut self.made {
            Made::OfQueues { nic, queues } => Some(SimQueuePairs { nic, queues }),
            Made::OverUdp(_) => None,
        }
    }
}

/// The queue pairs of an end on its machine's NIC.
struct SimQueuePairs<'a> {
    nic: &'a SharedNic,
    queues: &'a mut ClientQueues<SimMemory>,
}

impl DataQueuePairs for SimQueuePairs<'_> {
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        self.queues.post(&mut *self.nic.borrow_mut(), queue_pair, requests).unwrap_or(0)
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        // The simulated machine's own NIC never refuses these steps.
        let _ = self.queues.rebuilt(&mut *self.nic.borrow_mut(), queue_pair);
    }
}

impl AskingQueuePairs for SimQueuePairs<'_> {
    fn post_asking(&mut self, place: usize, requests: &[WorkRequest]) -> usize {
        self.queues.post_asking(&mut *self.nic.borrow_mut(), place, requests).unwrap_or(0)
    }

    fn post_asking_receive(&mut self, place: usize, requests: &[ReceiveRequest]) -> usize {
        self.queues.post_asking_receive(&mut *self.nic.borrow_mut(), place, requests).unwrap_or(0)
    }

    fn asking_rebuilt(&mut self, _place: usize) {
        // The node has reset and connected the queue pair: see [`FarEnd`].
    }
}

/// Bytes of the arena into which a hostile client may write garbage without harm to itself.
pub(crate) fn scratch(size: &EndpointSize) -> u64 {
    size.arena_bytes - 4096
}

impl SimEndpoint {
    /// Sends arbitrary bytes as a control message, from the end of the arena.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> usize {
        let address = scratch(&self.size());
        let mut bytes = bytes.to_vec();
        if self.is_over_udp() {
            // A control connection carries messages of one length.
            bytes.resize(portcullis_protocol::MESSAGE_BYTES, 0);
        }
        self.arena().write(address, &bytes);
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        let local = portcullis_nic::LocalSpan { address, length, lkey: self.arena_key() };
        let operation = portcullis_nic::Operation::Send { local };
        self.post_control(&[WorkRequest { id: RAW, signalled: true, operation }])
    }
}

/// The id of requests that no client library has posted.
pub(crate) const RAW: u64 = u64::MAX;
