//! A node, its NIC and raw clients in one process, without threads. The test moves the time.
//!
//! A client is only a port: it can send any bytes and use any key, as a hostile client would.

#![allow(dead_code, reason = "an example uses a part of the rig")]

use portcullis_examination::{Around, Hook};
use portcullis_memory::{Doorbell, Mapping, Watched};
use portcullis_nic::{
    Capabilities, ChainVerb, Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointSize, Event,
    LocalSpan, Memory, Nic, Operation, QpChange, QpId, ReceiveRequest, RemoteSpan, Status, VerbsEndpoint,
    VerbsError, WindowBinding, WorkRequest,
};
use portcullis_node::{Admission, ChunkEnds, ClientEnds, Node, NodeConfig, ViolationLimits};
use portcullis_protocol::{
    Acquire, Allocate, ClientId, DirectoryName, Entry, GrantRequest, Granted, Holders, Incarnation, Keep,
    Lifetime, MESSAGE_BYTES, Moment, NamedRequest, ObjectName, ObjectRef, PACKED_HEAD_BYTES, Packing, Part,
    PermissionId, QueuePairRequest, Refusal, RemoteAddress, Reply, ReplyBody, Request, RequestBody, Rights,
    Rkey, Sharing, TenantName, is_packed, messages_in,
};
use portcullis_softnic::{PortEndpoint, PortId, PortLayout, PortResources, SoftNic};
use std::collections::{HashMap, VecDeque};

/// The time at which every rig starts, in µs. It is not zero.
pub const START: Moment = Moment(1_000_000);
const SIZE: EndpointSize = EndpointSize {
    chunk_queue_pairs: 0,
    data_queue_pairs: 2,
    send_depth: 16,
    control_depth: 16,
    // A message, and the longest data that can follow it.
    message_bytes: 128 + 8192,
    arena_bytes: 1 << 20,
};
/// Offset of the data of one-sided operations in an arena: behind all message slots.
const DATA_AT: u64 = 512 << 10;
/// After this many rounds all has happened that needs no time.
const ROUNDS_MAX: u32 = 200_000;

/// The end of an operation: its status, and the bytes that it returned.
pub type Done = (Status, Vec<u8>);

pub struct Seat {
    pub id: ClientId,
    pub port: PortId,
    pub endpoint: PortEndpoint,
    /// The client posts no receives any more.
    pub is_deaf: bool,
    sequence: u32,
    /// Number of messages that have arrived.
    pub messages: u32,
    replies: HashMap<u32, (ReplyBody, Vec<u8>)>,
    unmatched: VecDeque<Reply>,
    /// Completions of requests that were no control messages.
    pub completions: Vec<Completion>,
}

pub struct Rig {
    pub nic: RigNic,
    pub node: Node<RigNic>,
    pub now: Moment,
    seats: Vec<Option<Seat>>,
    page: Mapping,
}

/// A software NIC that can fail, or report nothing about a refused access, like an RDMA device.
pub type RigNic = Around<SoftNic, Faults>;

#[derive(Default)]
pub struct Faults {
    pub is_mute: bool,
    /// Binds fail, and no queue pair can be connected.
    pub is_broken: bool,
    /// The most entries of a completion queue, if the device has a limit of its own.
    pub completions_max: Option<u32>,
}

impl Hook<SoftNic> for Faults {
    fn capabilities(&self, nic: &SoftNic) -> Capabilities {
        let own = nic.capabilities();
        let completion_depth_max = self.completions_max.unwrap_or(own.completion_depth_max);
        Capabilities { completion_depth_max, ..own }
    }

    fn modify_qp(&mut self, nic: &mut SoftNic, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        match change {
            QpChange::ReadyToReceive { .. } if self.is_broken => {
                Err(VerbsError::Machine("it fails".to_owned()))
            }
            change => nic.modify_qp(qp, change),
        }
    }

