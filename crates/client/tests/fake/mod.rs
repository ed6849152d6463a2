//! A fake NIC and node in one, small enough to verify by reading. It executes requests one at a time, when the test
//! calls it.

#![allow(dead_code, reason = "an example uses a part of it")]

pub mod node;

pub use node::Node;

use portcullis_nic::{
    Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointSize, Lkey, LocalSpan, Memory,
    Operation as Action, QpId, ReceiveRequest, RemoteSpan, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::Rkey;
use std::cell::{Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// The key that works for all of the fake node's memory.
pub const GOOD: Rkey = Rkey(0x0100);
/// A key that the fake NIC refuses.
pub const BAD: Rkey = Rkey(0x0200);
/// A key whose requests are carried out, but whose answers are lost.
pub const UNANSWERED: Rkey = Rkey(0x0300);
/// A key whose requests are on their way for longer than the client waits. They are carried out when they arrive.
pub const LATE: Rkey = Rkey(0x0400);

/// Bytes of the fake node's memory.
pub const REMOTE_BYTES: usize = 1 << 16;

#[derive(Clone, Debug)]
pub struct Bytes(Rc<RefCell<Vec<u8>>>);

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

impl Bytes {
    pub fn new(length: usize) -> Self {
        Self(Rc::new(RefCell::new(vec![0; length])))
    }
}

impl Memory for Bytes {
    fn length(&self) -> u64 {
        self.0.borrow().len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow()[index(offset)..][..into.len()]);
    }
    fn write(&self, offset: u64, from: &[u8]) {
        self.0.borrow_mut()[index(offset)..][..from.len()].copy_from_slice(from);
    }
    fn zero(&self, offset: u64, length: u64) {
        self.0.borrow_mut()[index(offset)..][..index(length)].fill(0);
    }
    fn load(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.read(offset, &mut word);
        u64::from_ne_bytes(word)
    }
    fn store(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }
}

#[derive(Default)]
pub struct QueuePair {
    pub error: bool,
    queue: VecDeque<WorkRequest>,
    /// Requests that have not arrived at the node yet. The node's end drops them once it has been stopped.
    late: Vec<WorkRequest>,
    /// Posted requests that no polled completion covers.
    held: VecDeque<u64>,
}

/// State that the client's end and the node's end share.
pub struct World {
    pub arena: Bytes,
    pub remote: Bytes,
    pub pairs: Vec<QueuePair>,
    pub completions: VecDeque<Completion>,
    /// Number of times that the client polled for completions.
    pub polls: u32,
    pub doorbells: usize,
    pub control_doorbells: usize,
    pub signalled: usize,
    /// Ids of executed requests, in order.
    pub executed: Vec<u64>,
    pub depth: usize,
    pub data: u32,
    pub control_depth: u32,
    pub control_broken: bool,
    pub receives: VecDeque<ReceiveRequest>,
    pub node: Node,
}

pub struct Fake {
    world: Rc<RefCell<World>>,
    arena: Bytes,
}

#[derive(Clone)]
pub struct Handle(Rc<RefCell<World>>);

impl Handle {
    pub fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }
    pub fn look(&self) -> Ref<'_, World> {
        self.0.borrow()
    }
    /// Executes at most `most` requests.
    pub fn run(&self, most: usize) {
        let mut world = self.world();
        for _ in 0..most {
            if !world.step() {
                break;
            }
        }
    }
    pub fn run_all(&self) {
        self.run(usize::MAX);
    }
    /// Lets the late requests arrive.
    pub fn arrive(&self) {
        let mut world = self.world();
        let late: Vec<_> = world.pairs.iter_mut().flat_map(|pair| std::mem::take(&mut pair.late)).collect();
        for request in late {
            world.execute(request);
        }
    }
}

pub fn fake(data_queue_pairs: usize, depth: usize) -> (Fake, Handle) {
    let world = World {
        arena: Bytes::new(1 << 20),
        remote: Bytes::new(REMOTE_BYTES),
        pairs: (0..data_queue_pairs).map(|_| QueuePair::default()).collect(),
        completions: VecDeque::new(),
        polls: 0,
        doorbells: 0,
        control_doorbells: 0,
        signalled: 0,
        executed: Vec::new(),
        depth,
        data: 0,
        control_depth: 4,
        control_broken: false,
        receives: VecDeque::new(),
        node: Node::default(),
    };
    let arena = world.arena.clone();
    let world = Rc::new(RefCell::new(world));
    (Fake { world: Rc::clone(&world), arena }, Handle(world))
}

fn spans(request: &WorkRequest) -> Option<(LocalSpan, RemoteSpan)> {
    match request.operation {
        Action::Read { local, remote }
        | Action::Write { local, remote }
        | Action::CompareAndSwap { local, remote, .. }
        | Action::FetchAndAdd { local, remote, .. } => Some((local, remote)),
        _ => None,
    }
}

impl World {
    fn complete(&mut self, request: u64, pair: u32, status: Status) {
        let kind = CompletionKind::Send;
        self.completions.push_back(Completion { request, queue_pair: QpId(pair), status, kind });
    }

