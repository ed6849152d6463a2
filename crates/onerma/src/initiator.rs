//! A client's end of operations (1RMA §4.3, Fig. 6): command slots, two queues, and the solicitation window.
//!
//! Each operation ends exactly once, with a [`Status`] and its delays, and never later than its time-outs. The caller
//! must repeat failed operations: the initiator sends each operation once.

mod slot;

use crate::OPERATION_MAX;
use crate::arrivals::Arrivals;
use crate::atomic::Atomic;
use crate::cipher::{Counter, Sender};
use crate::deadlines::Deadlines;
use crate::keys::{OperationKey, OperationType, RegionKey};
use crate::outbox::Outbox;
use crate::packet::{AnswerSize, HEADER_BYTES, Header, Kind, parts};
use crate::regions::RegionId;
use crate::status::Status;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_planted::planted;
use slot::{Sent, Slot};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use zeroize::Zeroize;

/// Number of times that an initiator requests the outcome of a change whose answer has not arrived.
const ASKS_MAX: u32 = 3;

/// The sizes of an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitiatorLimits {
    /// Command slots: operations that may be in progress or wait.
    pub slots: u32,
    /// Bytes of the solicitation window: bytes that may be in flight to this host or be requested by responders.
    pub window: u32,
    /// Bytes of the largest packet that it sends and receives.
    pub packet_max: usize,
    /// Time that a command may wait for room in the window.
    pub dispatch_timeout: Duration,
    /// Time that an operation may wait for its answer. A change may wait twice, since it has two round trips. It must
    /// be longer than the responders' `change_timeout`, by more than their clocks and this one differ: then a change
    /// that has timed out here has either happened or never will (1RMA §5.1). The initiator then requests the outcome,
    /// three times at most, and waits as long for each answer.
    pub timeout: Duration,
}

/// A command slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SlotId(pub u32);

/// The classes of service, each with a queue of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ServiceClass {
    /// Served first.
    Latency,
    /// Served when no command of the other class waits.
    Bulk,
}

/// The destination of an operation, and the key for the region there.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The node.
    pub address: SocketAddr,
    /// The node's number for this client.
    pub client: u64,
    /// The region.
    pub region: RegionId,
    /// The key for this client, set up once for all its operations on the region.
    pub key: OperationKey,
}

/// The kind of an operation, with its data.
#[derive(Clone, Debug)]
pub enum Action {
    /// Reads this many bytes: 1 to [`OPERATION_MAX`].
    Read(usize),
    /// Writes these 1 to [`OPERATION_MAX`] bytes.
    Write(Vec<u8>),
    /// Performs this atomic on a word. 1RMA has no atomics.
    Atomic(Atomic),
    /// Gives the region another key (1RMA §5.2). The command's address is 0.
    Rekey(RegionKey),
}

impl Action {
    /// Returns the type of the operation.
    #[must_use]
    pub fn operation(&self) -> OperationType {
        match self {
            Self::Read(_) => OperationType::Read,
            Self::Write(_) => OperationType::Write,
            Self::Atomic(_) => OperationType::Atomic,
            Self::Rekey(_) => OperationType::Rekey,
        }
    }

    /// Returns the number of bytes in the operation's packets, and the bytes themselves if the initiator sends them.
    fn into_data(self) -> (usize, Vec<u8>) {
        let data = match self {
            Self::Read(length) => return (length, Vec::new()),
            Self::Write(data) => data,
            Self::Atomic(atomic) => atomic.encode().to_vec(),
            Self::Rekey(key) => key.to_bytes().to_vec(),
        };
        (data.len(), data)
    }

    /// Returns the number of bytes that it moves. An action on a word or a key counts as one byte.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Read(length) => *length,
            Self::Write(data) => data.len(),
            Self::Atomic(_) | Self::Rekey(_) => 1,
        }
    }
}

/// A request for an operation.
#[derive(Clone, Debug)]
pub struct Command {
    /// The kind of the operation.
    pub action: Action,
    /// The destination.
    pub to: Destination,
    /// The address of the first byte, from the start of the region.
    pub address: u64,
    /// The class of service.
    pub class: ServiceClass,
}

/// Limits of a single operation. The initiator's limits bound both: datagrams are no longer, and time-outs no shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Bytes of the largest datagram that it sends and receives.
    pub datagram_max: usize,
    /// Time that it waits for its answer, as for [`InitiatorLimits::timeout`].
    pub timeout: Duration,
}

/// Reason for which a command was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotIssued {
    /// All command slots are taken.
    #[error("all {0} command slots are taken: complete some first")]
    NoSlot(u32),
    /// The length is not allowed.
    #[error("an operation moves 1 to {OPERATION_MAX} bytes, not {0}")]
    Length(usize),
}

