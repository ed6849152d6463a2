//! Control messages: their slots in the arena, and the matching of replies to requests.

use crate::{CALLS_MAX, Error};
use portcullis_nic::{
    Completion, CompletionKind, Lkey, LocalSpan, Memory, Operation as Action, ReceiveRequest, Status,
    VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::{
    MESSAGE_BYTES, PACKED_HEAD_BYTES, Packing, Records, Reply, ReplyBody, Request, RequestBody, sent_part,
};

/// Bytes of a control message before its data.
const HEAD: u64 = MESSAGE_BYTES as u64;

/// The part of a sequence number that is reused; the rest is its generation.
const INDEX_MASK: u32 = 0xFFFF;

/// A part of an operation that travels as a control message (mechanism `node-copy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The operation's id.
    pub(crate) operation: u64,
    /// Offset of the piece in the operation's buffer.
    pub(crate) offset: u64,
    /// Bytes that the reply must bring; zero if none.
    pub(crate) length: u64,
}

/// Purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A call of the caller, by its id.
    Call(u64),
    /// A rebuild of this queue pair.
    Recover(u32),
    /// A part of an operation.
    Piece(Piece),
}

/// A reply to a request that was waiting for one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) purpose: Purpose,
    pub(crate) body: ReplyBody,
    /// Offset of the reply's data in the arena, and the number of bytes that arrived.
    pub(crate) data: (u64, u64),
}

/// The room of a message in the arena. It is free if the NIC has sent the message and the node has answered each of its
/// requests: so the node has a receive posted for each message that is under way.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    /// Requests of the message that are not answered.
    unanswered: u16,
    /// Whether the NIC still needs the bytes.
    sending: bool,
}

/// A request that is under way, or the number of one that is not in use.
#[derive(Clone, Copy, Debug)]
struct Pending {
    generation: u16,
    /// The slot of the message that carries the request.
    slot: u16,
    /// `None`: the number is not in use.
    purpose: Option<Purpose>,
}

/// The control queue pair of a client.
pub(crate) struct Control {
    key: Lkey,
    message_bytes: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Requests under way, by the lower half of their sequence numbers.
    pending: Vec<Pending>,
    /// Numbers that are not in use.
    unused: Vec<u16>,
    /// Slots of receives that wait to be posted.
    owed: Vec<u16>,
    /// Messages of a batch that is being collected, and those of a posted batch that the queue had no room for.
    held: Vec<WorkRequest>,
    /// The message to which the batch's next request is added.
    open: Option<(u16, Packing)>,
    /// Whether requests are being collected.
    holding: bool,
}

impl Control {
    pub(crate) fn new(endpoint: &impl VerbsEndpoint) -> Self {
        let depth = u16::try_from(endpoint.size().control_depth).unwrap_or(u16::MAX);
        Self {
            key: endpoint.arena_key(),
            message_bytes: endpoint.size().message_bytes,
            slots: vec![Slot::default(); depth.into()],
            free: (0..depth).rev().collect(),
            pending: Vec::new(),
            unused: Vec::new(),
            owed: (0..depth).collect(),
            held: Vec::new(),
            open: None,
            holding: false,
        }
    }

    /// Bytes of the arena that the messages take, from its start.
    pub(crate) fn arena_bytes(&self) -> u64 {
        2 * u64::from(self.message_bytes) * self.depth()
    }

    /// The most data that a message has room for behind its head.
    pub(crate) fn data_bytes(&self) -> u64 {
        u64::from(self.message_bytes).saturating_sub(HEAD)
    }

    /// The error if there is no room for a call. It names the most calls that can be under way.
    pub(crate) fn full(&self) -> Error {
        Error::QueueFull { limit: self.calls_max() as u64 }
    }

