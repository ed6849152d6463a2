//! The attacker's tools: a NIC and queue pairs that the attacker drives itself, and honest calls for attacks that need
//! them.

use crate::rig::wait_for;
use portcullis::{
    Credential, DeviceChoice, Lifetime, PermissionId, Refusal, RemoteAddress, Rights, Rkey, Sharing,
};
use portcullis_attach::tls::{ClientSecurity, Connection, Ends, Terms, attach};
use portcullis_ibverbs::{IbEndpoint, NodeLife};
use portcullis_nic::{
    Completion, CompletionKind, Endpoint, EndpointSize, LocalSpan, Memory, Operation, ReceiveRequest,
    RemoteSpan, Status, VerbsEndpoint, VerbsError, WorkRequest,
};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Keep, MESSAGE_BYTES, QueuePairRequest, Reply, ReplyBody, Request,
    RequestBody, received_message,
};
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::time::Duration;

const ARENA_BYTES: u64 = 4 << 20;
/// Offset of the attacker's data in its arena, behind its messages.
pub const DATA: u64 = 64 << 10;
/// The distance between two messages in the arena.
const MESSAGE_STRIDE: u64 = 128;
/// Bytes of a reply, as the length of a receive.
const REPLY_BYTES: u32 = 128;
const _: () = assert!(REPLY_BYTES as usize == MESSAGE_BYTES);
/// Time that an attach may take.
pub const ATTACH_WITHIN: Duration = Duration::from_secs(20);
/// Security without certificates on either side.
pub const PLAIN: ClientSecurity = ClientSecurity::Plain { anywhere: false };

/// The life of a connection that the endpoint does not check: the attacker checks it itself.
struct Whatever;

