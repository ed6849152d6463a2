//! The NIC as its owner uses it: [`SoftNic`], an implementation of [`Nic`].

use crate::completions::Completions;
use crate::core::{Bytes, CompletionPoller, Core, CqRing, QpRings, ReceivePoster, Ring, SendPoster, Sleeper};
use crate::port::{PortLayout, PortQueuePairs};
use portcullis_memory::{Alarm, Mapping};
use portcullis_nic::{
    ASKING_DEPTH, Access, AtomicScope, Capabilities, ChainFeatures, ChainNic, ChainRole, Completion,
    CompletionKind, CqId, EndpointSize, Event, Lkey, Nic, PdId, QpAddress, QpAttributes, QpChange, QpId,
    QpState, ReceiveRequest, Region, RegionId, RemoteAddress, SendQueue, VerbsError, Window, WindowId,
    WindowKind, WorkRequest, connect_qp,
};
use portcullis_protocol::Moment;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The deepest queue, in requests or completions.
const DEPTH_MAX: u32 = 1 << 20;

/// A software RNIC and its owner's ends of its queues.
///
/// The NIC works only when it is turned: an engine's thread calls [`SoftNic::turn`]. A NIC made by
/// [`SoftNic::self_driven`] also works whenever it is polled, for tests and single-threaded programs.
#[derive(Debug)]
pub struct SoftNic<M: NicMemory = Mapping> {
    core: Core<M>,
    /// The owner's ends of the completion queues, by number.
    completion_queues: Vec<Option<Completions<M>>>,
    queue_pairs: Vec<Option<Posters<M>>>,
    ports: BTreeMap<PortId, Port<M>>,
    next_port: u64,
    /// Whether a completion queue of the owner's has got a completion.
    news: bool,
    started: Instant,
    self_driven: bool,
}

/// The owner's ends of a queue pair.
#[derive(Clone, Debug)]
struct Posters<M> {
    send: SendPoster<M>,
    /// The ring of the send queue, if that queue is managed.
    managed: Option<Ring<M>>,
    receive: Option<ReceivePoster<M>>,
    /// The client's end. It goes through the same steps: a client process holds no verbs objects of its own.
    client: Option<QpId>,
    /// The queue pair's completion queues.
    cqs: [CqId; 2],
}

/// Memory that a NIC can allocate, and whose other end it can wake.
pub trait NicMemory: Bytes + Debug + Send + Sync + 'static {
    /// The handle that wakes a program that waits for a descriptor.
    type Alarm: Debug + Send + Sync;

    /// Allocates zeroed memory of at least `length` bytes.
    ///
    /// # Errors
    /// The machine does not have enough memory.
    fn allocate(length: u64) -> Result<Self, VerbsError>;

    /// Wakes the client if the half word at `offset` shows that the client sleeps, or that it waits for `alarm`.
    fn wake(&self, offset: u64, alarm: Option<&Self::Alarm>);
}

impl NicMemory for Mapping {
    type Alarm = Alarm;

    fn allocate(length: u64) -> Result<Self, VerbsError> {
        Self::private(length).map_err(|error| VerbsError::Machine(error.to_string()))
    }

    fn wake(&self, offset: u64, alarm: Option<&Alarm>) {
        self.wake_sleeper(offset, alarm);
    }
}

/// A port of this NIC. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(u64);

/// The NIC's side of a port.
#[derive(Debug)]
struct Port<M: NicMemory> {
    client: Arc<PortClient<M>>,
    pd: PdId,
    arena: Option<RegionId>,
    /// The completion queues of the client's data queue pairs, and of its others.
    completions: Vec<u32>,
    /// The node's end, if it is destroyed with the port, and the client's end.
    queue_pairs: Vec<(Option<QpId>, QpId)>,
    /// Queue pairs on which the client requests chunks.
    asking: Vec<QpId>,
}

/// The client of a port, as the NIC wakes it.
#[derive(Debug)]
struct PortClient<M: NicMemory> {
    memory: M,
    alarm: OnceLock<M::Alarm>,
}

