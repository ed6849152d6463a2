//! OneSidedMW's key-value store: the memory that it saves, and its inserts.

use super::super::bench::{Bench, LONG};
use super::super::inputs::{Inputs, micro};
use super::super::rig::SEED;
use super::super::script::Step;
use super::super::shared::{Job, ModelPipeline, SharedRun};
use super::super::{Effort, Progress};
use super::chains::PoolCosts;
use super::inputs::OneSidedInputs;
use super::objects::{Held, InsertsAndDeletes};
use crate::report::OutputRow;
use crate::time::Nanos;
use portcullis_protocol::{Lifetime, Mechanism, ObjectRef};
use portcullis_sim::{Dice, FiberClock, SimEndpoint};
use portcullis_structures::table::{Access, Grain, TableOptions};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type ModelTable = portcullis_structures::table::Table<SimEndpoint, FiberClock>;

const MEMORY: &str = "OneSidedMW: memory";
const INSERTS: &str = "OneSidedMW: inserts";
/// Other sizes of a value than the input's.
const VALUES: [u64; 5] = [64, 256, 500, 2_000, 4_000];
const SAVED: &str = "slides: saves 43 % remote memory";
/// The published cost of an insert against static memory, and the published gain over messages.
const COST: f64 = 19.8;
const GAIN: f64 = 10.6;
/// The most pools that are tried.
const POOLS_MAX: u64 = 64;
/// A client also reads the claims of an extent.
const SCAN_BYTES: u32 = 4 << 10;

/// Inserts of new keys into the real table.
#[derive(Clone, Debug)]
struct Inserts {
    options: TableOptions,
    value_bytes: u64,
    next: Arc<AtomicU64>,
}

impl Job for Inserts {
    type Structure = ModelTable;

    fn make(&self, pipeline: &ModelPipeline) -> (ModelTable, ObjectRef) {
        let table =
            pipeline.block_on(ModelTable::create(pipeline, &self.options)).expect("the node has room");
        let head = table.head();
        (table, head)
    }

    fn open(&self, pipeline: &ModelPipeline, head: ObjectRef) -> ModelTable {
        pipeline.block_on(ModelTable::open(pipeline, head, Access::Write)).expect("the table is there")
    }

    async fn perform(&self, table: &ModelTable, _: &RefCell<Dice>) {
        let key = self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let value = vec![0xA5; usize::try_from(self.value_bytes).unwrap_or(0)];
        let done = table.insert(&key, &value).await;
        assert!(matches!(done, Ok(true)), "an insert: {done:?}");
    }
}

/// The cost of an insert that needs no new memory.
#[derive(Clone, Copy, Debug)]
struct Insert {
    micros: f64,
    accesses: f64,
}

/// Measures the real table without protection, with one client on each machine.
fn insert(inputs: &Inputs, effort: Effort) -> Insert {
    let prices = &inputs.one_sided;
    let inputs = Inputs { cores: prices.cores, machines: prices.machines, ..*inputs };
    let options = TableOptions {
        grain: Grain::Extent,
        lease: Lifetime::seconds(10),
        // All keys of a run have room in one subtable.
        groups: u32::try_from(effort.table_keys).expect("the keys are few"),
        depth_max: 4,
        // Each run of the model must give the same result.
        seed: Some(0),
        ..TableOptions::default()
    };
    let job = Inserts { options, value_bytes: prices.value_bytes, next: Arc::default() };
    let block = u32::try_from(prices.value_bytes + prices.value_bytes / 8 + 64).expect("a value is short");
    let run = SharedRun::new(&inputs, job, Mechanism::None, effort.span());
    let mut measured = SharedRun { clients: 1, at_once: 1, bytes: block.max(SCAN_BYTES), ..run }.run(&inputs);
    let accesses = measured.work.requests - measured.work.control_messages;
    Insert { micros: measured.percentile(50), accesses: measured.each(accesses) }
}

/// Returns the CPU time of an allocation by message, counted on the real node with one core, in ns.
pub(super) fn by_message(inputs: &Inputs, effort: Effort) -> Nanos {
    let prices = &inputs.one_sided;
    let inputs = Inputs { cores: prices.cores, machines: prices.machines, ..*inputs };
    let mut bench = Bench::new(&inputs, Mechanism::MemoryWindow, effort.span());
    bench.config.pool_bytes = 64 << 20;
    bench.clients = prices.threads;
    bench.objects = 0;
    bench.steps = vec![Step::Begin, Step::Allocate { bytes: prices.chunk_bytes, lifetime: LONG }, Step::End];
    let outcome = bench.run(&inputs);
    outcome.work.busy / outcome.score.rounds.max(1)
}

