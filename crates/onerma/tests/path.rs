//! An attacker on the path, which sees every packet, and loses, delays, repeats, truncates, alters, reflects and forges
//! packets as it likes (1RMA §4.2, A2). Each seed is one run; a failure names its seed.

use crate::rig;

use portcullis_memory::Memory;
use portcullis_onerma::{Action, Atomic, Destination, HEADER_BYTES, OperationType, SlotId, Status};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, INITIATOR, Node, RESPONDER, at, next};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

const CLIENTS: u64 = 3;
const STEPS: u32 = 1_500;
const SEEDS: u64 = 60;
/// Bytes of a client's region, and of each of its operations.
const BYTES: usize = 1500;
/// Offset of a client's word from the start of its page.
const WORD: u64 = 2048;
/// Time after which each operation has ended: it waits, sends its request and data, and requests the outcome three
/// times.
const LONGEST: Duration = Duration::from_micros(50 + (2 + 3) * 110);

/// A packet on its way.
#[derive(Clone)]
struct Flying {
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
    due: Duration,
}

/// Possible content of a client's bytes in the node's memory.
struct Content {
    /// The value that is certainly there, or was there before the write in progress.
    before: u8,
    /// The value of the write in progress, or of one that has timed out.
    maybe: Option<u8>,
    /// Number of ones added to the client's word, without the atomic in progress.
    added: u64,
}

struct World {
    node: Node,
    clients: Vec<Client>,
    keys: Vec<[Destination; 3]>,
    contents: Vec<Content>,
    under_way: Vec<Option<(SlotId, OperationType, Duration)>>,
    flying: Vec<Flying>,
    seen: Vec<Flying>,
    /// The parts of nonces, with the terms of their keys. Packets of the attacker are not included.
    nonces: HashSet<(SocketAddr, u64, u32, u8, u64)>,
    dice: StdRng,
    now: Duration,
    values: u8,
    uncertain: u32,
    /// Whether half of all packets are lost, and not only an occasional one.
    is_lossy: bool,
    done: [u32; 3],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut node = Node::new(RESPONDER);
        let clients: Vec<Client> = (1..=CLIENTS).map(|id| Client::new(id, INITIATOR)).collect();
        let keys = clients.iter().map(|client| {
            let region = node.region(client.id * 4096, BYTES as u64);
            let word = node.region(client.id * 4096 + WORD, 8);
            let [reads, writes] =
                [OperationType::Read, OperationType::Write].map(|_| node.grant(region, client));
            [reads, writes, node.grant(word, client)]
        });
        let keys = keys.collect();
        Self {
            node,
            contents: clients.iter().map(|_| Content { before: 0, maybe: None, added: 0 }).collect(),
            under_way: clients.iter().map(|_| None).collect(),
            clients,
            keys,
            flying: Vec::new(),
            seen: Vec::new(),
            nonces: HashSet::new(),
            dice: StdRng::seed_from_u64(seed),
            now: at(0),
            values: 0,
            uncertain: 0,
            is_lossy: seed % 4 == 3,
            done: [0; 3],
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_nanos(self.dice.random_range(1..3_000));
        let client = self.dice.random_range(0..self.clients.len());
        if self.under_way[client].is_none() {
            self.begin(client);
        }
        self.collect();
        self.attack();
        self.deliver();
        for client in &mut self.clients {
            client.initiator.handle_timeout(self.now);
        }
        self.node.responder.handle_timeout(self.now);
        self.collect();
        self.check();
    }

    fn begin(&mut self, client: usize) {
        let [reads, writes, atomics] = &self.keys[client];
        let (operation, slot) = if self.dice.random_bool(0.3) {
            (OperationType::Read, self.clients[client].read(reads, 0, BYTES, self.now))
        } else if self.dice.random_bool(0.5) {
            let add = Action::Atomic(Atomic::FetchAndAdd { add: 1 });
            (OperationType::Atomic, self.clients[client].act(atomics, 0, add, self.now))
        } else {
            // Each value differs from all values that the client may remember.
            self.values = self.values.wrapping_add(1).max(1);
            // The outcome of operations that have timed out is settled by now.
            let content = &mut self.contents[client];
            content.before = self.node.bytes((client as u64 + 1) * 4096, 1)[0];
            content.maybe = Some(self.values);
            (OperationType::Write, self.clients[client].write(writes, 0, &[self.values; BYTES], self.now))
        };
        self.under_way[client] = Some((slot, operation, self.now));
    }

    /// Collects the packets that the ends send.
    fn collect(&mut self) {
        let mut sent = Vec::new();
        for client in &mut self.clients {
            let (from, id) = (client.address, client.id);
            sent.extend(
                std::iter::from_fn(|| next(|it| client.initiator.poll_transmit(it)))
                    .map(|(to, it)| (from, to, id, it)),
            );
        }
        let from = self.node.address;
        sent.extend(
            std::iter::from_fn(|| next(|it| self.node.responder.poll_transmit(it)))
                .map(|(to, it)| (from, to, 0, it)),
        );
        for (from, to, _, bytes) in sent {
            self.check_nonce(from, &bytes);
            let due = self.now + Duration::from_nanos(self.dice.random_range(500..20_000));
            let packet = Flying { from, to, bytes, due };
            self.seen.push(packet.clone());
            if !(self.is_lossy && self.dice.random_bool(0.5)) {
                self.flying.push(packet);
            }
        }
    }