    fn post_send(
        &mut self,
        nic: &mut SoftNic,
        qp: QpId,
        requests: &[WorkRequest],
    ) -> Result<usize, VerbsError> {
        let beyond_all = |request: &WorkRequest| match request.operation {
            Operation::BindWindow(binding) => {
                let operation = Operation::BindWindow(WindowBinding { length: u64::MAX, ..binding });
                WorkRequest { operation, ..*request }
            }
            Operation::Chain(ChainVerb::BindWindow { binding, queue_pair }) => {
                let binding = WindowBinding { length: u64::MAX, ..binding };
                let operation = Operation::Chain(ChainVerb::BindWindow { binding, queue_pair });
                WorkRequest { operation, ..*request }
            }
            _ => *request,
        };
        if self.is_broken {
            let spoilt: Vec<WorkRequest> = requests.iter().map(beyond_all).collect();
            nic.post_send(qp, &spoilt)
        } else {
            nic.post_send(qp, requests)
        }
    }

    fn poll_event(&mut self, nic: &mut SoftNic) -> Option<Event> {
        match nic.poll_event()? {
            Event::AccessError(qp, _) if self.is_mute => Some(Event::AccessError(qp, None)),
            event => Some(event),
        }
    }
}

/// The incarnation of the nodes in tests.
pub const INCARNATION: Incarnation = Incarnation(0x1234_5678_9abc_def0);

/// A configuration for tests: a pool of 4 MiB, and an audit log for failing tests to print.
pub fn config() -> NodeConfig {
    NodeConfig { pool_bytes: 4 << 20, headers: 1024, windows_ready: 8, ..NodeConfig::default() }
}

impl Rig {
    pub fn new(config: NodeConfig) -> Self {
        Self::with_secret(config, [7; 32])
    }

    /// A rig whose node has its own secret.
    pub fn with_secret(config: NodeConfig, secret: [u8; 32]) -> Self {
        Self::on(RigNic::default(), config, secret)
    }

    /// A rig on a NIC whose completion queues have at most `completions_max` entries.
    pub fn with_completions(config: NodeConfig, completions_max: u32) -> Self {
        let mut nic = RigNic::default();
        nic.hook.completions_max = Some(completions_max);
        Self::on(nic, config, [7; 32])
    }

    fn on(mut nic: RigNic, config: NodeConfig, secret: [u8; 32]) -> Self {
        let node = Node::new(&mut nic, config, INCARNATION, secret).expect("the configuration is sound");
        let page = Mapping::shareable("page", 4096).expect("a page");
        Self { nic, node, now: START, seats: Vec::new(), page }
    }

    /// Attaches a client of this tenant. Returns the client's number in the rig.
    pub fn attach(&mut self, tenant: &str) -> usize {
        self.try_attach(tenant).expect("the tenant may come")
    }

    pub fn try_attach(&mut self, tenant: &str) -> Result<usize, Refusal> {
        let admission = self.node.admit(&mut self.nic, tenant, self.now)?;
        let chunk_queue_pairs = if admission.chunks.is_some() { 2 } else { 0 };
        let size = EndpointSize { chunk_queue_pairs, ..SIZE };
        let memory = Mapping::shareable("port", PortLayout::new(size).bytes()).expect("a port's memory");
        let Admission { pd, chunks, cq, data_sends, .. } = admission;
        let resources = PortResources { pd, chunks, cq, data_sends };
        let (port, ends, lkey) = self.nic.nic.create_port(memory.clone(), size, resources).expect("a port");
        let ends = ClientEnds {
            control: ends.control,
            data: ends.data,
            peers: ends.peers,
            chunks: ChunkEnds { access: ends.chunks, asking: ends.asking },
            control_depth: SIZE.control_depth,
            message_bytes: SIZE.message_bytes,
        };
        let id =
            self.node.attach(&mut self.nic, admission.tenant, Some(1), ends, self.now).expect("attached");
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
        let (_, watched) = portcullis_memory::ends().expect("a pair");
        let bells = (Doorbell::new(self.page.clone(), event), Watched::new(watched));
        let connection = None;
        let mut endpoint = PortEndpoint::new(memory, size, lkey, bells, connection);
        for slot in 0..SIZE.control_depth {
            endpoint.post_control_receive(&[receive(lkey, slot)]);
        }
        let (replies, unmatched, completions) = (HashMap::new(), VecDeque::new(), Vec::new());
        let seat = Seat {
            id,
            port,
            endpoint,
            is_deaf: false,
            sequence: 0,
            messages: 0,
            replies,
            unmatched,
            completions,
        };
        let number = self.seats.iter().position(Option::is_none).unwrap_or(self.seats.len());
        if number == self.seats.len() {
            self.seats.push(None);
        }
        self.seats[number] = Some(seat);
        Ok(number)
    }

