//! Future events, in order.

use crate::clock::Nanos;
use portcullis_slots::{Reuse, Slots};
use portcullis_softnic::core::Packet;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The packet at this place arrives.
    Packet(u32),
    /// The datagram at this place is at the switch or arrives.
    Datagram(u32),
    /// The control message of a client over UDP at this place arrives.
    Message(u32),
    NodeTurn(usize),
    NodeNic(usize),
    ClientTurn(usize),
    ClientNic(usize),
    /// The fault at this index of the list happens.
    Fault(usize),
    /// A node learns that the client process of a session has ended.
    LetGo(usize),
    Attach(usize),
    NodeStart(usize),
    /// A client learns that its session was evicted, or that its node is gone.
    ShownOut(usize),
    /// The checkers check the cluster.
    Look,
}

#[derive(Debug)]
pub(crate) struct Events {
    /// Ordered by time, then by insertion.
    heap: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    count: u64,
    packets: Slots<u32, Box<Packet>>,
}

impl Default for Events {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), count: 0, packets: Slots::new(Reuse::LatestFirst, u32::MAX) }
    }
}

impl Events {
    /// Adds an event.
    pub fn put(&mut self, at: Nanos, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, event)));
    }

    /// Adds the arrival of a packet.
    pub fn put_packet(&mut self, at: Nanos, packet: Packet) {
        let place = self.packets.insert(Box::new(packet));
        self.put(at, Event::Packet(place));
    }

    /// Takes the packet of an event and frees its place.
    pub fn take_packet(&mut self, place: u32) -> Option<Box<Packet>> {
        self.packets.remove(place)
    }

    /// Takes the next event.
    pub fn next(&mut self) -> Option<(Nanos, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

/// The time of a future event, of which at most one counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alarm {
    at: Option<Nanos>,
}

impl Alarm {
    /// Sets the alarm, unless it is set for this time or an earlier one. Returns whether a new event is needed.
    pub fn set(&mut self, at: Nanos) -> bool {
        let sooner = self.at.is_none_or(|set| at < set);
        if sooner {
            self.at = Some(at);
        }
        sooner
    }

    /// To be called by each event. Returns whether the event is the one that counts.
    pub fn ring(&mut self, at: Nanos) -> bool {
        let rings = self.at == Some(at);
        if rings {
            self.at = None;
        }
        rings
    }
}
