//! A node's end of operations (1RMA §4.2, §5.1).
//!
//! Nothing is done for a packet that was not authenticated, except that its sender is told so with fewer bytes than it sent.
//! A read is served from a bounded queue. A change (a write, an atomic, a rekey) happens only when all its data has come for
//! a salt that this responder has drawn for this one time, and within a time-out: whoever repeats packets repeats nothing.
//! What is kept of an operation goes with the operation, but for the outcome of the latest changes: their clients may ask.
//! Keys are derived for each packet and go with its operation. Reads of one holder that wait one behind another share the
//! key that the first of them was opened with: it is there as long as they wait, and no longer.

mod changes;

use crate::atomic::{Atomic, WORD_BYTES};
use crate::cipher::{Cipher, Counter, Sender};
use crate::keys::{HostAddress, OperationType, RegionKey};
use crate::outbox::Outbox;
use crate::packet::{HEADER_BYTES, Header, Kind, parts};
use crate::probe;
use crate::regions::{RegionId, RegionTable};
use changes::{Begun, Change, Changes, Fate, Finished};
use portcullis_memory::Memory;
use portcullis_nic::{Access, AccessFault, RefusedAccess, RemoteAddress, Rkey};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{ClientId, RegionName, SealedPacket};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroize;

/// Refusals that are kept for [`Responder::poll_refusal`].
const REFUSALS_MAX: usize = 256;

/// The sizes of a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderLimits {
    /// Bytes of the largest packet that it sends.
    pub packet_max: usize,
    /// Bytes of the reads that may wait. Beyond that requests are NACKed (1RMA §6.1).
    pub waiting_max: u64,
    /// Changes that may be under way.
    pub changes_max: usize,
    /// Changes that one client may have under way.
    pub client_changes_max: usize,
    /// How long a change may be under way.
    pub change_timeout: Duration,
    /// Changes that are remembered when they have happened. Clients whose answers were lost ask for them: whoever asks too
    /// late is told that it is not known any more.
    pub finished_max: usize,
}

/// What a responder has counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ResponderCounters {
    /// Packets that no client of this protocol sends.
    pub malformed: u64,
    /// Requests under a key that the responder does not know, or for what their key does not open.
    pub refused: u64,
    /// Requests that were NACKed.
    pub nacks: u64,
    /// Packets of changes that were not wanted: repeated, too late, or of somebody else.
    pub unwanted: u64,
    /// Reads served.
    pub reads: u64,
    /// Writes carried out.
    pub writes: u64,
    /// Atomics carried out.
    pub atomics: u64,
    /// Regions that were given another key by clients.
    pub rekeys: u64,
    /// Changes that were begun and ran out of time.
    pub changes_timed_out: u64,
}

/// An access that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Where the packet came from.
    pub from: HostAddress,
    /// Whose it says that it is. Only if the packet is authentic that is the client.
    pub client: u64,
    /// What it was for.
    pub region: RegionId,
    /// The packet's counter. Copies of the packet have the same one.
    pub counter: u64,
    /// The type of the operation.
    pub operation: OperationType,
    /// Its first byte, as the initiator names it.
    pub address: u64,
    /// Its bytes.
    pub length: u32,
    /// Why it was refused.
    pub cause: RefusalCause,
}

/// The cause of a refusal, which decides whether the node may charge the client for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RefusalCause {
    /// No key that the node knows has sealed it: anybody may have sent it.
    Unproven,
    /// Its client's key was right, until the region ended. Somebody on the path may have sent a copy.
    Ended,
    /// Its client's key is right, and the region does not allow such operations.
    Right,
    /// Its client's key is right, and not all of its bytes are in the region.
    Range,
    /// Its client's key is right, and it is an atomic on no word.
    Alignment,
}