    /// Checks that a key and a counter are used together once. An observer of the packets can check that.
    fn check_nonce(&mut self, from: SocketAddr, packet: &[u8]) {
        const UNKNOWN: u8 = 7;
        if packet[1] == UNKNOWN {
            return;
        }
        let word = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().expect("eight bytes"));
        let of = packet[2];
        let region = u32::from_le_bytes(packet[16..20].try_into().expect("four bytes"));
        let is_new = self.nonces.insert((from, word(8), region, of, word(32)));
        assert!(is_new, "a nonce was used twice: kind {}, counter {}", packet[1], word(32));
    }

    fn attack(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        let any = self.dice.random_range(0..self.seen.len());
        let mut packet = self.seen[any].clone();
        packet.due = self.now + Duration::from_nanos(self.dice.random_range(0..50_000));
        match self.dice.random_range(0..8) {
            // Repeats it, however old it is.
            0 | 1 => {}
            2 => {
                let at = self.dice.random_range(0..packet.bytes.len());
                packet.bytes[at] ^= 1 << self.dice.random_range(0..8);
            }
            3 => packet.bytes.truncate(self.dice.random_range(0..packet.bytes.len())),
            // Reflects it, or sends it in another client's name.
            4 => (packet.from, packet.to) = (packet.to, packet.from),
            5 => {
                let others: Vec<SocketAddr> = self.clients.iter().map(|client| client.address).collect();
                packet.from = others[self.dice.random_range(0..others.len())];
            }
            // Combines one packet's head with another's body.
            6 => {
                let other = &self.seen[self.dice.random_range(0..self.seen.len())].bytes;
                if other.len() > HEADER_BYTES && packet.bytes.len() > HEADER_BYTES {
                    packet.bytes.truncate(HEADER_BYTES);
                    packet.bytes.extend_from_slice(&other[HEADER_BYTES..]);
                }
            }
            _ => {
                // Loses a packet.
                if !self.flying.is_empty() {
                    let lost = self.dice.random_range(0..self.flying.len());
                    self.flying.swap_remove(lost);
                }
                return;
            }
        }
        // An attacker on the path can forge an unsealed refusal; it could lose the request as well.
        if packet.bytes.get(1) != Some(&7) {
            self.flying.push(packet);
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let due: Vec<Flying> = self.flying.extract_if(.., |packet| packet.due <= now).collect();
        for mut packet in due {
            if packet.to == self.node.address {
                self.node.responder.handle_packet(packet.from, &mut packet.bytes, now);
            } else if let Some(client) = self.clients.iter_mut().find(|client| client.address == packet.to) {
                client.receive(packet.from, &mut packet.bytes, now);
            }
        }
    }

    fn check(&mut self) {
        for client in 0..self.clients.len() {
            self.check_memory(client);
            while let Some(end) = self.clients[client].completed() {
                let (slot, operation, begun) =
                    self.under_way[client].take().expect("each operation ends once");
                assert_eq!(end.slot, slot);
                assert!(self.now - begun <= LONGEST + at(3), "it has taken {:?}", self.now - begun);
                assert!(end.status != Status::RemoteAuthenticationFailure || self.was_refused());
                self.done[operation as usize - 1] += u32::from(end.status == Status::Ok);
                let content = &mut self.contents[client];
                match (operation, end.status) {
                    (OperationType::Write, Status::Ok) => {
                        content.before = content.maybe.take().expect("a write was under way");
                    }
                    (OperationType::Read, Status::Ok) => {
                        let bytes = self.clients[client].read_data(slot);
                        let first = bytes[0];
                        assert!(bytes.iter().all(|&it| it == first), "torn");
                        let is_there = first == content.before || content.maybe == Some(first);
                        assert!(is_there, "{first} was read, and is not there");
                    }
                    (OperationType::Atomic, Status::Ok) => {
                        assert_eq!(end.before, Some(content.added), "what was there before");
                        content.added += 1;
                    }
                    // The present state of the word is final.
                    (OperationType::Atomic, _) if end.is_uncertain => {
                        content.added = self.node.memory.load((client as u64 + 1) * 4096 + WORD);
                        self.uncertain += 1;
                    }
                    _ => {}
                }
            }
            if let Some((.., begun)) = self.under_way[client] {
                assert!(self.now - begun <= LONGEST + at(3), "an operation does not end");
            }
        }
    }

    /// Checks that only a client's own writes change its memory, each once.
    fn check_memory(&mut self, client: usize) {
        let bytes = self.node.bytes((client as u64 + 1) * 4096, BYTES);
        let first = bytes[0];
        assert!(bytes.iter().all(|&it| it == first), "a write has happened in part");
        let content = &self.contents[client];
        assert!(
            first == content.before || content.maybe == Some(first),
            "the memory of client {client} is {first}, and should be {} or {:?}",
            content.before,
            content.maybe
        );
        let word = self.node.memory.load((client as u64 + 1) * 4096 + WORD);
        let under_way = matches!(self.under_way[client], Some((_, OperationType::Atomic, _)));
        assert!(
            word == content.added || under_way && word == content.added + 1,
            "client {client} has added {} times, and its word is {word}",
            content.added
        );
    }

    /// Whether the node has refused a packet, such as one that the attacker has altered.
    fn was_refused(&self) -> bool {
        self.node.responder.counters().refused > 0
    }
}

#[test]
fn whoever_is_on_the_path_changes_nothing_and_repeats_nothing() {
    let (mut done, mut uncertain) = ([0; 3], 0);
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            (world.done, world.uncertain)
        });
        let Ok((ended, unknown)) = run else { panic!("seed {seed}: see above") };
        done = std::array::from_fn(|it| done[it] + ended[it]);
        uncertain += unknown;
    }
    assert!(done.iter().all(|&it| it > 500), "operations succeed all the same: {done:?}");
    assert!(uncertain > 0, "some answers are lost for good");
}