impl Coded for NotIssued {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoSlot(_) => ErrorCode::QueueFull,
            Self::Length(_) => ErrorCode::InvalidArgument,
        }
    }
}

/// The end of an operation (1RMA §4.5).
#[derive(Clone, Debug)]
pub struct Completion {
    /// The slot that the command had, which is free again.
    pub slot: SlotId,
    /// The status with which it ended.
    pub status: Status,
    /// Time from the command to its request.
    pub issue_delay: Duration,
    /// Time from the command to its end.
    pub total_delay: Duration,
    /// Whether the change may have happened although the status is a failure. If `false`, it has not happened and never
    /// will.
    pub is_uncertain: bool,
    /// The former word, if an atomic has succeeded.
    pub before: Option<u64>,
}

/// A part of the data of a read, from a packet that the key has opened. The caller stores it: nothing else keeps it. The
/// read may still fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadData<'a, Id> {
    /// The read.
    pub of: Id,
    /// The offset of the first byte, from the start of the read.
    pub offset: usize,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A client's end of all its operations.
#[derive(Debug)]
pub struct Initiator {
    limits: InitiatorLimits,
    counter: Counter,
    slots: Vec<Option<Slot>>,
    free: Vec<SlotId>,
    /// Waiting commands, oldest first: those of `Latency` and those of `Bulk`.
    queues: [VecDeque<SlotId>; 2],
    /// Remaining bytes of the solicitation window.
    window: u32,
    deadlines: Deadlines,
    out: Outbox,
    completions: VecDeque<Completion>,
}

impl Initiator {
    /// Creates an initiator without commands.
    ///
    /// # Panics
    /// The window is smaller than the largest operation, which could never be sent then.
    #[must_use]
    pub fn new(limits: InitiatorLimits) -> Self {
        assert!(limits.window >= OPERATION_MAX, "the largest operation has room in the window");
        Self {
            limits,
            counter: Counter::new(),
            slots: (0..limits.slots).map(|_| None).collect(),
            free: (0..limits.slots).rev().map(SlotId).collect(),
            queues: [VecDeque::new(), VecDeque::new()],
            window: limits.window,
            deadlines: Deadlines::new(limits.slots),
            out: Outbox::new(Sender::Initiator),
            completions: VecDeque::new(),
        }
    }