    pub fn detach(&mut self, client: usize) {
        let seat = self.seats[client].take().expect("an attached client");
        self.node.detach(&mut self.nic, seat.id, self.now);
        self.nic.nic.destroy_port(seat.port);
    }

    pub fn seat(&mut self, client: usize) -> &mut Seat {
        self.seats[client].as_mut().expect("an attached client")
    }

    /// Returns the attached clients.
    pub fn clients(&self) -> Vec<usize> {
        (0..self.seats.len()).filter(|&number| self.seats[number].is_some()).collect()
    }

    /// One turn for everything. Returns whether anything was done.
    pub fn turn(&mut self) -> bool {
        let mut worked = self.nic.nic.turn_all();
        worked |= self.node.turn(&mut self.nic, self.now);
        for seat in self.seats.iter_mut().flatten() {
            worked |= seat.listen();
        }
        worked
    }

    /// Delivers the messages that were sent. The node does not read them yet.
    pub fn deliver(&mut self) {
        while self.nic.nic.turn_all() {}
    }

    /// Takes turns until nothing more happens without time.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..ROUNDS_MAX {
            quiet = if self.turn() { 0 } else { quiet + 1 };
            if quiet > 2 {
                return;
            }
        }
        panic!("nothing settles: {:?}", self.node.counters());
    }

    /// Lets time pass, and all happen that follows from it.
    pub fn pass(&mut self, time: Lifetime) {
        self.now = self.now.after(time);
        self.settle();
    }

    /// Sends a request and returns its number. Takes no turns.
    pub fn send(&mut self, client: usize, body: RequestBody) -> u32 {
        self.send_with(client, body, &[])
    }

    pub fn send_with(&mut self, client: usize, body: RequestBody, data: &[u8]) -> u32 {
        let seat = self.seat(client);
        seat.sequence += 1;
        let sequence = seat.sequence;
        let mut bytes = Request { sequence, body }.encode().to_vec();
        bytes.extend(data);
        seat.send_raw(&bytes);
        sequence
    }

    /// Sends requests in one message, and returns their numbers. Takes no turns.
    pub fn send_packed(&mut self, client: usize, bodies: &[RequestBody]) -> Vec<u32> {
        let seat = self.seat(client);
        let (mut packing, mut bytes) =
            (Packing::new(SIZE.message_bytes as usize), vec![0; PACKED_HEAD_BYTES]);
        let sequences = bodies.iter().map(|&body| {
            seat.sequence += 1;
            let message = Request { sequence: seat.sequence, body }.encode();
            bytes.extend(packing.add(&message).expect("the message has room").1);
            seat.sequence
        });
        let sequences = sequences.collect();
        bytes[..PACKED_HEAD_BYTES].copy_from_slice(&packing.head().expect("several requests"));
        seat.send_raw(&bytes);
        sequences
    }

    /// Takes the reply to a request, if it has arrived.
    pub fn reply(&mut self, client: usize, sequence: u32) -> Option<ReplyBody> {
        self.seat(client).replies.remove(&sequence).map(|(body, _)| body)
    }

    /// Sends a request, settles, and returns the reply.
    pub fn ask(&mut self, client: usize, body: RequestBody) -> ReplyBody {
        self.ask_with(client, body, &[]).0
    }

    pub fn ask_with(&mut self, client: usize, body: RequestBody, data: &[u8]) -> (ReplyBody, Vec<u8>) {
        let sequence = self.send_with(client, body, data);
        self.settle();
        self.seat(client).replies.remove(&sequence).unwrap_or_else(|| panic!("no reply to {body:?}"))
    }

    /// Sends a request, and returns the reply as soon as it has arrived.
    pub fn ask_soon(&mut self, client: usize, body: RequestBody) -> ReplyBody {
        let sequence = self.send(client, body);
        for _ in 0..1000 {
            self.turn();
            if let Some(reply) = self.reply(client, sequence) {
                return reply;
            }
        }
        panic!("no reply to {body:?}");
    }

    /// Takes a reply that belongs to no request.
    pub fn unmatched(&mut self, client: usize) -> Option<Reply> {
        self.seat(client).unmatched.pop_front()
    }

    /// Posts a one-sided operation on data queue pair `queue_pair`, settles, and returns how it ended.
    pub fn operate(&mut self, client: usize, queue_pair: u32, operation: Operation) -> Status {
        let request = WorkRequest { id: 7, signalled: true, operation };
        let posted = self.seat(client).endpoint.post(queue_pair, &[request]);
        assert_eq!(posted, 1, "the queue has room");
        for _ in 0..ROUNDS_MAX {
            self.nic.nic.turn_all();
            self.seat(client).listen();
            let found = |it: &Completion| it.queue_pair.0 == queue_pair;
            if let Some(at) = self.seat(client).completions.iter().position(found) {
                return self.seat(client).completions.remove(at).status;
            }
        }
        panic!("an operation does not complete");
    }

    pub fn read(&mut self, client: usize, rkey: Rkey, address: u64, length: u32) -> Done {
        let local = self.seat(client).span(length);
        self.seat(client).endpoint.arena().write(DATA_AT, &vec![0xee; length as usize]);
        let remote = RemoteSpan { address: RemoteAddress(address), rkey };
        let status = self.operate(client, 0, Operation::Read { local, remote });
        let mut bytes = vec![0; length as usize];
        self.seat(client).endpoint.arena().read(DATA_AT, &mut bytes);
        (status, bytes)
    }

    pub fn write(&mut self, client: usize, rkey: Rkey, address: u64, bytes: &[u8]) -> Status {
        let length = u32::try_from(bytes.len()).expect("few bytes");
        let local = self.seat(client).span(length);
        self.seat(client).endpoint.arena().write(DATA_AT, bytes);
        let remote = RemoteSpan { address: RemoteAddress(address), rkey };
        self.operate(client, 0, Operation::Write { local, remote })
    }

    /// Does a compare and swap. Returns its status and the old value.
    pub fn swap(
        &mut self,
        client: usize,
        rkey: Rkey,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> (Status, u64) {
        let local = self.seat(client).span(8);
        let remote = RemoteSpan { address: RemoteAddress(address), rkey };
        let status = self.operate(client, 0, Operation::CompareAndSwap { local, remote, compare, swap });
        (status, self.seat(client).endpoint.arena().load(DATA_AT))
    }

    /// Gets data queue pair 0 rebuilt after a violation.
    pub fn recover(&mut self, client: usize) {
        assert_eq!(
            self.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })),
            ReplyBody::Done
        );
        self.seat(client).endpoint.rebuilt(0);
    }

    pub fn allocate(&mut self, client: usize, size: u64, keep: bool) -> Granted {
        granted(self.ask(client, allocate(size, keep)))
    }

    pub fn acquire(&mut self, client: usize, object: ObjectRef) -> Granted {
        granted(self.ask(client, acquire(object, Sharing::Exclusive, Lifetime(0))))
    }

    pub fn revoke(&mut self, client: usize, permission: PermissionId) {
        assert_eq!(
            self.ask(client, RequestBody::Grant(GrantRequest::Revoke { permission, free: false })),
            ReplyBody::Done
        );
    }

    /// Allocates an object that is kept and has no holder.
    pub fn keep(&mut self, client: usize) -> Granted {
        let it = self.allocate(client, 64, true);
        self.revoke(client, it.permission);
        it
    }

    /// Detaches all clients. Nothing of them may stay.
    pub fn end(mut self) {
        for client in self.clients() {
            self.detach(client);
        }
        // The objects that were kept for the tenant's next client go in time.
        self.pass(self.node.config().longest_keep);
        let left = self.node.counters();
        let held =
            [left.permissions, left.objects, left.bytes_used, left.headers_used, left.windows, left.names];
        let there = [left.clients, left.tenants, left.postponed];
        assert_eq!((held, there, self.nic.nic.ports()), ([0; 6], [0; 3], 0), "{left:?}");
    }
}

