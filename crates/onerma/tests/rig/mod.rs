//! Shared parts of the tests of operations: a responder with memory, clients with keys, and the packets between them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use portcullis_memory::{Mapping, Memory};
use portcullis_onerma::{
    Action, Allowed, Command, Completion, Destination, HostAddress, Initiator, InitiatorLimits,
    OperationType, ReadData, Region, RegionId, RegionKey, RegionTable, Responder, ResponderLimits,
    ServiceClass, SlotId,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

pub const MEMORY: u64 = 1 << 16;
/// Address of the lifetime word for regions' holders: eight bytes before their region, which begins at zero for them.
pub const LIFETIME_WORD: u64 = 0u64.wrapping_sub(8);
pub const INCARNATION: u64 = 77;

pub const INITIATOR: InitiatorLimits = InitiatorLimits {
    slots: 8,
    window: 16 << 10,
    packet_max: 1280,
    dispatch_timeout: Duration::from_micros(50),
    timeout: Duration::from_micros(110),
};

pub const RESPONDER: ResponderLimits = ResponderLimits {
    packet_max: 1280,
    waiting_max: 64 << 10,
    changes_max: 64,
    client_changes_max: 8,
    change_timeout: Duration::from_micros(100),
    finished_max: 64,
};

/// The node's end.
pub struct Node {
    pub regions: RegionTable,
    pub responder: Responder<Mapping>,
    pub memory: Mapping,
    pub address: SocketAddr,
}

/// One client and its address.
pub struct Client {
    pub initiator: Initiator,
    pub address: SocketAddr,
    pub id: u64,
    /// Data of reads, each byte at its offset.
    pub arrived: HashMap<SlotId, Vec<u8>>,
}

pub fn at(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

impl Node {
    pub fn new(limits: ResponderLimits) -> Self {
        let memory = Mapping::shareable("memory", MEMORY).expect("memory");
        let regions = RegionTable::new(INCARNATION, 16);
        let responder = Responder::new(memory.clone(), &regions, limits);
        Self { regions, responder, memory, address: "10.0.0.1:4000".parse().expect("an address") }
    }

    pub fn region(&mut self, base: u64, length: u64) -> RegionId {
        self.region_for(base, length, &OperationType::ALL)
    }

    pub fn region_for(&mut self, base: u64, length: u64, types: &[OperationType]) -> RegionId {
        let key = RegionKey::new([u8::try_from(base % 251).expect("it is small"); 32]);
        let allowed = Allowed::these(types);
        let region =
            Region { key, address: 0, length, offset: base, lifetime_word: Some(LIFETIME_WORD), allowed };
        self.regions.insert(region).expect("room")
    }

    /// Returns the destination of a client's operations on a region, with its key.
    pub fn grant(&mut self, region: RegionId, to: &Client) -> Destination {
        let host = HostAddress::from(to.address.ip());
        let key = self.regions.derive(region, host, to.id).expect("the region is there");
        Destination { address: self.address, client: to.id, region, key: key.set_up() }
    }

    pub fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(address, &mut bytes);
        bytes
    }
}

impl Client {
    pub fn new(id: u64, limits: InitiatorLimits) -> Self {
        let host = u8::try_from(id).expect("few clients");
        let address = ([10, 0, 1, host], 5000).into();
        Self { initiator: Initiator::new(limits), address, id, arrived: HashMap::new() }
    }

    pub fn read(&mut self, to: &Destination, address: u64, length: usize, now: Duration) -> SlotId {
        self.act(to, address, Action::Read(length), now)
    }

    pub fn write(&mut self, to: &Destination, address: u64, bytes: &[u8], now: Duration) -> SlotId {
        self.act(to, address, Action::Write(bytes.to_vec()), now)
    }

    pub fn act(&mut self, to: &Destination, address: u64, action: Action, now: Duration) -> SlotId {
        let command = Command { action, to: to.clone(), address, class: ServiceClass::Latency };
        self.initiator.issue(command, now).expect("a slot")
    }

    /// Handles a packet of the node, and stores its data if it is a part of a read.
    pub fn receive(&mut self, from: SocketAddr, packet: &mut [u8], now: Duration) {
        if let Some(data) = self.initiator.handle_packet(from, packet, now) {
            store(&data, self.arrived.entry(data.of).or_default());
        }
    }

    /// Returns the data that a read brought.
    pub fn read_data(&mut self, slot: SlotId) -> Vec<u8> {
        self.arrived.remove(&slot).expect("the read has brought data")
    }

    pub fn completed(&mut self) -> Option<Completion> {
        self.initiator.poll_completion()
    }
}

/// Stores a part of the data of a read.
pub fn store<Id>(data: &ReadData<'_, Id>, buffer: &mut Vec<u8>) {
    let end = data.offset + data.bytes.len();
    buffer.resize(buffer.len().max(end), 0);
    buffer[data.offset..end].copy_from_slice(data.bytes);
}

/// Returns the next packet of an end, with its destination.
pub fn next(poll: impl FnOnce(&mut Vec<u8>) -> Option<SocketAddr>) -> Option<(SocketAddr, Vec<u8>)> {
    let mut packet = Vec::new();
    poll(&mut packet).map(|to| (to, packet))
}

/// Delivers packets, each at once and once, until there are none.
pub fn exchange(node: &mut Node, client: &mut Client, now: Duration) {
    loop {
        let mut moved = false;
        while let Some((to, mut packet)) = next(|it| client.initiator.poll_transmit(it)) {
            assert_eq!(to, node.address);
            node.responder.handle_packet(client.address, &mut packet, now);
            moved = true;
        }
        while let Some((to, mut packet)) = next(|it| node.responder.poll_transmit(it)) {
            moved = true;
            if to == client.address {
                client.receive(node.address, &mut packet, now);
            }
        }
        if !moved {
            return;
        }
    }
}
