//! An attacking client: a port without the library's checks. Its calls do not wait for the node, except for the attach
//! and for requests whose answer the caller wants.

use crate::bench::BenchError;
use crate::bench::pause::Pause;
use portcullis::host::attach_port;
use portcullis::{Lifetime, PortEndpoint, RemoteAddress, Rights, Rkey, Sharing};
use portcullis_nic::{
    CompletionKind, DataQueuePairs, Endpoint, LocalSpan, Memory, Operation, ReceiveRequest, RemoteSpan,
    Status, VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Keep, MESSAGE_BYTES, QueuePairRequest, Reply, ReplyBody, Request,
    RequestBody, received_message,
};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time that a raider waits for the node.
const PATIENCE: Duration = Duration::from_secs(20);
/// The lease of a raider's permissions.
pub const LEASE: Duration = Duration::from_secs(10);
/// Bytes of a message, as the length of a receive.
const REPLY_BYTES: u32 = 128;
const _: () = assert!(REPLY_BYTES as usize == MESSAGE_BYTES);

/// A client that need not obey any rule.
pub struct Raider {
    pub endpoint: PortEndpoint,
    depth: u64,
    sent: u64,
    received: u64,
    /// Number of pending operations on data queue pairs.
    pub under_way: u32,
    /// Broken data queue pairs whose rebuild must still be requested.
    pub broken: Vec<u32>,
    /// Queue pairs whose rebuild was requested.
    asked: VecDeque<u32>,
    /// Control messages without a completion.
    said: u32,
    completions: Vec<portcullis_nic::Completion>,
}

impl Raider {
    pub fn attach(path: &Path, arena_bytes: u64) -> Result<Self, BenchError> {
        let attached = attach_port(path, arena_bytes, PATIENCE)
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        let endpoint = attached.endpoint;
        let depth = u64::from(endpoint.size().control_depth);
        Ok(Self {
            endpoint,
            depth,
            sent: 0,
            received: 0,
            under_way: 0,
            broken: Vec::new(),
            asked: VecDeque::new(),
            said: 0,
            completions: Vec::new(),
        })
    }

    pub fn queue_pairs(&self) -> u32 {
        self.endpoint.size().data_queue_pairs
    }

    /// Address of the raider's data in its arena: behind the messages.
    fn data(&self) -> u64 {
        2 * self.depth * u64::from(REPLY_BYTES)
    }

    pub fn span(&self, length: u32) -> LocalSpan {
        LocalSpan { address: self.data(), length, lkey: self.endpoint.arena_key() }
    }

    /// Posts one request on a data queue pair. `false`: the queue is full.
    pub fn post(&mut self, queue_pair: u32, operation: Operation) -> bool {
        let request = WorkRequest { id: u64::from(queue_pair), signalled: true, operation };
        let posted = self.endpoint.post(queue_pair, &[request]) == 1;
        self.under_way += u32::from(posted);
        posted
    }