impl Seat {
    pub fn lkey(&self) -> portcullis_nic::Lkey {
        self.endpoint.arena_key()
    }

    fn span(&self, length: u32) -> LocalSpan {
        LocalSpan { address: DATA_AT, length, lkey: self.endpoint.arena_key() }
    }

    /// Drops the replies that have arrived.
    pub fn forget_replies(&mut self) {
        self.replies.clear();
        self.unmatched.clear();
    }

    /// Sends any bytes as a control message.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let slot = SIZE.control_depth + self.sequence % SIZE.control_depth;
        let address = u64::from(slot) * u64::from(SIZE.message_bytes);
        self.endpoint.arena().write(address, bytes);
        let length = u32::try_from(bytes.len()).expect("a short message");
        let local = LocalSpan { address, length, lkey: self.endpoint.arena_key() };
        let request = WorkRequest { id: 1, signalled: true, operation: Operation::Send { local } };
        assert_eq!(self.endpoint.post_control(&[request]), 1, "the control queue has room");
    }

    /// Posts receives for these slots: a client that has posted none for a while reads replies again.
    pub fn post_receives(&mut self, slots: std::ops::Range<u32>) {
        let lkey = self.endpoint.arena_key();
        slots.for_each(|slot| assert_eq!(self.endpoint.post_control_receive(&[receive(lkey, slot)]), 1));
    }

    /// Takes what has arrived. Returns whether anything has.
    fn listen(&mut self) -> bool {
        let mut completions = Vec::new();
        self.endpoint.poll(64, &mut completions);
        for completion in &completions {
            if completion.queue_pair != PortEndpoint::CONTROL {
                self.completions.push(*completion);
            } else if let (Status::Success, CompletionKind::Receive { length, .. }) =
                (completion.status, completion.kind)
            {
                let slot = u32::try_from(completion.request).expect("a slot");
                let mut bytes = vec![0; length as usize];
                self.endpoint.arena().read(u64::from(slot) * u64::from(SIZE.message_bytes), &mut bytes);
                self.messages += 1;
                self.take_replies(&bytes);
                if !self.is_deaf {
                    self.endpoint.post_control_receive(&[receive(self.endpoint.arena_key(), slot)]);
                }
            }
        }
        !completions.is_empty()
    }
}