    /// Executes or flushes one request of the first queue pair that has one.
    pub fn step(&mut self) -> bool {
        let Some(at) = self.pairs.iter().position(|pair| !pair.queue.is_empty()) else { return false };
        let number = u32::try_from(at).unwrap();
        let request = self.pairs[at].queue.pop_front().unwrap();
        if self.pairs[at].error {
            self.complete(request.id, number, Status::FlushError);
            return true;
        }
        let status = if spans(&request).is_some_and(|(_, remote)| remote.rkey == LATE) {
            self.pairs[at].late.push(request);
            Status::RetryExceededError
        } else {
            self.execute(request)
        };
        self.pairs[at].error = status != Status::Success;
        if request.signalled || status != Status::Success {
            self.signalled += 1;
            self.complete(request.id, number, status);
        }
        true
    }

    fn execute(&mut self, request: WorkRequest) -> Status {
        let Some((local, remote)) = spans(&request) else { return Status::LocalQpOperationError };
        let end = remote.address.0.checked_add(u64::from(local.length));
        if remote.rkey == BAD || end.is_none_or(|end| end > REMOTE_BYTES as u64) {
            return Status::RemoteAccessError;
        }
        self.executed.push(request.id);
        self.carry_out(request.operation, local, remote);
        if remote.rkey == UNANSWERED { Status::RetryExceededError } else { Status::Success }
    }

    fn carry_out(&mut self, action: Action, local: LocalSpan, remote: RemoteSpan) {
        let mut bytes = vec![0; local.length as usize];
        let at = remote.address.0;
        match action {
            Action::Read { .. } => {
                self.remote.read(at, &mut bytes);
                self.arena.write(local.address, &bytes);
            }
            Action::Write { .. } => {
                self.arena.read(local.address, &mut bytes);
                self.remote.write(at, &bytes);
            }
            Action::CompareAndSwap { compare, swap, .. } => {
                let before = self.remote.load(at);
                self.arena.store(local.address, before);
                if before == compare {
                    self.remote.store(at, swap);
                }
            }
            Action::FetchAndAdd { add, .. } => {
                let before = self.remote.load(at);
                self.arena.store(local.address, before);
                self.remote.store(at, before.wrapping_add(add));
            }
            _ => {}
        }
    }

    /// Stops the node's end of a queue pair: it executes no more requests.
    pub fn stop(&mut self, pair: u32) {
        self.pairs[pair as usize].late.clear();
    }

    /// Puts a message into the client's next receive.
    pub fn deliver(&mut self, message: &[u8]) {
        let receive = self.receives.pop_front().expect("the client keeps a receive for every reply");
        self.arena.write(receive.local.address, message);
        let kind =
            CompletionKind::Receive { length: u32::try_from(message.len()).unwrap(), invalidated: None };
        let (request, queue_pair) = (receive.id, Fake::CONTROL);
        self.completions.push_back(Completion { request, queue_pair, status: Status::Success, kind });
    }
}

impl Endpoint for Fake {
    type Memory = Bytes;

    fn arena(&self) -> &Bytes {
        &self.arena
    }

    fn wait(&mut self, _at_most: Duration) {}
    fn node_alive(&mut self) -> bool {
        true
    }
}

impl VerbsEndpoint for Fake {
    fn size(&self) -> EndpointSize {
        let world = self.world.borrow();
        EndpointSize {
            chunk_queue_pairs: 0,
            data_queue_pairs: u32::try_from(world.pairs.len()).unwrap(),
            send_depth: u32::try_from(world.depth).unwrap(),
            control_depth: world.control_depth,
            message_bytes: 128 + world.data,
            arena_bytes: self.arena.length(),
        }
    }

    fn arena_key(&self) -> Lkey {
        Lkey(7)
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        let mut world = self.world.borrow_mut();
        world.control_doorbells += 1;
        for request in requests {
            let Action::Send { local } = request.operation else { panic!("control carries sends") };
            let mut message = vec![0; local.length as usize];
            world.arena.read(local.address, &mut message);
            let status = if world.control_broken { Status::RetryExceededError } else { Status::Success };
            world.complete(request.id, Self::CONTROL.0, status);
            if status == Status::Success {
                node::receive(&mut world, &message);
            }
        }
        requests.len()
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        self.world.borrow_mut().receives.extend(requests);
        requests.len()
    }

    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        let mut world = self.world.borrow_mut();
        world.polls += 1;
        let count = most.min(world.completions.len());
        for completion in world.completions.drain(..count).collect::<Vec<_>>() {
            if let Some(pair) = world.pairs.get_mut(completion.queue_pair.0 as usize) {
                while pair.held.pop_front().is_some_and(|id| id != completion.request) {}
            }
            into.push(completion);
        }
        count
    }

    fn data_queue_pairs(&mut self) -> Option<impl DataQueuePairs> {
        Some(self)
    }
}

impl DataQueuePairs for Fake {
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        let mut world = self.world.borrow_mut();
        world.doorbells += 1;
        let depth = world.depth;
        let pair = &mut world.pairs[queue_pair as usize];
        let room = requests.len().min(depth - pair.held.len());
        pair.queue.extend(&requests[..room]);
        pair.held.extend(requests[..room].iter().map(|request| request.id));
        room
    }

    fn rebuilt(&mut self, queue_pair: u32) {
        let mut world = self.world.borrow_mut();
        let pair = &mut world.pairs[queue_pair as usize];
        assert!(
            pair.queue.is_empty() && pair.held.is_empty(),
            "asked for a rebuild before all flushes were in"
        );
        pair.error = false;
    }
}
