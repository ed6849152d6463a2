//! The inputs of the model: each with its value, its unit and its source.

use crate::one_shot::{HostTimes, WorldTerms};
use crate::report::{InputRow, Origin, row};
use crate::time::{MICROSECOND, Nanos};
use portcullis_onerma::{
    Executor, ExecutorLimits, HEADER_BYTES, Initiator, InitiatorLimits, OPERATION_MAX, Pace, ResponderLimits,
    Signal, TAG_BYTES,
};
use portcullis_sim::{LinkFaults, LinkTerms};
use std::time::Duration;

/// The hosts, links and parameters of 1RMA's testbed and simulations. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneShotInputs {
    /// Rate of a link, in bits per second.
    pub link_bits: u64,
    /// Round trip of an operation of 4 KB on an idle network.
    pub round_trip_ns: Nanos,
    /// One round trip over PCIe.
    pub pcie_ns: Nanos,
    /// Operations that a NIC takes in per second, in millions.
    pub nic_operations: u64,
    /// Bytes of the largest IP packet.
    pub packet_bytes: u64,
    /// Bytes that a datagram has on the wire besides its own.
    pub framing_bytes: u64,
    /// Bytes of a switch port's queue.
    pub queue_bytes: u64,
    /// Bytes of the solicitation window.
    pub window_bytes: u32,
    /// How long a command waits for the solicitation window, in round trips.
    pub dispatch_round_trips: u64,
    /// How long an operation waits for its answer, in round trips.
    pub timeout_round_trips: u64,
    /// Command slots of a client.
    pub slots: u32,
    /// The target of `issue_delay`.
    pub local_target_ns: Nanos,
    /// The target of `remote_delay`.
    pub remote_target_ns: Nanos,
    /// The congestion windows before anything was measured, in operations.
    pub initial_window: f64,
    /// The smallest congestion window (`CWND_MIN`).
    pub least_window: f64,
    /// The largest congestion window (`CWND_MAX`).
    pub most_window: f64,
    /// Operations that an executor may begin at once although its pace separates them.
    pub burst: u32,
    /// How long the driver takes to give a region another key.
    pub driver_rekey_ns: Nanos,
    /// The seed of arrivals and faults.
    pub seed: u64,
}

impl Default for OneShotInputs {
    fn default() -> Self {
        Self {
            link_bits: 100_000_000_000,
            round_trip_ns: 5 * MICROSECOND,
            pcie_ns: 400,
            nic_operations: 100,
            packet_bytes: 5_000,
            framing_bytes: 66,
            queue_bytes: 1 << 20,
            window_bytes: 64 << 10,
            dispatch_round_trips: 2,
            timeout_round_trips: 4,
            slots: 256,
            local_target_ns: MICROSECOND,
            remote_target_ns: 6 * MICROSECOND,
            initial_window: 15.0,
            least_window: 0.01,
            most_window: 32.0,
            burst: 4,
            driver_rekey_ns: 27 * MICROSECOND,
            seed: 1,
        }
    }
}

/// Bytes that an IP packet has besides a datagram's own: IPv4 and UDP.
const IP_BYTES: u64 = 28;

const WINDOW: &str = "§7.5: 64 KB is equal to the product of bandwidth and delay; §4.3 sizes it in proportion to that. The \
                      testbed's own is not given, and taken to be the same";
const NACKS: &str = "derived, §6.1: (TIMEOUT - RTT - DISPATCH_TIMEOUT) at the link's rate";
const PROPAGATION: &str = "derived: what is left of the round trip for each of the four links on the way";
const PACKET: &str =
    "no figure: Pony Express' MTU (Snap, SOSP'19), so an operation is one packet; §3.1 has several of 2 KB";
const FRAMING: &str = "IPv4, UDP, and Ethernet with preamble, checksum and gap";
const QUEUE: &str =
    "no figure: a share of a shallow switch's buffer; solicitation is to keep queues far shorter";