impl Seat {
    /// Takes the replies of a message.
    fn take_replies(&mut self, bytes: &[u8]) {
        let is_packed = bytes.first_chunk().is_some_and(is_packed);
        let data = bytes.get(MESSAGE_BYTES..).filter(|_| !is_packed).unwrap_or_default();
        for record in messages_in(bytes).expect("a whole message") {
            let reply = Reply::decode(record).expect("a node's reply means something");
            if reply.sequence == 0 || reply.sequence > self.sequence {
                self.unmatched.push_back(reply);
            } else {
                let before = self.replies.insert(reply.sequence, (reply.body, data.to_vec()));
                assert!(before.is_none(), "two replies to one request");
            }
        }
    }
}

fn receive(lkey: portcullis_nic::Lkey, slot: u32) -> ReceiveRequest {
    let length = SIZE.message_bytes;
    let local = LocalSpan { address: u64::from(slot) * u64::from(length), length, lkey };
    ReceiveRequest { id: u64::from(slot), local }
}

pub fn allocate(size: u64, keep: bool) -> RequestBody {
    let (lifetime, rights) = (Lifetime::millis(100), Rights::all());
    let keep = if keep { Keep::Attached } else { Keep::No };
    RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size,
        alignment: 0,
        lifetime,
        rights,
        sharing: Sharing::Exclusive,
        keep,
    }))
}

