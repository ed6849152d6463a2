//! Requests and replies over verbs messages: a client SENDs a request, and the node replies with a SEND. Messages of
//! clients without queue pairs are passed as values (see [`stream`]).
//!
//! Messages come from clients, and the mailbox reads each once. It does not interpret requests, and does not decide
//! which client may send them.

mod stream;

use portcullis_nic::{
    Access, Completion, CompletionKind, CqId, LocalSpan, Memory, Nic, Operation, PdId, QpId, ReceiveRequest,
    Region, RemoteAddress, Status, VerbsError, WorkRequest,
};
use portcullis_protocol::{
    ClientId, CopyRequest, MESSAGE_BYTES, Reply, Request, RequestBody, received_message, sent_part,
};
use std::collections::{BTreeMap, VecDeque};
use stream::Streams;

/// The most replies that may wait for a client that takes none, in units of its control queue's depth. A client with
/// more is evicted.
const BACKLOG_DEPTHS_MAX: usize = 4;

/// The most entries of the completion queue for messages: one for each message of a thousand clients.
const COMPLETIONS_MAX: u32 = 1 << 17;

/// Meaning of a completion on a client's control queue pair.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Replies were sent.
    Sent,
    /// The queue pair broke. Without it the node cannot exchange messages with the client.
    Broken,
    /// A message arrived.
    Request {
        /// The client's number for the request; zero if too little of the message arrived.
        sequence: u32,
        /// The request. `None`: the message cannot be decoded.
        request: Option<RequestBody>,
        /// The data behind the message, if it is a write.
        data: Vec<u8>,
    },
}

/// The messages of all clients.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    cq: CqId,
    clients: BTreeMap<ClientId, Box<Messages<M>>>,
    /// Clients with replies to send, each once.
    outbox: Vec<ClientId>,
    /// The messages of clients without queue pairs.
    pub streams: Streams,
}

impl<M: Memory> Mailbox<M> {
    /// Creates an empty mailbox, with a completion queue of at most `depth_max` entries.
    ///
    /// # Errors
    /// The NIC has no such queue.
    pub fn new(nic: &mut impl Nic, depth_max: u32) -> Result<Self, VerbsError> {
        let cq = nic.create_cq(COMPLETIONS_MAX.min(depth_max))?;
        Ok(Self { cq, clients: BTreeMap::new(), outbox: Vec::new(), streams: Streams::default() })
    }

    /// Returns the completion queue of the control queue pairs.
    pub fn cq(&self) -> CqId {
        self.cq
    }

