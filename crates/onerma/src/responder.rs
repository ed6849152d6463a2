//! A node's end of operations (1RMA §4.2, §5.1).
//!
//! The responder acts only on authenticated packets; to any other request it only replies that the key is unknown, with
//! fewer bytes than it received. Reads are served from a bounded queue. A change (a write, an atomic, a rekey) happens
//! only when all its data has arrived for a salt that this responder has drawn for this one time, and before a
//! time-out: a replayed packet repeats nothing. The state of an operation ends with the operation, except for the
//! outcome of the latest changes: their clients may request it. Keys are derived for each packet and dropped with its
//! operation. Consecutive waiting reads of one holder share the key under which the first of them was opened: it is
//! kept as long as they wait, and no longer.
//!
//! A node may have several responders on one memory, each on a thread of its own: its *lanes*. They share the table of
//! regions and the changes, so a packet has the same effect in whichever lane it arrives. A responder that holds a
//! client's book of changes may wait for a region's lock, and never the other way round.

mod changes;

use crate::atomic::{Atomic, WORD_BYTES};
use crate::cipher::{Cipher, Counter, Sender};
use crate::keys::{HolderTerms, HostAddress, OperationType, RegionKey};
use crate::outbox::Outbox;
use crate::packet::{HEADER_BYTES, Header, Kind, parts};
use crate::probe;
use crate::regions::{LiveRegion, RegionId, RegionSlots, RegionTable};
use changes::{Begun, Change, ChangeBooks, Fate};
use portcullis_memory::Bytes;
use portcullis_nic::{Access, AccessFault, RefusedAccess, RemoteAddress, Rkey};
use portcullis_planted::planted;
use portcullis_protocol::{ClientId, RegionName, SealedPacket};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroize;

/// Number of refusals kept for [`Responder::poll_refusal`].
const REFUSALS_MAX: usize = 256;

/// Bytes of reads that may wait in any lane: a burst of largest reads.
const WAITING_MIN: u64 = 32 * crate::OPERATION_MAX as u64;

/// The sizes of a node's responders together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderLimits {
    /// Bytes of the largest packet that it sends.
    pub packet_max: usize,
    /// Bytes of the reads that may wait. Requests that exceed it are NACKed (1RMA §6.1).
    pub waiting_max: u64,
    /// Changes that may be in progress.
    pub changes_max: usize,
    /// Changes that one client may have in progress.
    pub client_changes_max: usize,
    /// Time that a change may be in progress.
    pub change_timeout: Duration,
    /// Number of completed changes whose outcome is kept. Clients that have lost an answer request it; a request that
    /// is too late is answered with `Forgotten`.
    pub finished_max: usize,
}

/// Counters of a responder.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ResponderCounters {
    /// Packets that no client of this protocol sends.
    pub malformed: u64,
    /// Requests under a key that the responder does not know, or for an access that their key does not allow.
    pub refused: u64,
    /// Requests that were NACKed.
    pub nacks: u64,
    /// Packets that belong to no change in progress: repeated, too late, or of another client.
    pub unwanted: u64,
    /// Reads served.
    pub reads: u64,
    /// Writes carried out.
    pub writes: u64,
    /// Atomics carried out.
    pub atomics: u64,
    /// Regions that were given another key by clients.
    pub rekeys: u64,
    /// Changes that were begun and timed out.
    pub changes_timed_out: u64,
}

/// An access that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The host that sent the packet.
    pub from: HostAddress,
    /// The client that the packet names. It is proven only if the packet is authentic.
    pub client: u64,
    /// The region of the access.
    pub region: RegionId,
    /// The packet's counter. Copies of the packet have the same one.
    pub counter: u64,
    /// The type of the operation.
    pub operation: OperationType,
    /// The address of the first byte, as the initiator names it.
    pub address: u64,
    /// Number of bytes.
    pub length: u32,
    /// Reason for the refusal.
    pub cause: RefusalCause,
}