    /// Takes completions, and requests the rebuild of broken queue pairs again and again. For raiders that send no
    /// other requests.
    pub fn mend(&mut self) {
        let mut answers = Vec::new();
        self.take(|answer| answers.push(answer));
        for answer in answers {
            let Some(queue_pair) = self.asked.pop_front() else { break };
            if answer == ReplyBody::Done {
                self.endpoint.rebuilt(queue_pair);
            } else {
                self.broken.push(queue_pair);
            }
        }
        for queue_pair in std::mem::take(&mut self.broken) {
            if self.asked.contains(&queue_pair) {
                continue;
            }
            if self.say(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair }), true) {
                self.asked.push_back(queue_pair);
            } else {
                self.broken.push(queue_pair);
            }
        }
    }

    /// Reads the first bytes of the raider's own memory.
    pub fn read(&mut self, queue_pair: u32, held: &Granted, length: u32) -> bool {
        let remote = RemoteSpan { address: held.object.address, rkey: key(held) };
        let local = self.span(length);
        self.post(queue_pair, Operation::Read { local, remote })
    }

    /// Sends a message, with a receive for its answer if `heard`. `false`: too many messages are in flight.
    pub fn say(&mut self, body: RequestBody, heard: bool) -> bool {
        if u64::from(self.said) >= self.depth - 1 {
            return false;
        }
        let lkey = self.endpoint.arena_key();
        if heard {
            let address = (self.depth + self.received % self.depth) * u64::from(REPLY_BYTES);
            let local = LocalSpan { address, length: REPLY_BYTES, lkey };
            if self.endpoint.post_control_receive(&[ReceiveRequest { id: address, local }]) == 0 {
                return false;
            }
            self.received += 1;
        }
        let address = self.sent % self.depth * u64::from(REPLY_BYTES);
        self.sent += 1;
        let sequence = u32::try_from(self.sent % (1 << 31)).unwrap_or(0);
        self.endpoint.arena().write(address, &Request { sequence, body }.encode());
        let local = LocalSpan { address, length: REPLY_BYTES, lkey };
        let request = WorkRequest { id: 0, signalled: true, operation: Operation::Send { local } };
        let posted = self.endpoint.post_control(&[request]) == 1;
        self.said += u32::from(posted);
        posted
    }

    /// Takes completions, and passes the answers on.
    pub fn take(&mut self, mut answer: impl FnMut(ReplyBody)) {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        self.endpoint.poll(256, &mut completions);
        for completion in &completions {
            match completion.kind {
                CompletionKind::Receive { length, .. } if completion.status == Status::Success => {
                    let read = |bytes: &mut [u8]| self.endpoint.arena().read(completion.request, bytes);
                    let message = received_message(length.into(), read);
                    if let Some(Ok(reply)) = message.map(Reply::decode) {
                        answer(reply.body);
                    }
                }
                CompletionKind::Receive { .. } => {}
                CompletionKind::Send if completion.queue_pair == PortEndpoint::CONTROL => {
                    self.said = self.said.saturating_sub(1);
                }
                CompletionKind::Send => {
                    self.under_way = self.under_way.saturating_sub(1);
                    let queue_pair = u32::try_from(completion.request).unwrap_or(0);
                    if completion.status != Status::Success && !self.broken.contains(&queue_pair) {
                        self.broken.push(queue_pair);
                    }
                }
            }
        }
        self.completions = completions;
    }

    /// Sends a request, and waits for the answer.
    pub fn ask(&mut self, body: RequestBody) -> Result<ReplyBody, BenchError> {
        let until = Instant::now() + PATIENCE;
        let mut said = false;
        let mut reply = None;
        let mut pause = Pause::new();
        while reply.is_none() {
            said = said || self.say(body, true);
            self.take(|body| reply = Some(body));
            if Instant::now() > until || !self.endpoint.node_alive() {
                return Err(
                    std::io::Error::other("the node does not answer an attacker before its attack").into()
                );
            }
            pause.pass();
        }
        reply.ok_or(BenchError::NoCounters)
    }

    /// Allocates memory for the raider.
    pub fn hold(&mut self, size: u64) -> Result<Granted, BenchError> {
        match self.ask(allocation(size, Keep::No))? {
            ReplyBody::Granted(granted) => Ok(granted),
            other => {
                Err(std::io::Error::other(format!("the node gives an attacker no memory: {other:?}")).into())
            }
        }
    }
}

pub fn allocation(size: u64, keep: Keep) -> RequestBody {
    let (rights, sharing) = (Rights::all(), Sharing::Exclusive);
    let lifetime = Lifetime::seconds(LEASE.as_secs());
    RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep,
    }))
}

/// The key of a permission's buffer.
pub fn key(granted: &Granted) -> Rkey {
    // Without keys there is no one-sided access to attack with. Key zero opens nothing.
    granted.credential.buffer_key().unwrap_or(Rkey(0))
}

/// An address behind the granted memory.
pub fn elsewhere(granted: &Granted) -> RemoteAddress {
    RemoteAddress(granted.object.address.0 + granted.length)
}
