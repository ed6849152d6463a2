//! A pool on a software NIC, and clients that send requests to its workers.

#![allow(dead_code, reason = "each test file uses its part of the rig")]

use portcullis_memory::{Mapping, Memory};
use portcullis_nic::{
    Access, Completion, CompletionKind, CqId, LocalSpan, Nic, Operation, PdId, QpAttributes, QpChange, QpId,
    ReceiveRequest, Region, RemoteAddress, RemoteSpan, Rkey, Status, WorkRequest, connect_qp,
};
use portcullis_offload::{
    ChunkPool, ChunkPoolConfig, ChunkWindow, ClientNumber, Handle, Progress, Reclaim, Reply, Workers,
    reply_bytes,
};
use portcullis_protocol::Moment;
use portcullis_softnic::SoftNic;

const CHUNK_SIZE: usize = 256;
pub const CHUNK_BYTES: u64 = CHUNK_SIZE as u64;
/// Number of windows of a chunk.
pub const GROUP: usize = 4;
/// The worker that allocates, and the one that frees.
pub const ALLOC: usize = 0;
pub const FREE: usize = 1;
const DEPTH: u32 = 16;
/// Turns of the NIC in which any chain finishes.
const TURNS_MAX: u32 = 10_000;
/// Offsets in a client's memory.
const REQUESTS_AT: u64 = 0;
const REPLIES_AT: u64 = 1024;
const DATA_AT: u64 = 4096;
const MEMORY_BYTES: u64 = 8192;

pub struct Rig {
    pub nic: SoftNic,
    pub pool: ChunkPool<Mapping, GROUP>,
}

/// One of a client's queue pairs: its own end, and the node's.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub own: QpId,
    pub node: QpId,
}

/// A client, with the ends of its queue pairs.
pub struct Client {
    pub number: ClientNumber,
    pub access: Vec<Pair>,
    /// The client's ends for allocations and for frees.
    pub messages: [QpId; 2],
    workers: Option<Workers<GROUP>>,
    cq: CqId,
    pd: PdId,
    memory: Mapping,
    region: Region,
    /// Number of replies that were taken.
    replies: u64,
}

/// A chunk as its holder knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    pub number: u64,
    pub windows: [ChunkWindow; GROUP],
}

impl Rig {
    pub fn new(chunks: u64) -> Self {
        let mut nic = SoftNic::new();
        let config = ChunkPoolConfig { chunks, chunk_bytes: CHUNK_BYTES, workers: 64 };
        let pool = ChunkPool::create(&mut nic, config).expect("the NIC has chains");
        Self { nic, pool }
    }

    /// Attaches a client with `queue_pairs` access queue pairs, which may hold all chunks.
    pub fn attach(&mut self, number: u64, queue_pairs: usize) -> Client {
        let quota = self.pool.geometry().chunks + 1;
        self.attach_with_quota(number, queue_pairs, quota)
    }

    /// Attaches a client with `queue_pairs` access queue pairs, which may hold `quota` chunks.
    pub fn attach_with_quota(&mut self, number: u64, queue_pairs: usize, quota: u64) -> Client {
        let nic = &mut self.nic;
        let number = ClientNumber::new(number).expect("a number");
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(256).expect("a queue");
        let memory = nic.allocate_memory(MEMORY_BYTES).expect("memory");
        let region = nic.register_region(pd, &memory, 0..MEMORY_BYTES, RemoteAddress(0), Access::LOCAL_WRITE);
        let domain = self.pool.domains().access;
        let node_cq = nic.create_cq(256).expect("a queue");
        let access: Vec<_> = (0..queue_pairs).map(|_| connect(nic, (pd, cq), (domain, node_cq))).collect();
        let group: Vec<_> = access.iter().map(|pair| pair.node).collect();
        let workers = self.pool.attach(nic, number, &group, quota).expect("workers");
        let messages = [(); 2].map(|()| {
            let attributes =
                QpAttributes { send_cq: cq, receive_cq: cq, send_depth: DEPTH, receive_depth: DEPTH };
            nic.create_qp(pd, attributes).expect("a queue pair")
        });
        let client = Client {
            number,
            access,
            messages,
            workers: Some(workers),
            cq,
            pd,
            memory,
            region: region.expect("a region"),
            replies: 0,
        };
        self.connect_messages(&client);
        client
    }

    fn connect_messages(&mut self, client: &Client) {
        let there = client.workers().addresses(&self.nic).expect("addresses");
        let here = client.messages.map(|qp| self.nic.qp_address(qp).expect("an address"));
        for (qp, peer) in client.messages.into_iter().zip(there) {
            connect_qp(&mut self.nic, qp, peer).expect("each step");
        }
        self.pool.start_workers(&mut self.nic, client.workers(), here).expect("they begin");
        self.settle();
    }

