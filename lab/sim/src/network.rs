//! The network between simulated machines: latency, jitter, cuts.
//!
//! Packets of one queue pair keep their order, as RDMA promises; those of different queue pairs can overtake each
//! other. A cut has a direction. A lost packet is not sent again: the NIC that waits for an answer gives up.

use crate::clock::Nanos;
use crate::dice::Dice;
use portcullis_softnic::core::Packet;
use std::collections::HashMap;

/// A machine of the cluster. Nodes come first, then clients.
pub(crate) type MachineId = usize;

/// How a disturbed direction behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Lost,
    /// Packets arrive when the cut is over.
    Held,
    /// Packets take this many ns longer.
    Slow(Nanos),
}

#[derive(Clone, Copy, Debug)]
struct Disturbance {
    from: MachineId,
    to: MachineId,
    until: Nanos,
    cut: Cut,
}

/// The network.
#[derive(Debug)]
pub(crate) struct Network {
    latency: Nanos,
    jitter: Nanos,
    dice: Dice,
    disturbances: Vec<Disturbance>,
    /// Time at which the last packet of a flow arrives, by sender, its queue pair, and receiver.
    arrivals: HashMap<(MachineId, u32, MachineId), Nanos>,
}

impl Network {
    /// Creates an undisturbed network. A packet takes `latency` ns and at most `jitter` ns more.
    pub fn new(latency: Nanos, jitter: Nanos, dice: Dice) -> Self {
        Self { latency, jitter, dice, disturbances: Vec::new(), arrivals: HashMap::new() }
    }

    /// Disturbs one direction until a time.
    pub fn disturb(&mut self, from: MachineId, to: MachineId, until: Nanos, cut: Cut) {
        self.disturbances.push(Disturbance { from, to, until, cut });
    }

    /// Ends all disturbances. Held packets keep their arrival times.
    pub fn heal(&mut self) {
        self.disturbances.clear();
    }

    /// Returns the time at which a packet sent now arrives. `None`: it never arrives. `is_sure`: nothing disturbs the
    /// packet's path.
    pub fn carry(
        &mut self,
        now: Nanos,
        (from, to): (MachineId, MachineId),
        packet: &Packet,
        is_sure: bool,
    ) -> Option<Nanos> {
        let mut arrival = now + self.latency + self.dice.of(0..self.jitter + 1);
        self.disturbances.retain(|it| it.until > now);
        for it in self.disturbances.iter().filter(|it| (it.from, it.to) == (from, to) && !is_sure) {
            match it.cut {
                Cut::Lost => return None,
                Cut::Held => arrival = arrival.max(it.until),
                Cut::Slow(extra) => arrival += extra,
            }
        }
        let last = self.arrivals.entry((from, packet.from.number, to)).or_insert(0);
        arrival = arrival.max(*last + 1);
        *last = arrival;
        Some(arrival)
    }

    /// Returns how much later a datagram, or a message over a connection that loses nothing, arrives because its path
    /// is disturbed. `None`: it never arrives.
    pub fn delay(&mut self, now: Nanos, way: (MachineId, MachineId), is_sure: bool) -> Option<Nanos> {
        self.disturbances.retain(|it| it.until > now);
        let mut delay = 0;
        for it in self.disturbances.iter().filter(|it| (it.from, it.to) == way) {
            match it.cut {
                Cut::Lost if !is_sure => return None,
                Cut::Lost | Cut::Held => delay = delay.max(it.until - now),
                Cut::Slow(extra) => delay += extra,
            }
        }
        Some(delay)
    }

    /// Forgets the flows of a machine that was restarted.
    pub fn forget(&mut self, machine: MachineId) {
        self.arrivals.retain(|&(from, _, to), _| from != machine && to != machine);
    }
}

pub(crate) fn port_address(machine: MachineId) -> [u8; 16] {
    (machine as u128 + 1).to_le_bytes()
}

pub(crate) fn machine_at(address: [u8; 16]) -> Option<MachineId> {
    usize::try_from(u128::from_le_bytes(address).checked_sub(1)?).ok()
}

/// Returns the name of a machine in a trace.
pub(crate) fn name(machine: MachineId) -> String {
    format!("machine {machine}")
}
