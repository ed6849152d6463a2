//! A node's end of operations (1RMA §4.2, §5.1).
//!
//! Nothing is done for a packet that was not authenticated, except that its sender is told so with fewer bytes than it sent.
//! A read is served from a bounded queue. A write changes memory only when all its bytes have come for a salt that this
//! responder has drawn for this one time, and within a time-out: whoever repeats packets repeats nothing. What is kept of an
//! operation goes with the operation, and keys are derived for each packet and kept nowhere.

mod writes;

use crate::keys::{Cipher, Counter, HostAddress, Sender};
use crate::packet::{HEADER_BYTES, Header, Kind, parts};
use crate::regions::{RegionId, RegionTable};
use portcullis_memory::Memory;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use writes::{Begun, Writes};

/// Refusals that are kept for [`Responder::poll_refusal`].
const REFUSALS_MAX: usize = 256;

/// The sizes of a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderLimits {
    /// Bytes of the largest packet that it sends.
    pub packet_max: usize,
    /// Bytes of the reads that may wait. Beyond that requests are NACKed (1RMA §6.1).
    pub waiting_max: u64,
    /// Writes that may be under way.
    pub writes_max: usize,
    /// Writes that one client may have under way.
    pub client_writes_max: usize,
    /// How long a write may be under way.
    pub write_timeout: Duration,
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
    /// Packets of writes that were not wanted: repeated, too late, or of somebody else.
    pub unwanted: u64,
    /// Reads served.
    pub reads: u64,
    /// Writes carried out.
    pub writes: u64,
    /// Writes that were begun and ran out of time.
    pub writes_timed_out: u64,
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
    /// Whether the client's key was right, and its range or its operation was not.
    pub is_authentic: bool,
}

/// A read that waits to be served.
#[derive(Debug)]
struct WaitingRead {
    to: SocketAddr,
    header: Header,
    cipher: Cipher,
    /// What the region's version was when the request was authenticated.
    version: u64,
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
    writes: Writes,
    out: VecDeque<(SocketAddr, Vec<u8>)>,
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
            writes: Writes::new(limits.writes_max, limits.client_writes_max),
            out: VecDeque::new(),
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

    /// Takes a packet in. It is decrypted in place.
    pub fn handle_packet(&mut self, from: SocketAddr, packet: &mut [u8], now: Duration) {
        let parsed = Header::parse(packet).and_then(|(header, _)| Some((header, header.kind.operation()?)));
        let Some((header, operation)) = parsed else {
            self.counters.malformed += 1;
            return;
        };
        if header.kind == Kind::WriteData && !self.writes.wants(&header, from, now) {
            self.counters.unwanted += 1;
            return;
        }
        let initiator = HostAddress::from(from.ip());
        let derived = self.regions.derive(header.region, initiator, header.client, operation);
        let cipher = derived.map(|key| key.cipher());
        let (head, body) = packet.split_at_mut(HEADER_BYTES);
        let opened = cipher.and_then(|cipher| {
            let body = cipher.open(Sender::Initiator, header.counter, head, body)?;
            Some((cipher, body))
        });
        match (opened, header.kind) {
            // Who may have made up the packet is told nothing about writes of others.
            (None, Kind::WriteData) => self.counters.unwanted += 1,
            (None, _) => self.refuse(from, &header, false),
            (Some((cipher, _)), Kind::ReadRequest) => self.queue_read(from, header, cipher),
            (Some((cipher, _)), Kind::WriteRequest) => self.begin_write(from, header, &cipher, now),
            (Some((cipher, body)), _) => self.go_on_writing(from, &header, &cipher, body),
        }
    }

    /// The next packet to send, and to whom.
    pub fn poll_transmit(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        while self.out.is_empty() {
            let read = self.reads.pop_front()?;
            self.waiting -= u64::from(read.header.length);
            self.serve(&read);
        }
        self.out.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.writes.next_deadline()
    }