impl Refused {
    /// Whom the node may charge, with which packet, and for what. `None`: no key has sealed it, so anybody may have sent it.
    #[must_use]
    pub fn to_charge(&self) -> Option<(ClientId, SealedPacket, RefusedAccess)> {
        let fault = match self.cause {
            RefusalCause::Unproven if !planted::is(Fault::UnprovenCharged) => return None,
            RefusalCause::Ended => AccessFault::StaleKey,
            RefusalCause::Unproven | RefusalCause::Right => AccessFault::MissingRight,
            RefusalCause::Range => AccessFault::OutsideRange,
            RefusalCause::Alignment => AccessFault::Misaligned,
        };
        let needs = match self.operation {
            OperationType::Read => Access::REMOTE_READ,
            OperationType::Write => Access::REMOTE_WRITE,
            OperationType::Atomic | OperationType::Rekey => Access::REMOTE_ATOMIC,
        };
        let region = RegionName { index: self.region.index, generation: self.region.generation };
        let access = RefusedAccess {
            address: RemoteAddress(self.address),
            length: self.length.into(),
            needs,
            rkey: Rkey(region.index),
            fault,
        };
        Some((ClientId(self.client), SealedPacket { region, counter: self.counter }, access))
    }
}

/// A read that waits to be served.
#[derive(Debug)]
struct WaitingRead {
    to: SocketAddr,
    header: Header,
    cipher: Arc<Cipher>,
    /// What the region's version was when the request was authenticated, and where its bytes were.
    version: u64,
    place: u64,
}

/// A node's end of all operations on its memory.
#[derive(Debug)]
pub struct Responder<M> {
    memory: M,
    regions: RegionTable,
    limits: ResponderLimits,
    counter: Counter,
    reads: VecDeque<WaitingRead>,
    waiting: u64,
    changes: Changes,
    finished: Finished,
    out: Outbox,
    refusals: VecDeque<Refused>,
    counters: ResponderCounters,
}

impl<M: Memory> Responder<M> {
    /// A responder for `memory` with the regions of a table.
    #[must_use]
    pub fn new(memory: M, regions: RegionTable, limits: ResponderLimits) -> Self {
        Self {
            memory,
            regions,
            limits,
            counter: Counter::new(),
            reads: VecDeque::new(),
            waiting: 0,
            changes: Changes::new(limits.changes_max, limits.client_changes_max),
            finished: Finished::new(limits.finished_max),
            out: Outbox::new(Sender::Responder),
            refusals: VecDeque::new(),
            counters: ResponderCounters::default(),
        }
    }

    /// Its regions.
    pub fn regions(&mut self) -> &mut RegionTable {
        &mut self.regions
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> ResponderCounters {
        self.counters
    }

    /// The next access that was refused. If nobody asks, the oldest are forgotten.
    pub fn poll_refusal(&mut self) -> Option<Refused> {
        self.refusals.pop_front()
    }

    /// Takes a packet in. It is decrypted in place. Returns whether a holder of one of the responder's keys has sealed it:
    /// nobody else could have, but somebody may have sent a copy.
    pub fn handle_packet(&mut self, from: SocketAddr, packet: &mut [u8], now: Duration) -> bool {
        if packet.len() <= self.limits.packet_max && probe::answer(packet) {
            self.out.add_bytes(from, packet);
            if planted::is(Fault::ProbeAnsweredTwice) {
                self.out.add_bytes(from, packet);
            }
            return false;
        }
        let parsed = Header::parse(packet).filter(|(header, _)| header.kind.is_to_responder());
        let Some((header, _)) = parsed else {
            self.counters.malformed += 1;
            return false;
        };
        if header.kind == Kind::ChangeData && !self.changes.wants(&header, from, now) {
            self.counters.unwanted += 1;
            return false;
        }
        let Some(cipher) = self.latest_key(from, &header).or_else(|| self.derive_key(from, &header)) else {
            return self.reject(from, &header, packet);
        };
        let (head, body) = packet.split_at_mut(HEADER_BYTES);
        let Some(body) = cipher.open(Sender::Initiator, header.counter, head, body) else {
            self.turn_away(from, &header, RefusalCause::Unproven);
            return false;
        };
        match header.kind {
            Kind::Request if header.of.is_change() => self.begin_change(from, header, &cipher, now),
            Kind::Request => {
                if let Some((version, place)) = self.admit_read(from, &header, &cipher) {
                    self.reads.push_back(WaitingRead { to: from, header, cipher, version, place });
                }
            }
            Kind::Ask => self.tell(from, &header, &cipher),
            _ => self.go_on_with_change(from, &header, &cipher, body),
        }
        true
    }

    /// Appends the next packet to send to `packet`, and returns where it goes.
    pub fn poll_transmit(&mut self, packet: &mut Vec<u8>) -> Option<SocketAddr> {
        while self.out.is_empty() {
            self.serve_next()?;
        }
        self.out.poll(packet)
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.changes.next_deadline()
    }

    /// Lets go what has run out of time: nothing of it happens any more.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.counters.changes_timed_out += self.changes.expire(now);
    }