impl NodeLife for Whatever {
    fn node_alive(&mut self) -> bool {
        true
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A client that need not keep any rule.
pub struct Attacker {
    pub endpoint: IbEndpoint,
    pub terms: Terms,
    connection: Connection,
    completions: VecDeque<Completion>,
    receives: u64,
    sequence: u32,
}

/// Makes queue pairs that meet the terms. Returns their addresses and the endpoint.
pub fn make(terms: &Terms) -> (Ends, IbEndpoint) {
    let size = EndpointSize {
        chunk_queue_pairs: 0,
        data_queue_pairs: terms.data_queue_pairs,
        send_depth: terms.send_depth,
        control_depth: terms.control_depth,
        message_bytes: terms.message_bytes,
        arena_bytes: ARENA_BYTES,
    };
    let endpoint = IbEndpoint::new(&DeviceChoice::default(), size).expect("queue pairs of its own");
    let (control, data) = endpoint.addresses().expect("they have addresses");
    (Ends { control, data }, endpoint)
}

impl Attacker {
    /// Attaches to the node at `HOST:PORT`.
    pub fn attach(address: &str) -> Self {
        Self::attach_as(address, |ends| ends)
    }

    /// Attaches with false addresses for its queue pairs.
    pub fn attach_as(address: &str, lie: impl FnOnce(Ends) -> Ends) -> Self {
        let mut told = None;
        let attached = attach(address, &PLAIN, ATTACH_WITHIN, |terms| {
            let (ends, endpoint) = make(terms);
            told = Some(*terms);
            Ok((lie(ends), endpoint))
        })
        .expect("even an attacker gets in");
        let mut endpoint = attached.made;
        let Ends { control, data } = attached.node;
        endpoint.connect(control, data, Box::new(Whatever)).expect("the node has its ends ready");
        Self {
            endpoint,
            terms: told.expect("it was told"),
            connection: attached.connection,
            completions: VecDeque::new(),
            receives: 0,
            sequence: 0,
        }
    }

    /// A span of the attacker's arena.
    pub fn local(&self, address: u64, length: u32) -> LocalSpan {
        LocalSpan { address, length, lkey: self.endpoint.arena_key() }
    }

    /// Posts one signalled request and does not wait for its completion. Returns whether there was room.
    pub fn post(&mut self, queue_pair: u32, id: u64, operation: Operation) -> bool {
        let request = WorkRequest { id, signalled: true, operation };
        let (nic, queues) = self.endpoint.dangerous_nic();
        queues.post(nic, queue_pair, &[request]).expect("its own queue pair takes requests") == 1
    }

    /// Posts one request to the control queue pair.
    pub fn post_control(&mut self, operation: Operation) -> Result<usize, VerbsError> {
        let request = WorkRequest { id: 0, signalled: true, operation };
        let (nic, queues) = self.endpoint.dangerous_nic();
        queues.post_control(nic, &[request])
    }

    /// Returns the next completion, without waiting.
    pub fn poll(&mut self) -> Option<Completion> {
        if self.completions.is_empty() {
            let mut polled = Vec::new();
            let (nic, queues) = self.endpoint.dangerous_nic();
            queues.poll(nic, 64, &mut polled).expect("its own completion queue works");
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

    /// Tries a read, a write and both atomics on a word with a key. Each must be refused, and the queue pair is rebuilt
    /// each time. Returns how many were tried.
    pub fn try_all(&mut self, address: u64, rkey: u32) -> u64 {
        let remote = RemoteSpan { address: RemoteAddress(address), rkey: Rkey(rkey) };
        let local = self.local(DATA, 8);
        let tries = [
            Operation::Read { local, remote },
            Operation::Write { local, remote },
            Operation::CompareAndSwap { local, remote, compare: 0, swap: 1 },
            Operation::FetchAndAdd { local, remote, add: 1 },
        ];
        for operation in tries {
            self.assert_refused(operation);
        }
        tries.len() as u64
    }

    /// Tries an operation on the first data queue pair that the node's NIC must refuse, and has the queue pair rebuilt.
    pub fn assert_refused(&mut self, operation: Operation) {
        assert_eq!(self.try_operation(0, operation), Status::RemoteAccessError, "{operation:?}");
        self.recover(0).expect("a lenient node");
    }

    /// Posts a control message of any bytes, and also a receive for the answer if `heard`. Returns whether there was
    /// room.
    pub fn say(&mut self, bytes: &[u8], heard: bool) -> bool {
        let depth = u64::from(self.terms.control_depth);
        let slot = u64::from(self.sequence) % depth;
        self.sequence += 1;
        if heard {
            let local = self.local((depth + self.receives % depth) * MESSAGE_STRIDE, REPLY_BYTES);
            let receive = ReceiveRequest { id: self.receives % depth, local };
            let (nic, queues) = self.endpoint.dangerous_nic();
            if queues.post_control_receive(nic, &[receive]) != Ok(1) {
                return false;
            }
            self.receives += 1;
        }
        let at = slot * MESSAGE_STRIDE;
        self.endpoint.arena().write(at, bytes);
        let length = u32::try_from(bytes.len()).expect("a short message");
        self.post_control(Operation::Send { local: self.local(at, length) }) == Ok(1)
    }

    /// Returns the next reply, without waiting. `Err`: the control queue pair is broken.
    pub fn hear(&mut self) -> Result<Option<Reply>, Status> {
        while let Some(completion) = self.poll() {
            match (completion.kind, completion.status) {
                (CompletionKind::Receive { length, .. }, Status::Success) => {
                    let at = (u64::from(self.terms.control_depth) + completion.request) * MESSAGE_STRIDE;
                    let message =
                        received_message(length.into(), |bytes| self.endpoint.arena().read(at, bytes));
                    let reply = message.map(Reply::decode).expect("the node's replies are whole");
                    return Ok(Some(reply.expect("the node's replies are sound")));
                }
                (_, status) if status != Status::Success && completion.queue_pair == IbEndpoint::CONTROL => {
                    return Err(status);
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Waits for the reply to the latest message.
    pub fn answer(&mut self) -> Reply {
        let mut reply = None;
        wait_for("a reply", || {
            reply = self.hear().expect("the control queue pair works");
            reply.is_some()
        });
        reply.expect("it was waited for")
    }

    /// Sends the node an honest request and waits for the answer. Only one request is under way at a time.
    pub fn ask(&mut self, body: RequestBody) -> ReplyBody {
        let request = Request { sequence: self.sequence, body };
        assert!(self.say(&request.encode(), true), "one request at a time fits");
        let reply = self.answer();
        assert_eq!(reply.sequence, request.sequence);
        reply.body
    }

    /// Allocates memory with all rights for ten seconds.
    pub fn allocate(&mut self, size: u64) -> Granted {
        self.allocate_for(size, Rights::all(), Lifetime::seconds(10))
    }

    pub fn allocate_for(&mut self, size: u64, rights: Rights, lifetime: Lifetime) -> Granted {
        let sharing = Sharing::Exclusive;
        match self.ask(RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep: Keep::No,
        }))) {
            ReplyBody::Granted(granted) => granted,
            other => panic!("no memory: {other:?}"),
        }
    }

    pub fn revoke(&mut self, permission: PermissionId) -> ReplyBody {
        self.ask(RequestBody::Grant(GrantRequest::Revoke { permission, free: false }))
    }

    /// Requests rebuilds of a broken queue pair until the node has rebuilt it, and waits while the node pauses the
    /// tenant.
    pub fn recover(&mut self, queue_pair: u32) -> Result<(), Refusal> {
        loop {
            match self.ask_for_rebuild(queue_pair) {
                Err(Refusal::Paused { .. }) => {}
                other => return other,
            }
        }
    }

    /// Requests the rebuild of a queue pair once, and rebuilds the attacker's own end if the node has rebuilt its end.
    pub fn ask_for_rebuild(&mut self, queue_pair: u32) -> Result<(), Refusal> {
        match self.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair })) {
            ReplyBody::Done => {
                let (nic, queues) = self.endpoint.dangerous_nic();
                queues.rebuilt(nic, queue_pair).expect("its own end can be rebuilt");
                Ok(())
            }
            ReplyBody::Refused(refusal) => Err(refusal),
            other => panic!("no answer to that: {other:?}"),
        }
    }

    /// Returns whether the node has evicted the attacker.
    pub fn is_out(&mut self) -> bool {
        !self.connection.node_alive()
    }
}

/// The key of a permission's buffer.
pub fn key(credential: Credential) -> u32 {
    credential.buffer_key().expect("a permission that the NIC enforces has keys").0
}