    /// Lets go what has run out of time: nothing of it happens any more.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.counters.writes_timed_out += self.writes.expire(now);
    }

    fn refuse(&mut self, to: SocketAddr, header: &Header, is_authentic: bool) {
        self.counters.refused += 1;
        if self.refusals.len() == REFUSALS_MAX {
            self.refusals.pop_front();
        }
        let (client, region) = (header.client, header.region);
        self.refusals.push_back(Refused { from: to.ip().into(), client, region, is_authentic });
        // Not sealed, so its counter means nothing.
        let answer = Header { kind: Kind::Unknown, salt: 0, offset: 0, ..*header };
        self.out.push_back((to, answer.encode().to_vec()));
    }

    /// Where an operation of this length is in memory. An operation that is not all in its region is refused.
    fn place(&self, header: &Header) -> Option<u64> {
        let region = self.regions.get(header.region)?;
        region.place(header.address, header.length).filter(|_| header.length > 0)
    }

    fn queue_read(&mut self, from: SocketAddr, header: Header, cipher: Cipher) {
        let (Some(_), Some(version)) = (self.place(&header), self.regions.version(header.region)) else {
            self.refuse(from, &header, true);
            return;
        };
        if self.waiting + u64::from(header.length) > self.limits.waiting_max {
            self.nack(from, &header, &cipher);
            return;
        }
        self.waiting += u64::from(header.length);
        self.reads.push_back(WaitingRead { to: from, header, cipher, version });
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
        let mut packet = Header { counter, ..*header }.encode().to_vec();
        packet.extend_from_slice(body);
        cipher.seal(Sender::Responder, counter, &mut packet, HEADER_BYTES);
        self.out.push_back((to, packet));
    }

    /// Sends what a read has asked for.
    fn serve(&mut self, read: &WaitingRead) {
        let WaitingRead { to, header, cipher, version } = read;
        let place = self.place(header).filter(|_| self.regions.version(header.region) == Some(*version));
        let Some(place) = place else {
            // The permission has ended while the read waited.
            self.refuse(*to, header, true);
            return;
        };
        self.counters.reads += 1;
        for (offset, length) in parts(header.length, self.limits.packet_max) {
            let mut body = vec![0; length as usize];
            self.memory.read(place + u64::from(offset), &mut body);
            self.answer(*to, &Header { kind: Kind::ReadData, offset, ..*header }, cipher, &body);
        }
    }

    fn begin_write(&mut self, from: SocketAddr, header: Header, cipher: &Cipher, now: Duration) {
        let (Some(_), Some(version)) = (self.place(&header), self.regions.version(header.region)) else {
            self.refuse(from, &header, true);
            return;
        };
        // A responder that has sent 2⁶⁴ packets takes no writes any more.
        let Some(salt) = self.counter.next() else { return };
        match self.writes.begin(from, header, (salt, version), now + self.limits.write_timeout) {
            Begun::New => {
                let header = Header { kind: Kind::Solicit, salt, ..header };
                self.answer_as(salt, from, &header, cipher, &[]);
            }
            Begun::Before => self.counters.unwanted += 1,
            Begun::Full => self.nack(from, &header, cipher),
        }
    }

    /// Takes in a part of what is to be written. The last one has all of it written.
    fn go_on_writing(&mut self, from: SocketAddr, header: &Header, cipher: &Cipher, body: &[u8]) {
        let Some(write) = self.writes.add(header, body) else { return };
        let place = self.place(header).filter(|_| self.regions.version(header.region) == Some(write.version));
        let Some(place) = place else {
            // The permission has ended meanwhile.
            self.refuse(from, header, true);
            return;
        };
        self.memory.write(place, &write.bytes);
        self.counters.writes += 1;
        self.answer(from, &Header { kind: Kind::WriteDone, offset: 0, ..*header }, cipher, &[]);
    }
}