    /// Sets up a client: memory for its messages in its tenant's domain, and receives for them.
    ///
    /// # Errors
    /// The NIC refuses. Nothing is left behind.
    pub fn attach<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        client: ClientId,
        pd: PdId,
        size: MessageQueue,
    ) -> Result<(), VerbsError> {
        let messages = Messages::new(nic, pd, size)?;
        self.clients.insert(client, Box::new(messages));
        Ok(())
    }

    /// Removes the objects of a client that has left from the NIC, except its queue pair, which the mailbox does not
    /// own.
    pub fn detach(&mut self, nic: &mut impl Nic, client: ClientId) {
        self.streams.remove(client);
        if let Some(messages) = self.clients.remove(&client) {
            let _ = nic.deregister_region(messages.region.id);
        }
    }

    /// Polls at most `most` completions. Returns their number.
    pub fn poll(&self, nic: &mut impl Nic, most: usize, completions: &mut Vec<Completion>) -> usize {
        // A device that has failed reports nothing more.
        nic.poll(self.cq, most, completions).unwrap_or(0)
    }

    /// Handles a completion on a client's control queue pair. Posts a message's receive again.
    pub fn take_in(&mut self, nic: &mut impl Nic, client: ClientId, completion: &Completion) -> Heard {
        let messages = self.clients.get_mut(&client).expect("a control queue pair goes with its messages");
        if completion.status != Status::Success {
            return Heard::Broken;
        }
        let CompletionKind::Receive { length, .. } = completion.kind else {
            messages.finished = u32::try_from(completion.request).expect("replies are numbered in 32 bits");
            self.queue(client);
            return Heard::Sent;
        };
        let slot = u32::try_from(completion.request).expect("receives are numbered by their slots");
        let message = messages.message(slot, length);
        let request = message.and_then(|message| Request::decode(message).ok()).map(|request| request.body);
        let data = match request {
            Some(RequestBody::Copy(CopyRequest::Write { length: claimed, .. })) => {
                let came = u64::from(length).saturating_sub(MESSAGE_BYTES as u64);
                messages.data(slot, usize::try_from(claimed.min(came)).unwrap_or(usize::MAX))
            }
            _ => Vec::new(),
        };
        // A queue pair that takes no receive is broken. Its next completion reports that.
        let _ = messages.post_receive(nic, slot);
        // The number of a truncated message may be truncated too.
        Heard::Request { sequence: message.as_ref().map_or(0, sequence_of), request, data }
    }

    /// Queues a reply, with data behind it, to a client. Returns whether the client keeps up. A client that has left
    /// counts as keeping up.
    pub fn reply(&mut self, client: ClientId, reply: &Reply, data: Vec<u8>) -> bool {
        let Some(messages) = self.clients.get_mut(&client) else {
            self.streams.reply(client, reply);
            return true;
        };
        messages.push(reply, data);
        if !std::mem::replace(&mut messages.queued, true) {
            self.outbox.push(client);
        }
        messages.outgoing.len() <= BACKLOG_DEPTHS_MAX * messages.queue.depth as usize
    }

    fn queue(&mut self, client: ClientId) {
        if let Some(messages) = self.clients.get_mut(&client)
            && !std::mem::replace(&mut messages.queued, true)
        {
            self.outbox.push(client);
        }
    }

    /// Returns the number of bytes of data that a message of a client can carry.
    pub fn data_bytes_max(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |messages| messages.data_bytes_max())
    }

    /// Sends the replies that fit. Returns whether there were any. Puts the clients to which the NIC cannot send into
    /// `lost`.
    pub fn send(&mut self, nic: &mut impl Nic, lost: &mut Vec<ClientId>) -> bool {
        let mut worked = false;
        for client in self.outbox.drain(..) {
            // The client may have left meanwhile.
            let Some(messages) = self.clients.get_mut(&client) else { continue };
            messages.queued = false;
            worked = true;
            if messages.send(nic).is_err() {
                lost.push(client);
            }
        }
        worked
    }

    /// Removes the mailbox from the NIC. No client may be attached any more.
    pub fn end(&self, nic: &mut impl Nic) {
        let _ = nic.destroy_cq(self.cq);
    }
}

/// Returns the number of a message. It is at the same place in every message, even in one that cannot be decoded.
fn sequence_of(message: &[u8; MESSAGE_BYTES]) -> u32 {
    u32::from_le_bytes([message[4], message[5], message[6], message[7]])
}

/// The queue pair for a client's messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageQueue {
    pub qp: QpId,
    /// Number of requests that it holds, and of receives.
    pub depth: u32,
    /// Number of bytes of a message, including the data behind it.
    pub message_bytes: u32,
}

/// One client's messages. Each has a slot in memory: first the incoming ones, then the outgoing ones.
#[derive(Debug)]
struct Messages<M> {
    queue: MessageQueue,
    memory: M,
    region: Region,
    /// Replies that have no slot yet.
    outgoing: VecDeque<(Reply, Vec<u8>)>,
    /// The requests that send the replies written since the last run.
    requests: Vec<WorkRequest>,
    /// Number of replies that were given a slot.
    sent: u32,
    finished: u32,
    /// Whether the client is in the outbox.
    queued: bool,
}