const INITIAL: &str =
    "no figure: bandwidth times delay, which is the 15 operations that §7.4 has at 100 Gb/s";
const MOST: &str = "no figure: twice bandwidth times delay";
const LEAST: &str = "no figure: one operation in a hundred round trips";
const LOCAL: &str = "no figure: a fifth of a round trip";
const REMOTE: &str = "no figure: the idle round trip and a fifth";
const BURST: &str = "no figure: the executor's own default";
const SLOTS: &str = "no figure: more than any run has under way, so that slots limit nothing";
const SEED: &str =
    "arrivals and faults are drawn from it; another seed is another run of the same experiment";

impl OneShotInputs {
    /// Returns the inputs as rows of a report.
    #[must_use]
    pub fn rows(&self) -> Vec<InputRow> {
        let mut rows = self.hardware();
        rows.extend(self.software());
        rows
    }

    fn hardware(&self) -> Vec<InputRow> {
        use Origin::{Assumed, Paper};
        let [bytes, framing, queue] =
            [self.packet_bytes, self.framing_bytes, self.queue_bytes].map(|it| it as f64);
        vec![
            row("rate of a link", self.link_bits as f64 / 1e9, "Gb/s", Paper, "§7.4: 100 Gb/s"),
            row("idle round trip of 4 KB", micro(self.round_trip_ns), "µs", Paper, "§7.4 and §7.5: 5 µs"),
            row("round trip over PCIe", micro(self.pcie_ns), "µs", Paper, "§7.1: ~400 ns"),
            row("operations of a NIC", self.nic_operations as f64, "M/s", Paper, "abstract: 100 M ops/s"),
            row("propagation of a link", micro(self.propagation_ns()), "µs", Assumed, PROPAGATION),
            row("largest IP packet", bytes, "B", Assumed, PACKET),
            row("framing of a datagram", framing, "B", Assumed, FRAMING),
            row("queue of a switch port", queue, "B", Assumed, QUEUE),
        ]
    }

    fn software(&self) -> Vec<InputRow> {
        use Origin::{Assumed, Paper};
        let round_trips = "round trips";
        let [dispatch, timeout] = [self.dispatch_round_trips, self.timeout_round_trips].map(|it| it as f64);
        vec![
            row("solicitation window", f64::from(self.window_bytes), "B", Paper, WINDOW),
            row(
                "wait for the solicitation window",
                dispatch,
                round_trips,
                Paper,
                "§6.1: 10 µs; §7.5: 2 * RTT",
            ),
            row("wait for an answer", timeout, round_trips, Paper, "§6.1: 4 to 5; §7.5: 4 * RTT"),
            row("NACK threshold", self.nack_threshold() as f64, "B", Assumed, NACKS),
            row("command slots of a client", f64::from(self.slots), "", Assumed, SLOTS),
            row("target of issue_delay", micro(self.local_target_ns), "µs", Assumed, LOCAL),
            row("target of remote_delay", micro(self.remote_target_ns), "µs", Assumed, REMOTE),
            row("initial congestion window", self.initial_window, "operations", Assumed, INITIAL),
            row("CWND_MIN", self.least_window, "operations", Assumed, LEAST),
            row("CWND_MAX", self.most_window, "operations", Assumed, MOST),
            row("burst beyond the pace", f64::from(self.burst), "operations", Assumed, BURST),
            row("another key by the driver", micro(self.driver_rekey_ns), "µs", Paper, "§7.3: ~27 µs"),
            row("seed", self.seed as f64, "", Assumed, SEED),
        ]
    }

    /// Returns the bytes on the wire of a datagram with this many bytes of data.
    pub(super) fn wire_bytes(&self, data: u64) -> u64 {
        data + (HEADER_BYTES + TAG_BYTES) as u64 + self.framing_bytes
    }

