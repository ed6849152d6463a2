//! Clients over UDP: their operations are datagrams, and their control messages travel over a connection that loses nothing.
//!
//! Both ends of operations are the real ones of `onerma`. The network between them loses, repeats and delays
//! datagrams, and an attacker on the path does worse.

mod attacker;
mod end;
mod label;
mod node_end;
mod paths;
mod socket;
mod turns;

pub(crate) use attacker::Habits;
pub(crate) use end::OneShotEnd;
pub(crate) use label::Label;
pub(crate) use node_end::NodeEnd;
pub(crate) use paths::{Datagram, Message, Narrow, Paths};
pub(crate) use socket::SharedSocket;

use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::fiber::LOOK_MAX;
use crate::links::{LinkFaults, LinkTerms};
use crate::network::MachineId;
use crate::oracle::SessionId;
use crate::plan::{FaultKind, Plan, Programs};
use portcullis_onerma::{
    ExecutorLimits, InitiatorLimits, OPERATION_MAX, REPEAT_TIMEOUTS_MAX, ResponderLimits,
};
use portcullis_protocol::Lifetime;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The random stream from which the sizes of both ends and of the network are drawn.
const TERMS: u64 = 9;
/// Number of time-outs for which a transfer goes on at least, in runs in which programs share a structure: eight
/// tries, each of which waits for longer than the one before.
const PATIENCE_TIMEOUTS: u32 = 40;
/// Changes of other clients that may be ahead of a change in the queue of a link.
const CHANGES_AT_ONCE: u64 = 4;
/// The first of the random streams that decide which clients are over UDP.
const WHO: u64 = 6_000_000;
/// Places in a node's table of regions, in runs with many places.
const REGIONS_MAX: u32 = 1 << 16;
/// Bytes of the largest packet that every path carries.
const PACKET_MAX: usize = 1232;
/// Bytes of the largest packet, in runs in which paths may become narrow: a whole operation in one.
const LONG_PACKETS: usize = 4224;
/// The most bytes that the operations of a program on a structure read at once: four values with the data that is
/// read with them.
const READ_AT_ONCE_BYTES: u64 = 4 * (32 << 10);
/// The address of the first machine.
const FIRST_HOST: u128 = (0xfd00 << 112) + 1;
/// The port of every node.
const NODE_PORT: u16 = 7;
/// The first port of clients.
const FIRST_PORT: usize = 1024;

/// Whether a client of a run is over UDP. Chunks are reached through queue pairs only.
pub(crate) fn is_over_udp(plan: &Plan, client: usize) -> bool {
    let is_hostile = client >= plan.clients - plan.hostile;
    let can = !plan.fill && (plan.programs != Programs::Chunks || is_hostile);
    can && Dice::new(plan.seed, WHO + client as u64).of(0..100) < plan.udp.into()
}

/// Returns the host of a machine.
fn host_of(machine: MachineId) -> Ipv6Addr {
    Ipv6Addr::from(FIRST_HOST + machine as u128)
}

/// Returns the machine of a host. `None`: no machine has this address.
fn machine_of(address: SocketAddr) -> Option<MachineId> {
    let SocketAddr::V6(address) = address else { return None };
    let number = u128::from(*address.ip()).checked_sub(FIRST_HOST)?;
    usize::try_from(number).ok()
}

/// Returns the address of a node's end.
fn address_of_node(node: usize) -> SocketAddr {
    SocketAddr::from((host_of(node), NODE_PORT))
}

/// Returns the address of a session's end.
fn address_of_session(machine: MachineId, session: SessionId) -> SocketAddr {
    let port = u16::try_from((FIRST_PORT + session) & 0xffff).unwrap_or(u16::MAX);
    SocketAddr::from((host_of(machine), port))
}

/// The sizes of both ends, and the properties of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub responder: ResponderLimits,
    pub initiator: InitiatorLimits,
    pub executor: ExecutorLimits,
    pub link: LinkTerms,
    pub faults: LinkFaults,
    /// Places in a node's table of regions.
    pub regions_max: u32,
    /// Datagrams that a node receives in one turn, and packets that it sends in one turn.
    pub per_turn: (usize, usize),
}

/// Returns the time-out of an initiator whose responders have this change time-out.
fn timeout_for(change_timeout: Duration) -> Duration {
    change_timeout + change_timeout / 8 + Duration::from_micros(10)
}