    fn depth(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Number of slots that stay free for requests for rebuilds. Calls may wait for other clients without a limit, and
    /// a broken data queue pair carries nothing before its rebuild.
    fn kept_for(&self, rebuild: bool) -> usize {
        usize::from(!rebuild && self.slots.len() > 1)
    }

    /// Returns how many requests other than for rebuilds a batch has room for now, whatever their lengths.
    pub(crate) fn room(&self) -> usize {
        self.free.len().saturating_sub(self.kept_for(false)) * self.requests_per_message()
    }

    /// Returns how many calls can be under way at once, if they begin in batches.
    pub(crate) fn calls_max(&self) -> usize {
        let requests = (self.slots.len() - self.kept_for(false)) * self.requests_per_message();
        requests.min(CALLS_MAX as usize)
    }

    /// Returns for how many requests a message has room, whatever their lengths.
    pub(crate) fn requests_per_message(&self) -> usize {
        (Packing::records_max(self.message_bytes as usize) / 2).max(1)
    }

    /// Returns whether a request can be sent. `rebuild`: the request is for a rebuild.
    pub(crate) fn has_room(&self, rebuild: bool) -> bool {
        self.free.len() > self.kept_for(rebuild)
    }

    fn send_at(&self, index: u16) -> u64 {
        u64::from(self.message_bytes) * u64::from(index)
    }

    fn receive_at(&self, index: u16) -> u64 {
        u64::from(self.message_bytes) * (self.depth() + u64::from(index))
    }

    /// Sends a request with `data` behind it, or adds a call to the batch that is being collected. Returns whether there
    /// was room. Without room nothing is sent.
    pub(crate) fn ask<E: VerbsEndpoint>(
        &mut self,
        endpoint: &mut E,
        body: RequestBody,
        data: &[u8],
        purpose: Purpose,
    ) -> bool {
        let Some(index) = self.number() else { return false };
        let sequence = u32::from(self.pending[usize::from(index)].generation) << 16 | u32::from(index);
        let message = Request { sequence, body }.encode();
        let slot = if self.holding && data.is_empty() && matches!(purpose, Purpose::Call(_)) {
            self.pack(endpoint, &message)
        } else {
            self.close(endpoint);
            self.send_alone(endpoint, &message, data, matches!(purpose, Purpose::Recover(_)))
        };
        let Some(slot) = slot else {
            self.unused.push(index);
            return false;
        };
        let pending = &mut self.pending[usize::from(index)];
        (pending.slot, pending.purpose) = (slot, Some(purpose));
        self.slots[usize::from(slot)].unanswered += 1;
        true
    }

    /// Returns a number for a request. `None`: all numbers are in use.
    fn number(&mut self) -> Option<u16> {
        if let Some(index) = self.unused.pop() {
            return Some(index);
        }
        let index = u16::try_from(self.pending.len()).ok()?;
        self.pending.push(Pending { generation: 0, slot: 0, purpose: None });
        Some(index)
    }

    /// Sends a message with one request. Returns its slot. `None`: there is no room.
    fn send_alone<E: VerbsEndpoint>(
        &mut self,
        endpoint: &mut E,
        message: &[u8; MESSAGE_BYTES],
        data: &[u8],
        rebuild: bool,
    ) -> Option<u16> {
        let index = *self.free.last().filter(|_| self.has_room(rebuild))?;
        let at = self.send_at(index);
        let head = if data.is_empty() { sent_part(message) } else { message };
        endpoint.arena().write(at, head);
        if !data.is_empty() {
            endpoint.arena().write(at + HEAD, data);
        }
        let request = self.send_request(index, (0, head.len() + data.len()));
        if !self.held.is_empty() || self.holding {
            self.held.push(request);
        } else if endpoint.post_control(std::slice::from_ref(&request)) != 1 {
            return None;
        }
        self.free.pop();
        self.slots[usize::from(index)].sending = true;
        Some(index)
    }

    /// Adds a request to the batch that is being collected. Returns the slot of its message. `None`: there is no room.
    fn pack<E: VerbsEndpoint>(&mut self, endpoint: &E, message: &[u8; MESSAGE_BYTES]) -> Option<u16> {
        let mut open = self.open;
        let added = open.as_mut().and_then(|(index, packing)| Some((*index, packing.add(message)?)));
        let (index, (at, record)) = match added {
            Some(added) => added,
            None => {
                let index = *self.free.last().filter(|_| self.has_room(false))?;
                let (_, packing) = open.insert((index, Packing::new(self.message_bytes as usize)));
                let added = packing.add(message)?;
                self.close(endpoint);
                self.free.pop();
                self.slots[usize::from(index)].sending = true;
                (index, added)
            }
        };
        self.open = open;
        endpoint.arena().write(self.send_at(index) + at as u64, record);
        Some(index)
    }

    /// Ends the message to which requests are added.
    fn close<E: VerbsEndpoint>(&mut self, endpoint: &E) {
        let Some((index, packing)) = self.open.take() else { return };
        if let Some(head) = packing.head() {
            endpoint.arena().write(self.send_at(index), &head);
        }
        let request = self.send_request(index, packing.span());
        self.held.push(request);
    }

    /// The request that sends a message: its slot, its place there and its bytes. Its id needs no generation: the slot is
    /// used again only after the completion of this request, and a session has one control queue pair.
    fn send_request(&self, index: u16, (at, bytes): (usize, usize)) -> WorkRequest {
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let local = LocalSpan { address: self.send_at(index) + at as u64, length, lkey: self.key };
        WorkRequest { id: u64::from(index), signalled: true, operation: Action::Send { local } }
    }

    /// Begins to collect requests, to be sent with one doorbell and in as few messages as carry them.
    pub(crate) fn hold(&mut self) {
        self.holding = true;
    }

    /// Stops collecting, and sends the collected requests.
    pub(crate) fn release<E: VerbsEndpoint>(&mut self, endpoint: &mut E) {
        self.close(endpoint);
        self.holding = false;
        self.send_held(endpoint);
    }

    /// Sends the collected messages, as far as the queue has room for them.
    pub(crate) fn send_held<E: VerbsEndpoint>(&mut self, endpoint: &mut E) {
        if !self.held.is_empty() && !self.holding {
            let posted = endpoint.post_control(&self.held);
            self.held.drain(..posted);
        }
    }

    /// Returns whether messages or receives wait for room on a queue.
    pub(crate) fn is_behind(&self) -> bool {
        !self.owed.is_empty() || !self.held.is_empty() && !self.holding
    }

    /// Drops the requests that were collected and not sent.
    pub(crate) fn drop_held(&mut self) {
        if !std::mem::take(&mut self.holding) {
            return;
        }
        let open = self.open.take().map(|(index, _)| index);
        let held = std::mem::take(&mut self.held);
        let dropped = held.iter().filter_map(|request| u16::try_from(request.id).ok()).chain(open);
        for slot in dropped {
            for index in 0..self.pending.len() {
                if self.pending[index].slot == slot && self.pending[index].purpose.is_some() {
                    self.answered_at(index);
                }
            }
            self.sent(slot);
        }
    }

    /// Posts the receives that wait to be posted.
    pub(crate) fn post_receives<E: VerbsEndpoint>(&mut self, endpoint: &mut E) {
        while let Some(&index) = self.owed.last() {
            let local =
                LocalSpan { address: self.receive_at(index), length: self.message_bytes, lkey: self.key };
            if endpoint.post_control_receive(&[ReceiveRequest { id: u64::from(index), local }]) != 1 {
                return;
            }
            self.owed.pop();
        }
    }

    /// Handles a completion of the control queue pair. Returns the message that has arrived, if one has. The caller
    /// takes its replies ([`Control::next_reply`]) before [`Control::post_receives`] gives the message's bytes back to
    /// the NIC.
    ///
    /// # Errors
    /// [`Error::SessionLost`]: the queue pair is in error, or the node's message cannot be decoded.
    pub(crate) fn completed<E: VerbsEndpoint>(
        &mut self,
        endpoint: &E,
        completion: &Completion,
    ) -> Result<Option<Incoming>, Error> {
        if completion.status != Status::Success {
            return Err(Error::SessionLost);
        }
        let index = u16::try_from(completion.request).ok().filter(|&index| u64::from(index) < self.depth());
        let CompletionKind::Receive { length, .. } = completion.kind else {
            index.into_iter().for_each(|index| self.sent(index));
            return Ok(None);
        };
        let index = index.ok_or(Error::SessionLost)?;
        if !self.owed.contains(&index) {
            self.owed.push(index);
        }
        let length = u64::from(length.min(self.message_bytes));
        let at = self.receive_at(index);
        let mut head = [0; PACKED_HEAD_BYTES];
        endpoint.arena().read(at, &mut head);
        let records = Records::of(head, length).map_err(|_| Error::SessionLost)?;
        Ok(Some(Incoming { at, length, records }))
    }

    /// Takes the next reply of a message out that is awaited. Replies to requests that are over are left out.
    ///
    /// # Errors
    /// [`Error::SessionLost`]: the reply cannot be decoded.
    pub(crate) fn next_reply<E: VerbsEndpoint>(
        &mut self,
        endpoint: &E,
        incoming: &mut Incoming,
    ) -> Result<Option<Arrived>, Error> {
        let Incoming { at, length, records } = incoming;
        let data = (*at + HEAD, length.saturating_sub(HEAD));
        while let Some(message) = records.read(|place, bytes| endpoint.arena().read(*at + place, bytes)) {
            let reply = Reply::decode(message).map_err(|_| Error::SessionLost)?;
            if let Some(purpose) = self.answered(reply.sequence) {
                return Ok(Some(Arrived { purpose, body: reply.body, data }));
            }
        }
        Ok(None)
    }

    fn sent(&mut self, index: u16) {
        if std::mem::take(&mut self.slots[usize::from(index)].sending) {
            self.free_if_over(index);
        }
    }

    /// Ends the request with a sequence number. `None`: there is no such request under way.
    fn answered(&mut self, sequence: u32) -> Option<Purpose> {
        let index = usize::from(u16::try_from(sequence & INDEX_MASK).ok()?);
        let pending = self.pending.get(index)?;
        if u32::from(pending.generation) != sequence >> 16 {
            return None;
        }
        self.answered_at(index)
    }

    fn answered_at(&mut self, index: usize) -> Option<Purpose> {
        let pending = &mut self.pending[index];
        let purpose = pending.purpose.take()?;
        pending.generation = pending.generation.wrapping_add(1);
        let slot = pending.slot;
        self.unused.push(u16::try_from(index).expect("numbers have 16 bits"));
        self.slots[usize::from(slot)].unanswered -= 1;
        self.free_if_over(slot);
        Some(purpose)
    }

    fn free_if_over(&mut self, index: u16) {
        let Slot { unanswered, sending } = self.slots[usize::from(index)];
        if unanswered == 0 && !sending {
            self.free.push(index);
        }
    }
}

/// A message that has arrived, and those of its replies that are not taken yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// Offset of the message in the arena.
    at: u64,
    length: u64,
    records: Records,
}