impl<M: NicMemory> Sleeper for PortClient<M> {
    fn wake_client(&self) {
        self.memory.wake(crate::port::SLEEPING, self.alarm.get());
    }
}

/// Objects of the NIC that the node's ends of a port's queue pairs use.
#[derive(Clone, Copy, Debug)]
pub struct PortResources {
    /// The protection domain of the data queue pairs and of the control queue pair.
    pub pd: PdId,
    /// The protection domain of the queue pairs for accesses to chunks.
    pub chunks: Option<PdId>,
    /// The completion queue of all these queue pairs, except for `data_sends`.
    pub cq: CqId,
    /// The send queues of the data queue pairs.
    pub data_sends: SendQueue,
}

impl<M: NicMemory> Default for SoftNic<M> {
    fn default() -> Self {
        Self {
            core: Core::new(),
            completion_queues: Vec::new(),
            queue_pairs: Vec::new(),
            ports: BTreeMap::new(),
            next_port: 0,
            news: false,
            started: Instant::now(),
            self_driven: false,
        }
    }
}

const NO_CHUNKS: VerbsError = VerbsError::Invalid("queue pairs for chunks have a protection domain");

impl SoftNic {
    /// Makes a NIC that works when its engine turns it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a NIC that also works whenever it is polled.
    #[must_use]
    pub fn self_driven() -> Self {
        Self { self_driven: true, ..Self::new() }
    }
}

impl<M: NicMemory> SoftNic<M> {
    /// Serves every queue pair that may have work once. Returns whether anything was done.
    #[inline]
    pub fn turn(&mut self) -> bool {
        self.turn_at(self.now())
    }

    /// Serves every queue pair that may have work once, at a time of the caller's clock. Returns whether anything was
    /// done.
    #[inline]
    pub fn turn_at(&mut self, now: Moment) -> bool {
        let worked = self.core.turn(now);
        self.news |= self.core.wake_sleepers();
        worked
    }

