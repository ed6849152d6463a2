//! What is going to happen, in order.

use crate::clock::Nanos;
use portcullis_slots::{Reuse, Slots};
use portcullis_softnic::core::Packet;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that is going to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A packet arrives, by its place.
    Packet(u32),
    /// A node's processor has a turn.
    NodeTurn(usize),
    /// A node's NIC has a turn.
    NodeNic(usize),
    /// A client has a turn.
    ClientTurn(usize),
    /// A client's NIC has a turn.
    ClientNic(usize),
    /// A fault of the list happens.
    Fault(usize),
    /// A node hears that a client's process has ended: by session.
    Farewell(usize),
    /// A client attaches.
    Attach(usize),
    /// A node starts.
    NodeStart(usize),
    /// A client that was shown out, or whose node is gone, hears of it: by session.
    ShownOut(usize),
    /// The checkers look round.
    Look,
}

/// What is going to happen.
#[derive(Debug)]
pub(crate) struct Events {
    /// By time, and by the order in which they were put in.
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
    /// Puts an event in.
    pub fn put(&mut self, at: Nanos, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, event)));
    }

    /// Puts a packet in.
    pub fn put_packet(&mut self, at: Nanos, packet: Packet) {
        let place = self.packets.insert(Box::new(packet));
        self.put(at, Event::Packet(place));
    }

    /// The packet of an event, which is over with that.
    pub fn take_packet(&mut self, place: u32) -> Option<Box<Packet>> {
        self.packets.remove(place)
    }

    /// The next event.
    pub fn next(&mut self) -> Option<(Nanos, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}
