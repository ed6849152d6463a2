//! The node, with clients that send anything and come and go at any time. It must not panic, must come to rest, and
//! must hold nothing in the end.

use crate::input::Input;
use portcullis_memory::{Doorbell, Mapping, Watched};
use portcullis_nic::{
    Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointSize, LocalSpan, Memory, Operation,
    ReceiveRequest, RemoteSpan, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_node::{
    Admission, ChunkEnds, ClientEnds, Node, NodeConfig, Quota, Reductions, ViolationLimits,
};
use portcullis_protocol::{
    ClientId, Credential, Granted, Incarnation, Lifetime, MESSAGE_BYTES, Mechanism, Moment, Reply, ReplyBody,
};
use portcullis_softnic::{PortEndpoint, PortId, PortLayout, PortResources, SoftNic};
use rustix::event::{EventfdFlags, eventfd};

/// The most clients at a time.
const CLIENTS_MAX: usize = 4;
/// The most steps of one input.
const STEPS_MAX: u32 = 96;
/// Turns in which a node without new work must come to rest.
const TURNS_MAX: u32 = 5000;
/// The most grants that a client remembers.
const GRANTS_MAX: usize = 6;
/// The size of each client's port.
const SIZE: EndpointSize = EndpointSize {
    chunk_queue_pairs: 0,
    data_queue_pairs: 2,
    send_depth: 4,
    control_depth: 4,
    message_bytes: MESSAGE_BYTES as u32,
    arena_bytes: 4096,
};
/// Where the data of one-sided operations lies in the arena.
const DATA: u64 = 2048;

struct Client {
    id: ClientId,
    port: PortId,
    endpoint: PortEndpoint,
    sent: u64,
    received: u64,
    grants: Vec<Granted>,
}

struct Stage {
    nic: SoftNic,
    node: Node<SoftNic>,
    clients: Vec<Client>,
    known: Vec<u64>,
    now: Moment,
}

fn config(input: &mut Input<'_>) -> NodeConfig {
    let flags = input.byte();
    let reductions = Reductions {
        delayed_unbinding: flags & 1 != 0,
        contiguity: flags & 2 != 0,
        handover: flags & 4 != 0,
    };
    let violations = if flags & 8 != 0 {
        ViolationLimits { free_max: 2, bar_after: 3, ..ViolationLimits::default() }
    } else {
        ViolationLimits::default()
    };
    NodeConfig {
        mechanism: Mechanism::ALL[input.choice(5)],
        reductions,
        pool_bytes: 4 << 16,
        headers: 6,
        objects_max: 12,
        quota: Quota {
            bytes_max: 3 << 16,
            objects_max: 8,
            permissions_max: 8,
            names_max: 4,
            shares_max: 2,
            chunks_max: 0,
        },
        violations,
        windows_ready: 2,
        windows_max: 12,
        window_rest: Lifetime::millis(1),
        postponed_max: 6,
        clients_max: 3,
        requests_per_turn: 8,
        steps_per_turn: if flags & 32 != 0 { 2 } else { 512 },
        audit: flags & 16 != 0,
        audit_records_max: 8,
        ..NodeConfig::default()
    }
}

impl Stage {
    fn set(input: &mut Input<'_>) -> Self {
        let mut nic = SoftNic::self_driven();
        let node = Node::new(&mut nic, config(input), Incarnation(1), [7; 32]).expect("a node starts");
        let known = vec![0, 1, 64, 4096, 1 << 16, 3 << 16, 1000, 10_000_000];
        Self { nic, node, clients: Vec::new(), known, now: Moment(1000) }
    }

    fn attach(&mut self, tenant: &str) {
        if self.clients.len() == CLIENTS_MAX {
            return;
        }
        let Ok(admission) = self.node.admit(&mut self.nic, tenant, self.now) else { return };
        let memory = Mapping::private(PortLayout::new(SIZE).bytes()).expect("memory");
        let Admission { pd, chunks, cq, data_sends, .. } = admission;
        let resources = PortResources { pd, chunks, cq, data_sends };
        let made = self.nic.create_port(memory.clone(), SIZE, resources);
        let (port, ends, key) = made.expect("a port");
        let ends = ClientEnds {
            control: ends.control,
            data: ends.data,
            peers: ends.peers,
            chunks: ChunkEnds { access: ends.chunks, asking: ends.asking },
            control_depth: SIZE.control_depth,
            message_bytes: SIZE.message_bytes,
        };
        let id = self.node.attach(&mut self.nic, admission.tenant, Some(1), ends, self.now).expect("a place");
        let page = Mapping::private(4096).expect("memory");
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
        let connection = None;
        let (_, watched) = portcullis_memory::ends().expect("a pair");
        let endpoint = PortEndpoint::new(
            memory,
            SIZE,
            key,
            (Doorbell::new(page, event), Watched::new(watched)),
            connection,
        );
        self.clients.push(Client { id, port, endpoint, sent: 0, received: 0, grants: Vec::new() });
    }

    fn detach(&mut self, number: usize) {
        let gone = self.clients.swap_remove(number);
        self.node.detach(&mut self.nic, gone.id, self.now);
        self.nic.destroy_port(gone.port);
    }

    fn turn(&mut self) -> bool {
        let worked = self.nic.turn() | self.node.turn(&mut self.nic, self.now);
        while let Some(evicted) = self.node.poll_evicted() {
            if let Some(number) = self.clients.iter().position(|client| client.id == evicted) {
                self.detach(number);
            }
        }
        while self.node.poll_audit().is_some() {}
        for client in &mut self.clients {
            client.listen(&mut self.known);
        }
        worked
    }

    /// Gives turns until there is nothing more to do at this moment.
    fn rest(&mut self) {
        let mut turns = 0;
        while self.turn() {
            turns += 1;
            assert!(turns < TURNS_MAX, "the node never comes to rest");
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let action = input.choice(16);
        let number = if self.clients.is_empty() { None } else { Some(input.choice(self.clients.len())) };
        match (action, number) {
            (0, _) | (_, None) => self.attach(["red", "blue"][input.choice(2)]),
            (1, Some(number)) => self.detach(number),
            (2, _) => self.now = Moment(self.now.0 + u64::from(input.short())),
            (3, _) => self.now = Moment(self.now.0 + u64::from(input.half() % 20_000_000)),
            (4..7, Some(number)) => self.clients[number].operate(input, &self.known),
            (7, Some(number)) => self.clients[number].say(input.bytes(MESSAGE_BYTES), true),
            (_, Some(number)) => {
                let message = request(input, &self.known, &self.clients[number].grants);
                self.clients[number].say(&message, !input.byte().is_multiple_of(8));
            }
        }
        for _ in 0..input.choice(4) {
            self.turn();
        }
    }

    /// Lets all clients leave, and lets time pass.
    fn clear(&mut self) {
        while !self.clients.is_empty() {
            self.detach(0);
            self.turn();
        }
        for _ in 0..4 {
            self.rest();
            self.now = self.now.after(Lifetime::seconds(11)).after(self.node.config().longest_keep);
        }
        let it = self.node.counters();
        let held =
            [it.clients, it.tenants, it.permissions, it.objects, it.bytes_used, it.headers_used, it.windows];
        assert_eq!(held, [0; 7], "{it:?}");
        assert_eq!(it.postponed, 0, "{it:?}");
        assert_eq!(self.nic.ports(), 0);
        self.node.end(&mut self.nic, self.now);
    }
}

/// A request. Most of its fields make sense.
fn request(input: &mut Input<'_>, known: &[u64], grants: &[Granted]) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[0] = input.byte() % 11;
    message[1] = if input.byte().is_multiple_of(4) { input.byte() } else { 7 };
    message[2] = input.byte() % 16;
    let mut put = |at: usize, word: u64| message[at..at + 8].copy_from_slice(&word.to_le_bytes());
    for at in [24, 32, 40, 48, 80, 88] {
        put(at, input.number(known));
    }
    match grants.get(input.choice(GRANTS_MAX)) {
        Some(granted) if message_names_object(input) => {
            put(8, granted.object.address.0);
            put(64, granted.object.incarnation.0);
            put(72, granted.object.birth);
        }
        Some(granted) => {
            put(8, granted.permission.header.0);
            put(16, granted.permission.start.0);
        }
        None => {
            put(8, input.number(known));
            put(16, input.number(known));
        }
    }
    message
}

fn message_names_object(input: &mut Input<'_>) -> bool {
    input.byte().is_multiple_of(2)
}

impl Client {
    fn local(&self, address: u64, length: u32) -> LocalSpan {
        LocalSpan { address, length, lkey: self.endpoint.arena_key() }
    }

    fn say(&mut self, message: &[u8], heard: bool) {
        let depth = u64::from(SIZE.control_depth);
        if heard {
            let slot = depth + self.received % depth;
            let bytes = u64::from(SIZE.message_bytes);
            let receive = ReceiveRequest { id: slot, local: self.local(slot * bytes, SIZE.message_bytes) };
            self.received += self.endpoint.post_control_receive(&[receive]) as u64;
        }
        let at = self.sent % depth * u64::from(SIZE.message_bytes);
        self.endpoint.arena().write(at, message);
        let local = self.local(at, u32::try_from(message.len()).expect("short"));
        let request = WorkRequest { id: 0, signalled: true, operation: Operation::Send { local } };
        self.sent += self.endpoint.post_control(&[request]) as u64;
    }

    /// Posts a one-sided operation, mostly with a key that the client was given at some time.
    fn operate(&mut self, input: &mut Input<'_>, known: &[u64]) {
        let Some(granted) = self.grants.get(input.choice(GRANTS_MAX)) else { return };
        let Credential::Keys { buffer, lifetime } = granted.credential else { return };
        let word = portcullis_protocol::RemoteAddress(granted.permission.header.0 + 24);
        let length = u32::from(input.byte());
        let (address, rkey) = match input.choice(4) {
            0 => (word, lifetime),
            1 => (granted.address(), lifetime),
            2 => (portcullis_protocol::RemoteAddress(input.number(known)), buffer),
            _ => (granted.address(), buffer),
        };
        let remote = RemoteSpan { address, rkey };
        let local = self.local(DATA, length);
        let eight = self.local(DATA, 8);
        let operation = match input.choice(4) {
            0 => Operation::Read { local, remote },
            1 => Operation::Write { local, remote },
            2 => Operation::FetchAndAdd { local: eight, remote, add: input.number(known) },
            _ => {
                let (compare, swap) = (input.number(known), input.number(known));
                Operation::CompareAndSwap { local: eight, remote, compare, swap }
            }
        };
        let queue_pair = u32::from(input.byte()) % SIZE.data_queue_pairs;
        self.endpoint.post(queue_pair, &[WorkRequest { id: 0, signalled: true, operation }]);
    }

    fn listen(&mut self, known: &mut Vec<u64>) {
        let mut completions = Vec::new();
        self.endpoint.poll(64, &mut completions);
        for Completion { request: slot, status, kind, .. } in completions {
            if !matches!(kind, CompletionKind::Receive { .. }) || status != Status::Success {
                continue;
            }
            let mut message = [0; MESSAGE_BYTES];
            self.endpoint.arena().read(slot * u64::from(SIZE.message_bytes), &mut message);
            let reply = Reply::decode(message).expect("a node's replies are sound");
            if let ReplyBody::Granted(granted) = reply.body {
                known.truncate(16);
                known.extend([granted.address().0, granted.permission.header.0, granted.permission.start.0]);
                self.grants.truncate(GRANTS_MAX - 1);
                self.grants.insert(0, granted);
            }
        }
    }
}

/// Runs the steps that the bytes describe.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut stage = Stage::set(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        stage.step(&mut input);
    }
    stage.clear();
}
