//! Figure 12: small reads beside one large read between the same two hosts (§7.2).

use super::bench::{Cluster, REGION_BYTES, exponential, quantile};
use super::inputs::OneShotInputs;
use super::traffic::idle;
use crate::one_shot::Happening;
use crate::report::OutputRow;
use crate::time::{MILLISECOND, Nanos};
use portcullis_onerma::{OPERATION_MAX, ServiceClass, Status};
use portcullis_sim::Dice;
use std::collections::HashMap;

const FIGURE: &str = "Figure 12";
/// Bytes of a small read. `SMALL_PER_SECOND` is the number of small reads in a second (§7.2).
const SMALL: usize = 64;
const SMALL_PER_SECOND: f64 = 10_000.0;
/// The time for which a run counts.
const SPAN: Nanos = 10 * MILLISECOND;
const SERVER: usize = 0;
const CLIENT: usize = 1;

/// Returns the times of small reads beside large ones of this many bytes, one after the other, in ns.
fn run(inputs: &OneShotInputs, large: usize, bulk: ServiceClass) -> Vec<f64> {
    let mut cluster = Cluster::new(inputs, SERVER..SERVER + 1, CLIENT..CLIENT + 1, REGION_BYTES);
    let mut dice = Dice::new(inputs.seed, 0x1_4c);
    let mean = 1e9 / SMALL_PER_SECOND;
    let mut begun = HashMap::new();
    let mut times = Vec::new();
    cluster.read(CLIENT, SERVER, large, bulk);
    cluster.world.wake(exponential(&mut dice, mean), 0);
    while let Some(happening) = cluster.world.step(SPAN) {
        if let Happening::Alarm(_) = happening {
            let at = cluster.world.now();
            begun.insert(cluster.read(CLIENT, SERVER, SMALL, ServiceClass::Latency), at);
            cluster.world.wake(at + exponential(&mut dice, mean), 0);
        }
        while let Some(end) = cluster.world.with_executor(CLIENT, |it, _| it.poll_end()) {
            assert_eq!(end.status, Status::Ok, "nothing is lost here");
            match begun.remove(&end.id) {
                Some(at) => times.push((cluster.world.now() - at) as f64),
                None => {
                    cluster.read(CLIENT, SERVER, large, bulk);
                }
            }
        }
    }
    times
}

pub(super) fn figure_12(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let best = idle(inputs, SMALL);
    let chunk = inputs.operation_ps() as f64 / 1e3;
    let mut rows = Vec::new();
    let sizes = [OPERATION_MAX as usize, 64 << 10, 1 << 20, 4 << 20];
    for (large, bulk) in
        sizes.map(|size| (size, ServiceClass::Bulk)).into_iter().chain([(4 << 20, ServiceClass::Latency)])
    {
        let mut times = run(inputs, large, bulk);
        let [median, tail] = [0.5, 0.99].map(|share| quantile(&mut times, share));
        let class = if bulk == ServiceClass::Bulk { "" } else { ", all in one class" };
        let row = |what: &str, unit, value| {
            OutputRow::new(FIGURE, format!("beside {} KB{class}: {what}", large >> 10), unit, value)
        };
        for (what, slowdown) in [("median", median / best), ("99 %", tail / best)] {
            let slowed = row(&format!("slowdown of small reads, {what}"), "times", slowdown);
            rows.push(if class.is_empty() {
                slowed
                    .said("§7.2: the small ops should not be delayed by the large transfer")
                    .holds(slowdown <= 1.5)
                    .reading("at most 1.5 times is asked for here")
            } else {
                slowed
            });
        }
        rows.push(
            row("delay of small reads, median", "chunks", (median - best) / chunk)
                .said("§7.2: comparable to the service time of a single 4KB chunk")
                .reading(
                    "the wait for a turn at the windows of the client and for the server's queue, which holds what exceeds the \
                     bandwidth-delay product",
                ),
        );
    }
    rows
}
