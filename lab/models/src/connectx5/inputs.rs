//! The inputs of the model: for every primitive, its value, its unit, its source, and whether it was measured.

use super::onesidedmw::OneSidedInputs;
pub(super) use crate::report::row;
pub use crate::report::{InputRow, Origin};
use crate::time::Nanos;

/// The costs that the model charges, for a ConnectX-5 and the machines around it. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Time from posting one bind to its completion.
    pub bind_ns: Nanos,
    /// Binds of one core per second, in thousands, with 1, 2, 4 and 8 binds in a post.
    pub binds_of_a_core: [u64; 4],
    /// Binds of the NIC per second for all cores together, in thousands.
    pub binds_of_a_nic: u64,
    /// Time to register a region, for each 2 MB of it.
    pub register_ns: Nanos,
    /// Time to deregister each 2 MB.
    pub deregister_ns: Nanos,
    /// Registrations and deregistrations that can run at the same time.
    pub registrations: u64,
    /// Time to allocate a window.
    pub window_ns: Nanos,
    /// Time to change the access flags of a queue pair.
    pub flags_ns: Nanos,
    /// Time to rebuild a queue pair.
    pub recover_ns: Nanos,
    /// Time from posting an access that is refused to its error.
    pub report_ns: Nanos,
    /// Time to put a spare queue pair in the place of a broken one.
    pub promote_ns: Nanos,
    /// Round-trip time of a one-sided access on an idle network.
    pub network_ns: Nanos,
    /// The most that a client's packet may take longer. The actual delay is random.
    pub spread_ns: Nanos,
    /// One-sided accesses that a NIC serves per second, in thousands.
    pub nic_operations: u64,
    /// Time of a manager's core to take one message in, do its bookkeeping, and reply.
    pub rpc_ns: Nanos,
    /// Time of a manager's core for one polling round that finds something.
    pub round_ns: Nanos,
    /// Bytes that a core copies in a µs.
    pub copy_bytes: u64,
    /// Time of a client's CPU from a completion to the next request.
    pub client_ns: Nanos,
    /// Cores of the memory node.
    pub cores: u64,
    /// Number of machines with clients.
    pub machines: u64,
    /// Clients of each machine in latency measurements: one per core.
    pub clients: u64,
    /// Clients of each machine if the paper states «enough to saturate».
    pub crowd: u64,
    /// Requests that a manager takes in at once.
    pub batch: u64,
    /// The lease, even if the paper names none.
    pub lease_ns: Nanos,
    /// The lease of Figure 8a.
    pub resize_lease_ns: Nanos,
    /// An epoch of Figure 8a.
    pub epoch_ns: Nanos,
    /// Time at which the resizing client of Figure 8a crashes, in epochs.
    pub crash_epoch: u64,
    /// The inputs that only the results of OneSidedMW need.
    pub one_sided: OneSidedInputs,
}

impl Default for Inputs {
    fn default() -> Self {
        Self {
            bind_ns: 1_100,
            binds_of_a_core: [1_500, 2_700, 4_000, 3_500],
            binds_of_a_nic: 26_000,
            register_ns: 20_000,
            deregister_ns: 20_000,
            registrations: 1,
            window_ns: 100_000,
            flags_ns: 100_000,
            recover_ns: 1_004_000,
            report_ns: 769_000,
            promote_ns: 78_000,
            network_ns: 2_000,
            spread_ns: 200,
            nic_operations: 70_000,
            rpc_ns: 777,
            round_ns: 100,
            copy_bytes: 10_000,
            client_ns: 0,
            cores: 4,
            machines: 3,
            clients: 32,
            crowd: 128,
            batch: 32,
            lease_ns: 100_000,
            resize_lease_ns: 10_000_000,
            epoch_ns: 100_000,
            crash_epoch: 240,
            one_sided: OneSidedInputs::default(),
        }
    }
}

const POSTS: &str = "notes in the authors' repository: one core's rate of binds by windows in a post";
const REGISTER: &str = "§3.3 and Fig. 1: ~20 µs per 2 MB; 64 B touch one page of 2 MB";
const DEREGISTER: &str = "no figure anywhere: taken to cost what registering costs";
const REGISTRATIONS: &str =
    "§2.1: synchronous, through the kernel, «non-scalable»: one at a time, whichever core asks";
const FLAGS: &str = "§2.1: ~100 µs per operation; taken to keep the core that asks busy, and no other";
const CLIENT: &str = "§5.2: compute nodes own a mass of cores, so they are never what is short";
const RPC: &str = "derived: 70 Mops (§1) / 1.7 (§2.1, one-sided over two-sided) / 32 cores (Table 3) is \
                   1.29 Mops of messages a core";
const SPREAD: &str = "no figure anywhere: a tenth of the network's time; with none at all, clients that start together \
                      stay in step for ever";
const CROWD: &str =
    "§7.2.1 says «enough»: with four on each of its cores, three full batches wait at every manager";
const ROUND: &str =
    "no figure anywhere: a look into two completion queues and a heap; matters only where batches are small";
const COPY: &str =
    "half of what a channel of Table 3's memory moves (21 GB/s), as each byte is read and written";

impl Inputs {
    /// The inputs as rows of a report.
    #[must_use]
    pub fn rows(&self) -> Vec<InputRow> {
        let mut rows = self.hardware();
        rows.extend(self.set_up());
        rows.extend(self.one_sided.rows());
        rows
    }

