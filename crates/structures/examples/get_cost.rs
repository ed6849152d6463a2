//! The cost of a get to the client: gets of a table whose NIC is in this process, executes every request and takes no
//! time.
//!
//! `get_cost GETS [one]` does that many gets, 32 at a time or one at a time: `scripts/instructions` counts their
//! instructions, including those of the copies that the NIC makes.

#![allow(clippy::disallowed_methods, reason = "it measures, and is no state machine")]

use portcullis::{ArenaMemory, ClientConfig, Clock, Lifetime, Mapping, Moment, Session};
use portcullis_nic::{
    Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointSize, Lkey, LocalSpan, Memory, Operation,
    QpId, ReceiveRequest, RemoteSpan, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::{
    Acquire, Allocate, Credential, GrantRequest, Granted, Incarnation, Mechanism, ObjectName, ObjectRef,
    Part, PermissionId, RemoteAddress, Reply, ReplyBody, Request, RequestBody, Rkey, received_message,
};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Table, TableOptions};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

const KEYS: u32 = 10_000;
const UNDER_WAY: usize = 32;
const ARENA_BYTES: u64 = 4 << 20;
const NODE_BYTES: u64 = 64 << 20;

/// A clock that stands still, so that permissions never end.
#[derive(Clone)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment(1)
    }
    fn spin(&self) {}
    fn yield_now(&self) {}
}

/// Executes every request at once on memory of its own, and grants everything.
struct Direct {
    arena: ArenaMemory,
    memory: Mapping,
    used: u64,
    objects: HashMap<RemoteAddress, u64>,
    completions: VecDeque<Completion>,
    receives: VecDeque<ReceiveRequest>,
}

impl Direct {
    fn new() -> Self {
        let mapping = |bytes| Mapping::private(bytes).expect("there is memory");
        Self {
            arena: ArenaMemory::whole(mapping(ARENA_BYTES), ARENA_BYTES),
            memory: mapping(NODE_BYTES),
            used: 0,
            objects: HashMap::new(),
            completions: VecDeque::new(),
            receives: VecDeque::new(),
        }
    }

    fn completed(&mut self, id: u64, queue_pair: QpId, kind: CompletionKind) {
        self.completions.push_back(Completion { request: id, queue_pair, status: Status::Success, kind });
    }

    fn execute(&self, operation: Operation) {
        match operation {
            Operation::Read { local, remote } => {
                copy(&self.memory, remote.address.0, &self.arena, local.address, local.length);
            }
            Operation::Write { local, remote } => {
                copy(&self.arena, local.address, &self.memory, remote.address.0, local.length);
            }
            Operation::CompareAndSwap { local, remote, compare, swap } => {
                self.change(local, remote, |old| if old == compare { swap } else { old });
            }
            Operation::FetchAndAdd { local, remote, add } => {
                self.change(local, remote, |old| old.wrapping_add(add));
            }
            _ => unreachable!("a client posts accesses"),
        }
    }

    fn change(&self, local: LocalSpan, remote: RemoteSpan, new: impl Fn(u64) -> u64) {
        let old = self.memory.load(remote.address.0);
        self.memory.store(remote.address.0, new(old));
        self.arena.store(local.address, old);
    }

    fn answer(&mut self, asked: RequestBody) -> ReplyBody {
        match asked {
            RequestBody::Grant(GrantRequest::Allocate(Allocate { size, .. })) => {
                let address = RemoteAddress(self.used);
                self.used = (self.used + size).next_multiple_of(64);
                self.objects.insert(address, size);
                granted(ObjectRef { incarnation: Incarnation(1), address, birth: 1 }, 0, size)
            }
            RequestBody::Grant(GrantRequest::Acquire(Acquire {
                object: ObjectName::Reference(object),
                part: Part { offset, length },
                ..
            })) => {
                let all = self.objects[&object.address] - offset;
                granted(object, offset, if length == 0 { all } else { length })
            }
            _ => ReplyBody::Done,
        }
    }
}

