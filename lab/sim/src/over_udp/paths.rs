//! The paths of datagrams and of control messages between clients over UDP and nodes.

use super::attacker::{Attacker, Habits};
use super::{LONG_PACKETS, PACKET_MAX, Terms, machine_of};
use crate::clock::Nanos;
use crate::dice::Dice;
use crate::links::Links;
use crate::network::MachineId;
use crate::oracle::SessionId;
use crate::plan::Plan;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Bytes of the headers of IPv6, UDP and Ethernet, and of the space between frames.
const OVERHEAD: u64 = 40 + 8 + 38;
/// The random stream of the attacker.
const ATTACKER: u64 = 52;

/// A datagram in transit.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
    /// Whether it has left the switch in the middle.
    pub is_past_switch: bool,
}

/// A control message in transit.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub session: SessionId,
    pub is_to_node: bool,
    pub bytes: Vec<u8>,
}

/// A path that does not carry long datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Narrow {
    /// Bytes of the longest datagram from the machine, and to it.
    pub carries: [usize; 2],
    /// Whether the machine's own system refuses to send datagrams that are too long. Otherwise they are lost in
    /// transit.
    pub is_refused: bool,
}

impl Narrow {
    /// Draws a narrow path. Each path carries the smallest size that real ends probe.
    pub fn draw(dice: &mut Dice) -> Self {
        let short = usize::try_from(dice.of(PACKET_MAX as u64..LONG_PACKETS as u64)).unwrap_or(PACKET_MAX);
        let carries = match dice.of(0..3) {
            0 => [short, usize::MAX],
            1 => [usize::MAX, short],
            _ => [short; 2],
        };
        Self { carries, is_refused: dice.per_mille(300) }
    }
}

/// The paths of a run.
#[derive(Debug)]
pub(crate) struct Paths {
    links: Links,
    /// Machines with a narrow path, each with the end of that time.
    narrow: HashMap<MachineId, (Nanos, Narrow)>,
    attacker: Attacker,
    /// Time at which the last message of each direction of a session arrives.
    last: HashMap<(SessionId, bool), Nanos>,
    dice: Dice,
}

impl Paths {
    pub fn new(plan: &Plan, terms: &Terms) -> Self {
        let hosts = plan.nodes + plan.clients;
        Self {
            links: Links::new(hosts, terms.link, terms.faults, plan.seed),
            narrow: HashMap::new(),
            attacker: Attacker::new(Dice::new(plan.seed, ATTACKER)),
            last: HashMap::new(),
            dice: Dice::new(plan.seed, ATTACKER + 1),
        }
    }

    /// Sends a datagram from its host. Returns the times at which its copies are at the switch.
    pub fn leave(&mut self, now: Nanos, datagram: &Datagram) -> Vec<Nanos> {
        let Some(from) = machine_of(datagram.from) else { return Vec::new() };
        if !self.carries(now, datagram) {
            return Vec::new();
        }
        let copies = self.links.leave(from, now, datagram.bytes.len() as u64 + OVERHEAD);
        copies.into_iter().flatten().collect()
    }

    /// Whether the paths of both ends carry a datagram of this length.
    fn carries(&self, now: Nanos, datagram: &Datagram) -> bool {
        let ends = [datagram.from, datagram.to].map(machine_of);
        ends.into_iter().enumerate().all(|(direction, machine)| {
            let narrow = machine.and_then(|machine| self.narrow_at(machine, now));
            narrow.is_none_or(|narrow| datagram.bytes.len() <= narrow.carries[direction])
        })
    }

    /// Returns the narrowness of a machine's path now, if it is narrow.
    pub fn narrow_at(&self, machine: MachineId, now: Nanos) -> Option<Narrow> {
        self.narrow.get(&machine).filter(|(until, _)| *until > now).map(|&(_, narrow)| narrow)
    }

    /// Makes a machine's path carry no long datagrams until a time.
    pub fn narrow(&mut self, machine: MachineId, until: Nanos, narrow: Narrow) {
        self.narrow.insert(machine, (until, narrow));
    }

    /// Forwards a datagram that is at the switch. Returns the leaving datagrams, with the times at which they arrive.
    /// An attacker on the path may have changed them.
    pub fn forward(&mut self, now: Nanos, datagram: Datagram) -> Vec<(Nanos, Datagram)> {
        let ends = [machine_of(datagram.from), machine_of(datagram.to)];
        let out = if ends.into_iter().flatten().any(|machine| self.attacker.is_at(machine, now)) {
            self.attacker.meet(datagram)
        } else {
            vec![(0, datagram)]
        };
        let mut arrivals = Vec::new();
        for (later, mut datagram) in out {
            let Some(to) = machine_of(datagram.to) else { continue };
            let bytes = datagram.bytes.len() as u64 + OVERHEAD;
            datagram.is_past_switch = true;
            // A datagram that is held back joins the queue when it is released. The queue is modelled only at this
            // moment.
            let Some(at) = self.links.forward(to, now, bytes) else { continue };
            arrivals.push((at + later, datagram));
        }
        arrivals
    }

    /// Puts the attacker on the path of a machine until a time.
    pub fn attack(&mut self, machine: MachineId, until: Nanos, habits: Habits) {
        self.attacker.begin(machine, until, habits);
    }

    /// Takes the attacker off all paths, and makes all paths carry everything.
    pub fn heal(&mut self) {
        self.narrow.clear();
        self.attacker.end();
    }

    /// Draws the time at which a control message arrives that is sent now. Messages arrive in their order.
    pub fn arrival(&mut self, now: Nanos, not_before: Nanos, message: &Message, latency: Nanos) -> Nanos {
        let last = self.last.entry((message.session, message.is_to_node)).or_insert(0);
        let arrival = (now + latency + self.dice.of(0..latency + 1)).max(not_before).max(*last + 1);
        *last = arrival;
        arrival
    }

    /// Whether a full queue has dropped a datagram.
    pub fn has_dropped(&self) -> bool {
        self.links.dropped() > 0
    }
}
