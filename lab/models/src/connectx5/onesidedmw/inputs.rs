//! The inputs of the results of OneSidedMW: its slides' set-up, the facts about chains in the public sources of RedN
//! and rdma-core, and values that are not published.

use super::super::inputs::{InputRow, Origin, micro, row};
use crate::time::Nanos;

/// The costs of chains, and the set-up of OneSidedMW's experiments. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneSidedInputs {
    /// Time of a request that follows another one in its queue.
    pub in_order_ns: Nanos,
    /// Time to fetch requests that were admitted later than they were posted.
    pub fetch_ns: Nanos,
    /// Time of a READ or an atomic in loopback.
    pub loopback_read_ns: Nanos,
    /// Time of a WRITE in loopback.
    pub loopback_write_ns: Nanos,
    /// Time until a message has left.
    pub send_ns: Nanos,
    /// Bytes that the link, and a loopback, move in a µs.
    pub link_bytes: u64,
    /// Atomics that a NIC serves per second, in thousands.
    pub atomics_of_a_nic: u64,
    /// Queue pairs with chains at which READs were measured.
    pub armed: u64,
    /// How much longer READs take with so many queue pairs, in thousandths.
    pub armed_per_mille: u64,
    /// Clients' machines.
    pub machines: u64,
    /// Cores of the memory node.
    pub cores: u64,
    /// Threads of a client's machine.
    pub threads: u64,
    /// Queue pairs of a client's group.
    pub group: u64,
    /// Bytes of a chunk of the key-value store.
    pub chunk_bytes: u64,
    /// Percentage of the inserted keys that are deleted.
    pub deleted_percent: u64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Size classes for each doubling of a size.
    pub size_classes: u64,
    /// Inserts of a client's machine in the trace.
    pub inserts: u64,
    /// Inserts for each allocation: the fewest and the most of the curve.
    pub inserts_of_a_chunk: [u64; 2],
    /// CPU time of an allocation by message: the least and the most of the curve.
    pub by_message_ns: [Nanos; 2],
    /// Bytes of a segment of a swap space.
    pub segment_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Time of a client's kernel for a page, beside its transfer.
    pub kernel_ns: Nanos,
    /// Pages of a swap space that were written one after the other and are given up together.
    pub run_pages: u64,
}

impl Default for OneSidedInputs {
    fn default() -> Self {
        Self {
            in_order_ns: 200,
            fetch_ns: 550,
            loopback_read_ns: 1_300,
            loopback_write_ns: 1_200,
            send_ns: 600,
            link_bytes: 12_500,
            atomics_of_a_nic: 8_400,
            armed: 96,
            armed_per_mille: 126,
            machines: 6,
            cores: 1,
            threads: 12,
            group: 4,
            chunk_bytes: 8 << 10,
            deleted_percent: 90,
            key_bytes: 8,
            value_bytes: 1_000,
            size_classes: 4,
            inserts: 20_000,
            inserts_of_a_chunk: [1, 64],
            by_message_ns: [1_000, 64_000],
            segment_bytes: 1 << 20,
            page_bytes: 4 << 10,
            kernel_ns: 1_500,
            run_pages: 64,
        }
    }
}

const REDN: &str = "recalled from RedN's paper (NSDI 2022), whose text was not at hand to check";
const SEND: &str =
    "no figure at hand: half of a WRITE in loopback, since the message's way is in the network's time";
const LINK: &str = "slides, «Experimental Setup»: 100 Gbps; a loopback is taken to be no faster";
const ARMED: &str = "slides, «Type-2 MW: Strong Isolation, but at a Cost»: up to 12.6 % at 96 queue pairs; one \
                     point, taken linear";
const SET_UP: &str = "slides, «Experimental Setup»";
const THREADS: &str =
    "one on each core of the slides' CPUs; that clients' machines have the node's is not said";
const GROUP: &str = "no figure anywhere: queue pairs for readers, writers, prefetching, and one more";
const KVS: &str = "slides, «Results – Disaggregated KVS»";
const SWAP: &str = "slides, «Results – Kernel Swap»";
const VALUE: &str = "the slides give no size: YCSB's record without its key, ten fields of 100 bytes; other sizes are \
                     beside it";
const CLASSES: &str = "the slides say only that there are classes: four for each doubling, as jemalloc has";
const INSERTS: &str = "the slides give no number: enough that the last chunk of a class does not matter";
const INSERTS_OF_A_CHUNK: &str = "no published figure: the ends of a curve";
const BY_MESSAGE: &str = "no published figure: the ends of a curve. The model's own node is counted beside \
                          it";
