//! Figure 8b: exclusive permissions that are limited by leases or by heartbeats, with clients that hang (§7.2.4).

use super::bench::{Bench, LONG, Outcome};
use super::inputs::Inputs;
use super::script::Step;
use super::{Effort, Progress};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, MILLISECOND, Nanos};
use portcullis_protocol::{Lifetime, Mechanism, Sharing};

const FIGURE: &str = "Figure 8b";
/// How long slow clients hang while they hold a permission.
const SLOW: [Nanos; 4] = [0, 100 * MICROSECOND, MILLISECOND, 10 * MILLISECOND];
/// Every n-th client is slow, and each core has this many objects. The paper gives neither number.
const SLOW_EVERY: usize = 4;
const OBJECTS: u64 = 256;

fn bench(inputs: &Inputs, leases: bool, slow: Nanos, effort: Effort) -> Bench {
    let (lifetime, last) =
        if leases { (Lifetime(inputs.lease_ns / MICROSECOND), Step::Forget) } else { (LONG, Step::Revoke) };
    let acquire = Step::Acquire { lifetime, sharing: Sharing::Exclusive };
    let steps = |slow| vec![Step::Begin, acquire, Step::Hang(slow), last, Step::End];
    let mut bench = Bench::new(inputs, Mechanism::MemoryWindow, (2 * effort.span()).max(slow));
    bench.clients = inputs.crowd;
    bench.objects = OBJECTS;
    bench.steps = steps(0);
    bench.others = Some((SLOW_EVERY, steps(slow)));
    bench.warm_up = bench.warm_up.max(2 * slow);
    if !leases {
        bench.heartbeat = Some(inputs.lease_ns);
    }
    bench
}

fn rate(outcome: &Outcome) -> f64 {
    outcome.rate(outcome.work.grants) / 1e6
}

pub(super) fn figure_8b(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    let mut normal = None;
    for slow in SLOW {
        let micros = slow / MICROSECOND;
        let rates = [true, false].map(|leases| {
            let name = if leases { "lease" } else { "polling" };
            progress.step(&format!("{FIGURE}: {name}, {micros} µs"));
            rate(&bench(inputs, leases, slow, effort).run(inputs))
        });
        let normal = *normal.get_or_insert(rates);
        for (name, rate) in ["lease", "polling"].into_iter().zip(rates) {
            rows.push(OutputRow::new(
                FIGURE,
                format!("{name}, slow for {micros} µs"),
                "M permissions/s",
                rate,
            ));
        }
        if slow == 0 {
            rows.push(gain(rates));
        } else {
            rows.extend(kept(micros, normal, rates));
        }
    }
    rows
}

fn gain([lease, polling]: [f64; 2]) -> OutputRow {
    OutputRow::new(FIGURE, "lease before polling, normal clients", "%", 100.0 * (lease / polling - 1.0))
        .paper(6.0, "§7.2.4: 6 % better, saving one revoke")
        .reading(
            "a revoke is one of two messages of a permission, and here the managers' cores are what is short: the \
             same step as from + HO to + Expr in Figure 6. Where the paper measured 6 %, something else that it \
             does not name must have been short for both",
        )
}

/// Returns the part of each rate that remains when some clients are slow.
fn kept(micros: Nanos, normal: [f64; 2], slowed: [f64; 2]) -> [OutputRow; 2] {
    let [lease, polling] = [0, 1].map(|at| 100.0 * slowed[at] / normal[at]);
    let row = |name: &str, kept| {
        OutputRow::new(FIGURE, format!("{name} keeps, slow for {micros} µs"), "% of its normal rate", kept)
    };
    [
        row("lease", lease)
            .said("§7.2.4: lease retains performance")
            .reading(if lease > 95.0 { "holds" } else { "does NOT hold" }),
        row("polling", polling).said("§7.2.4: polling degrades seriously").reading(if polling < 80.0 {
            "holds"
        } else {
            "does NOT hold for so short a time: while some clients wait for a slow one's object, others keep the \
             cores busy. The paper says neither how many are slow nor how many objects there are"
        }),
    ]
}