    fn hardware(&self) -> Vec<InputRow> {
        use Origin::{Artifact, Assumed, Paper};
        let [one, two, four, eight] = self.binds_of_a_core.map(mega);
        vec![
            row(
                "bind of a window, latency",
                micro(self.bind_ns),
                "µs",
                Paper,
                "§4.1 and Fig. 1: 1.1 µs in median",
            ),
            row("binds of a core, 1 in a post", one, "M/s", Artifact, POSTS),
            row("binds of a core, 2 in a post", two, "M/s", Artifact, POSTS),
            row("binds of a core, 4 in a post", four, "M/s", Artifact, POSTS),
            row("binds of a core, 8 or more in a post", eight, "M/s", Artifact, POSTS),
            row(
                "binds of the NIC",
                mega(self.binds_of_a_nic),
                "M/s",
                Artifact,
                "notes in the authors' repository",
            ),
            row("registering a region, per 2 MB", micro(self.register_ns), "µs", Paper, REGISTER),
            row("ending a region, per 2 MB", micro(self.deregister_ns), "µs", Assumed, DEREGISTER),
            row("registrations at the same time", self.registrations as f64, "", Assumed, REGISTRATIONS),
            row(
                "allocating a window",
                micro(self.window_ns),
                "µs",
                Paper,
                "§5.6: off the critical path, so not charged",
            ),
            row("changing a queue pair's flags", micro(self.flags_ns), "µs", Paper, FLAGS),
            row("rebuilding a queue pair", micro(self.recover_ns), "µs", Paper, "Table 5"),
            row("a refused access until its error", micro(self.report_ns), "µs", Paper, "Table 5"),
            row("promoting a spare queue pair", micro(self.promote_ns), "µs", Paper, "Table 5"),
            row("network, there and back", micro(self.network_ns), "µs", Paper, "§2.1: ~2 µs"),
            row("spread of a client's packets", micro(self.spread_ns), "µs", Assumed, SPREAD),
            row(
                "one-sided accesses of a NIC",
                mega(self.nic_operations),
                "M/s",
                Paper,
                "§1: ~70 Mops; in each direction, answers free",
            ),
            row("one message on a manager's core", micro(self.rpc_ns), "µs", Assumed, RPC),
            row("one round of a manager's polls", micro(self.round_ns), "µs", Assumed, ROUND),
            row("a client's CPU between two requests", micro(self.client_ns), "µs", Assumed, CLIENT),
            row("copying on a manager's core", self.copy_bytes as f64 / 1e3, "GB/s", Assumed, COPY),
        ]
    }

    fn set_up(&self) -> Vec<InputRow> {
        use Origin::{Artifact, Assumed, Paper};
        let count = |number: u64| number as f64;
        vec![
            row("cores of the memory node", count(self.cores), "", Paper, "§7, setup"),
            row("machines with clients", count(self.machines), "", Paper, "§7, setup"),
            row("clients of a machine, for latency", count(self.clients), "", Paper, "§7, setup: one a core"),
            row("clients of a machine, to saturate", count(self.crowd), "", Assumed, CROWD),
            row("requests in a manager's batch", count(self.batch), "", Artifact, "the authors' repository"),
            row("lease", micro(self.lease_ns), "µs", Paper, "§7.2.4 and §7.3; taken for §7.1 and §7.2.1 too"),
            row("lease of Figure 8a", micro(self.resize_lease_ns), "µs", Artifact, "the experiment's code"),
            row("epoch of Figure 8a", micro(self.epoch_ns), "µs", Artifact, "the experiment's code"),
            row("crash of Figure 8a", count(self.crash_epoch), "epochs", Paper, "§7.2.3"),
        ]
    }

    /// Returns how long a core takes to post and reap `windows` binds with one doorbell. Between the measured sizes
    /// the time is interpolated linearly.
    pub(crate) fn post_ns(&self, windows: u64) -> Nanos {
        let sizes = [1u64, 2, 4, 8];
        let measured = |at: usize| sizes[at] * 1_000_000 / self.binds_of_a_core[at].max(1);
        if windows == 0 {
            return 0;
        }
        let Some(above) = sizes.iter().position(|&size| windows <= size) else {
            return windows * 1_000_000 / self.binds_of_a_core[3].max(1);
        };
        let Some(below) = above.checked_sub(1) else { return measured(0) };
        let (low, high) = (measured(below), measured(above).max(measured(below)));
        low + (high - low) * (windows - sizes[below]) / (sizes[above] - sizes[below])
    }
}

pub(super) fn micro(nanos: Nanos) -> f64 {
    nanos as f64 / 1e3
}

fn mega(thousands: u64) -> f64 {
    thousands as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_post_never_takes_less_time() {
        let inputs = Inputs::default();
        let times: Vec<Nanos> = (0..100).map(|windows| inputs.post_ns(windows)).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!((times[0], times[1], times[4], times[8]), (0, 666, 1_000, 2_285));
    }

    #[test]
    fn the_time_of_a_message_follows_from_its_source() {
        // 70 Mops / 1.7 / 32 cores, in ns.
        assert_eq!(Inputs::default().rpc_ns, 17 * 32 * 100_000 / 70_000);
    }
}
