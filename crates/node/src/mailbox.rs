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
use portcullis_planted::planted;
use portcullis_protocol::{
    ClientId, CopyRequest, MESSAGE_BYTES, Packing, Records, Reply, Request, RequestBody, is_packed,
    received_message, sent_part,
};
use std::collections::{BTreeMap, VecDeque};
use stream::Streams;

/// The most replies that may wait for a client that takes none, in units of the requests that its control queue holds,
/// and the most with data, in units of the queue's messages. A client with more is evicted.
const BACKLOG_DEPTHS_MAX: usize = 4;

/// The most entries of the completion queue for messages: one for each message of a thousand clients.
const COMPLETIONS_MAX: u32 = 1 << 17;

/// A request that has arrived.
#[derive(Debug)]
pub(crate) struct Received {
    /// The client's number for the request; zero if too little of the message arrived.
    pub sequence: u32,
    /// The request. `None`: it cannot be decoded.
    pub request: Option<RequestBody>,
    /// The data behind the message, if it is a write.
    pub data: Vec<u8>,
}

impl Received {
    /// Decodes a message. The number is at the same place in every message, even in one that cannot be decoded.
    fn of(message: &[u8; MESSAGE_BYTES]) -> Self {
        let sequence = u32::from_le_bytes([message[4], message[5], message[6], message[7]]);
        let request = Request::decode(*message).ok().map(|request| request.body);
        Self { sequence, request, data: Vec::new() }
    }

    /// A message of which too little arrived, or which is packed as no client packs it.
    const CUT: Self = Self { sequence: 0, request: None, data: Vec::new() };
}

/// The messages of all clients.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    cq: CqId,
    clients: BTreeMap<ClientId, Box<Messages<M>>>,
    /// Clients with replies to send, each once.
    outbox: Vec<ClientId>,
    /// Clients with requests that are not taken out yet, each once, in the order of their turns.
    inbox: VecDeque<ClientId>,
    /// Number of messages received over queue pairs.
    received: u64,
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
        let (clients, outbox, inbox) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        Ok(Self { cq, clients, outbox, inbox, received: 0, streams: Streams::default() })
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
            self.inbox.retain(|&waiting| waiting != client);
            let _ = nic.deregister_region(messages.region.id);
        }
    }

    /// Polls at most `most` completions. Returns their number.
    pub fn poll(&self, nic: &mut impl Nic, most: usize, completions: &mut Vec<Completion>) -> usize {
        // A device that has failed reports nothing more.
        nic.poll(self.cq, most, completions).unwrap_or(0)
    }

    /// Handles a completion on a client's control queue pair: takes a message's request out if it has one and if no
    /// earlier one waits. Other messages wait for [`Mailbox::take_out`]. Returns false if the queue pair broke. Without
    /// it the node cannot exchange messages with the client.
    pub fn take_in(
        &mut self,
        nic: &mut impl Nic,
        client: ClientId,
        completion: &Completion,
        received: &mut Vec<(ClientId, Received)>,
    ) -> bool {
        let messages = self.clients.get_mut(&client).expect("a control queue pair goes with its messages");
        if completion.status != Status::Success {
            return false;
        }
        let CompletionKind::Receive { length, .. } = completion.kind else {
            messages.finished = u32::try_from(completion.request).expect("replies are numbered in 32 bits");
            self.queue(client);
            return true;
        };
        let slot = u32::try_from(completion.request).expect("receives are numbered by their slots");
        self.received += 1;
        let message = messages.message(slot, length);
        let head = message.as_ref().and_then(|message| message.first_chunk());
        let is_packed = head.is_some_and(is_packed);
        if messages.arrived.is_empty() && !is_packed {
            let request = message.map_or(Received::CUT, |message| messages.request(&message, slot, length));
            received.push((client, request));
            // A queue pair that takes no receive is broken. Its next completion reports that.
            let _ = messages.post_receive(nic, slot);
            return true;
        }
        if messages.arrived.is_empty() {
            self.inbox.push_back(client);
        }
        let records = head.and_then(|head| Records::of(*head, length.into()).ok());
        // A message that no client packs shows nothing: its sender may have no room for packed replies.
        messages.packs |= is_packed && records.is_some();
        messages.arrived.push_back(Arrival { slot, length, records, is_packed });
        true
    }

    /// Returns the number of messages received.
    pub fn received(&self) -> u64 {
        self.received + self.streams.received()
    }

    /// Returns whether messages have requests that are not taken out.
    pub fn has_requests(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Takes out at most `most` requests of the client whose turn it is. Those of a client come in the order in which
    /// they were sent. Returns whether there were any.
    pub fn take_out(
        &mut self,
        nic: &mut impl Nic,
        most: usize,
        received: &mut Vec<(ClientId, Received)>,
    ) -> bool {
        let Some(client) = self.inbox.pop_front() else { return false };
        let messages = self.clients.get_mut(&client).expect("a client leaves the inbox when it leaves");
        for _ in 0..most {
            let Some(request) = messages.next_request(nic) else { break };
            received.push((client, request));
        }
        if !messages.arrived.is_empty() {
            self.inbox.push_back(client);
        }
        true
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
        messages.is_within_backlog()
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

/// The queue pair for a client's messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageQueue {
    pub qp: QpId,
    /// Number of requests that it holds, and of receives.
    pub depth: u32,
    /// Number of bytes of a message, including the data behind it.
    pub message_bytes: u32,
}

/// A message in a receive slot. The slot's receive is posted again when its last request is taken out, so a client has no
/// more messages here than receives.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    slot: u32,
    length: u32,
    /// The requests that are not taken out. `None`: the message cannot be taken apart.
    records: Option<Records>,
    /// Whether the message is packed. Then its requests have no data.
    is_packed: bool,
}