    /// The key of a packet.
    fn derive_key(&self, from: SocketAddr, header: &Header) -> Option<Arc<Cipher>> {
        let initiator = HostAddress::from(from.ip());
        let derived = self.regions.derive(header.region, initiator, header.client)?;
        Some(Arc::new(derived.cipher()))
    }

    /// The key of the read that came latest, if it still waits and all terms of its key are those of this packet. A holder
    /// with many reads under way has them opened under a key that is set up once for those that came together.
    fn latest_key(&self, from: SocketAddr, header: &Header) -> Option<Arc<Cipher>> {
        let WaitingRead { to, header: latest, cipher, version, .. } = self.reads.back()?;
        let is_of_one_holder =
            to.ip() == from.ip() && (latest.client, latest.region) == (header.client, header.region);
        // The version stands for the region's own terms and its key.
        let is_one_key = is_of_one_holder && self.regions.version(header.region) == Some(*version);
        is_one_key.then(|| cipher.clone())
    }

    /// There is no such region. It may have ended a moment ago. Returns whether its key has sealed the packet.
    fn reject(&mut self, from: SocketAddr, header: &Header, packet: &mut [u8]) -> bool {
        let ended = self.regions.derive_ended(header.region, from.ip().into(), header.client);
        let Some(cipher) = ended.map(|key| key.cipher()) else {
            self.turn_away(from, header, RefusalCause::Unproven);
            return false;
        };
        let (head, body) = packet.split_at_mut(HEADER_BYTES);
        let is_late = cipher.open(Sender::Initiator, header.counter, head, body).is_some();
        match (is_late, header.kind) {
            (false, _) => self.turn_away(from, header, RefusalCause::Unproven),
            (true, Kind::Request) => self.refuse(from, header, RefusalCause::Ended),
            // Its client need not wait for its time-outs.
            (true, _) => self.tell(from, header, &cipher),
        }
        is_late
    }

    /// A packet is not to be acted upon.
    fn turn_away(&mut self, from: SocketAddr, header: &Header, cause: RefusalCause) {
        if header.kind == Kind::Request {
            self.refuse(from, header, cause);
        } else {
            // Who may have made up the packet is told nothing about changes of others.
            self.counters.unwanted += 1;
        }
    }

    fn refuse(&mut self, to: SocketAddr, header: &Header, cause: RefusalCause) {
        self.note_refusal(to, header, cause);
        // Not sealed, so its counter means nothing.
        let answer = Header { kind: Kind::Unknown, salt: 0, offset: 0, ..*header };
        self.out.add_bare(to, &answer);
    }

    fn note_refusal(&mut self, to: SocketAddr, header: &Header, cause: RefusalCause) {
        self.counters.refused += 1;
        if self.refusals.len() == REFUSALS_MAX {
            self.refusals.pop_front();
        }
        let Header { client, region, counter, of: operation, address, length, .. } = *header;
        let from = to.ip().into();
        let refused = Refused { from, client, region, counter, operation, address, length, cause };
        self.refusals.push_back(refused);
    }

