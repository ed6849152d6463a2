//! Control messages: their slots in the arena, and the matching of replies to requests.

use crate::Error;
use portcullis_nic::{
    Completion, CompletionKind, Lkey, LocalSpan, Memory, Operation as Action, ReceiveRequest, Status,
    VerbsEndpoint, WorkRequest,
};
use portcullis_protocol::{
    MESSAGE_BYTES, Reply, ReplyBody, Request, RequestBody, received_message, sent_part,
};

/// Bytes of a control message before its data.
const HEAD: u64 = MESSAGE_BYTES as u64;

/// The part of a sequence number that names the slot; the rest is its generation.
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

struct Slot {
    generation: u16,
    purpose: Option<Purpose>,
    /// Whether the NIC still needs the bytes.
    sending: bool,
}

/// The control queue pair of a client.
pub(crate) struct Control {
    key: Lkey,
    message_bytes: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots of receives that wait to be posted.
    owed: Vec<u16>,
    /// Requests of a batch that is being collected, and those of a posted batch that the queue had no room for.
    held: Vec<WorkRequest>,
    /// Whether requests are being collected.
    holding: bool,
}

impl Control {
    pub(crate) fn new(endpoint: &impl VerbsEndpoint) -> Self {
        let depth = u16::try_from(endpoint.size().control_depth).unwrap_or(u16::MAX);
        let slot = |_| Slot { generation: 0, purpose: None, sending: false };
        Self {
            key: endpoint.arena_key(),
            message_bytes: endpoint.size().message_bytes,
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            owed: (0..depth).collect(),
            held: Vec::new(),
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

    pub(crate) fn full(&self) -> Error {
        Error::QueueFull { limit: self.depth() - self.kept_for(false) as u64 }
    }

    fn depth(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Number of slots that stay free for requests for rebuilds. Calls may wait for other clients without a limit, and
    /// a broken data queue pair carries nothing before its rebuild.
    fn kept_for(&self, rebuild: bool) -> usize {
        usize::from(!rebuild && self.slots.len() > 1)
    }

    /// Returns how many requests other than for rebuilds can be sent now.
    pub(crate) fn room(&self) -> usize {
        self.free.len().saturating_sub(self.kept_for(false))
    }

    /// Returns how many requests other than for rebuilds can be under way at once.
    pub(crate) fn room_at_most(&self) -> usize {
        self.slots.len() - self.kept_for(false)
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

    /// Sends a request with `data` behind it. Returns whether there was room. Without room nothing is sent.
    pub(crate) fn ask<E: VerbsEndpoint>(
        &mut self,
        endpoint: &mut E,
        body: RequestBody,
        data: &[u8],
        purpose: Purpose,
    ) -> bool {
        let rebuild = matches!(purpose, Purpose::Recover(_));
        let Some(&index) = self.free.last().filter(|_| self.has_room(rebuild)) else { return false };
        let at = self.send_at(index);
        let generation = self.slots[usize::from(index)].generation;
        let sequence = u32::from(generation) << 16 | u32::from(index);
        let message = Request { sequence, body }.encode();
        let head = if data.is_empty() { sent_part(&message) } else { &message };
        endpoint.arena().write(at, head);
        if !data.is_empty() {
            endpoint.arena().write(at + HEAD, data);
        }
        let length = u32::try_from(head.len() + data.len()).unwrap_or(u32::MAX);
        let local = LocalSpan { address: at, length, lkey: self.key };
        let operation = Action::Send { local };
        let request = WorkRequest { id: u64::from(sequence), signalled: true, operation };
        if self.holding || !self.held.is_empty() {
            self.held.push(request);
        } else if endpoint.post_control(std::slice::from_ref(&request)) != 1 {
            return false;
        }
        self.free.pop();
        let slot = &mut self.slots[usize::from(index)];
        slot.purpose = Some(purpose);
        slot.sending = true;
        true
    }

    /// Begins to collect requests, to be sent with one doorbell.
    pub(crate) fn hold(&mut self) {
        self.holding = true;
    }

    /// Stops collecting, and sends the collected requests.
    pub(crate) fn release<E: VerbsEndpoint>(&mut self, endpoint: &mut E) {
        self.holding = false;
        self.send_held(endpoint);
    }

    /// Sends the collected requests, as far as the queue has room for them.
    pub(crate) fn send_held<E: VerbsEndpoint>(&mut self, endpoint: &mut E) {
        if !self.held.is_empty() && !self.holding {
            let posted = endpoint.post_control(&self.held);
            self.held.drain(..posted);
        }
    }

    /// Returns whether requests or receives wait for room on a queue.
    pub(crate) fn is_behind(&self) -> bool {
        !self.owed.is_empty() || !self.held.is_empty() && !self.holding
    }

    /// Drops the requests that were collected and not sent.
    pub(crate) fn drop_held(&mut self) {
        if !std::mem::take(&mut self.holding) {
            return;
        }
        for request in std::mem::take(&mut self.held) {
            let Ok(sequence) = u32::try_from(request.id) else { continue };
            self.answered(sequence);
            self.sent(sequence);
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

    /// Handles a completion of the control queue pair. The result must be acted on before [`Control::post_receives`],
    /// which gives the message's bytes back to the NIC.
    ///
    /// # Errors
    /// [`Error::SessionLost`]: the queue pair is in error, or the node's message cannot be decoded.
    pub(crate) fn completed<E: VerbsEndpoint>(
        &mut self,
        endpoint: &E,
        completion: &Completion,
    ) -> Result<Option<Arrived>, Error> {
        if completion.status != Status::Success {
            return Err(Error::SessionLost);
        }
        let CompletionKind::Receive { length, .. } = completion.kind else {
            if let Ok(sequence) = u32::try_from(completion.request) {
                self.sent(sequence);
            }
            return Ok(None);
        };
        let index = u16::try_from(completion.request).ok().filter(|&index| u64::from(index) < self.depth());
        let index = index.ok_or(Error::SessionLost)?;
        if !self.owed.contains(&index) {
            self.owed.push(index);
        }
        let length = u64::from(length.min(self.message_bytes));
        let data = length.saturating_sub(HEAD);
        let at = self.receive_at(index);
        let message = received_message(length, |bytes| endpoint.arena().read(at, bytes));
        let reply = Reply::decode(message.ok_or(Error::SessionLost)?).map_err(|_| Error::SessionLost)?;
        let Some(purpose) = self.answered(reply.sequence) else { return Ok(None) };
        Ok(Some(Arrived { purpose, body: reply.body, data: (at + HEAD, data) }))
    }

    /// The slot that a sequence number names. `None`: there is no such slot, or another request uses it now.
    fn slot(&mut self, sequence: u32) -> Option<(u16, &mut Slot)> {
        let index = u16::try_from(sequence & INDEX_MASK).ok()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        (u32::from(slot.generation) == sequence >> 16).then_some((index, slot))
    }

    fn sent(&mut self, sequence: u32) {
        if let Some((index, slot)) = self.slot(sequence)
            && slot.sending
        {
            slot.sending = false;
            self.free_if_over(index);
        }
    }

    fn answered(&mut self, sequence: u32) -> Option<Purpose> {
        let (index, slot) = self.slot(sequence)?;
        let purpose = slot.purpose.take()?;
        self.free_if_over(index);
        Some(purpose)
    }

    fn free_if_over(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        if slot.purpose.is_none() && !slot.sending {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }
}