    /// Number of operations that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Time that an operation waits for its answer, unless its terms have a longer one.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.limits.timeout
    }

    /// Whether a command can be accepted.
    #[must_use]
    pub fn has_free_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Accepts a command. It is sent as soon as the window has room.
    ///
    /// # Errors
    /// There is no free slot, or the length is not allowed. The command is returned.
    pub fn issue(&mut self, command: Command, now: Duration) -> Result<SlotId, (NotIssued, Box<Command>)> {
        let InitiatorLimits { packet_max, timeout, .. } = self.limits;
        self.issue_on(command, Terms { datagram_max: packet_max, timeout }, now)
    }

    /// Accepts a command with terms of its own: for an operation that may use less than the initiator's limits allow,
    /// or may wait longer.
    ///
    /// # Errors
    /// The errors of [`issue`](Self::issue).
    pub fn issue_on(
        &mut self,
        command: Command,
        terms: Terms,
        now: Duration,
    ) -> Result<SlotId, (NotIssued, Box<Command>)> {
        let terms = Terms {
            datagram_max: terms.datagram_max.min(self.limits.packet_max),
            timeout: terms.timeout.max(self.limits.timeout),
        };
        let length = command.action.length();
        if length == 0 || length > OPERATION_MAX as usize {
            return Err((NotIssued::Length(length), Box::new(command)));
        }
        let Some(slot) = self.free.pop() else {
            return Err((NotIssued::NoSlot(self.limits.slots), Box::new(command)));
        };
        let Command { action, to, address, class } = command;
        let operation = action.operation();
        let (length, data) = action.into_data();
        let Destination { address: to, client, region, key } = to;
        let entry = Slot {
            operation,
            to,
            client,
            region,
            key,
            address,
            length: u32::try_from(length).expect("a longer command is not taken"),
            data,
            class,
            issued: now,
            terms,
            sent: None,
        };
        self.slots[slot.0 as usize] = Some(entry);
        self.queues[class as usize].push_back(slot);
        self.dispatch(now);
        Ok(slot)
    }

    /// Appends the next packet to send to `packet`, and returns its destination.
    pub fn poll_transmit(&mut self, packet: &mut Vec<u8>) -> Option<SocketAddr> {
        self.out.poll(packet)
    }

    /// Returns the next operation that has ended.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has work to do next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let waiting = self.queues.iter().filter_map(VecDeque::front);
        let dispatch = waiting.map(|&slot| self.slot(slot).issued + self.limits.dispatch_timeout).min();
        let answer = self.deadlines.first().map(|(deadline, _)| deadline);
        dispatch.into_iter().chain(answer).min()
    }

    /// Ends the operations that have timed out.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((deadline, slot)) = self.deadlines.first()
            && deadline <= now
        {
            self.run_out(slot, now);
        }
        for class in 0..self.queues.len() {
            while let Some(&slot) = self.queues[class].front()
                && self.slot(slot).issued + self.limits.dispatch_timeout <= now
            {
                self.end(slot, Status::DispatchTimeout, now);
            }
        }
        self.dispatch(now);
    }

    /// Handles a packet, which is decrypted in place. Returns its data if it is a part of a read. A packet that does not
    /// answer an operation in progress changes nothing.
    pub fn handle_packet<'a>(
        &mut self,
        from: SocketAddr,
        packet: &'a mut [u8],
        now: Duration,
    ) -> Option<ReadData<'a, SlotId>> {
        let (header, _) = Header::parse(packet)?;
        let slot_id = SlotId(header.slot);
        let slot = self.slots.get(header.slot as usize)?.as_ref()?;
        // A slot has had earlier operations.
        let sent = slot.sent.as_ref().filter(|sent| sent.number == header.operation)?;
        if !slot.is_answer(from, &header) {
            return None;
        }
        // Once a change's data is in flight the change may happen. An attacker on the path can repeat or alter its
        // request, and a refusal of that copy is no evidence about the change.
        let is_decided_by_data = sent.salt != 0 && !planted!(CopysRefusalBelieved);
        if header.kind == Kind::Unknown {
            // It is not sealed, so an attacker that sees the request can forge it, just as it could drop the request.
            if !is_decided_by_data {
                self.end(slot_id, Status::RemoteAuthenticationFailure, now);
                self.dispatch(now);
            }
            return None;
        }
        let (head, body) = packet.split_at_mut(HEADER_BYTES);
        let body = slot.key.cipher().open(Sender::Responder, header.counter, head, body)?;
        let mut data = None;
        let ended = match header.kind {
            Kind::ReadData => {
                data = Some(ReadData { of: slot_id, offset: header.offset as usize, bytes: body });
                self.note_data(slot_id, &header, body.len())
            }
            Kind::Solicit => {
                self.send_data(slot_id, &header, now);
                None
            }
            Kind::Done => self.take_done(slot_id, &header, body),
            Kind::NotDone => self.take_fate(slot_id, &header, false),
            Kind::Forgotten => self.take_fate(slot_id, &header, true),
            Kind::Nack => (!is_decided_by_data).then_some(Status::Nack),
            // Requests come from initiators.
            _ => None,
        };
        if let Some(status) = ended {
            self.end(slot_id, status, now);
            self.dispatch(now);
        }
        data
    }

    fn slot(&self, slot: SlotId) -> &Slot {
        self.slots[slot.0 as usize].as_ref().expect("a slot in use has a command")
    }

    fn slot_mut(&mut self, slot: SlotId) -> &mut Slot {
        self.slots[slot.0 as usize].as_mut().expect("a slot in use has a command")
    }

    fn sent(&self, slot: SlotId) -> Option<&Sent> {
        self.slot(slot).sent.as_ref()
    }

    /// Sends requests while the window has room for the largest operation, so that small operations do not starve large
    /// ones (1RMA §3.1).
    fn dispatch(&mut self, now: Duration) {
        while self.window >= OPERATION_MAX {
            let Some(queue) = self.queues.iter_mut().find(|queue| !queue.is_empty()) else { return };
            // An initiator that has sent 2⁶⁴ packets sends none any more: its commands time out.
            let Some(number) = self.counter.next() else { return };
            let slot = queue.pop_front().expect("it is not empty");
            self.request(slot, number, now);
        }
    }

    fn request(&mut self, id: SlotId, number: u64, now: Duration) {
        let Self { slots, out, .. } = self;
        let slot = slots[id.0 as usize].as_mut().expect("a slot in use has a command");
        let deadline = now + slot.terms.timeout;
        let answers = AnswerSize::of(slot.terms.datagram_max);
        let header = Header { answers, ..slot.header(Kind::Request, id, number, (number, 0)) };
        out.seal(slot.to, slot.key.cipher(), &header, 0, |_| {});
        let arrivals = Arrivals::default();
        slot.sent = Some(Sent { number, at: now, arrivals, salt: 0, asks: 0, before: None });
        self.window -= slot.length;
        if !(slot.operation == OperationType::Read && planted!(DeadlineForgotten)) {
            self.deadlines.set(id, deadline);
        }
    }

    /// Notes the arrival of a part of the data of a read.
    fn note_data(&mut self, id: SlotId, header: &Header, body: usize) -> Option<Status> {
        let slot = self.slot_mut(id);
        let length = slot.length;
        let sent = slot.sent.as_mut()?;
        let end = header.offset + u32::try_from(body).expect("a body is shorter than an operation");
        if header.offset == 0 && end == length {
            return Some(Status::Ok);
        }
        sent.arrivals.add(header.offset, end);
        sent.arrivals.is_all(length).then_some(Status::Ok)
    }

    /// Handles the notice that a change has happened, with the salt for which its data was sent.
    fn take_done(&mut self, id: SlotId, header: &Header, body: &[u8]) -> Option<Status> {
        let sent = self.slot_mut(id).sent.as_mut().filter(|sent| sent.salt == header.salt)?;
        sent.before = body.try_into().ok().map(u64::from_le_bytes);
        Some(Status::Ok)
    }

    /// Handles the responder's reply that a change has not happened, or that the outcome is not known any more.
    fn take_fate(&mut self, id: SlotId, header: &Header, may_have_happened: bool) -> Option<Status> {
        let sent = self.slot_mut(id).sent.as_mut().filter(|it| it.salt != 0 && it.salt == header.salt)?;
        if may_have_happened {
            return Some(Status::Timeout);
        }
        sent.salt = 0;
        // The initiator has not requested the outcome: the permission has ended while the data was in flight. That is
        // no sign of congestion, and a repeat would end in the same way.
        Some(if sent.asks == 0 { Status::RemoteAuthenticationFailure } else { Status::Timeout })
    }

    /// Handles an operation's time-out. The responder may still know the outcome of a change whose data was sent.
    fn run_out(&mut self, id: SlotId, now: Duration) {
        let deadline = now + self.limits.timeout;
        let Self { slots, counter, out, deadlines, .. } = self;
        let slot = slots[id.0 as usize].as_mut().expect("a slot in use has a command");
        let asking = slot.sent.as_mut().filter(|sent| sent.salt != 0 && sent.asks < ASKS_MAX);
        let (Some(sent), Some(number)) = (asking, counter.next()) else {
            self.end(id, Status::Timeout, now);
            return;
        };
        sent.asks += 1;
        deadlines.set(id, deadline);
        let names = (sent.number, sent.salt);
        let ask = slot.header(Kind::Ask, id, number, names);
        out.seal(slot.to, slot.key.cipher(), &ask, 0, |_| {});
    }

    /// Handles the responder's request for the data of a change: sends it, once.
    fn send_data(&mut self, id: SlotId, header: &Header, now: Duration) {
        let is_asked = self.slot(id).operation.is_change()
            && header.salt == header.counter
            && self.sent(id).is_some_and(|sent| sent.salt == 0);
        if !is_asked {
            return;
        }
        let Self { slots, counter, out, deadlines, .. } = self;
        let slot = slots[id.0 as usize].as_mut().expect("a slot in use has a command");
        let sent = slot.sent.as_mut().expect("a requested command was sent");
        let Terms { datagram_max, timeout } = slot.terms;
        let deadline = now + timeout;
        sent.salt = header.salt;
        // The responder has begun to wait before now, so its time-out is over before that of this operation.
        deadlines.set(id, deadline);
        let names = (header.operation, header.salt);
        for (offset, length) in parts(slot.length, datagram_max) {
            let Some(number) = counter.next() else { return };
            let data = &slot.data[offset as usize..(offset + length) as usize];
            let packet = Header { offset, ..slot.header(Kind::ChangeData, id, number, names) };
            out.seal(slot.to, slot.key.cipher(), &packet, data.len(), |body| body.copy_from_slice(data));
        }
    }

    fn end(&mut self, id: SlotId, status: Status, now: Duration) {
        let mut slot = self.slots[id.0 as usize].take().expect("a slot in use has a command");
        let is_uncertain = status == Status::Timeout && slot.sent.as_ref().is_some_and(|it| it.salt != 0);
        let before = slot.sent.as_ref().and_then(|sent| sent.before).filter(|_| status == Status::Ok);
        if matches!(slot.operation, OperationType::Atomic | OperationType::Rekey) {
            slot.data.zeroize();
        }
        let started = match &slot.sent {
            Some(sent) => {
                self.deadlines.remove(id);
                self.window += if planted!(WindowNotRefunded) { 0 } else { slot.length };
                sent.at
            }
            None => {
                self.queues[slot.class as usize].retain(|&waiting| waiting != id);
                now
            }
        };
        self.free.push(id);
        self.completions.push_back(Completion {
            slot: id,
            status,
            issue_delay: started.saturating_sub(slot.issued),
            total_delay: now.saturating_sub(slot.issued),
            is_uncertain,
            before,
        });
    }
}