fn copy(from: &impl Memory, start: u64, to: &impl Memory, at: u64, length: u32) {
    let mut bytes = [0; 128];
    let mut done = 0;
    while done < u64::from(length) {
        let piece = (u64::from(length) - done).min(bytes.len() as u64);
        let part = &mut bytes[..usize::try_from(piece).expect("it is short")];
        from.read(start + done, part);
        to.write(at + done, part);
        done += piece;
    }
}

fn granted(object: ObjectRef, offset: u64, length: u64) -> ReplyBody {
    let address = RemoteAddress(object.address.0 + offset);
    ReplyBody::Granted(Granted {
        permission: PermissionId { header: address, start: Moment(0) },
        object,
        offset,
        length,
        lifetime: Lifetime::seconds(1_000),
        waited: Lifetime(0),
        longest: Lifetime::seconds(1_000),
        credential: Credential::Keys { buffer: Rkey(256), lifetime: Rkey(256) },
        mechanism: Mechanism::MemoryWindow,
    })
}

impl Endpoint for Direct {
    type Memory = ArenaMemory;

    fn arena(&self) -> &ArenaMemory {
        &self.arena
    }
    fn wait(&mut self, _at_most: Duration) {}
    fn node_alive(&mut self) -> bool {
        true
    }
}

impl VerbsEndpoint for Direct {
    fn size(&self) -> EndpointSize {
        let arena_bytes = ARENA_BYTES;
        EndpointSize {
            chunk_queue_pairs: 0,
            data_queue_pairs: 2,
            send_depth: 256,
            control_depth: 8,
            message_bytes: 128,
            arena_bytes,
        }
    }

    fn arena_key(&self) -> Lkey {
        Lkey(1)
    }

    fn post_control(&mut self, requests: &[WorkRequest]) -> usize {
        for request in requests {
            let Operation::Send { local } = request.operation else { continue };
            let message =
                received_message(local.length.into(), |bytes| self.arena.read(local.address, bytes));
            let asked = message.map(Request::decode).expect("a whole message");
            let asked = asked.expect("the client speaks the protocol");
            let reply = Reply { sequence: asked.sequence, body: self.answer(asked.body) };
            let receive = self.receives.pop_front().expect("the client posts a receive for each answer");
            self.arena.write(receive.local.address, &reply.encode());
            self.completed(request.id, Self::CONTROL, CompletionKind::Send);
            let kind = CompletionKind::Receive { length: 128, invalidated: None };
            self.completed(receive.id, Self::CONTROL, kind);
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

impl DataQueuePairs for Direct {
    fn post(&mut self, queue_pair: u32, requests: &[WorkRequest]) -> usize {
        for request in requests {
            self.execute(request.operation);
            if request.signalled {
                self.completed(request.id, QpId(queue_pair), CompletionKind::Send);
            }
        }
        requests.len()
    }

    fn rebuilt(&mut self, _queue_pair: u32) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let gets: u32 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let under_way = if arguments.next().as_deref() == Some("one") { 1 } else { UNDER_WAY };
    let session = Session::over(Direct::new(), 1, ClientConfig::default(), Still)?;
    let pipeline = Rc::new(Pipeline::new(session));
    let table = pipeline
        .block_on(Table::create(&pipeline, &TableOptions { seed: Some(0), ..TableOptions::default() }))?;
    for key in 0..KEYS {
        pipeline.block_on(table.insert(&key.to_le_bytes(), &[7; 64]))?;
    }
    let mut found = 0;
    let get = async |number: u32| table.get(&(number.wrapping_mul(0x9E37_79B1) % KEYS).to_le_bytes()).await;
    pipeline.run(under_way, (0..gets).map(get), |value| found += u32::from(matches!(value, Ok(Some(_)))));
    if found != gets {
        return Err(format!("only {found} of {gets} gets found their keys").into());
    }
    Ok(())
}
