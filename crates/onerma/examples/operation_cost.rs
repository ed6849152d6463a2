//! The cost of the two ends of a read of 64 bytes, without sockets: 64 outstanding reads at a time, of one client.
//!
//! `operation_cost READS [clients]` performs that many reads and prints the time of each at its two ends. Instructions
//! are counted with callgrind: those of a longer run less those of a shorter one. With `clients` each read belongs to
//! another client.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures, and is no state machine")]

use portcullis_memory::Mapping;
use portcullis_onerma::{
    Action, Allowed, Command, Destination, HostAddress, IS_ENCRYPTED, Initiator, InitiatorLimits,
    OperationType, Region, RegionKey, RegionTable, Responder, ResponderLimits, ServiceClass, Status,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const BYTES: usize = 64;
const UNDER_WAY: u32 = 64;

/// Concatenated packets, with the end of each.
#[derive(Default)]
struct Packets {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Packets {
    fn collect(&mut self, mut poll: impl FnMut(&mut Vec<u8>) -> Option<SocketAddr>) {
        self.bytes.clear();
        self.ends.clear();
        while poll(&mut self.bytes).is_some() {
            self.ends.push(self.bytes.len());
        }
    }

    fn each(&mut self, mut take: impl FnMut(&mut [u8])) {
        let mut start = 0;
        for &end in &self.ends {
            take(&mut self.bytes[start..end]);
            start = end;
        }
    }
}

struct World {
    client: SocketAddr,
    node: SocketAddr,
    responder: Responder<Mapping>,
    initiator: Initiator,
    keys: Vec<Destination>,
    /// The bytes of the latest read.
    buffer: [u8; BYTES],
}

impl World {
    fn new(clients: u32) -> Self {
        let [client, node] = [2, 1].map(|host| SocketAddr::from(([10, 0, 0, host], 1)));
        let mut regions = RegionTable::new(1, 1);
        let allowed = Allowed::these(&[OperationType::Read]);
        let region = Region {
            key: RegionKey::new([7; 32]),
            address: 0,
            length: 4096,
            offset: 0,
            lifetime_word: None,
            allowed,
        };
        let region = regions.insert(region).expect("room");
        let host = HostAddress::from(client.ip());
        let keys = (0..u64::from(clients)).map(|client| {
            let key = regions.derive(region, host, client).expect("it is there");
            Destination { address: node, client, region, key: key.set_up() }
        });
        let keys = keys.collect();
        let responder = ResponderLimits {
            packet_max: 1280,
            waiting_max: 1 << 20,
            changes_max: 1,
            client_changes_max: 1,
            change_timeout: Duration::from_millis(1),
            finished_max: 1,
        };
        let initiator = InitiatorLimits {
            slots: UNDER_WAY,
            window: 1 << 20,
            packet_max: 1280,
            dispatch_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        };
        let memory = Mapping::shareable("memory", 4096).expect("memory");
        let responder = Responder::new(memory, &regions, responder);
        Self { client, node, responder, initiator: Initiator::new(initiator), keys, buffer: [0; BYTES] }
    }

    fn issue(&mut self, now: Duration) {
        for at in 0..UNDER_WAY as usize {
            let action = Action::Read(BYTES);
            let to = self.keys[at % self.keys.len()].clone();
            let command = Command { action, to, address: 0, class: ServiceClass::Latency };
            self.initiator.issue(command, now).expect("a slot");
        }
    }

    fn complete(&mut self) {
        while let Some(end) = self.initiator.poll_completion() {
            assert_eq!(end.status, Status::Ok);
        }
    }

    /// Performs reads, and returns the time of the initiator and that of the responder.
    fn run(&mut self, reads: u32) -> [Duration; 2] {
        let (mut requests, mut answers) = (Packets::default(), Packets::default());
        let (began, mut times) = (Instant::now(), [Duration::ZERO; 2]);
        for _ in 0..reads.div_ceil(UNDER_WAY) {
            let now = began.elapsed();
            self.issue(now);
            requests.collect(|packet| self.initiator.poll_transmit(packet));
            let requested = began.elapsed();
            requests.each(|packet| {
                self.responder.handle_packet(self.client, packet, now);
            });
            answers.collect(|packet| self.responder.poll_transmit(packet));
            let answered = began.elapsed();
            answers.each(|packet| {
                if let Some(data) = self.initiator.handle_packet(self.node, packet, now) {
                    self.buffer[data.offset..][..data.bytes.len()].copy_from_slice(data.bytes);
                }
            });
            self.complete();
            times[0] += requested - now + (began.elapsed() - answered);
            times[1] += answered - requested;
        }
        times
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let reads = arguments.next().and_then(|it| it.parse().ok()).unwrap_or(1_000_000);
    let clients = if arguments.next().is_some() { UNDER_WAY } else { 1 };
    let times = World::new(clients).run(reads);
    let [initiator, responder] = times.map(|time| time.as_secs_f64() * 1e9 / f64::from(reads));
    let how = if IS_ENCRYPTED { "" } else { " (NOT encrypted: dangerous-plain)" };
    println!("a read of {BYTES} bytes [ns]: initiator {initiator:.0}, responder {responder:.0}{how}");
}
