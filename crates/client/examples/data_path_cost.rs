//! Measures the cost of the client itself: reads on a NIC that does nothing and takes no time.
//!
//! `cargo run --release -p portcullis-client --example data_path_cost`. With a number as argument the example does that
//! many pipelined reads and nothing else: `scripts/instructions` counts their instructions.

#![allow(clippy::disallowed_methods, reason = "it measures, and is no state machine")]

use portcullis_client::{Access, Allocate, Answer, Client, ClientConfig, Error, Permission};
use portcullis_nic::{
    Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointSize, Lkey, Memory, Operation as Action,
    QpId, ReceiveRequest, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::{
    Credential, Granted, Incarnation, Lifetime, Mechanism, Moment, ObjectRef, PermissionId, RemoteAddress,
    Reply, ReplyBody, Request, Rkey, received_message,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Reads of each case, if no number is given.
const READS: u32 = 10_000_000;
const READ_BYTES: u32 = 64;

#[derive(Clone)]
struct Arena(Rc<RefCell<Vec<u8>>>);

fn index(value: u64) -> usize {
    usize::try_from(value).expect("offsets of this arena fit")
}

impl Memory for Arena {
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

/// A NIC and a node that complete every signalled request at once and grant every allocation.
struct Null {
    arena: Arena,
    completions: VecDeque<Completion>,
    receives: VecDeque<ReceiveRequest>,
}

impl Endpoint for Null {
    type Memory = Arena;

    fn arena(&self) -> &Arena {
        &self.arena
    }
    fn wait(&mut self, _at_most: Duration) {}
    fn node_alive(&mut self) -> bool {
        true
    }
}

impl VerbsEndpoint for Null {
    fn size(&self) -> EndpointSize {
        EndpointSize {
            chunk_queue_pairs: 0,
            data_queue_pairs: 2,
            send_depth: 256,
            control_depth: 8,
            message_bytes: 128,
            arena_bytes: self.arena.length(),
        }
    }

    fn arena_key(&self) -> Lkey {
        Lkey(1)
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        for request in requests {
            let Action::Send { local } = request.operation else { continue };
            let message =
                received_message(local.length.into(), |bytes| self.arena.read(local.address, bytes));
            let asked = message.map(Request::decode).expect("a whole message");
            let asked = asked.expect("the client speaks the protocol");
            let granted = Granted {
                permission: PermissionId { header: RemoteAddress(0), start: Moment(0) },
                object: ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(32), birth: 1 },
                offset: 0,
                length: 1 << 20,
                lifetime: Lifetime::seconds(1_000),
                waited: Lifetime(0),
                longest: Lifetime::seconds(1_000),
                credential: Credential::Keys { buffer: Rkey(256), lifetime: Rkey(256) },
                mechanism: Mechanism::MemoryWindow,
            };
            let reply = Reply { sequence: asked.sequence, body: ReplyBody::Granted(granted) };
            let Some(receive) = self.receives.pop_front() else { return 0 };
            self.arena.write(receive.local.address, &reply.encode());
            let (queue_pair, status) = (Self::CONTROL, Status::Success);
            let kind = CompletionKind::Send;
            self.completions.push_back(Completion { request: request.id, queue_pair, status, kind });
            let kind = CompletionKind::Receive { length: 128, invalidated: None };
            self.completions.push_back(Completion { request: receive.id, queue_pair, status, kind });
        }
        requests.len()
    }

    fn post_control_receive(&mut self, requests: &[ReceiveRequest]) -> usize {
        self.receives.extend(requests);
        requests.len()
    }

    fn poll(&mut self, most: usize, into: &mut Vec<Completion>) -> usize {
        let count = most.min(self.completions.len());
        into.extend(self.completions.drain(..count));
        count
    }

    fn data_queue_pairs(&mut self) -> Option<impl DataQueuePairs> {
        Some(self)
    }
}

impl DataQueuePairs for Null {
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        for request in requests.iter().filter(|request| request.signalled) {
            let (queue_pair, status) = (QpId(queue_pair), Status::Success);
            let kind = CompletionKind::Send;
            self.completions.push_back(Completion { request: request.id, queue_pair, status, kind });
        }
        requests.len()
    }

    fn rebuilt(&mut self, _queue_pair: u32) {}
}

fn permission(client: &mut Client<Null>) -> Result<Permission, Error> {
    let call = client.call(Moment(0), Allocate::bytes(1 << 20).lifetime(Lifetime::seconds(1_000)))?;
    client.poll(Moment(0));
    match client.take_call(call) {
        Some(Ok(Answer::Granted(permission))) => Ok(permission),
        Some(Err(error)) => Err(error),
        _ => Err(Error::SessionLost),
    }
}

fn report(what: &str, reads: u32, began: Instant) {
    let nanos = began.elapsed().as_secs_f64() * 1e9 / f64::from(reads);
    println!("{what:44} {nanos:6.1} ns/read");
}

fn pipelined(client: &mut Client<Null>, permission: &Permission, (reads, window): (u32, u32), batched: bool) {
    let mut buffers: Vec<_> =
        (0..window).map(|_| client.buffer(READ_BYTES).expect("the arena is large")).collect();
    let mut outcomes = Vec::with_capacity(buffers.len());
    let began = Instant::now();
    for round in 0..reads / window {
        let now = Moment(u64::from(round));
        if batched {
            let mut batch = client.batch();
            for (at, buffer) in (0_u64..).step_by(64).zip(buffers.drain(..)) {
                batch.access(now, Access::read(permission, at, buffer)).expect("there is room");
            }
            batch.post();
        } else {
            for (at, buffer) in (0_u64..).step_by(64).zip(buffers.drain(..)) {
                client.access(now, Access::read(permission, at, buffer)).expect("there is room");
            }
        }
        client.poll(now);
        client.drain(&mut outcomes);
        for (_, outcome) in outcomes.drain(..) {
            outcome.result.expect("this NIC never fails");
            buffers.extend(outcome.buffer);
        }
    }
    let doorbell = if batched { "one doorbell" } else { "each its own" };
    report(&format!("window of {window}, {doorbell}"), reads, began);
}

fn one_at_a_time(client: &mut Client<Null>, permission: &Permission) {
    let mut buffer = client.buffer(READ_BYTES).ok();
    let began = Instant::now();
    for round in 0..READS {
        let now = Moment(u64::from(round));
        let Some(held) = buffer.take() else { break };
        let operation = client.access(now, Access::read(permission, 0, held)).expect("there is room");
        client.poll(now);
        buffer = client.take(operation).and_then(|outcome| outcome.buffer);
    }
    report("one at a time, poll and take", READS, began);
}

fn main() -> Result<(), Error> {
    let arena = Arena(Rc::new(RefCell::new(vec![0; 1 << 20])));
    let endpoint = Null { arena, completions: VecDeque::new(), receives: VecDeque::new() };
    let mut client = Client::new(endpoint, ClientConfig::default())?;
    let permission = permission(&mut client)?;
    if let Some(reads) = std::env::args().nth(1).and_then(|reads| reads.parse().ok()) {
        pipelined(&mut client, &permission, (reads, 32), true);
        return Ok(());
    }
    one_at_a_time(&mut client, &permission);
    for window in [16, 128] {
        pipelined(&mut client, &permission, (READS, window), false);
        pipelined(&mut client, &permission, (READS, window), true);
    }
    Ok(())
}