    /// Runs the NIC until it has nothing left to do.
    pub fn settle(&mut self) {
        let mut turns = 0;
        while self.nic.turn_all() {
            turns += 1;
            assert!(turns < TURNS_MAX, "a chain does not come to its end");
        }
    }

    /// Posts a receive for a reply.
    pub fn expect_reply(&mut self, client: &Client, worker: usize) {
        let local = client.local(REPLIES_AT, reply_bytes::<GROUP>());
        let receive = ReceiveRequest { id: worker as u64, local };
        assert_eq!(self.nic.post_receive(client.messages[worker], &[receive]), Ok(1));
    }

    /// Sends a request of any length.
    pub fn send(&mut self, client: &Client, worker: usize, request: &[u8]) {
        client.memory.write(REQUESTS_AT, request);
        let local = client.local(REQUESTS_AT, request.len() as u64);
        let send = WorkRequest { id: 100, signalled: true, operation: Operation::Send { local } };
        assert_eq!(self.nic.post_send(client.messages[worker], &[send]), Ok(1));
    }

    /// Sends a request to a worker, and takes its reply. `None`: the worker sent no reply.
    pub fn ask(&mut self, client: &mut Client, worker: usize, handle: Handle) -> Option<Reply<GROUP>> {
        self.expect_reply(client, worker);
        self.send(client, worker, &handle.to_request());
        self.settle();
        self.take_reply(client)
    }

    /// Takes the reply that has arrived, if there is one.
    pub fn take_reply(&mut self, client: &mut Client) -> Option<Reply<GROUP>> {
        let mut completions = self.completions(client);
        for completion in &completions {
            assert_eq!(completion.status, Status::Success, "{completions:?}");
        }
        completions.retain(|it| matches!(it.kind, CompletionKind::Receive { .. }));
        assert!(completions.len() < 2, "no more than one reply: {completions:?}");
        client.replies += completions.len() as u64;
        completions.first().map(|_| client.reply())
    }

