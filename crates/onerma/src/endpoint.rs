//! A client's end over UDP. Its operations are datagrams, and its control messages travel over a connection that the
//! caller has made ([`ControlLink`]).
//!
//! The end makes progress only within calls: a caller that begins an operation must poll, wait or arm. It has no data
//! queue pairs.

mod control;
mod translation;
mod wait;

pub use control::ControlLink;

use crate::executor::{
    Executor, ExecutorCounters, ExecutorLimits, OwnMap, Pace, Transfer, TransferEnd, TransferId,
};
use crate::initiator::{Destination, Initiator, InitiatorLimits};
use crate::keys::{DerivedKey, OperationKey, OperationType};
use crate::path_mtu::PathMtu;
use crate::probe;
use crate::{RegionId, UdpSocket};
use control::Control;
use portcullis_memory::{ArenaMemory, Mapping};
use portcullis_nic::{
    Completion, CompletionKind, Endpoint, EndpointQueue, EndpointSize, Lkey, LocalSpan, OneShotOperations,
    OneShotRequest, Pollable, QpId, ReceiveRequest, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::RegionName;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use wait::Watch;

/// The queue of the operations in completions.
const ONE_SHOT: QpId = EndpointQueue::OneShot.label();
/// Number of region keys that are kept set up. A client that uses more in rotation sets them up again.
const KEYS_MAX: usize = 4096;
/// Batches of datagrams that one poll receives, which bounds its time.
const BATCHES_MAX: usize = 8;
/// Number of datagrams until which time-outs wait for the socket to be empty: as many as a socket has room for. So an
/// attacker that floods the socket delays no time-out for longer.
const BACKLOG_MAX: usize = 1 << 13;

/// Parameters of the node that an end needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeEnd {
    /// The node's address for operations.
    pub address: SocketAddr,
    /// The node's number for this client.
    pub client: u64,
    /// Control messages that may be under way in each direction.
    pub control_depth: u32,
    /// Bytes of a control message.
    pub message_bytes: u32,
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    request: u64,
    local: LocalSpan,
}

/// A client's end.
#[derive(Debug)]
pub struct UdpEndpoint {
    node: NodeEnd,
    arena: ArenaMemory,
    size: EndpointSize,
    executor: Executor,
    socket: UdpSocket,
    control: Control,
    /// Set-up keys, by region.
    keys: OwnMap<RegionName, OperationKey>,
    under_way: OwnMap<TransferId, UnderWay>,
    completions: VecDeque<Completion>,
    watch: Watch,
    /// Datagrams received since the socket was last empty.
    backlog: usize,
    /// Time zero of the executor's clock.
    began: Instant,
}

impl UdpEndpoint {
    /// Creates an end with `buffers` bytes of buffers. `socket` sends from the host for which the node derives keys.
    /// The path carries datagrams of `datagram_max` bytes now. Later sizes, up to the initiator's `packet_max`, are
    /// discovered again.
    ///
    /// # Errors
    /// The machine does not have enough resources.
    pub fn new(
        node: NodeEnd,
        buffers: u64,
        (socket, datagram_max): (UdpSocket, u32),
        link: Box<dyn ControlLink>,
        (initiator, executor, pace): (InitiatorLimits, ExecutorLimits, Pace),
    ) -> std::io::Result<Self> {
        let found = usize::try_from(datagram_max).unwrap_or(usize::MAX);
        let path = PathMtu::new(node.address, found, initiator.packet_max, probe::random()?);
        let size = EndpointSize {
            data_queue_pairs: 0,
            chunk_queue_pairs: 0,
            send_depth: 1,
            control_depth: node.control_depth,
            message_bytes: node.message_bytes,
            arena_bytes: 0,
        };
        let size = size.with_buffers(buffers);
        let memory = Mapping::private(size.arena_bytes).map_err(std::io::Error::other)?;
        let watch = Watch::new(&socket, &*link)?;
        Ok(Self {
            node,
            arena: ArenaMemory::whole(memory, size.arena_bytes),
            size,
            executor: Executor::with_pace(Initiator::new(initiator), executor, pace).with_path(path),
            socket,
            control: Control::new(link),
            keys: OwnMap::default(),
            under_way: OwnMap::default(),
            completions: VecDeque::new(),
            watch,
            backlog: 0,
            began: Instant::now(),
        })
    }

    /// Bytes of the largest datagram in either direction now. The path may carry other sizes later.
    #[must_use]
    pub fn datagram_max(&self) -> u32 {
        let now = self.executor.path().map_or(0, PathMtu::datagram_max);
        u32::try_from(now).unwrap_or(u32::MAX)
    }

    /// Returns the counters of the outcomes of its operations, including repeated ones.
    #[must_use]
    pub fn counters(&self) -> ExecutorCounters {
        self.executor.counters()
    }

    /// Number of operations of one type that may be in progress: in this host's congestion window, and in the node's if
    /// there is one.
    #[must_use]
    pub fn windows(&self, operation: OperationType) -> (f64, Option<f64>) {
        self.executor.windows(self.node.address, operation)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn destination(&mut self, request: &OneShotRequest) -> Destination {
        let OneShotRequest { region, key, .. } = *request;
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&region) {
            self.keys.clear();
        }
        let set_up = || DerivedKey::from_bytes(key.0).set_up();
        let key = self.keys.entry(region).or_insert_with(set_up).clone();
        let RegionName { index, generation } = region;
        let region = RegionId { index, generation };
        Destination { address: self.node.address, client: self.node.client, region, key }
    }