/// One client's messages. Each has a slot in memory: first the incoming ones, then the outgoing ones.
#[derive(Debug)]
struct Messages<M> {
    queue: MessageQueue,
    memory: M,
    region: Region,
    /// Messages with requests that are not taken out, in the order of their arrival.
    arrived: VecDeque<Arrival>,
    /// Replies that have no slot yet.
    outgoing: VecDeque<(Reply, Vec<u8>)>,
    /// How many of them have data.
    outgoing_with_data: usize,
    /// The message in the next slot, to which replies without data are added.
    open: Option<Packing>,
    /// Whether the client has packed requests. Only such a client gets packed replies.
    packs: bool,
    /// The requests that send the replies written since the last run.
    requests: Vec<WorkRequest>,
    /// Number of messages that were given a slot.
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
            arrived: VecDeque::new(),
            outgoing: VecDeque::new(),
            outgoing_with_data: 0,
            open: None,
            packs: false,
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

    /// The most requests that the client can have under way.
    fn requests_max(&self) -> usize {
        let room = self.queue.message_bytes as usize;
        self.queue.depth as usize * if self.packs { Packing::records_max(room) } else { 1 }
    }

    /// Whether no more replies wait than may. Replies with data have a bound of their own, since they are large.
    fn is_within_backlog(&self) -> bool {
        self.outgoing.len() <= BACKLOG_DEPTHS_MAX * self.requests_max()
            && self.outgoing_with_data <= BACKLOG_DEPTHS_MAX * self.queue.depth as usize
    }

    /// Posts the receive of slot `slot` again.
    fn post_receive(&self, nic: &mut impl Nic, slot: u32) -> Result<(), VerbsError> {
        let request = ReceiveRequest { id: u64::from(slot), local: self.span(slot) };
        nic.post_receive(self.queue.qp, &[request]).map(|_| ())
    }

    /// Reads the message in receive slot `slot`, or the beginning of a longer one. Each byte is read once, so the client
    /// cannot change it between its check and its use. `None`: too little of the message arrived.
    #[inline]
    fn message(&self, slot: u32, length: u32) -> Option<[u8; MESSAGE_BYTES]> {
        received_message(length.into(), |bytes| self.memory.read(self.span(slot).address, bytes))
    }

    /// Decodes a request. `slot`: the receive slot of its message, behind which lies the data if it is a write.
    #[inline]
    fn request(&self, message: &[u8; MESSAGE_BYTES], slot: u32, length: u32) -> Received {
        let mut received = Received::of(message);
        if let Some(RequestBody::Copy(CopyRequest::Write { length: claimed, .. })) = received.request {
            let came = u64::from(length).saturating_sub(MESSAGE_BYTES as u64);
            received.data = self.data(slot, usize::try_from(claimed.min(came)).unwrap_or(usize::MAX));
        }
        received
    }