const PAGE: &str = "x86-64; ODRP's pages are as large (slides)";
const KERNEL: &str =
    "no figure anywhere: the path of a fault beside its transfer. The longer, the smaller all shares";
const RUN: &str = "no figure anywhere: what an application writes together it gives up together";

impl OneSidedInputs {
    pub(in super::super) fn rows(&self) -> Vec<InputRow> {
        let mut rows = self.chains();
        rows.extend(self.store());
        rows.extend(self.swap());
        rows
    }

    fn chains(&self) -> Vec<InputRow> {
        use Origin::{Assumed, Slides};
        let mega = |thousands: u64| thousands as f64 / 1e3;
        vec![
            row("one more request in a queue", micro(self.in_order_ns), "µs", Assumed, REDN),
            row("fetching what was admitted later", micro(self.fetch_ns), "µs", Assumed, REDN),
            row("READ or atomic in loopback", micro(self.loopback_read_ns), "µs", Assumed, REDN),
            row("WRITE in loopback", micro(self.loopback_write_ns), "µs", Assumed, REDN),
            row("a message until it has left", micro(self.send_ns), "µs", Assumed, SEND),
            row("link", self.link_bytes as f64 / 1e3, "GB/s", Slides, LINK),
            row("atomics of a NIC", mega(self.atomics_of_a_nic), "M/s", Assumed, REDN),
            row("queue pairs with chains, as measured", self.armed as f64, "", Slides, ARMED),
            row("READ with so many", self.armed_per_mille as f64 / 10.0, "% longer", Slides, ARMED),
            row("clients' machines of OneSidedMW", self.machines as f64, "", Slides, SET_UP),
            row("the node's cores of OneSidedMW", self.cores as f64, "", Slides, SET_UP),
            row("threads of a client's machine", self.threads as f64, "", Assumed, THREADS),
            row("queue pairs of a group", self.group as f64, "", Assumed, GROUP),
        ]
    }

    fn store(&self) -> Vec<InputRow> {
        use Origin::{Assumed, Slides};
        let [fewest, most] = self.inserts_of_a_chunk.map(|inserts| inserts as f64);
        let [least, longest] = self.by_message_ns.map(micro);
        vec![
            row("chunk of the store", self.chunk_bytes as f64, "B", Slides, KVS),
            row("keys that are deleted", self.deleted_percent as f64, "%", Slides, KVS),
            row("key", self.key_bytes as f64, "B", Assumed, VALUE),
            row("value", self.value_bytes as f64, "B", Assumed, VALUE),
            row("size classes for a doubling", self.size_classes as f64, "", Assumed, CLASSES),
            row("inserts of a machine in the trace", self.inserts as f64, "", Assumed, INSERTS),
            row("inserts for an allocation, fewest", fewest, "", Assumed, INSERTS_OF_A_CHUNK),
            row("inserts for an allocation, most", most, "", Assumed, INSERTS_OF_A_CHUNK),
            row("CPU for an allocation by message, least", least, "µs", Assumed, BY_MESSAGE),
            row("CPU for an allocation by message, most", longest, "µs", Assumed, BY_MESSAGE),
        ]
    }

    fn swap(&self) -> Vec<InputRow> {
        use Origin::{Assumed, Slides};
        vec![
            row("segment of a swap space", self.segment_bytes as f64 / 1024.0, "KiB", Slides, SWAP),
            row("page", self.page_bytes as f64, "B", Assumed, PAGE),
            row("a client's kernel for a page", micro(self.kernel_ns), "µs", Assumed, KERNEL),
            row("pages given up together", self.run_pages as f64, "", Assumed, RUN),
        ]
    }

    /// Returns the points of a curve, each four times the one before.
    pub(super) fn points([from, to]: [u64; 2]) -> Vec<u64> {
        let points = std::iter::successors(Some(from.max(1)), |&point| Some(4 * point));
        points.take_while(|&point| point <= to).collect()
    }

    /// Returns the number of threads of all clients.
    pub(super) fn clients(&self) -> u64 {
        self.machines * self.threads
    }

    /// Returns the factor by which a READ takes longer while this many queue pairs have chains.
    pub(super) fn read_factor(&self, armed: u64) -> f64 {
        let each = self.armed_per_mille as f64 / 1e3 / self.armed.max(1) as f64;
        1.0 + each * armed as f64
    }
}
