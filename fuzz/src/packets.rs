//! Packets of one-shot operations (1RMA): whatever comes on the path, nothing is written but what its client writes, and
//! each operation ends once.

use crate::input::Input;
use portcullis_memory::{Mapping, Memory};
use portcullis_onerma::{
    Action, Allowed, Atomic, Command, Destination, HostAddress, Initiator, InitiatorLimits, OperationType,
    Region, RegionKey, RegionTable, Responder, ResponderLimits, ServiceClass, SlotId,
};
use std::net::SocketAddr;
use std::time::Duration;

const MEMORY: u64 = 16 << 10;
/// The region is in the middle of the memory.
const BASE: u64 = 4096;
const LENGTH: u64 = 4096;
/// Every byte that the client writes.
const VALUE: u8 = 7;
const CLIENT: u64 = 3;

thread_local! {
    static POOL: Mapping = Mapping::shareable("packets", MEMORY).expect("memory");
}

struct World {
    memory: Mapping,
    responder: Responder<Mapping>,
    initiator: Initiator,
    node: SocketAddr,
    client: SocketAddr,
    destination: Destination,
    seen: Vec<Vec<u8>>,
    now: Duration,
    issued: usize,
    /// The latest read of each slot, with its bytes.
    reads: Vec<(SlotId, usize)>,
    ended: usize,
}

impl World {
    fn new(memory: Mapping) -> Self {
        memory.zero(0, MEMORY);
        let mut regions = RegionTable::new(1, 4);
        let types = [OperationType::Read, OperationType::Write, OperationType::Atomic];
        let (key, allowed) = (RegionKey::new([5; 32]), Allowed::these(&types));
        let region = Region { key, address: 0, length: LENGTH, offset: BASE, lifetime_word: None, allowed };
        let region = regions.insert(region).expect("room");
        let (node, client) = (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 2)));
        let key = regions.derive(region, HostAddress::from(client.ip()), CLIENT).expect("it is there");
        let destination = Destination { address: node, client: CLIENT, region, key: key.set_up() };
        let change_timeout = Duration::from_micros(100);
        let responder = ResponderLimits {
            packet_max: 1280,
            waiting_max: 16 << 10,
            changes_max: 4,
            client_changes_max: 2,
            change_timeout,
            finished_max: 2,
        };
        let initiator = InitiatorLimits {
            slots: 4,
            window: 8 << 10,
            packet_max: 1280,
            dispatch_timeout: Duration::from_micros(50),
            timeout: Duration::from_micros(110),
        };
        Self {
            responder: Responder::new(memory.clone(), &regions, responder),
            memory,
            initiator: Initiator::new(initiator),
            node,
            client,
            destination,
            seen: Vec::new(),
            now: Duration::ZERO,
            issued: 0,
            reads: Vec::new(),
            ended: 0,
        }
    }

    fn issue(&mut self, action: Action, address: u64) {
        let to = self.destination.clone();
        let command = Command { action, to, address, class: ServiceClass::Latency };
        let length = if let Action::Read(length) = command.action { Some(length) } else { None };
        if let Ok(slot) = self.initiator.issue(command, self.now) {
            self.issued += 1;
            self.reads.retain(|(of, _)| *of != slot);
            self.reads.extend(length.map(|length| (slot, length)));
        }
    }

    fn deliver(&mut self, packet: &[u8], to_node: bool) {
        let mut packet = packet.to_vec();
        if to_node {
            self.responder.handle_packet(self.client, &mut packet, self.now);
        } else if let Some(data) = self.initiator.handle_packet(self.node, &mut packet, self.now) {
            let (_, length) = self.reads.iter().find(|(of, _)| *of == data.of).expect("the data of a read");
            assert!(data.offset + data.bytes.len() <= *length, "data behind the end of its read");
        }
    }

    /// Hands over what the ends send, and keeps it for the attacker.
    fn exchange(&mut self) {
        let mut packet = Vec::new();
        while self.initiator.poll_transmit(&mut packet).is_some() {
            self.deliver(&packet, true);
            self.seen.push(std::mem::take(&mut packet));
        }
        while self.responder.poll_transmit(&mut packet).is_some() {
            self.deliver(&packet, false);
            self.seen.push(std::mem::take(&mut packet));
        }
    }

    fn pass(&mut self, micros: u8) {
        self.now += Duration::from_micros(micros.into());
        self.initiator.handle_timeout(self.now);
        self.responder.handle_timeout(self.now);
    }

    fn check(&mut self) {
        while self.initiator.poll_completion().is_some() {
            self.ended += 1;
        }
        assert_eq!(self.issued, self.ended + self.initiator.pending(), "each operation ends once");
        let mut bytes = [0; MEMORY as usize];
        self.memory.read(0, &mut bytes);
        let region = BASE as usize..(BASE + LENGTH) as usize;
        for (at, byte) in bytes.iter().enumerate() {
            let may_be = *byte == 0 || (*byte == VALUE && region.contains(&at));
            assert!(may_be, "byte {at} is {byte}");
        }
    }
}

/// Lets a client work, and delivers what the bytes say beside that.
pub fn run(bytes: &[u8]) {
    let mut world = World::new(POOL.with(Mapping::clone));
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        match input.choice(9) {
            0 => world.issue(Action::Read(usize::from(input.short()) % 4097), input.short().into()),
            1 => world
                .issue(Action::Write(vec![VALUE; usize::from(input.short()) % 4097]), input.short().into()),
            // What it puts there are the same bytes.
            8 => {
                let swap = Atomic::CompareAndSwap { expected: 0, new: u64::from_ne_bytes([VALUE; 8]) };
                world.issue(Action::Atomic(swap), input.short().into());
            }
            2 | 3 => world.exchange(),
            4 => {
                let length = input.byte().into();
                world.deliver(input.bytes(length), input.choice(2) == 0);
            }
            5 | 6 if !world.seen.is_empty() => {
                let mut packet = world.seen[input.choice(world.seen.len())].clone();
                for _ in 0..input.choice(4) {
                    let at = usize::from(input.short()) % packet.len();
                    packet[at] ^= input.byte();
                }
                world.deliver(&packet, input.choice(2) == 0);
            }
            _ => world.pass(input.byte()),
        }
    }
    world.check();
    world.exchange();
    // An atomic waits for the longest: it is asked for three times.
    for _ in 0..6 {
        world.pass(u8::MAX);
    }
    world.check();
    assert_eq!(world.initiator.pending(), 0, "nothing waits for longer than its time-outs");
}
