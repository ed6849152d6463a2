//! Figure 10: producers of the concurrent queue on the real client and the real node, by mechanism (§7.3.2).

use super::inputs::Inputs;
use super::shared::{Job, ModelPipeline, SharedRun};
use super::{Effort, Progress};
use crate::report::OutputRow;
use portcullis_protocol::{Lifetime, Mechanism, ObjectRef};
use portcullis_sim::{Dice, FiberClock, SimEndpoint};
use portcullis_structures::queue::QueueOptions;
use std::cell::RefCell;

type ModelQueue = portcullis_structures::queue::Queue<SimEndpoint, FiberClock>;

const FIGURE: &str = "Figure 10";
/// Slots of a segment in the paper's comparison, and the fewest that it names.
const SLOTS: [u32; 2] = [1024, 64];
/// Bytes of an entry. The paper gives no number.
const ENTRY: [u8; 8] = [0xA5; 8];
/// More segments than a run fills.
const SEGMENTS_MAX: u32 = 1 << 13;

/// The mechanisms, each with the queue's lease. With windows, the queue has its shortest lease and its usual one. If
/// nothing is enforced by time, the lease never ends. With regions, the lease does not end before a region is
/// registered behind those of the other clients.
const GUARDS: [(&str, Mechanism, Lifetime); 5] = [
    ("Unprot", Mechanism::None, Lifetime::seconds(10)),
    ("Patronus", Mechanism::MemoryWindow, Lifetime::millis(1)),
    ("Patronus, usual lease", Mechanism::MemoryWindow, Lifetime::millis(10)),
    ("RPC", Mechanism::NodeCopy, Lifetime::seconds(10)),
    ("MR", Mechanism::MemoryRegion, Lifetime::millis(50)),
];

#[derive(Clone, Debug)]
struct Pushes(QueueOptions);

impl Job for Pushes {
    type Structure = ModelQueue;

    fn make(&self, pipeline: &ModelPipeline) -> (ModelQueue, ObjectRef) {
        let queue = pipeline.block_on(ModelQueue::create(pipeline, &self.0)).expect("the node has room");
        let head = queue.head();
        (queue, head)
    }

    fn open(&self, pipeline: &ModelPipeline, head: ObjectRef) -> ModelQueue {
        pipeline.block_on(ModelQueue::open(pipeline, head)).expect("the queue is there")
    }

    async fn perform(&self, queue: &ModelQueue, _: &RefCell<Dice>) {
        queue.push(&ENTRY).await.expect("the queue has room");
    }
}

pub(super) fn figure_10(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    for slots in SLOTS {
        let rates = GUARDS.map(|(name, mechanism, lease)| {
            progress.step(&format!("{FIGURE}: segments of {slots}, {name}"));
            let options = QueueOptions {
                segment_slots: slots,
                cell_bytes: 8,
                segments_max: SEGMENTS_MAX,
                lease,
                ..QueueOptions::default()
            };
            // Slow mechanisms are measured for longer.
            let span = match mechanism {
                Mechanism::MemoryRegion => 60,
                Mechanism::NodeCopy => 6,
                _ => 1,
            };
            let run = SharedRun::new(inputs, Pushes(options), mechanism, span * effort.span());
            let measured = run.run(inputs);
            let messages = measured.each(measured.work.control_messages);
            rows.push(
                OutputRow::new(FIGURE, format!("segments of {slots}, {name}"), "M pushes/s", measured.mops())
                    .reading(format!("{messages:.3} messages for each of them, counted")),
            );
            measured.mops()
        });
        rows.extend(comparison(slots, rates));
    }
    rows
}

fn comparison(slots: u32, [none, window, usual, copy, region]: [f64; 5]) -> [OutputRow; 4] {
    let row =
        |what: &str, unit, value| OutputRow::new(FIGURE, format!("segments of {slots}: {what}"), unit, value);
    let cost = |what, rate: f64| {
        row(what, "% of the rate", 100.0 * (1.0 - rate / none).max(0.0))
            .said("§7.3.2: very close to the upper bound without protection")
            .reading(
                "when a segment is full, each client asks for the next one, with about five messages: they weigh more \
                 than in the paper, since nothing but the network limits the clients between two segments",
            )
    };
    let over_region = row("Patronus over MR", "times", window / region);
    [
        cost("cost of Patronus", window),
        cost("cost of Patronus, usual lease", usual),
        row("Patronus over RPC", "times", window / copy).said("§7.3.2: inferior, two-sided in its data path"),
        if slots == SLOTS[0] {
            over_region.paper(1.0 / 0.175, "§7.3.2: MR has 17.5 % of Patronus' throughput")
        } else {
            over_region.said("§7.3.2: ×5.18 to ×1.78 over all sizes, without saying which is which")
        },
    ]
}