    fn transfer(&mut self, request: &OneShotRequest) -> Transfer {
        let to = self.destination(request);
        Transfer::of_request(request, to, &self.arena)
    }

    /// Sends pending datagrams, receives datagrams and control messages, and ends operations.
    fn proceed(&mut self) {
        self.transmit();
        if self.executor.pending() > 0 {
            self.receive();
            let now = self.now();
            // A process that was not scheduled for a while finds many answers at once.
            let is_all = self.backlog == 0 || self.backlog > BACKLOG_MAX;
            if is_all && self.executor.next_timeout().is_some_and(|due| due <= now) {
                self.executor.handle_timeout(now);
            }
            while let Some(end) = self.executor.poll_end() {
                self.end(end);
            }
            self.transmit();
        }
        self.control.proceed(&self.arena, &mut self.completions);
    }

    fn transmit(&mut self) {
        let Self { socket, executor, began, .. } = self;
        // A datagram that the system refuses is lost, like one that is lost on its way. Its operation has a time-out.
        while let Err(error) = socket.send(|packet| executor.poll_transmit(packet)) {
            tracing::debug!(%error, "a datagram was not sent");
            if error.is_too_long() {
                executor.handle_too_long(error.to, error.bytes, began.elapsed());
            }
        }
    }

    fn receive(&mut self) {
        let now = self.now();
        let Self { socket, executor, backlog, under_way, arena, .. } = self;
        for _ in 0..BATCHES_MAX {
            let came = socket.receive(|from, packet| {
                if let Some(data) = executor.handle_packet(from, packet, now) {
                    data.store(under_way[&data.of].local, arena);
                }
            });
            match came {
                Ok(0) => {
                    *backlog = 0;
                    return;
                }
                Ok(came) => *backlog += came,
                Err(error) => {
                    *backlog = 0;
                    tracing::debug!(%error, "the socket reports an error");
                    return;
                }
            }
        }
    }

    /// Receives and discards datagrams although no operation is in progress: late answers, and datagrams from any
    /// sender. They would otherwise wake a waiting caller without end.
    fn discard(&mut self) {
        if self.executor.pending() == 0 {
            self.receive();
        }
    }

    fn end(&mut self, end: TransferEnd) {
        let UnderWay { request, local } =
            self.under_way.remove(&end.id).expect("each transfer is a request's");
        let status = end.verbs_status();
        if status == Status::Success {
            end.store(local, &self.arena);
        }
        let (queue_pair, kind) = (ONE_SHOT, CompletionKind::Send);
        self.completions.push_back(Completion { request, queue_pair, status, kind });
    }

    /// Time until work is due that no arrival announces.
    fn due_in(&self) -> Option<Duration> {
        self.executor.next_timeout().map(|due| due.saturating_sub(self.now()))
    }
}

impl Endpoint for UdpEndpoint {
    type Memory = ArenaMemory;

    fn arena(&self) -> &ArenaMemory {
        &self.arena
    }

    fn wait(&mut self, at_most: Duration) {
        self.control.look();
        self.proceed();
        self.discard();
        if self.completions.is_empty() {
            let at_most = self.due_in().map_or(at_most, |due| due.min(at_most));
            self.watch.wait(&self.socket, &self.control, at_most);
        }
    }

    fn node_alive(&mut self) -> bool {
        self.control.look();
        self.control.proceed(&self.arena, &mut self.completions);
        self.control.is_alive()
    }
}

impl Pollable for UdpEndpoint {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.descriptor()
    }

    fn arm(&mut self) -> bool {
        self.control.look();
        self.proceed();
        self.discard();
        self.watch.arm(&self.control, self.due_in());
        self.completions.is_empty() && self.control.is_alive()
    }
}

impl VerbsEndpoint for UdpEndpoint {
    fn size(&self) -> EndpointSize {
        self.size
    }

    fn arena_key(&self) -> Lkey {
        Lkey(0)
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        self.control.post(&self.arena, requests, &mut self.completions)
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        self.control.post_receive(requests)
    }

    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        if self.completions.is_empty() {
            self.proceed();
        }
        let taken = self.completions.len().min(most);
        into.extend(self.completions.drain(..taken));
        taken
    }

    fn one_shots(&mut self) -> Option<impl OneShotOperations> {
        Some(self)
    }
}

impl OneShotOperations for UdpEndpoint {
    fn post_one_shot(&mut self, requests: &[OneShotRequest]) -> usize {
        let now = self.now();
        for (posted, request) in requests.iter().enumerate() {
            if !self.executor.takes(self.node.address, request.verb.into()) {
                return posted;
            }
            let transfer = self.transfer(request);
            match self.executor.begin(transfer, now) {
                Ok(id) => {
                    self.under_way.insert(id, UnderWay { request: request.id, local: request.local });
                }
                // The request moves no bytes, so it is complete: other ends behave in the same way.
                Err(_) => self.completions.push_back(Completion {
                    request: request.id,
                    queue_pair: ONE_SHOT,
                    status: Status::Success,
                    kind: CompletionKind::Send,
                }),
            }
        }
        requests.len()
    }
}