impl Terms {
    /// Draws the terms of a run.
    pub fn draw(plan: &Plan, latency: Nanos) -> Self {
        let mut dice = Dice::new(plan.seed, TERMS);
        let short = dice.per_mille(400);
        let mut packet_max = || {
            usize::try_from(if short { dice.of(90..300) } else { PACKET_MAX as u64 }).unwrap_or(usize::MAX)
        };
        let mut drawn = [packet_max(), packet_max()];
        if plan.programs.share_a_structure() {
            // With shorter packets, a read of a long value would take longer than any permission over it lives. Real
            // ends send no packets that are so short.
            drawn = [PACKET_MAX; 2];
        }
        if plan.faults.contains(&FaultKind::Mtu) {
            drawn = [LONG_PACKETS; 2];
        }
        let [responder_packets, initiator_packets] = drawn;
        let change_timeout = Duration::from_nanos(dice.magnitude(300 * MICROSECOND..2 * MILLISECOND));
        let timeout = timeout_for(change_timeout);
        let mut patience = Duration::from_nanos(dice.of(4 * MILLISECOND..8 * MILLISECOND));
        if plan.programs.share_a_structure() {
            // Several programs read long values at once, over links that may be slow. Real ends are patient for more
            // than a hundred time-outs.
            patience = patience.max(timeout * PATIENCE_TIMEOUTS);
        }
        let mut narrow = |range| usize::try_from(dice.magnitude(range)).unwrap_or(usize::MAX);
        let responder = ResponderLimits {
            packet_max: responder_packets,
            waiting_max: 4 << 20,
            changes_max: 4096,
            client_changes_max: 256,
            change_timeout,
            finished_max: narrow(1..256),
        };
        let per_turn = (narrow(1..64), narrow(1..64));
        let per_turn = if dice.per_mille(400) { (per_turn.0, 1) } else { per_turn };
        let few = u32::try_from(dice.of(4..64)).unwrap_or(64);
        let regions_max = if dice.per_mille(400) { few } else { REGIONS_MAX };
        // There are few slots, so that operations that wait for their turn run out of patience only if something is
        // wrong.
        let slots = 1 << dice.of(0..4);
        let initiator = InitiatorLimits {
            slots,
            window: OPERATION_MAX * u32::try_from(dice.of(1..5)).unwrap_or(1),
            packet_max: initiator_packets,
            dispatch_timeout: patience / u32::try_from(dice.of(1..9)).unwrap_or(1),
            timeout,
        };
        let rtt = Duration::from_nanos(4 * latency);
        let executor = ExecutorLimits {
            transfers: usize::try_from(slots).unwrap_or(1),
            patience,
            ..ExecutorLimits::for_round_trip(rtt)
        };
        let link = LinkTerms {
            bits_per_second: dice.magnitude(200_000_000..100_000_000_000),
            propagation: latency,
            queue: dice.magnitude(4_000..400_000),
        };
        let faults = if dice.per_mille(350) {
            LinkFaults::default()
        } else {
            let jitter = dice.magnitude(1..60_000);
            LinkFaults { lost: dice.of(0..80), repeated: dice.of(0..120), jitter }
        };
        let drawn = Self { responder, initiator, executor, link, faults, regions_max, per_turn };
        if plan.programs.share_a_structure() { drawn.patient_with_changes() } else { drawn }
    }

    /// Returns the terms with time for changes that find a full queue ahead of them. If one after another arrived too
    /// late, the next would begin a hundred round trips later, and its permission would have ended. Real ends give a
    /// change 50 ms.
    fn patient_with_changes(mut self) -> Self {
        let bytes = self.link.queue + CHANGES_AT_ONCE * u64::from(OPERATION_MAX);
        let takes = Duration::from_nanos(self.link.sending_ps(bytes) / 1_000);
        if self.responder.change_timeout < takes {
            self.responder.change_timeout = takes;
            self.initiator.timeout = timeout_for(takes);
            self.executor.patience = self.executor.patience.max(self.initiator.timeout * PATIENCE_TIMEOUTS);
        }
        self
    }

    /// Returns the shortest lease with which the users of a structure make progress. A long value is read under one
    /// permission, which lives for a quarter of a lease. It has to last for two operations whose packets are lost,
    /// and twice for the bytes that a program's operations read at once.
    pub fn lease_min(&self) -> Lifetime {
        let timeouts = self.initiator.timeout * 2;
        let bytes = Duration::from_secs(2 * 8 * READ_AT_ONCE_BYTES)
            / u32::try_from(self.link.bits_per_second / 1000).unwrap_or(u32::MAX)
            / 1000;
        let quarter = u64::try_from((timeouts + bytes).as_micros()).unwrap_or(u64::MAX);
        Lifetime(quarter.saturating_mul(4))
    }

    /// Returns the longest time that a change of a word takes on average: two round trips, whose four packets are
    /// late by half of their longest delay; a look of the client before and after; and a time-out for each packet
    /// that is lost, there or back. After a loss the next few operations are further apart.
    pub fn word_takes(&self) -> Duration {
        let rtt = self.executor.rtt;
        let lost =
            (self.initiator.timeout + rtt * 16) * 2 * u32::try_from(self.faults.lost).expect("per mille");
        rtt * 2 + Duration::from_nanos(self.faults.jitter * 2 + LOOK_MAX * 2) + lost / 1000
    }

    /// Whether the place of a region is soon reused by another region. If so, no client gets an answer to late
    /// operations on the old one, which wait for their time-outs.
    pub fn reuses_places(&self) -> bool {
        self.regions_max < REGIONS_MAX
    }

    /// Returns the longest that an operation on this many bytes may take at a client that looks at the time: its
    /// turns to begin, its time in a slot, two round trips, for which a repeat waits longer, and three queries. A
    /// transfer has its patience anew after each of its parts that succeeds. Each part succeeds once, and nothing
    /// begins after the last one, so the transfer has its patience as often as it has parts.
    pub fn longest(&self, bytes: u32) -> Duration {
        let InitiatorLimits { dispatch_timeout, timeout, .. } = self.initiator;
        let patience = self.executor.patience * bytes.div_ceil(OPERATION_MAX).max(1);
        patience + dispatch_timeout + timeout * (2 * REPEAT_TIMEOUTS_MAX + 4) + Duration::from_micros(10)
    }
}