/// The cause of a refusal, which decides whether the node may charge the client for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RefusalCause {
    /// The packet was sealed under no key that the node knows: any process may have sent it.
    Unproven,
    /// The client's key was right, until the region ended. An attacker on the path may have sent a copy.
    Ended,
    /// The client's key is right, and the region does not allow such operations.
    Right,
    /// The client's key is right, and not all of the bytes are in the region.
    Range,
    /// The client's key is right, and the atomic's address is not that of a word.
    Alignment,
}

impl Refused {
    /// Returns the client that the node may charge, the packet, and the fault. `None`: the packet was sealed under no
    /// key, so any process may have sent it.
    #[must_use]
    pub fn to_charge(&self) -> Option<(ClientId, SealedPacket, RefusedAccess)> {
        let fault = match self.cause {
            RefusalCause::Unproven if !planted!(UnprovenCharged) => return None,
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
        let region = RegionName::from(self.region);
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
    /// The region's version and the offset of its bytes, at the time when the request was authenticated.
    version: u64,
    place: u64,
}

/// A node's end of operations on its memory, or one lane of it.
#[derive(Debug)]
pub struct Responder<M> {
    memory: M,
    regions: Arc<RegionSlots>,
    /// The number of this responder among those of the node.
    lane: usize,
    /// The changes of all responders of the node.
    books: Arc<ChangeBooks>,
    limits: ResponderLimits,
    counter: Counter,
    reads: VecDeque<WaitingRead>,
    waiting: u64,
    out: Outbox,
    refusals: VecDeque<Refused>,
    counters: ResponderCounters,
}

impl<M: Bytes> Responder<M> {
    /// Creates a node's only responder, for `memory` with the regions of a table.
    #[must_use]
    pub fn new(memory: M, regions: &RegionTable, limits: ResponderLimits) -> Self {
        Self::lanes(&memory, regions, limits, 1).pop().expect("one lane")
    }

    /// Creates the responders of a node with `count` lanes, for `memory` with the regions of a table. The limits are those
    /// of all lanes together, but each lane has room for a burst of reads, and each client for its changes. A table has the
    /// lanes of one call.
    ///
    /// # Panics
    /// The count is zero.
    #[must_use]
    pub fn lanes(memory: &M, regions: &RegionTable, limits: ResponderLimits, count: usize) -> Vec<Self> {
        assert!(count > 0, "a node has a lane");
        // Each lane and each book of changes draws counters that no other one draws: no nonce is used twice.
        let (lanes, parts) = (count as u64, 2 * count as u64);
        let books = ChangeBooks::new(count, &limits, |book| Counter::part(lanes + book as u64, parts));
        let books = Arc::new(books);
        let waiting_max = (limits.waiting_max / lanes).max(WAITING_MIN.min(limits.waiting_max));
        let lane = |lane| Self {
            memory: memory.clone(),
            regions: regions.slots(),
            lane,
            books: Arc::clone(&books),
            limits: ResponderLimits { waiting_max, ..limits },
            counter: Counter::part(lane as u64, parts),
            reads: VecDeque::new(),
            waiting: 0,
            out: Outbox::new(Sender::Responder),
            refusals: VecDeque::new(),
            counters: ResponderCounters::default(),
        };
        (0..count).map(lane).collect()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> ResponderCounters {
        self.counters
    }

    /// Returns the next access that was refused. If refusals are not polled, the oldest are dropped.
    pub fn poll_refusal(&mut self) -> Option<Refused> {
        self.refusals.pop_front()
    }

    /// Handles a packet, which is decrypted in place. Returns whether it was sealed under one of the responder's keys:
    /// no other process could have sealed it, but an attacker may have sent a copy.
    pub fn handle_packet(&mut self, from: SocketAddr, packet: &mut [u8], now: Duration) -> bool {
        if packet.len() <= self.limits.packet_max && probe::answer(packet) {
            self.out.add_bytes(from, packet);
            if planted!(ProbeAnsweredTwice) {
                self.out.add_bytes(from, packet);
            }
            return false;
        }
        let parsed = Header::parse(packet).filter(|(header, _)| header.kind.is_to_responder());
        let Some((header, _)) = parsed else {
            self.counters.malformed += 1;
            return false;
        };
        if header.kind == Kind::ChangeData && !self.wants(&header, from, now) {
            self.counters.unwanted += 1;
            return false;
        }
        let key = self.latest_key(from, &header).or_else(|| self.derive_key(from, &header));
        let Some((version, cipher)) = key else {
            return self.reject(from, &header, packet);
        };
        let (head, body) = packet.split_at_mut(HEADER_BYTES);
        let Some(body) = cipher.open(Sender::Initiator, header.counter, head, body) else {
            self.turn_away(from, &header, RefusalCause::Unproven);
            return false;
        };
        match header.kind {
            Kind::Request if header.of.is_change() => {
                self.begin_change(from, header, (version, &cipher), now);
            }
            Kind::Request => {
                if let Some(place) = self.admit_read(from, &header, (version, &cipher)) {
                    self.reads.push_back(WaitingRead { to: from, header, cipher, version, place });
                }
            }
            Kind::Ask => self.tell(from, &header, &cipher),
            _ => self.go_on_with_change(from, &header, &cipher, body),
        }
        true
    }

    /// Appends the next packet to send to `packet`, and returns its destination.
    pub fn poll_transmit(&mut self, packet: &mut Vec<u8>) -> Option<SocketAddr> {
        while self.out.is_empty() {
            self.serve_next()?;
        }
        self.out.poll(packet)
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has work to do next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.books.book(self.lane).changes.next_deadline()
    }

    /// Drops operations that have timed out: no part of them happens any more.
    pub fn handle_timeout(&mut self, now: Duration) {
        // Each lane looks after one of the books.
        self.counters.changes_timed_out += self.books.book(self.lane).changes.expire(now);
    }

    /// Whether a packet claims to belong to a change in progress.
    fn wants(&self, header: &Header, from: SocketAddr, now: Duration) -> bool {
        self.books.of_client(header.client, self.lane).changes.wants(header, from, now)
    }

    /// Derives the key of a packet. Returns it with the region's version.
    fn derive_key(&self, from: SocketAddr, header: &Header) -> Option<(u64, Arc<Cipher>)> {
        let live = self.regions.enter(header.region)?;
        let (version, derivation) = (live.version(), live.derivation());
        drop(live);
        let terms = HolderTerms { initiator: HostAddress::from(from.ip()), client: header.client };
        Some((version, Arc::new(derivation.derive(&terms).cipher())))
    }

    /// Returns the key of the latest read, if that read still waits and all terms of its key are those of this packet.
    /// So the key of a holder with many outstanding reads is set up once for those that arrived together.
    fn latest_key(&self, from: SocketAddr, header: &Header) -> Option<(u64, Arc<Cipher>)> {
        let WaitingRead { to, header: latest, cipher, version, .. } = self.reads.back()?;
        let is_of_one_holder =
            to.ip() == from.ip() && (latest.client, latest.region) == (header.client, header.region);
        // The version stands for the region's own terms and its key.
        let is_one_key = is_of_one_holder && self.regions.enter_version(header.region, *version).is_some();
        is_one_key.then(|| (*version, cipher.clone()))
    }

    /// Refuses a packet for a region that does not exist. It may have ended a moment ago. Returns whether the packet
    /// was sealed under its key.
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
            // The client need not wait for its time-outs.
            (true, _) => self.tell(from, header, &cipher),
        }
        is_late
    }

    /// Refuses a packet that must have no effect.
    fn turn_away(&mut self, from: SocketAddr, header: &Header, cause: RefusalCause) {
        if header.kind == Kind::Request {
            self.refuse(from, header, cause);
        } else {
            // A party that may have forged the packet learns nothing about changes of other clients.
            self.counters.unwanted += 1;
        }
    }

    fn refuse(&mut self, to: SocketAddr, header: &Header, cause: RefusalCause) {
        self.note_refusal(to, header, cause);
        // The answer is not sealed, so its counter means nothing.
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

    /// Checks whether a read may wait to be served. If so, counts its bytes, and returns their offset.
    fn admit_read(
        &mut self,
        from: SocketAddr,
        header: &Header,
        (version, cipher): (u64, &Cipher),
    ) -> Option<u64> {
        let place = match self.check(header, version) {
            Ok(place) => place,
            Err(cause) => {
                self.refuse(from, header, cause);
                return None;
            }
        };
        if self.waiting + u64::from(header.length) > self.limits.waiting_max {
            self.nack(from, header, cipher);
            return None;
        }
        self.waiting += u64::from(header.length);
        Some(place)
    }

    /// Checks an operation against its region, whose key of this version has opened the packet. Returns the offset of the
    /// operation's bytes.
    fn check(&self, header: &Header, version: u64) -> Result<u64, RefusalCause> {
        let live = self.regions.enter_version(header.region, version).ok_or(RefusalCause::Ended)?;
        place(&live, header)
    }

    fn nack(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher) {
        self.counters.nacks += 1;
        self.answer(to, &Header { kind: Kind::Nack, salt: 0, ..*header }, cipher, &[]);
    }

    /// Seals a packet under a counter of its own, and queues it.
    fn answer(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher, body: &[u8]) {
        // A responder that has sent 2⁶⁴ packets sends none any more.
        let Some(counter) = self.counter.next() else { return };
        self.answer_as(counter, to, header, cipher, body);
    }

    fn answer_as(&mut self, counter: u64, to: SocketAddr, header: &Header, cipher: &Cipher, body: &[u8]) {
        let header = Header { counter, ..*header };
        self.out.seal(to, cipher, &header, body.len(), |room| room.copy_from_slice(body));
    }

    /// Sends the data of the read that has waited for longest. `None`: no read waits.
    fn serve_next(&mut self) -> Option<()> {
        let WaitingRead { to, header, cipher, version, place } = self.reads.front()?;
        self.waiting -= u64::from(header.length);
        // A region keeps its bytes for as long as it has its version, and it is not handed to another holder before this
        // has been dropped.
        let live = self.regions.enter_version(header.region, *version);
        if live.is_some() || planted!(WaitingReadServedLate) {
            self.counters.reads += 1;
            let mut first = None;
            for (offset, length) in parts(header.length, self.limits.packet_max.min(header.answers.bytes())) {
                // A responder that has sent 2⁶⁴ packets sends none any more.
                let Some(counter) = self.counter.next() else { break };
                let first = *first.get_or_insert(counter);
                let counter = if planted!(PartsShareCounter) { first } else { counter };
                let part = Header { kind: Kind::ReadData, offset, counter, ..*header };
                let fill = |body: &mut [u8]| self.memory.read(place + u64::from(offset), body);
                self.out.seal(*to, cipher, &part, length as usize, fill);
            }
        } else {
            // The permission has ended while the read waited.
            let (to, header) = (*to, *header);
            drop(live);
            self.refuse(to, &header, RefusalCause::Ended);
        }
        self.reads.pop_front();
        Some(())
    }

    fn begin_change(
        &mut self,
        from: SocketAddr,
        header: Header,
        (version, cipher): (u64, &Cipher),
        now: Duration,
    ) {
        if let Err(cause) = self.check(&header, version) {
            return self.refuse(from, &header, cause);
        }
        let deadline = now + self.limits.change_timeout;
        let mut book = self.books.of_client(header.client, self.lane);
        // The lane that looks after the book may sleep.
        self.counters.changes_timed_out += book.changes.expire(now);
        // A responder that has sent 2⁶⁴ packets accepts no changes any more.
        let Some(salt) = book.salts.next() else { return };
        let begun = book.changes.begin(from, header, (salt, version), deadline);
        drop(book);
        match begun {
            Begun::New => {
                let header = Header { kind: Kind::Solicit, salt, ..header };
                self.answer_as(salt, from, &header, cipher, &[]);
            }
            Begun::Before => self.counters.unwanted += 1,
            Begun::Full => self.nack(from, &header, cipher),
        }
    }

    /// Adds a part of a change's data. The last part makes the change happen.
    fn go_on_with_change(&mut self, from: SocketAddr, header: &Header, cipher: &Cipher, body: &[u8]) {
        let books = Arc::clone(&self.books);
        // A query gets no answer before the change has happened or never will: the book is held until then.
        let mut book = books.of_client(header.client, self.lane);
        let Some(mut change) = book.changes.add(header, body) else { return };
        let done = self.carry_out(header, &change);
        if let Ok(before) = done {
            book.finished.add(header, before);
        }
        drop(book);
        if header.of == OperationType::Rekey {
            change.bytes.zeroize();
        }
        match done {
            Ok(before) => self.say_done(from, header, cipher, before),
            Err(cause) => {
                self.note_refusal(from, header, cause);
                self.answer(from, &Header { kind: Kind::NotDone, offset: 0, ..*header }, cipher, &[]);
            }
        }
    }

    /// Performs a change. Returns the former word of an atomic.
    ///
    /// # Errors
    /// The permission has ended meanwhile, or the client does not keep to the protocol.
    fn carry_out(&mut self, header: &Header, change: &Change) -> Result<u64, RefusalCause> {
        let Some(live) = self.regions.enter_version(header.region, change.version) else {
            return Err(RefusalCause::Ended);
        };
        let place = place(&live, header).map_err(|_| RefusalCause::Range)?;
        match header.of {
            OperationType::Write => {
                self.memory.write(place, &change.bytes);
                self.counters.writes += 1;
                Ok(0)
            }
            OperationType::Atomic => {
                let before = match Atomic::decode(&change.bytes).ok_or(RefusalCause::Range)? {
                    Atomic::CompareAndSwap { expected, new } => {
                        self.memory.compare_exchange(place, expected, new)
                    }
                    Atomic::FetchAndAdd { add } => self.memory.fetch_add(place, add),
                };
                self.counters.atomics += 1;
                Ok(before)
            }
            OperationType::Rekey => {
                drop(live);
                let key = RegionKey::new(change.bytes.as_slice().try_into().expect("the length was checked"));
                // Another lane's rekey, or the end of the region, may have come first.
                if !self.regions.rekey_version(header.region, change.version, key) {
                    return Err(RefusalCause::Ended);
                }
                self.counters.rekeys += 1;
                Ok(0)
            }
            OperationType::Read => unreachable!("a read changes nothing"),
        }
    }

    /// Sends the notice that a change has happened, under the key of the change.
    fn say_done(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher, before: u64) {
        let word = before.to_le_bytes();
        let body = if header.of == OperationType::Atomic { &word[..] } else { &[] };
        self.answer(to, &Header { kind: Kind::Done, offset: 0, ..*header }, cipher, body);
    }

    /// Sends the outcome of a change. If the change has not happened by now, it never will.
    fn tell(&mut self, to: SocketAddr, header: &Header, cipher: &Cipher) {
        // A change that was in progress until now has not happened, even if the record of completed changes has dropped
        // entries.
        let mut book = self.books.of_client(header.client, self.lane);
        let fate = if book.changes.cancel(header) { Fate::NotDone } else { book.finished.fate(header) };
        drop(book);
        let kind = match fate {
            Fate::Done(before) => return self.say_done(to, header, cipher, before),
            Fate::NotDone => Kind::NotDone,
            Fate::Forgotten => Kind::Forgotten,
        };
        self.answer(to, &Header { kind, ..*header }, cipher, &[]);
    }
}

/// Returns the offset of an operation's bytes in memory.
///
/// # Errors
/// The region does not allow the operation to its holder.
fn place(live: &LiveRegion<'_>, header: &Header) -> Result<u64, RefusalCause> {
    let region = live.region();
    if header.of == OperationType::Atomic
        && let Some(place) = region.place_of_lifetime_word(header.address)
    {
        return aligned(place);
    }
    if !region.allowed.has(header.of) && !planted!(OperationRightNotChecked) {
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