    /// Returns a snapshot of the NIC, over the same memory, for exhaustive exploration of the orders of its steps. The
    /// caller restores the memory's contents itself.
    ///
    /// # Panics
    /// The NIC has ports: other processes cannot be restored.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        assert!(self.ports.is_empty(), "other processes cannot be taken back");
        Self {
            core: self.core.clone(),
            completion_queues: self.completion_queues.clone(),
            queue_pairs: self.queue_pairs.clone(),
            ports: BTreeMap::new(),
            ..*self
        }
    }

    /// Returns the memory of a managed send queue, and the range of the queue in it.
    #[must_use]
    pub fn queue_memory(&self, qp: QpId) -> Option<(M, Range<u64>)> {
        let ring = self.queue_pairs.get(qp.0 as usize)?.as_ref()?.managed.as_ref()?;
        Some(ring.place(crate::core::WORK_REQUEST_BYTES))
    }

    /// The NIC's state machine: its network and its objects.
    pub fn core(&mut self) -> &mut Core<M> {
        &mut self.core
    }

    /// Visits every queue pair once, long idle ones included.
    pub fn turn_all(&mut self) -> bool {
        let now = self.now();
        let worked = self.core.turn_all(now);
        self.news |= self.core.wake_sleepers();
        worked
    }

    /// Whether the owner has something to poll since the last call: a completion or an event. Events that concern only
    /// clients, such as their one-sided accesses, do not count.
    #[inline]
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news) || self.core.has_events()
    }

    /// Whether data engines serve clients: see [`Core::has_lent_clients`].
    #[must_use]
    pub fn has_lent_clients(&self) -> bool {
        self.core.has_lent_clients()
    }

    /// Whether a request is under way that only time, or a peer that rings no bell, can decide.
    #[must_use]
    pub fn waits_for_time(&self) -> bool {
        self.core.waits_for_time()
    }

    fn now(&self) -> Moment {
        // The time matters only for retries towards a peer that is not ready.
        if !self.core.waits_for_time() {
            return Moment::default();
        }
        Moment(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Makes a port for a client in `memory`. The client's queue pairs are connected to new ones of the node's in `pd`,
    /// which complete on `cq`. Returns the node's ends, which the caller has to destroy, and the key with which the
    /// client names its arena.
    ///
    /// # Errors
    /// A limit is reached. No object is left behind.
    pub fn create_port(
        &mut self,
        memory: M,
        size: EndpointSize,
        resources: PortResources,
    ) -> Result<(PortId, PortQueuePairs, Lkey), VerbsError> {
        let id = PortId(self.next_port);
        let next = id.0.checked_add(1).ok_or(VerbsError::Exhausted { what: "ports", limit: u64::MAX })?;
        // The client has a domain of its own: its queue pairs can name nothing on this side but its arena.
        let client_pd = self.core.allocate_pd()?;
        self.next_port = next;
        let port = Port {
            client: Arc::new(PortClient { memory, alarm: OnceLock::new() }),
            pd: client_pd,
            arena: None,
            completions: Vec::new(),
            queue_pairs: Vec::new(),
            asking: Vec::new(),
        };
        self.ports.insert(id, port);
        let made = self.build_port(id, size, resources);
        if made.is_err() {
            self.destroy_port(id);
        }
        made.map(|(queue_pairs, lkey)| (id, queue_pairs, lkey))
    }

    /// Sets the alarm that wakes the client of a port when its program waits for a descriptor.
    ///
    /// # Panics
    /// There is no such port, or it has an alarm.
    pub fn set_alarm(&mut self, port: PortId, alarm: M::Alarm) {
        let port = self.ports.get(&port).expect("a port that is there");
        port.client.alarm.set(alarm).expect("a port has one alarm");
    }

    fn build_port(
        &mut self,
        id: PortId,
        size: EndpointSize,
        PortResources { pd, chunks, cq, data_sends }: PortResources,
    ) -> Result<(PortQueuePairs, Lkey), VerbsError> {
        let layout = PortLayout::new(size);
        let no_port = VerbsError::NoSuch { what: "port" };
        let (memory, client_pd) = {
            let port = self.ports.get(&id).ok_or(no_port.clone())?;
            (port.client.memory.clone(), port.pd)
        };
        let arena = self.core.register_region(
            client_pd,
            &memory,
            layout.arena()..layout.arena() + size.arena_bytes,
            RemoteAddress(0),
            Access::LOCAL_WRITE,
        )?;
        let ring = |offset, depth| Ring::new(memory.clone(), offset, depth);
        let [data_completions, completions] = self.create_port_cqs(id, size)?;
        self.ports.get_mut(&id).ok_or(no_port)?.arena = Some(arena.id);

        let depth = size.control_depth;
        let theirs = QpRings {
            send: ring(layout.control_send(), depth),
            receive: Some(ring(layout.control_receive(), depth)),
            send_cq: completions,
            receive_cq: completions,
            label: Some(crate::port::CONTROL_LABEL),
            polled: true,
            role: ChainRole::default(),
        };
        let ours = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: depth, receive_depth: depth };
        let control = self.connect_port(id, theirs, client_pd, pd, ours)?;
        let mut data = Vec::new();
        for number in 0..size.data_queue_pairs + size.chunk_queue_pairs {
            let of_chunks = number >= size.data_queue_pairs;
            let pd = if of_chunks { chunks.ok_or(NO_CHUNKS)? } else { pd };
            let theirs = QpRings {
                send: ring(layout.data_send(number), size.send_depth),
                receive: None,
                send_cq: data_completions,
                receive_cq: data_completions,
                label: Some(QpId(number)),
                polled: true,
                role: ChainRole::default(),
            };
            let sends = if of_chunks { SendQueue { cq, depth: 1 } } else { data_sends };
            let SendQueue { cq: send_cq, depth: send_depth } = sends;
            let ours = QpAttributes { send_cq, receive_cq: cq, send_depth, receive_depth: 0 };
            data.push(self.connect_port(id, theirs, client_pd, pd, ours)?);
        }
        let ends = self.ports.get(&id).map_or(&[][..], |port| &port.queue_pairs);
        // The first pair of ends belongs to the control queue pair.
        let peers = ends.iter().skip(1).map(|&(_, theirs)| self.core.qp_address(theirs));
        let mut peers: Vec<_> = peers.collect::<Result<_, _>>()?;
        let ordinary = size.data_queue_pairs as usize;
        let chunks = data.split_off(ordinary).into_iter().zip(peers.split_off(ordinary)).collect();
        let asking = self.create_chunk_requests(id, size, completions, client_pd)?;
        if let Some(port) = self.ports.get_mut(&id) {
            // From here on the caller owns the node's ends: windows may be bound to them for longer than the port
            // exists.
            port.queue_pairs.iter_mut().for_each(|(ours, _)| *ours = None);
        }
        Ok((PortQueuePairs { control, data, peers, chunks, asking }, arena.lkey))
    }

    /// Makes the completion queues of a client: those of its data queue pairs, and of its others. So an engine that serves
    /// the data queue pairs shares no queue with the NIC's thread.
    fn create_port_cqs(&mut self, id: PortId, size: EndpointSize) -> Result<[u32; 2], VerbsError> {
        let no_port = VerbsError::NoSuch { what: "port" };
        let layout = PortLayout::new(size);
        let mut made = [0; 2];
        for (cq, queue) in made.iter_mut().zip([layout.data_completions(), layout.completions()]) {
            let port = self.ports.get_mut(&id).ok_or(no_port.clone())?;
            let ring = Ring::new(port.client.memory.clone(), queue.offset, queue.depth);
            *cq = self.core.create_cq(CqRing { ring, cell: queue.cell })?;
            let client: Arc<dyn Sleeper> = port.client.clone();
            self.core.set_sleeper(*cq, client);
            port.completions.push(*cq);
        }
        Ok(made)
    }

    /// Makes the queue pairs on which the client requests chunks.
    fn create_chunk_requests(
        &mut self,
        id: PortId,
        size: EndpointSize,
        completions: u32,
        client_pd: PdId,
    ) -> Result<Vec<QpId>, VerbsError> {
        let layout = PortLayout::new(size);
        let Some(memory) = self.ports.get(&id).map(|port| port.client.memory.clone()) else {
            return Ok(Vec::new());
        };
        let mut asking = Vec::new();
        for (place, label) in (0..size.asking_queue_pairs()).zip(crate::port::ASKING_LABELS) {
            let send = Ring::new(memory.clone(), layout.asking_send(place), ASKING_DEPTH);
            let receive = Ring::new(memory.clone(), layout.asking_receive(place), ASKING_DEPTH);
            let theirs = QpRings {
                send: send.clone(),
                receive: Some(receive.clone()),
                send_cq: completions,
                receive_cq: completions,
                label: Some(label),
                polled: true,
                role: ChainRole::default(),
            };
            let qp = self.core.create_qp(client_pd, theirs)?;
            self.own(qp, (send, Some(receive)), ChainRole::default(), [CqId(completions); 2]);
            if let Some(port) = self.ports.get_mut(&id) {
                port.asking.push(qp);
            }
            asking.push(qp);
        }
        Ok(asking)
    }

    /// Keeps the ends of a queue pair's rings.
    fn own(
        &mut self,
        qp: QpId,
        (send, receive): (Ring<M>, Option<Ring<M>>),
        role: ChainRole,
        cqs: [CqId; 2],
    ) {
        if self.queue_pairs.len() <= qp.0 as usize {
            self.queue_pairs.resize_with(qp.0 as usize + 1, || None);
        }
        self.queue_pairs[qp.0 as usize] = Some(Posters {
            managed: role.managed_send.then(|| send.clone()),
            send: SendPoster::new(send),
            receive: receive.map(ReceivePoster::new),
            client: None,
            cqs,
        });
    }

    /// Connects a client's queue pair to a new queue pair of the node, and takes both to RTS without remote rights.
    fn connect_port(
        &mut self,
        id: PortId,
        rings: QpRings<M>,
        client_pd: PdId,
        pd: PdId,
        attributes: QpAttributes,
    ) -> Result<QpId, VerbsError> {
        let theirs = self.core.create_qp(client_pd, rings)?;
        let ours = match self.create_qp(pd, attributes) {
            Ok(ours) => ours,
            Err(error) => {
                let _ = self.core.destroy_qp(theirs);
                return Err(error);
            }
        };
        if let Some(port) = self.ports.get_mut(&id) {
            port.queue_pairs.push((Some(ours), theirs));
        }
        self.posters(ours)?.client = Some(theirs);
        let peer = self.core.qp_address(theirs)?;
        connect_qp(self, ours, peer)?;
        Ok(ours)
    }

    /// Destroys a port: the client's queue pairs, completion queues, arena, domain, in that order. Returns the port's
    /// memory. The caller drops it on another thread: unmapping much memory takes longer than a NIC's thread should be
    /// held up.
    pub fn destroy_port(&mut self, id: PortId) -> Option<M> {
        let port = self.ports.remove(&id)?;
        for (ours, theirs) in port.queue_pairs {
            if let Some(ours) = ours {
                let _ = self.destroy_qp(ours);
            }
            let _ = self.core.destroy_qp(theirs);
        }
        for qp in port.asking {
            let _ = self.destroy_qp(qp);
        }
        for cq in port.completions {
            let _ = self.core.destroy_cq(cq);
        }
        if let Some(arena) = port.arena {
            let _ = self.core.deregister_region(arena);
        }
        let _ = self.core.deallocate_pd(port.pd);
        Some(port.client.memory.clone())
    }

    /// Continues the numbers of ports from `number`: for tests near the end of the counter.
    #[doc(hidden)]
    pub fn dangerous_count_ports_from(&mut self, number: u64) {
        self.next_port = number;
    }

    /// Number of ports.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    fn posters(&mut self, qp: QpId) -> Result<&mut Posters<M>, VerbsError> {
        let slot = self.queue_pairs.get_mut(qp.0 as usize).and_then(Option::as_mut);
        slot.ok_or(VerbsError::NoSuch { what: "queue pair" })
    }

    /// Takes the client's end through the same step as the node's, as the client's own driver would.
    fn step_client_end(&mut self, ours: QpId, theirs: QpId, change: QpChange) -> Result<(), VerbsError> {
        let change = match change {
            QpChange::Reset => QpChange::Reset,
            QpChange::Init { .. } => QpChange::Init { access: Access::empty() },
            QpChange::ReadyToReceive { .. } => QpChange::ReadyToReceive { peer: self.core.qp_address(ours)? },
            QpChange::ReadyToSend { .. } => QpChange::ReadyToSend { rnr_retries: CLIENT_RNR_RETRIES },
            QpChange::Access { .. } | QpChange::Error => return Ok(()),
        };
        self.core.modify_qp(theirs, change)
    }
}