/// The time at which a client requests its next chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asks {
    /// The client requests a chunk when it has no room left, and waits then.
    WhenFull,
    /// The client requests a chunk so early that it never waits, unless chunks arrive too slowly.
    Ahead,
}

/// Inserts per second, in millions, as the resources bound them: clients that wait for each of their requests, the
/// NIC, and the allocating side.
struct Store<'a> {
    inputs: &'a Inputs,
    insert: Insert,
    pool: PoolCosts,
}

impl Store<'_> {
    fn prices(&self) -> &OneSidedInputs {
        &self.inputs.one_sided
    }

    fn bounded(&self, micros: f64) -> f64 {
        let by_clients = self.prices().clients() as f64 / micros;
        by_clients.min(self.inputs.nic_operations as f64 / 1e3 / self.insert.accesses)
    }

    /// Returns the rate of inserts into static memory.
    fn in_static(&self) -> f64 {
        self.bounded(self.insert.micros)
    }

    /// Returns the rate with a chunk by chain for each `inserts`, from `pools` pools, which have as many sets of
    /// workers.
    fn by_chain(&self, inserts: u64, pools: u64, asks: Asks) -> f64 {
        let armed = pools * self.pool.armed * self.prices().machines;
        let factor = self.prices().read_factor(armed);
        let waiting = match asks {
            Asks::WhenFull => micro(self.pool.allocation_ns) / inserts as f64,
            Asks::Ahead => 0.0,
        };
        let chunks = (pools as f64 * self.pool.rate(self.prices().machines)).min(self.pool.of_the_nic);
        self.bounded(self.insert.micros * factor + waiting).min(inserts as f64 * chunks / 1e3)
    }

    /// Returns the rate with a chunk by message for each `inserts`, if each message takes `cpu` of the node's CPU
    /// time.
    fn by_message(&self, inserts: u64, cpu: Nanos) -> f64 {
        let answer = self.inputs.network_ns + cpu + self.inputs.bind_ns;
        let chunks = self.prices().cores as f64 * 1e3 / cpu.max(1) as f64;
        self.bounded(self.insert.micros + micro(answer) / inserts as f64).min(inserts as f64 * chunks)
    }

    /// Returns the numbers of pools that are reported: one, and as many as there are machines.
    fn pools(&self) -> [u64; 2] {
        [1, self.prices().machines]
    }

    /// Returns the cost of an insert by chain against static memory, in percent of the rate.
    fn cost(&self, inserts: u64, pools: u64, asks: Asks) -> f64 {
        100.0 * (1.0 - self.by_chain(inserts, pools, asks) / self.in_static()).max(0.0)
    }

    /// Returns the least cost with any number of pools, and that number.
    fn least_cost(&self, inserts: u64, asks: Asks) -> (f64, u64) {
        let costs = (1..=POOLS_MAX).map(|pools| (self.cost(inserts, pools, asks), pools));
        costs.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or_default()
    }
}

pub(super) fn store(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    progress.step(&format!("{MEMORY}: insert, then delete"));
    let (mut rows, held) = memory(inputs);
    progress.step(&format!("{INSERTS}: the table"));
    let insert = insert(inputs, effort);
    progress.step(&format!("{INSERTS}: allocations by message"));
    let counted = by_message(inputs, effort);
    let pool = PoolCosts::new(inputs, inputs.one_sided.chunk_bytes);
    let store = Store { inputs, insert, pool };
    rows.extend(parts(&store, counted));
    rows.extend(curves(&store, counted));
    rows.extend(filled(&store, held.fits));
    rows
}

/// Returns the rows about the memory that is saved, and the chunks that are held for values of the input's size.
fn memory(inputs: &Inputs) -> (Vec<OutputRow>, Held) {
    let prices = &inputs.one_sided;
    let trace = |value_bytes: u64| InsertsAndDeletes {
        chunk_bytes: prices.chunk_bytes,
        classes: prices.size_classes,
        object_bytes: prices.key_bytes + value_bytes,
        inserts: prices.inserts,
        deleted_percent: prices.deleted_percent,
        seed: SEED,
    };
    let held = trace(prices.value_bytes).run();
    let row = |value_bytes: u64, held: Held| {
        let what = format!("saved after the deletions, values of {value_bytes} B");
        OutputRow::new(MEMORY, what, "% of static memory", held.saved_percent())
    };
    let mut rows = vec![row(prices.value_bytes, held).paper(43.0, SAVED).reading(format!(
        "a chunk is given back with the last of its {} objects, so this follows from how many fit, and nothing else. \
         The slides give no size of a value: that it comes out is the size's doing",
        held.fits
    ))];
    for value_bytes in VALUES.into_iter().filter(|&bytes| bytes != prices.value_bytes) {
        let held = trace(value_bytes).run();
        rows.push(row(value_bytes, held).said(SAVED).reading(format!("{} objects fit a chunk", held.fits)));
    }
    (rows, held)
}