    /// Takes out the next request, and posts the receive of a message with the last one. `None`: there is no request.
    fn next_request(&mut self, nic: &mut impl Nic) -> Option<Received> {
        let Arrival { slot, length, records, is_packed } = self.arrived.front_mut()?;
        let (slot, length, is_packed) = (*slot, *length, *is_packed);
        let address = u64::from(slot) * u64::from(self.queue.message_bytes);
        let memory = &self.memory;
        let record = records.as_mut().and_then(|all| all.read(|at, bytes| memory.read(address + at, bytes)));
        let is_over = records.is_none_or(|records| records.left() == 0) || planted!(RestOfPackedForgotten);
        let received = match record {
            None => Received::CUT,
            Some(record) if is_packed => Received::of(&record),
            Some(record) => self.request(&record, slot, length),
        };
        if is_over {
            self.arrived.pop_front();
            let _ = self.post_receive(nic, slot);
        }
        Some(received)
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
        if !self.outgoing.is_empty() || !self.write(reply, &data) {
            self.outgoing_with_data += usize::from(!data.is_empty());
            self.outgoing.push_back((*reply, data));
        }
    }

    /// Writes a reply: into the open message, if the client packs and the reply has no data, and else into a slot of its
    /// own. Returns false if there is no room.
    fn write(&mut self, reply: &Reply, data: &[u8]) -> bool {
        let message = reply.encode();
        if self.packs && data.is_empty() {
            return self.pack(&message);
        }
        self.close();
        if !self.has_free_slot() {
            return false;
        }
        let head = if data.is_empty() { sent_part(&message) } else { &message };
        let at = self.next_slot();
        self.memory.write(at.address, head);
        if !data.is_empty() {
            self.memory.write(at.address + MESSAGE_BYTES as u64, data);
        }
        self.send_slot(at, (0, head.len() + data.len()));
        true
    }

    /// Adds a reply to the open message, or to a new one. Returns false if there is no room.
    fn pack(&mut self, message: &[u8; MESSAGE_BYTES]) -> bool {
        if self.open.is_some_and(|open| !open.has_room_for(message)) {
            self.close();
        }
        if self.open.is_none() && !self.has_free_slot() {
            return false;
        }
        let at = self.next_slot();
        let open = self.open.get_or_insert_with(|| Packing::new(at.length as usize));
        let (place, record) = open.add(message).expect("each message has room for one reply");
        self.memory.write(at.address + place as u64, record);
        true
    }

    /// Ends the open message.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let at = self.next_slot();
        if let Some(head) = open.head() {
            self.memory.write(at.address, &head);
        }
        self.send_slot(at, open.span());
    }

    /// The slot of the next message, or of the open one.
    fn next_slot(&self) -> LocalSpan {
        self.span(self.queue.depth + self.sent % self.queue.depth)
    }

    /// Adds the request that sends the next slot's message: its place in the slot, and its bytes.
    fn send_slot(&mut self, slot: LocalSpan, (at, bytes): (usize, usize)) {
        let length = u32::try_from(bytes).expect("no more than a message carries");
        let local = LocalSpan { address: slot.address + at as u64, length, lkey: slot.lkey };
        self.sent = self.sent.wrapping_add(1);
        // One completion for each run, or for half of the queue, is enough to know which slots are free.
        let signalled = self.sent.is_multiple_of((self.queue.depth / 2).max(1));
        let operation = Operation::Send { local };
        self.requests.push(WorkRequest { id: u64::from(self.sent), signalled, operation });
    }

    /// Sends the replies that fit.
    fn send(&mut self, nic: &mut impl Nic) -> Result<(), VerbsError> {
        while let Some((reply, data)) = self.outgoing.pop_front() {
            if !self.write(&reply, &data) {
                self.outgoing.push_front((reply, data));
                break;
            }
            self.outgoing_with_data -= usize::from(!data.is_empty());
        }
        self.close();
        let Some(last) = self.requests.last_mut() else { return Ok(()) };
        last.signalled = true;
        let posted = nic.post_send(self.queue.qp, &self.requests);
        self.requests.clear();
        posted.map(|_| ())
    }
}