    /// Whether a read may wait to be served: then its bytes count, and the region's version and the bytes' place are returned.
    fn admit_read(&mut self, from: SocketAddr, header: &Header, cipher: &Cipher) -> Option<(u64, u64)> {
        let place = match place(&self.regions, header) {
            Ok(place) => place,
            Err(cause) => {
                self.refuse(from, header, cause);
                return None;
            }
        };
        let version = self.regions.version(header.region)?;
        if self.waiting + u64::from(header.length) > self.limits.waiting_max {
            self.nack(from, header, cipher);
            return None;
        }
        self.waiting += u64::from(header.length);
        Some((version, place))
    }

    fn nack(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher) {
        self.counters.nacks += 1;
        self.answer(to, &Header { kind: Kind::Nack, salt: 0, ..*header }, cipher, &[]);
    }

    /// Seals a packet under a counter of its own, and has it sent.
    fn answer(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher, body: &[u8]) {
        // A responder that has sent 2⁶⁴ packets sends none any more.
        let Some(counter) = self.counter.next() else { return };
        self.answer_as(counter, to, header, cipher, body);
    }

    fn answer_as(&mut self, counter: u64, to: SocketAddr, header: &Header, cipher: &Cipher, body: &[u8]) {
        let header = Header { counter, ..*header };
        self.out.seal(to, cipher, &header, body.len(), |room| room.copy_from_slice(body));
    }

    /// Sends what the read that has waited for longest has asked for. `None`: none waits.
    fn serve_next(&mut self) -> Option<()> {
        let WaitingRead { to, header, cipher, version, place } = self.reads.front()?;
        self.waiting -= u64::from(header.length);
        // A region keeps its bytes for as long as it has its version.
        let is_live = self.regions.version(header.region) == Some(*version);
        if is_live || planted::is(Fault::WaitingReadServedLate) {
            self.counters.reads += 1;
            let mut first = None;
            for (offset, length) in parts(header.length, self.limits.packet_max.min(header.answers.bytes())) {
                // A responder that has sent 2⁶⁴ packets sends none any more.
                let Some(counter) = self.counter.next() else { break };
                let first = *first.get_or_insert(counter);
                let counter = if planted::is(Fault::PartsShareCounter) { first } else { counter };
                let part = Header { kind: Kind::ReadData, offset, counter, ..*header };
                let fill = |body: &mut [u8]| self.memory.read(place + u64::from(offset), body);
                self.out.seal(*to, cipher, &part, length as usize, fill);
            }
        } else {
            // The permission has ended while the read waited.
            let (to, header) = (*to, *header);
            self.refuse(to, &header, RefusalCause::Ended);
        }
        self.reads.pop_front();
        Some(())
    }

    fn begin_change(&mut self, from: SocketAddr, header: Header, cipher: &Cipher, now: Duration) {
        if let Err(cause) = place(&self.regions, &header) {
            self.refuse(from, &header, cause);
            return;
        }
        let version = self.regions.version(header.region).expect("what has a place is there");
        // A responder that has sent 2⁶⁴ packets takes no changes any more.
        let Some(salt) = self.counter.next() else { return };
        match self.changes.begin(from, header, (salt, version), now + self.limits.change_timeout) {
            Begun::New => {
                let header = Header { kind: Kind::Solicit, salt, ..header };
                self.answer_as(salt, from, &header, cipher, &[]);
            }
            Begun::Before => self.counters.unwanted += 1,
            Begun::Full => self.nack(from, &header, cipher),
        }
    }