fn parts(store: &Store<'_>, counted: Nanos) -> [OutputRow; 4] {
    let row = |what: &str, unit, value| OutputRow::new(INSERTS, what, unit, value);
    [
        row("an insert into static memory", "µs in the median", store.insert.micros)
            .reading("the real table without protection; one client on each machine"),
        row("accesses of an insert", "", store.insert.accesses).reading("counted"),
        row("Static-MR", "M inserts/s", store.in_static())
            .said("no number in the slides")
            .reading("what the clients, one insert at a time each, and the NIC allow"),
        row("CPU for an allocation by message, counted", "µs", micro(counted))
            .said("no number in the slides")
            .reading(
                "the real node on one core, at this model's prices of messages and binds, which are pipelined: far below \
                 what the slides' gain needs",
            ),
    ]
}

/// Returns rows for both unknown inputs, each along its range.
fn curves(store: &Store<'_>, counted: Nanos) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    for inserts in OneSidedInputs::points(store.prices().inserts_of_a_chunk) {
        for pools in store.pools() {
            rows.extend(of_a_chunk(store, (inserts, pools), counted));
        }
    }
    rows
}

fn of_a_chunk(store: &Store<'_>, (inserts, pools): (u64, u64), counted: Nanos) -> Vec<OutputRow> {
    let row = |what: String, unit, value| {
        let many = if pools == 1 { "1 pool".to_owned() } else { format!("{pools} pools") };
        OutputRow::new(INSERTS, format!("{inserts} for an allocation, {many}: {what}"), unit, value)
    };
    let (rate, cost) =
        (store.by_chain(inserts, pools, Asks::WhenFull), store.cost(inserts, pools, Asks::WhenFull));
    let gain = |cpu| rate / store.by_message(inserts, cpu);
    let mut rows = vec![
        row("OneSidedMW".to_owned(), "M inserts/s", rate),
        row("cost of OneSidedMW".to_owned(), "% of the rate", cost)
            .said("slides: at most 19.8 %, for an unknown number of inserts")
            .reading(if cost <= COST { "holds" } else { "does NOT hold" }),
        row("OneSidedMW over RPC-MW, whose CPU time is counted".to_owned(), "times", gain(counted)),
    ];
    for cpu in OneSidedInputs::points(store.prices().by_message_ns) {
        let what = format!("OneSidedMW over RPC-MW, {} µs of CPU ASSUMED", micro(cpu));
        rows.push(row(what, "times", gain(cpu)).said("slides: up to 10.6, for unknown numbers of both"));
    }
    rows
}

/// Returns the results with as many inserts for an allocation as objects fit a chunk. The published numbers would
/// need that.
fn filled(store: &Store<'_>, fits: u64) -> [OutputRow; 4] {
    let row = |what: &str, unit, value| {
        OutputRow::new(INSERTS, format!("{fits} for an allocation, as many as fit: {what}"), unit, value)
    };
    let one = store.cost(fits, 1, Asks::WhenFull);
    let (waiting, few) = store.least_cost(fits, Asks::WhenFull);
    let (ahead, many) = store.least_cost(fits, Asks::Ahead);
    let wanted = store.by_chain(fits, 1, Asks::WhenFull) / GAIN;
    // In this case the node's core is the bound.
    let cpu = store.prices().cores as f64 * fits as f64 / wanted;
    let said = "slides: at most 19.8 %";
    [
        row("cost of OneSidedMW, 1 pool", "% of the rate", one).paper(COST, said).reading(
            "a pair of workers on each machine hands out fewer chunks than so many clients fill. How many queue pairs the \
             slides' clients allocate on, and what their free list does instead of a lock, the slides do not say",
        ),
        row("least cost of OneSidedMW", "% of the rate", waiting).paper(COST, said).reading(format!(
            "{few} pools, each with a pair of workers on each machine, which makes READs slower in turn. Most of the rest is \
             that a client waits for its chunk: it asks when it has no room left"
        )),
        row("least cost of OneSidedMW, clients that ask ahead", "% of the rate", ahead)
            .paper(COST, said)
            .reading(format!("{many} pools: no client waits, and the rest of the cost is that READs are slower")),
        row("RPC-MW's CPU time that the slides' gain needs, 1 pool", "µs", cpu)
            .said("slides: up to 10.6 times")
            .reading("for an allocation. What this model's own node takes is counted above: far less"),
    ]
}
