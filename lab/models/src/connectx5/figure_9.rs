//! Figure 9: the hash table on the real client and the real node, by mechanism (§7.3.1).

use super::inputs::Inputs;
use super::shared::{Job, Measured, ModelPipeline, SharedRun};
use super::{Effort, Progress};
use crate::report::OutputRow;
use portcullis_protocol::{Lifetime, Mechanism, ObjectRef};
use portcullis_sim::{Dice, FiberClock, SimEndpoint};
use portcullis_structures::table::{Access, Grain, TableOptions};
use std::cell::RefCell;
use std::sync::Arc;

type ModelTable = portcullis_structures::table::Table<SimEndpoint, FiberClock>;

const FIGURE: &str = "Figure 9";
/// Exponent of Zipf's law for the keys (§7.3.1).
const SKEW: f64 = 0.99;
/// Bytes of a value in the paper's comparison.
const VALUE_BYTES: usize = 4 << 10;
/// Other sizes of a value, to find the size from which on a window costs less than a copy.
const SIZES: [usize; 4] = [64, 1 << 10, 4 << 10, 16 << 10];
/// The shortest lease that a table can have: its permissions live for 250 µs, against 100 µs in the paper.
const SHORT: Lifetime = Lifetime::millis(1);
/// The lease of a table whose permissions never end during a run.
const ENDLESS: Lifetime = Lifetime::seconds(10);
/// A client also reads the claims of an extent.
const SCAN_BYTES: u32 = 4 << 10;
/// The percentage of reads. The rest are updates.
const WORKLOADS: [(u64, &str); 3] = [(100, "read-only"), (50, "half and half"), (0, "write-only")];

/// The protection of the table.
#[derive(Clone, Copy, Debug)]
struct Guard {
    name: &'static str,
    mechanism: Mechanism,
    grain: Grain,
    /// The lease of the table. Permissions on its parts live for a quarter of it.
    lease: Lifetime,
}

/// Guard that enforces nothing: no message about a permission after the first access.
const UNPROTECTED: Guard =
    Guard { name: "Unprot", mechanism: Mechanism::None, grain: Grain::Extent, lease: ENDLESS };
const BLOCK: Guard =
    Guard { name: "Patronus", mechanism: Mechanism::MemoryWindow, grain: Grain::Block, lease: SHORT };
const EXTENT: Guard = Guard { name: "by extent", grain: Grain::Extent, ..BLOCK };
const USUAL: Guard = Guard { name: "by extent, usual lease", lease: Lifetime::seconds(1), ..EXTENT };
const COPY: Guard = Guard { name: "RPC", mechanism: Mechanism::NodeCopy, ..UNPROTECTED };
/// Guard whose lease is longer than the paper's, which would be over before a region is registered behind those of
/// the other clients.
const REGION: Guard =
    Guard { name: "MR", mechanism: Mechanism::MemoryRegion, lease: Lifetime::millis(200), ..BLOCK };
const GUARDS: [Guard; 6] = [UNPROTECTED, BLOCK, EXTENT, USUAL, COPY, REGION];

#[derive(Clone, Debug)]
struct Gets {
    options: TableOptions,
    value_bytes: usize,
    reads: u64,
    /// The sums of the keys' weights, so that a key can be drawn by Zipf's law.
    sums: Arc<[f64]>,
}

fn zipf(keys: usize) -> Arc<[f64]> {
    let weights = (1..=keys).map(|rank| (rank as f64).powf(-SKEW));
    weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect()
}

fn key(number: usize) -> [u8; 8] {
    (number as u64).to_le_bytes()
}

impl Gets {
    /// Draws a key by Zipf's law.
    fn draw(&self, dice: &mut Dice) -> usize {
        let whole = self.sums.last().copied().unwrap_or(0.0);
        let drawn = dice.of(0..1 << 53) as f64 / (1u64 << 53) as f64 * whole;
        self.sums.partition_point(|&sum| sum <= drawn).min(self.sums.len() - 1)
    }
}

impl Job for Gets {
    type Structure = ModelTable;

    fn make(&self, pipeline: &ModelPipeline) -> (ModelTable, ObjectRef) {
        let table =
            pipeline.block_on(ModelTable::create(pipeline, &self.options)).expect("the node has room");
        let value = vec![0xA5; self.value_bytes];
        let insert = async |number: usize| table.insert(&key(number), &value).await;
        let check = |result| assert!(matches!(result, Ok(true)), "an insert: {result:?}");
        pipeline.run(8, (0..self.sums.len()).map(insert), check);
        let head = table.head();
        (table, head)
    }

    fn open(&self, pipeline: &ModelPipeline, head: ObjectRef) -> ModelTable {
        pipeline.block_on(ModelTable::open(pipeline, head, Access::Write)).expect("the table is there")
    }