    /// Takes in a part of a change's data. The last one has the change happen.
    fn go_on_with_change(&mut self, from: SocketAddr, header: &Header, cipher: &Cipher, body: &[u8]) {
        let Some(mut change) = self.changes.add(header, body) else { return };
        let is_live = self.regions.version(header.region) == Some(change.version);
        // Otherwise the permission has ended meanwhile, or the client does not keep to the protocol.
        let place = place(&self.regions, header).ok().filter(|_| is_live);
        let done = place.and_then(|place| self.carry_out(header, place, &change));
        if header.of == OperationType::Rekey {
            change.bytes.zeroize();
        }
        match done {
            Some(before) => self.say_done(from, header, cipher, before),
            None => {
                let cause = if is_live { RefusalCause::Range } else { RefusalCause::Ended };
                self.note_refusal(from, header, cause);
                self.answer(from, &Header { kind: Kind::NotDone, offset: 0, ..*header }, cipher, &[]);
            }
        }
    }

    /// Has a change happen. Returns the word that was there before an atomic. `None`: its data means nothing.
    fn carry_out(&mut self, header: &Header, place: u64, change: &Change) -> Option<u64> {
        match header.of {
            OperationType::Write => {
                self.memory.write(place, &change.bytes);
                self.finished.add(header, 0);
                self.counters.writes += 1;
                Some(0)
            }
            OperationType::Atomic => {
                let atomic = Atomic::decode(&change.bytes)?;
                let before = self.memory.load(place);
                if let Some(after) = atomic.apply(before) {
                    self.memory.store(place, after);
                }
                self.finished.add(header, before);
                self.counters.atomics += 1;
                Some(before)
            }
            OperationType::Rekey => {
                let key = RegionKey::new(change.bytes.as_slice().try_into().expect("the length was checked"));
                assert!(self.regions.rekey(header.region, key), "a region with a place is there");
                self.finished.add(header, 0);
                self.counters.rekeys += 1;
                Some(0)
            }
            OperationType::Read => unreachable!("a read changes nothing"),
        }
    }

    /// Says that a change has happened, under the key that it came with.
    fn say_done(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher, before: u64) {
        let word = before.to_le_bytes();
        let body = if header.of == OperationType::Atomic { &word[..] } else { &[] };
        self.answer(to, &Header { kind: Kind::Done, offset: 0, ..*header }, cipher, body);
    }

    /// Says what became of a change. If it has not happened it never will.
    fn tell(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher) {
        // What was under way until now has not happened, whatever the memory for those that have happened has lost.
        let fate = if self.changes.cancel(header) { Fate::NotDone } else { self.finished.fate(header) };
        let kind = match fate {
            Fate::Done(before) => return self.say_done(to, header, cipher, before),
            Fate::NotDone => Kind::NotDone,
            Fate::Forgotten => Kind::Forgotten,
        };
        self.answer(to, &Header { kind, ..*header }, cipher, &[]);
    }
}

/// Where in memory an operation is.
///
/// # Errors
/// The region does not open this to its holder.
fn place(regions: &RegionTable, header: &Header) -> Result<u64, RefusalCause> {
    let region = regions.get(header.region).ok_or(RefusalCause::Ended)?;
    if header.of == OperationType::Atomic
        && let Some(place) = region.place_of_lifetime_word(header.address)
    {
        return aligned(place);
    }
    if !region.allowed.has(header.of) && !planted::is(Fault::OperationRightNotChecked) {
        return Err(RefusalCause::Right);
    }
    match header.of {
        OperationType::Read | OperationType::Write => region
            .place(header.address, header.length)
            .filter(|_| header.length > 0)
            .ok_or(RefusalCause::Range),
        OperationType::Atomic => {
            aligned(region.place(header.address, WORD_BYTES).ok_or(RefusalCause::Range)?)
        }
        OperationType::Rekey if header.address == 0 => Ok(region.offset),
        OperationType::Rekey => Err(RefusalCause::Range),
    }
}

fn aligned(place: u64) -> Result<u64, RefusalCause> {
    if place.is_multiple_of(WORD_BYTES.into()) { Ok(place) } else { Err(RefusalCause::Alignment) }
}