impl<M: Memory> Messages<M> {
    fn new<N: Nic<Memory = M>>(nic: &mut N, pd: PdId, queue: MessageQueue) -> Result<Self, VerbsError> {
        let bytes = 2 * u64::from(queue.depth) * u64::from(queue.message_bytes);
        let memory = nic.allocate_memory(bytes)?;
        let region = nic.register_region(pd, &memory, 0..bytes, RemoteAddress(0), Access::LOCAL_WRITE)?;
        let messages = Self {
            queue,
            memory,
            region,
            outgoing: VecDeque::new(),
            requests: Vec::new(),
            sent: 0,
            finished: 0,
            queued: false,
        };
        for slot in 0..queue.depth {
            messages.post_receive(nic, slot).inspect_err(|_| {
                let _ = nic.deregister_region(region.id);
            })?;
        }
        Ok(messages)
    }

    fn span(&self, slot: u32) -> LocalSpan {
        let length = self.queue.message_bytes;
        LocalSpan { address: u64::from(slot) * u64::from(length), length, lkey: self.region.lkey }
    }

    /// Posts the receive of slot `slot` again.
    fn post_receive(&self, nic: &mut impl Nic, slot: u32) -> Result<(), VerbsError> {
        let request = ReceiveRequest { id: u64::from(slot), local: self.span(slot) };
        nic.post_receive(self.queue.qp, &[request]).map(|_| ())
    }

    /// Copies the message in receive slot `slot`, so that the sender cannot change it any more. `length`: the number of
    /// bytes that arrived. `None`: the message is truncated.
    fn message(&self, slot: u32, length: u32) -> Option<[u8; MESSAGE_BYTES]> {
        received_message(length.into(), |bytes| self.memory.read(self.span(slot).address, bytes))
    }

    fn data_bytes_max(&self) -> usize {
        (self.queue.message_bytes as usize).saturating_sub(MESSAGE_BYTES)
    }

    /// Copies the data behind the message in receive slot `slot`: all that arrived, but at most `length` bytes.
    fn data(&self, slot: u32, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length.min(self.data_bytes_max())];
        self.memory.read(self.span(slot).address + MESSAGE_BYTES as u64, &mut bytes);
        bytes
    }

    fn has_free_slot(&self) -> bool {
        self.sent.wrapping_sub(self.finished) < self.queue.depth
    }

    /// Queues a reply behind the earlier ones. Nearly always a slot is free. The reply is then written there at once:
    /// replies are large, and a copy of one waits until the reply is written.
    fn push(&mut self, reply: &Reply, data: Vec<u8>) {
        if self.outgoing.is_empty() && self.has_free_slot() {
            self.write(reply, &data);
        } else {
            self.outgoing.push_back((*reply, data));
        }
    }

    /// Writes a reply into the next slot, which must be free, and adds the request that sends it.
    fn write(&mut self, reply: &Reply, data: &[u8]) {
        let depth = self.queue.depth;
        let mut local = self.span(depth + self.sent % depth);
        let message = reply.encode();
        let head = if data.is_empty() { sent_part(&message) } else { &message };
        self.memory.write(local.address, head);
        if !data.is_empty() {
            self.memory.write(local.address + MESSAGE_BYTES as u64, data);
        }
        local.length = u32::try_from(head.len() + data.len()).expect("no more than a message carries");
        self.sent = self.sent.wrapping_add(1);
        // One completion for each run, or for half of the queue, is enough to know which slots are free.
        let signalled = self.sent.is_multiple_of((depth / 2).max(1));
        let operation = Operation::Send { local };
        self.requests.push(WorkRequest { id: u64::from(self.sent), signalled, operation });
    }

    /// Sends the replies that fit.
    fn send(&mut self, nic: &mut impl Nic) -> Result<(), VerbsError> {
        while self.has_free_slot()
            && let Some((reply, data)) = self.outgoing.pop_front()
        {
            self.write(&reply, &data);
        }
        let Some(last) = self.requests.last_mut() else { return Ok(()) };
        last.signalled = true;
        let posted = nic.post_send(self.queue.qp, &self.requests);
        self.requests.clear();
        posted.map(|_| ())
    }
}