    async fn perform(&self, table: &ModelTable, dice: &RefCell<Dice>) {
        let (number, reads) = {
            let mut dice = dice.borrow_mut();
            (self.draw(&mut dice), dice.of(0..100) < self.reads)
        };
        if reads {
            let found = table.get(&key(number)).await;
            assert!(matches!(found, Ok(Some(_))), "a get: {found:?}");
        } else {
            let value = vec![0x5A; self.value_bytes];
            let done = table.update(&key(number), &value).await;
            assert!(matches!(done, Ok(true)), "an update: {done:?}");
        }
    }
}

fn run(inputs: &Inputs, effort: Effort, guard: Guard, (reads, value_bytes): (u64, usize)) -> SharedRun<Gets> {
    let options = TableOptions {
        grain: guard.grain,
        lease: guard.lease,
        // All keys have room in one subtable.
        groups: u32::try_from(effort.table_keys / 8).expect("the keys are few"),
        depth_max: 4,
        // Each run of the model must give the same result.
        seed: Some(0),
        ..TableOptions::default()
    };
    let job = Gets { options, value_bytes, reads, sums: zipf(effort.table_keys) };
    // Slow mechanisms are measured for longer.
    let span = if guard.mechanism == Mechanism::MemoryRegion { 20 } else { 1 };
    let block_bytes = u32::try_from(value_bytes + value_bytes / 8 + 64).expect("a value is short");
    SharedRun {
        bytes: block_bytes.max(SCAN_BYTES),
        ..SharedRun::new(inputs, job, guard.mechanism, span * effort.span())
    }
}

pub(super) fn figure_9(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    for (reads, name) in WORKLOADS {
        let rates = GUARDS.map(|guard| {
            progress.step(&format!("{FIGURE}: {name}, {}", guard.name));
            let measured = run(inputs, effort, guard, (reads, VALUE_BYTES)).run(inputs);
            rows.push(rate(format!("{name}, {}", guard.name), &measured));
            measured.mops()
        });
        rows.extend(comparison(name, rates));
    }
    rows.extend(sizes(inputs, effort, progress));
    rows.extend(latency(inputs, effort, progress));
    rows
}

fn rate(what: String, measured: &Measured) -> OutputRow {
    let messages = measured.each(measured.work.control_messages);
    let binds = measured.each(measured.work.tally.binds);
    OutputRow::new(FIGURE, what, "M operations/s", measured.mops())
        .reading(format!("{messages:.2} messages and {binds:.2} window operations for each of them, counted"))
}

fn comparison(workload: &str, [none, block, _, usual, copy, region]: [f64; 6]) -> [OutputRow; 4] {
    let times = |what: &str, rate| OutputRow::new(FIGURE, format!("{workload}: {what}"), "times", rate);
    let cost = |what: &str, rate: f64| {
        OutputRow::new(
            FIGURE,
            format!("{workload}: {what}"),
            "% of the rate",
            100.0 * (1.0 - rate / none).max(0.0),
        )
    };
    [
        times("Patronus over MR", block / region).said("abstract: ×5.2 better than all the competitors").reading(
            if block > 5.2 * region { "holds" } else { "does NOT hold" },
        ),
        times("Patronus over RPC", block / copy)
            .said("§7.3.1: inferior due to the memory copy overhead")
            .reading(if block > copy { "holds" } else { "does NOT hold" }),
        cost("cost of Patronus", block).said("abstract: at most 27.7 %, over all applications").reading(
            "each block costs a message of its own, and the managers' four cores take five of them in a µs. What \
             limited the paper's clients without protection it does not say; here it is the NIC",
        ),
        cost("cost by extent, usual lease", usual)
            .reading("what a table costs as it is made by default: permissions of 250 ms, shared by many operations"),
    ]
}

/// Finds the size of a value from which on a window costs less than a copy.
fn sizes(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    SIZES
        .map(|bytes| {
            let [block, copy] = [BLOCK, COPY].map(|guard| {
                progress.step(&format!("{FIGURE}: values of {bytes} B, {}", guard.name));
                run(inputs, effort, guard, (100, bytes)).run(inputs).mops()
            });
            OutputRow::new(
                FIGURE,
                format!("read-only, values of {bytes} B: Patronus over RPC"),
                "times",
                block / copy,
            )
        })
        .into()
}

/// Measures the latency with clients that are too few to slow each other down.
fn latency(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> [OutputRow; 3] {
    let [none, block] = [UNPROTECTED, BLOCK].map(|guard| {
        progress.step(&format!("{FIGURE}: latency, {}", guard.name));
        let run = run(inputs, effort, guard, (100, VALUE_BYTES));
        SharedRun { clients: 1, at_once: 1, ..run }.run(inputs).percentile(50)
    });
    let row = |what, micros| OutputRow::new(FIGURE, what, "µs in the median", micros);
    [
        row("a get, Unprot", none),
        row("a get, Patronus", block),
        row("a get, the price of protection", block - none)
            .paper(4.0, "§7.3.1: 4 µs to the median latency (+29 %)")
            .reading(format!(
                "{:+.0} %: one client on each core, one get at a time",
                100.0 * (block / none - 1.0)
            )),
    ]
}