    /// Returns how long a link sends this many bytes.
    fn sending_ns(&self, bytes: u64) -> Nanos {
        bytes * 8 * 1000 / (self.link_bits / 1_000_000)
    }

    /// Returns how long a link sends an operation of 4 KB, in ps.
    pub(super) fn operation_ps(&self) -> u64 {
        self.wire_bytes(OPERATION_MAX.into()) * 8 * 1_000_000 / (self.link_bits / 1_000_000)
    }

    /// Returns the operations of 4 KB that a link carries, per second.
    pub(super) fn link_operations(&self) -> f64 {
        1e12 / self.operation_ps() as f64
    }

    /// Returns the data of 4 KB operations that a link carries, in Gb/s.
    pub(super) fn link_goodput(&self) -> f64 {
        self.link_operations() * f64::from(OPERATION_MAX) * 8.0 / 1e9
    }

    fn host_times(&self) -> HostTimes {
        let packet = 1000 / self.nic_operations.max(1);
        HostTimes { command: self.pcie_ns / 2, fetch: self.pcie_ns, store: self.pcie_ns / 2, packet }
    }

    /// Returns the part of the round trip that is left for one link.
    fn propagation_ns(&self) -> Nanos {
        let HostTimes { command, fetch, store, packet } = self.host_times();
        let sending =
            self.sending_ns(self.wire_bytes(0)) + self.sending_ns(self.wire_bytes(OPERATION_MAX.into()));
        self.round_trip_ns.saturating_sub(command + fetch + store + 2 * packet + 2 * sending) / 4
    }

    pub(super) fn nack_threshold(&self) -> u64 {
        let round_trips = self.timeout_round_trips.saturating_sub(1 + self.dispatch_round_trips);
        round_trips * self.round_trip_ns * (self.link_bits / 1_000_000) / 8 / 1000
    }

    pub(super) fn world(&self, faults: LinkFaults) -> WorldTerms {
        let (bits_per_second, propagation) = (self.link_bits, self.propagation_ns());
        let link = LinkTerms { bits_per_second, propagation, queue: self.queue_bytes };
        WorldTerms { link, host: self.host_times(), framing: self.framing_bytes, faults, seed: self.seed }
    }

    fn datagram_max(&self) -> usize {
        usize::try_from(self.packet_bytes - IP_BYTES).expect("packets are small")
    }

    pub(super) fn initiator_limits(&self) -> InitiatorLimits {
        InitiatorLimits {
            slots: self.slots,
            window: self.window_bytes,
            packet_max: self.datagram_max(),
            dispatch_timeout: Duration::from_nanos(self.dispatch_round_trips * self.round_trip_ns),
            timeout: Duration::from_nanos(self.timeout_round_trips * self.round_trip_ns),
        }
    }

    /// Creates a client with congestion control.
    pub(super) fn executor(&self, signal: Signal) -> Executor {
        let limits = ExecutorLimits {
            transfers: 1 << 16,
            patience: Duration::from_millis(50),
            local_target: Duration::from_nanos(self.local_target_ns),
            remote_target: Duration::from_nanos(self.remote_target_ns),
            rtt: Duration::from_nanos(self.round_trip_ns),
        };
        let (initial, least, most) = (self.initial_window, self.least_window, self.most_window);
        let pace = Pace { initial, least, most, burst: self.burst, signal };
        Executor::with_pace(Initiator::new(self.initiator_limits()), limits, pace)
    }

    pub(super) fn responder_limits(&self) -> ResponderLimits {
        ResponderLimits {
            packet_max: self.datagram_max(),
            waiting_max: self.nack_threshold(),
            changes_max: 1 << 10,
            client_changes_max: 1 << 8,
            // A client waits longer: see the responder.
            change_timeout: Duration::from_nanos((self.timeout_round_trips - 1) * self.round_trip_ns),
            finished_max: 1 << 10,
        }
    }
}

pub(super) fn micro(nanos: Nanos) -> f64 {
    nanos as f64 / 1e3
}