    pub fn completions(&mut self, client: &Client) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.nic.poll(client.cq, 256, &mut completions).expect("a queue");
        completions
    }

    /// Allocates a chunk. `None`: none is free.
    pub fn allocate(&mut self, client: &mut Client) -> Option<Chunk> {
        let reply = self.ask(client, ALLOC, Handle(0)).expect("a reply");
        self.chunk(&reply)
    }

    /// Returns the chunk that a reply is about.
    pub fn chunk(&self, reply: &Reply<GROUP>) -> Option<Chunk> {
        let geometry = self.pool.geometry();
        reply.is_done.then(|| {
            let number = geometry.chunk_at(reply.windows[0].address).expect("a chunk of the pool");
            Chunk { number, windows: reply.windows }
        })
    }

    /// Requests that a chunk be freed. Returns whether it was.
    pub fn free(&mut self, client: &mut Client, chunk: u64) -> bool {
        let handle = self.pool.geometry().handle::<GROUP>(chunk);
        self.free_handle(client, handle)
    }

    pub fn free_handle(&mut self, client: &mut Client, handle: Handle) -> bool {
        self.ask(client, FREE, handle).expect("a reply").is_done
    }

    /// Ends a client: the node takes back the chunks that the client holds.
    pub fn reclaim(&mut self, mut client: Client) {
        let workers = client.workers.take().expect("it has workers");
        for qp in client.messages {
            self.nic.destroy_qp(qp).expect("it goes");
        }
        let mut reclaim = Reclaim::begin(&self.pool, &mut self.nic, workers).expect("the workers are there");
        let mut rounds = 0;
        while reclaim.proceed(&mut self.pool, &mut self.nic).expect("it goes on") == Progress::Pending {
            self.settle();
            rounds += 1;
            assert!(rounds < 10_000, "a reclaim does not come to its end");
        }
        for pair in client.access {
            self.nic.destroy_qp(pair.own).expect("it goes");
            self.nic.destroy_qp(pair.node).expect("it goes");
        }
    }

    /// Accesses a chunk through a window, on one of the client's queue pairs.
    pub fn access(&mut self, client: &Client, pair: usize, window: ChunkWindow, operation: Kind) -> Status {
        let local = client.local(DATA_AT, CHUNK_BYTES);
        let remote = RemoteSpan { address: window.address, rkey: window.rkey };
        let operation = match operation {
            Kind::Read => Operation::Read { local, remote },
            Kind::Write => Operation::Write { local, remote },
        };
        let request = WorkRequest { id: 200, signalled: true, operation };
        assert_eq!(self.nic.post_send(client.access[pair].own, &[request]), Ok(1));
        self.settle();
        let completions = self.completions(client);
        assert_eq!(completions.len(), 1, "{completions:?}");
        completions[0].status
    }

    /// Posts a one-sided request on a queue pair for messages.
    pub fn one_sided(&mut self, client: &Client, worker: usize, kind: Kind) {
        let local = client.local(DATA_AT, 8);
        let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey(0) };
        let operation = match kind {
            Kind::Read => Operation::Read { local, remote },
            Kind::Write => Operation::Write { local, remote },
        };
        let request = WorkRequest { id: 101, signalled: true, operation };
        assert_eq!(self.nic.post_send(client.messages[worker], &[request]), Ok(1));
    }

    /// Sends a message with an invalidation to a client's first access queue pair.
    pub fn send_with_invalidate(&mut self, client: &Client, rkey: Rkey) {
        let local = client.local(REQUESTS_AT, 0);
        let operation = Operation::SendWithInvalidate { local, rkey };
        let request = WorkRequest { id: 102, signalled: true, operation };
        assert_eq!(self.nic.post_send(client.access[0].own, &[request]), Ok(1));
    }

    /// Makes a client's chain that allocates fail while it has the lock.
    pub fn stop_inside_the_lock(&mut self, client: &Client) {
        let chain = client.workers().parts()[ALLOC].chain;
        self.expect_reply(client, ALLOC);
        self.send(client, ALLOC, &Handle(0).to_request());
        let (tickets, _) = self.pool.lock_counts(&mut self.nic).expect("the counts");
        let mut steps = 0;
        while self.pool.lock_counts(&mut self.nic).expect("the counts").0 == tickets {
            assert!(
                self.nic.core().execute_one(chain, Moment(0)) || self.step_messages(client),
                "it goes on"
            );
            steps += 1;
            assert!(steps < 1000, "it comes to the lock");
        }
        self.nic.modify_qp(chain, QpChange::Error).expect("a step");
    }

    /// Executes one request of a client's own queue pair for allocations.
    fn step_messages(&mut self, client: &Client) -> bool {
        self.nic.core().execute_one(client.messages[ALLOC], Moment(0))
    }

    /// Rebuilds the pool, and attaches all clients again.
    pub fn rebuild(&mut self, clients: &mut [&mut Client]) {
        let workers = clients.iter_mut().filter_map(|client| client.workers.take()).collect();
        self.pool.rebuild(&mut self.nic, workers).expect("enough windows");
        for client in clients {
            let group: Vec<_> = client.access.iter().map(|pair| pair.node).collect();
            let workers = self.pool.attach(&mut self.nic, client.number, &group, 8).expect("workers");
            client.workers = Some(workers);
            for qp in client.messages {
                self.nic.modify_qp(qp, QpChange::Reset).expect("a step");
            }
            self.completions(client);
            self.connect_messages(client);
        }
    }

    /// Takes a client's access queue pair back into service.
    pub fn recover(&mut self, pair: Pair) {
        for qp in [pair.own, pair.node] {
            self.nic.modify_qp(qp, QpChange::Reset).expect("a step");
        }
        connect_both(&mut self.nic, pair);
        while self.nic.poll_event().is_some() {}
    }

    /// Fills the client's own buffer, from which it writes and into which it reads.
    pub fn fill(&self, client: &Client, byte: u8) {
        client.memory.write(DATA_AT, &[byte; CHUNK_SIZE]);
    }

    pub fn data(&self, client: &Client) -> [u8; CHUNK_SIZE] {
        let mut bytes = [0; CHUNK_SIZE];
        client.memory.read(DATA_AT, &mut bytes);
        bytes
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
}

impl Client {
    pub fn workers(&self) -> &Workers<GROUP> {
        self.workers.as_ref().expect("it has workers")
    }

    fn local(&self, address: u64, length: u64) -> LocalSpan {
        let length = u32::try_from(length).expect("a short span");
        LocalSpan { address, length, lkey: self.region.lkey }
    }

    pub fn reply(&self) -> Reply<GROUP> {
        let mut bytes = vec![0; usize::try_from(reply_bytes::<GROUP>()).expect("short")];
        self.memory.read(REPLIES_AT, &mut bytes);
        Reply::from_bytes(&bytes).expect("a whole reply")
    }
}

fn connect(nic: &mut SoftNic, (pd, cq): (PdId, CqId), (node_pd, node_cq): (PdId, CqId)) -> Pair {
    let end = |nic: &mut SoftNic, pd, cq, send_depth| {
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth, receive_depth: 0 };
        nic.create_qp(pd, attributes).expect("a queue pair")
    };
    let pair = Pair { own: end(nic, pd, cq, DEPTH), node: end(nic, node_pd, node_cq, 1) };
    connect_both(nic, pair);
    pair
}

fn connect_both(nic: &mut SoftNic, pair: Pair) {
    for (one, other, access) in
        [(pair.own, pair.node, Access::empty()), (pair.node, pair.own, Access::REMOTE)]
    {
        let peer = nic.qp_address(other).expect("an address");
        nic.modify_qp(one, QpChange::Init { access }).expect("a step");
        nic.modify_qp(one, QpChange::ReadyToReceive { peer }).expect("a step");
        nic.modify_qp(one, QpChange::ReadyToSend { rnr_retries: 7 }).expect("a step");
    }
}