/// Retries of a client's SEND while the node has no receive posted. The node posts new receives every turn.
const CLIENT_RNR_RETRIES: u8 = 7;

fn check_depth(depth: u32) -> Result<(), VerbsError> {
    if depth.is_power_of_two() && depth <= DEPTH_MAX {
        Ok(())
    } else {
        Err(VerbsError::Invalid("a queue's depth is a power of two, at most 1,048,576"))
    }
}

impl<M: NicMemory> Nic for SoftNic<M> {
    type Memory = M;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "softnic".to_owned(),
            window_type_1: true,
            window_type_2: true,
            chosen_keys: true,
            // The atomics are atomic with respect to the CPU's as well, but no code may come to rely on that.
            atomics: AtomicScope::Nic,
            windows_max: crate::core::KEYS_MAX,
            send_depth_max: DEPTH_MAX,
            completion_depth_max: DEPTH_MAX,
            sees_peer_ends: !self.core.is_networked(),
            chains: ChainFeatures::all(),
            unenforced: Vec::new(),
            deviations: Vec::new(),
            crashes_on: Vec::new(),
        }
    }

    fn allocate_memory(&mut self, length: u64) -> Result<M, VerbsError> {
        M::allocate(length)
    }

    fn allocate_pd(&mut self) -> Result<PdId, VerbsError> {
        self.core.allocate_pd()
    }

    fn deallocate_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.core.deallocate_pd(pd)
    }

    fn register_region(
        &mut self,
        pd: PdId,
        memory: &M,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        self.core.register_region(pd, memory, span, base, access)
    }

    fn deregister_region(&mut self, region: RegionId) -> Result<(), VerbsError> {
        self.core.deregister_region(region)
    }

    fn allocate_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError> {
        self.core.allocate_window(pd, kind)
    }

    fn deallocate_window(&mut self, window: WindowId) -> Result<(), VerbsError> {
        self.core.deallocate_window(window)
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        check_depth(depth)?;
        let bytes = 64 + u64::from(depth) * crate::core::COMPLETION_BYTES;
        let memory = M::allocate(bytes)?;
        let ring = Ring::new(memory, 64, depth);
        let cq = self.core.create_cq(CqRing { ring: ring.clone(), cell: 0 })?;
        let completions = Completions::new(CompletionPoller::new(ring, 0));
        if self.completion_queues.len() <= cq as usize {
            self.completion_queues.resize_with(cq as usize + 1, || None);
        }
        self.completion_queues[cq as usize] = Some(completions);
        Ok(CqId(cq))
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.core.destroy_cq(cq.0)?;
        if let Some(completions) = self.completion_queues.get_mut(cq.0 as usize) {
            *completions = None;
        }
        Ok(())
    }

    fn create_qp(&mut self, pd: PdId, attributes: QpAttributes) -> Result<QpId, VerbsError> {
        self.create_chain_qp(pd, attributes, ChainRole::default())
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.core.destroy_qp(qp)?;
        let gone = self.queue_pairs.get_mut(qp.0 as usize).and_then(Option::take);
        for cq in gone.iter().flat_map(|posters| posters.cqs) {
            if let Some(Some(completions)) = self.completion_queues.get_mut(cq.0 as usize) {
                completions.forget(qp);
            }
        }
        Ok(())
    }

    fn qp_address(&self, qp: QpId) -> Result<QpAddress, VerbsError> {
        self.core.qp_address(qp)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        let ours = self.core.qp_state(qp)?;
        let posters = self.queue_pairs.get(qp.0 as usize).and_then(Option::as_ref);
        let client =
            posters.and_then(|posters| posters.client).and_then(|theirs| self.core.qp_state(theirs).ok());
        // A client's end can go to ERR by a fault of its own, which is not reported to the node's end. The pair is
        // broken all the same, and is rebuilt as a pair.
        Ok(if client == Some(QpState::Error) { QpState::Error } else { ours })
    }

    fn modify_qp(&mut self, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        let client = self.posters(qp)?.client;
        self.core.modify_qp(qp, change)?;
        if change == QpChange::Reset {
            let posters = self.posters(qp)?;
            posters.send.reset();
            if let Some(ring) = &posters.managed {
                // The queue begins with its first entry again.
                posters.send = SendPoster::new(ring.clone());
            }
            if let Some(receive) = &mut posters.receive {
                receive.reset();
            }
        }
        client.map_or(Ok(()), |theirs| self.step_client_end(qp, theirs, change))
    }

    fn post_send(&mut self, qp: QpId, requests: &[WorkRequest]) -> Result<usize, VerbsError> {
        let state = self.core.qp_state(qp)?;
        if !matches!(state, QpState::ReadyToSend | QpState::Error) {
            return Err(VerbsError::State { from: state });
        }
        let posted = self.posters(qp)?.send.post(requests);
        self.core.ring(qp);
        Ok(posted)
    }

    fn post_receive(&mut self, qp: QpId, requests: &[ReceiveRequest]) -> Result<usize, VerbsError> {
        let state = self.core.qp_state(qp)?;
        if state == QpState::Reset {
            return Err(VerbsError::State { from: state });
        }
        let posters = self.posters(qp)?;
        let no_queue = VerbsError::Invalid("this queue pair was made without a receive queue");
        let posted = posters.receive.as_mut().ok_or(no_queue)?.post(requests);
        if state == QpState::Error {
            self.core.ring(qp);
        }
        Ok(posted)
    }

    fn poll(&mut self, cq: CqId, most: usize, into: &mut Vec<Completion>) -> Result<usize, VerbsError> {
        if self.self_driven {
            self.turn();
        }
        let Some(Some(completions)) = self.completion_queues.get_mut(cq.0 as usize) else {
            // A queue that only counts never has a completion.
            return self.core.completions_counted(cq.0).map(|_| 0);
        };
        let mut polled = 0;
        while polled < most {
            let Some((completion, taken)) = completions.take() else { break };
            let posters = self.queue_pairs.get_mut(completion.queue_pair.0 as usize).and_then(Option::as_mut);
            match (completion.kind, posters) {
                (CompletionKind::Send, Some(posters)) => posters.send.retire(taken),
                (CompletionKind::Receive { .. }, Some(Posters { receive: Some(receive), .. })) => {
                    receive.retire();
                }
                _ => {}
            }
            into.push(completion);
            polled += 1;
        }
        if polled > 0 {
            completions.publish();
        }
        Ok(polled)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.core.poll_event()
    }

    fn chains(&mut self) -> Option<impl ChainNic> {
        Some(self)
    }
}

