//! Figures 10 and 13: forty nodes that read from each other at random, without and with large reads among the small
//! ones (§7.1, §7.2).

use super::bench::{Cluster, quantile};
use super::inputs::OneShotInputs;
use super::traffic::{Arrivals, Traffic, idle};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, Nanos};
use portcullis_onerma::{OPERATION_MAX, ServiceClass};
use portcullis_sim::Dice;
use std::ops::Range;

const UNIFORM: &str = "Figure 10";
const MIXED: &str = "Figure 13";
/// Nodes of the testbed (§7).
const NODES: usize = 40;
const SMALL: usize = OPERATION_MAX as usize;
const LARGE: usize = 200_000;
/// Number of small operations in a thousand (§7.2).
const SMALL_OF_THOUSAND: u64 = 850;
const SPAN: Range<Nanos> = 50 * MICROSECOND..250 * MICROSECOND;
/// The span of runs with large reads. Large reads are rare, so they are counted for longer.
const MIXED_SPAN: Range<Nanos> = 100 * MICROSECOND..600 * MICROSECOND;

/// The results of a run for small reads.
struct Slowdown {
    median: f64,
    tail: f64,
    failed: usize,
    /// Datagrams that found a full queue in the network.
    dropped: u64,
}

fn other(dice: &mut Dice, client: usize) -> usize {
    (client + 1 + dice.index(NODES - 1)) % NODES
}

fn uniform(inputs: &OneShotInputs, load: f64) -> Slowdown {
    let mean = 1e9 / (load * inputs.link_operations());
    measure(inputs, mean, &SPAN, &mut |dice, client| (other(dice, client), SMALL, ServiceClass::Latency))
}

/// Measures small reads among large ones. `bulk` is the class of the large reads.
fn mixed(inputs: &OneShotInputs, load: f64, bulk: ServiceClass) -> Slowdown {
    let small = SMALL_OF_THOUSAND as f64 / 1e3;
    let operations = small + (1.0 - small) * LARGE as f64 / SMALL as f64;
    let mean = 1e9 * operations / (load * inputs.link_operations());
    measure(inputs, mean, &MIXED_SPAN, &mut |dice, client| {
        let server = other(dice, client);
        match dice.per_mille(SMALL_OF_THOUSAND) {
            true => (server, SMALL, ServiceClass::Latency),
            false => (server, LARGE, bulk),
        }
    })
}

fn measure(
    inputs: &OneShotInputs,
    mean: f64,
    span: &Range<Nanos>,
    choose: &mut dyn FnMut(&mut Dice, usize) -> (usize, usize, ServiceClass),
) -> Slowdown {
    let cluster = Cluster::new(inputs, 0..NODES, 0..NODES, LARGE as u64);
    let mut traffic = Traffic::new(cluster, inputs);
    traffic.run(0..NODES, Arrivals { mean, until: span.end }, choose, &mut |_, _| {});
    let mut times = traffic.times(SMALL, span.clone());
    let best = idle(inputs, SMALL);
    Slowdown {
        median: quantile(&mut times, 0.5) / best,
        tail: quantile(&mut times, 0.99) / best,
        failed: traffic.failed(),
        dropped: traffic.cluster.world.dropped(),
    }
}

fn rows(figure: &'static str, name: &str, it: &Slowdown) -> [OutputRow; 2] {
    let row = |what: &str, value| OutputRow::new(figure, format!("{name}: {what}"), "times", value);
    [row("slowdown of small reads, median", it.median), row("slowdown of small reads, 99 %", it.tail)]
}

pub(super) fn figure_10(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut all = Vec::new();
    for percent in [10, 30, 50, 70, 90] {
        let outcome = uniform(inputs, f64::from(percent) / 100.0);
        let [median, tail] = rows(UNIFORM, &format!("load of {percent} %"), &outcome);
        all.push(median.said("§7.1: a performance advantage, without a number"));
        all.push(tail.reading(format!("{} reads failed or did not end", outcome.failed)));
    }
    let wide = OneShotInputs { window_bytes: inputs.window_bytes * 3 / 2, ..*inputs };
    let name = format!("load of 90 %, solicitation window of {} KB", wide.window_bytes >> 10);
    let [median, tail] = rows(UNIFORM, &name, &uniform(&wide, 0.9));
    all.push(median.reading(
        "with a window of one bandwidth-delay product, reads wait for it as soon as others' queues lengthen round trips; \
         §7.5 sees that effect at larger scale too",
    ));
    all.push(tail);
    all
}

pub(super) fn figure_13(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut all = Vec::new();
    for percent in [25, 50, 75] {
        let load = f64::from(percent) / 100.0;
        let outcome = mixed(inputs, load, ServiceClass::Bulk);
        let [median, tail] = rows(MIXED, &format!("load of {percent} %"), &outcome);
        let median = median.said("§7.2: slows the smaller ops minimally");
        all.push(if percent == 50 {
            median.holds(outcome.median <= 1.5).reading("at most 1.5 times is asked for here, in the median")
        } else {
            median
        });
        all.push(tail);
        let what = format!("load of {percent} %: reads that failed, and datagrams that found a full queue");
        let lost = outcome.failed as f64 + outcome.dropped as f64;
        all.push(
            OutputRow::new(MIXED, what, "", lost)
                .said("§4.1: solicitation limits the severity of transient incasts")
                .holds(lost == 0.0),
        );
    }
    all.extend(rows(MIXED, "load of 50 %, all in one class", &mixed(inputs, 0.5, ServiceClass::Latency)));
    all
}