pub fn free(object: ObjectRef) -> RequestBody {
    RequestBody::Grant(GrantRequest::Free { object: object.into(), holders: Holders::Stay })
}

pub fn name(text: &str) -> DirectoryName {
    text.parse().expect("a name")
}

pub fn tenant(text: &str) -> TenantName {
    text.parse().expect("a tenant's name")
}

pub fn publish(text: &str, object: ObjectRef) -> RequestBody {
    RequestBody::Named(NamedRequest::Publish { name: name(text), object })
}

pub fn unpublish(text: &str) -> RequestBody {
    RequestBody::Named(NamedRequest::Unpublish { name: name(text) })
}

pub fn share(text: &str, with: &str, rights: Rights) -> RequestBody {
    RequestBody::Named(NamedRequest::Share { name: name(text), tenant: tenant(with), rights })
}

pub fn unshare(text: &str, with: &str) -> RequestBody {
    RequestBody::Named(NamedRequest::Unshare { name: name(text), tenant: tenant(with) })
}

/// A request to look a name up: a name of another tenant, or (`None`) of the client's own.
pub fn lookup(owner: Option<&str>, text: &str) -> RequestBody {
    RequestBody::Named(NamedRequest::Lookup { owner: owner.map(tenant), name: name(text) })
}

pub fn entry(reply: ReplyBody) -> Entry {
    match reply {
        ReplyBody::Entry(entry) => entry,
        other => panic!("no entry: {other:?}"),
    }
}

pub fn acquire(object: impl Into<ObjectName>, sharing: Sharing, wait: Lifetime) -> RequestBody {
    let (lifetime, rights) = (Lifetime::millis(100), Rights::all());
    let object = object.into();
    RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object,
        part: Part::WHOLE,
        lifetime,
        rights,
        sharing,
        wait,
    }))
}

pub fn granted(reply: ReplyBody) -> Granted {
    match reply {
        ReplyBody::Granted(granted) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn refused(reply: ReplyBody) -> Refusal {
    match reply {
        ReplyBody::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// Returns the keys of a permission's buffer and of its lifetime word.
pub fn keys(granted: &Granted) -> (Rkey, Rkey) {
    let Granted { credential, .. } = granted;
    credential.buffer_key().zip(credential.lifetime_key()).expect("a permission with keys")
}

/// Returns the address of a permission's lifetime word.
pub fn word(granted: &Granted) -> u64 {
    granted.permission.header.0 + portcullis_protocol::LIFETIME_OFFSET
}

/// Limits that few violations reach, for tests of the charge for violations.
pub const LIMITS: ViolationLimits = ViolationLimits {
    free_max: 2,
    free_again: Lifetime::seconds(100),
    pause_min: Lifetime::millis(1),
    pause_max: Lifetime::millis(20),
    bar_after: 4,
    bar_for: Lifetime::seconds(60),
    late_grace: Lifetime::millis(500),
    late_pause_max: Lifetime::millis(4),
    keys_remembered: 8,
    excuses_max: 3,
    excuse_again: Lifetime::seconds(100),
};

/// Reads with a key at an address, which must be refused.
pub fn is_refused(rig: &mut Rig, client: usize, key: Rkey, address: u64) {
    assert_eq!(rig.read(client, key, address, 8).0, Status::RemoteAccessError);
    rig.settle();
}

/// Reads with a key that no client ever had.
pub fn guess(rig: &mut Rig, client: usize, near: &Granted) {
    let key = keys(near).0;
    is_refused(rig, client, Rkey::new(key.index(), key.low_byte().wrapping_add(100)), near.address().0);
}