impl<M: NicMemory> ChainNic for SoftNic<M> {
    fn create_chain_qp(
        &mut self,
        pd: PdId,
        attributes: QpAttributes,
        role: ChainRole,
    ) -> Result<QpId, VerbsError> {
        check_depth(attributes.send_depth)?;
        if attributes.receive_depth > 0 {
            check_depth(attributes.receive_depth)?;
        }
        let send_bytes = u64::from(attributes.send_depth) * crate::core::WORK_REQUEST_BYTES;
        let receive_bytes = u64::from(attributes.receive_depth) * crate::core::RECEIVE_BYTES;
        let memory = M::allocate(send_bytes + receive_bytes)?;
        let send = Ring::new(memory.clone(), 0, attributes.send_depth);
        let receive =
            (attributes.receive_depth > 0).then(|| Ring::new(memory, send_bytes, attributes.receive_depth));
        let rings = QpRings {
            send: send.clone(),
            receive: receive.clone(),
            send_cq: attributes.send_cq.0,
            receive_cq: attributes.receive_cq.0,
            label: None,
            polled: false,
            role,
        };
        let qp = self.core.create_qp(pd, rings)?;
        self.own(qp, (send, receive), role, [attributes.send_cq, attributes.receive_cq]);
        Ok(qp)
    }

    fn create_counting_cq(&mut self) -> Result<CqId, VerbsError> {
        self.core.create_counting_cq().map(CqId)
    }

    fn completions_counted(&self, cq: CqId) -> Result<u32, VerbsError> {
        self.core.completions_counted(cq.0)
    }

    fn register_queue_memory(
        &mut self,
        pd: PdId,
        qp: QpId,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        self.posters(qp)?;
        let (memory, span) = self
            .queue_memory(qp)
            .ok_or(VerbsError::Invalid("only the memory of a managed send queue is registered"))?;
        self.core.register_region(pd, &memory, span, base, access)
    }

    fn queue_entry(&self, request: &WorkRequest) -> Result<[u64; 8], VerbsError> {
        Ok(crate::core::queue_entry(request))
    }
}
