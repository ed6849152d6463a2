//! The attacker's tools: a port whose memory the attacker may write anywhere, and honest calls for attacks that need
//! them.

use crate::rig::wait_for;
use portcullis::{
    Credential, Lifetime, PermissionId, PortEndpoint, Refusal, RemoteAddress, Rights, Rkey, Sharing,
};
use portcullis_host::software::attach;
use portcullis_memory::Mapping;
use portcullis_nic::{
    Completion, CompletionKind, DataQueuePairs, Endpoint, EndpointSize, LocalSpan, Memory, Operation,
    ReceiveRequest, RemoteSpan, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Keep, MESSAGE_BYTES, QueuePairRequest, Reply, ReplyBody, Request,
    RequestBody, received_message,
};
use portcullis_softnic::PortLayout;
use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

/// Bytes of the arena that an attacker requests.
pub const ARENA_BYTES: u64 = 2 << 20;
/// Offset of the attacker's data in its arena, behind its messages.
pub const DATA: u64 = 64 << 10;
/// Bytes of a reply, as the length of a receive.
pub const REPLY_BYTES: u32 = 128;
const _: () = assert!(REPLY_BYTES as usize == MESSAGE_BYTES);
/// Time that an attach may take.
const ATTACH_WITHIN: Duration = Duration::from_secs(20);

/// A client that need not keep any rule.
pub struct Attacker {
    pub endpoint: PortEndpoint,
    pub memory: Mapping,
    pub size: EndpointSize,
    pub layout: PortLayout,
    completions: VecDeque<Completion>,
    receives: u64,
    sequence: u32,
}

impl Attacker {
    pub fn attach(path: &Path) -> Self {
        let attached = attach(path, ARENA_BYTES, ATTACH_WITHIN).expect("even an attacker gets a port");
        let endpoint = attached.endpoint;
        let (memory, size) = (endpoint.dangerous_memory().clone(), endpoint.size());
        let layout = PortLayout::new(size);
        Self { endpoint, memory, size, layout, completions: VecDeque::new(), receives: 0, sequence: 0 }
    }

    /// A span of the attacker's arena.
    pub fn local(&self, address: u64, length: u32) -> LocalSpan {
        LocalSpan { address, length, lkey: self.endpoint.arena_key() }
    }

    /// Posts one signalled request and does not wait for its completion.
    pub fn post(&mut self, queue_pair: u32, id: u64, operation: Operation) -> bool {
        self.endpoint.post(queue_pair, &[WorkRequest { id, signalled: true, operation }]) == 1
    }

    /// Returns the next completion, without waiting.
    pub fn poll(&mut self) -> Option<Completion> {
        if self.completions.is_empty() {
            let mut polled = Vec::new();
            self.endpoint.poll(64, &mut polled);
            self.completions.extend(polled);
        }
        self.completions.pop_front()
    }

    /// Posts one operation on a data queue pair and returns how it ended. Other completions are dropped.
    pub fn try_operation(&mut self, queue_pair: u32, operation: Operation) -> Status {
        self.sequence += 1;
        let id = u64::from(self.sequence) << 32;
        assert!(self.post(queue_pair, id, operation), "its queue has room");
        let mut status = None;
        wait_for("a completion", || {
            status = self.poll().filter(|it| it.request == id).map(|it| it.status);
            status.is_some()
        });
        status.expect("it was waited for")
    }

    /// Reads `length` bytes into the arena at [`DATA`].
    pub fn try_read(&mut self, queue_pair: u32, address: u64, rkey: u32, length: u32) -> Status {
        let remote = RemoteSpan { address: RemoteAddress(address), rkey: Rkey(rkey) };
        self.try_operation(queue_pair, Operation::Read { local: self.local(DATA, length), remote })
    }

    /// Posts a control message of any bytes, and also a receive for the answer if `heard`.
    pub fn say(&mut self, bytes: &[u8], heard: bool) -> bool {
        let depth = u64::from(self.size.control_depth);
        let slot = u64::from(self.sequence) % depth;
        self.sequence += 1;
        if heard {
            let local = self.local((depth + self.receives % depth) * 128, REPLY_BYTES);
            let receive = ReceiveRequest { id: self.receives % depth, local };
            if self.endpoint.post_control_receive(&[receive]) == 0 {
                return false;
            }
            self.receives += 1;
        }
        let at = slot * 128;
        self.endpoint.arena().write(at, bytes);
        let length = u32::try_from(bytes.len()).expect("a short message");
        let operation = Operation::Send { local: self.local(at, length) };
        self.endpoint.post_control(&[WorkRequest { id: 0, signalled: true, operation }]) == 1
    }

    /// Returns the next reply, without waiting. `Err`: the control queue pair is broken.
    pub fn hear(&mut self) -> Result<Option<Reply>, Status> {
        while let Some(completion) = self.poll() {
            match (completion.kind, completion.status) {
                (CompletionKind::Receive { length, .. }, Status::Success) => {
                    let at = (u64::from(self.size.control_depth) + completion.request) * 128;
                    let message =
                        received_message(length.into(), |bytes| self.endpoint.arena().read(at, bytes));
                    let reply = message.map(Reply::decode).expect("the node's replies are whole");
                    return Ok(Some(reply.expect("the node's replies are sound")));
                }
                (_, status)
                    if status != Status::Success && completion.queue_pair == PortEndpoint::CONTROL =>
                {
                    return Err(status);
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Sends the node an honest request and waits for the answer. Only one request is under way at a time.
    pub fn ask(&mut self, body: RequestBody) -> ReplyBody {
        let request = Request { sequence: self.sequence, body };
        assert!(self.say(&request.encode(), true), "one request at a time fits");
        let mut reply = None;
        wait_for("a reply", || {
            reply = self.hear().expect("the control queue pair works");
            reply.is_some()
        });
        let reply = reply.expect("it was waited for");
        assert_eq!(reply.sequence, request.sequence);
        reply.body
    }

    pub fn allocate(&mut self, size: u64, sharing: Sharing) -> Granted {
        let lifetime = Lifetime::seconds(10);
        let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size,
            alignment: 0,
            lifetime,
            rights: Rights::all(),
            sharing,
            keep: Keep::No,
        }));
        match self.ask(body) {
            ReplyBody::Granted(granted) => granted,
            other => panic!("no memory: {other:?}"),
        }
    }

    pub fn revoke(&mut self, permission: PermissionId) -> ReplyBody {
        self.ask(RequestBody::Grant(GrantRequest::Revoke { permission, free: false }))
    }

    /// Requests rebuilds of a broken queue pair until the node has rebuilt it.
    pub fn recover(&mut self, queue_pair: u32) -> Result<(), Refusal> {
        loop {
            match self.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair })) {
                ReplyBody::Done => {
                    self.endpoint.rebuilt(queue_pair);
                    return Ok(());
                }
                ReplyBody::Refused(Refusal::Paused { .. }) => {}
                ReplyBody::Refused(refusal) => return Err(refusal),
                other => panic!("no answer to that: {other:?}"),
            }
        }
    }

    /// Returns whether the node has evicted the attacker.
    pub fn is_out(&mut self) -> bool {
        !self.endpoint.node_alive()
    }
}

/// The key of a permission's buffer.
pub fn key(credential: Credential) -> u32 {
    credential.buffer_key().expect("a permission under windows has keys").0
}
