//! Figure 8: time of a lookup and rate of a server of the key/value cache, by offered load (§7.1).

use super::bench::{Cluster, quantile};
use super::inputs::OneShotInputs;
use super::traffic::{Arrivals, Traffic};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, Nanos};
use portcullis_onerma::{OPERATION_MAX, ServiceClass};
use std::ops::Range;

const FIGURE: &str = "Figure 8";
/// The servers among ten nodes. They are fewer than the clients, as the paper states without numbers.
pub(super) const SERVERS: Range<usize> = 0..2;
pub(super) const CLIENTS: Range<usize> = 2..10;
const BYTES: usize = OPERATION_MAX as usize;
const SPAN: Range<Nanos> = 100 * MICROSECOND..400 * MICROSECOND;

/// Returns the mean time between two lookups of a client, for a load of each server.
pub(super) fn mean_time(inputs: &OneShotInputs, load: f64) -> f64 {
    let all = load * inputs.link_operations() * SERVERS.len() as f64;
    1e9 * CLIENTS.len() as f64 / all
}

struct Outcome {
    median: f64,
    tail: f64,
    goodput: f64,
}

fn run(inputs: &OneShotInputs, load: f64) -> Outcome {
    let cluster = Cluster::new(inputs, SERVERS, CLIENTS, 1 << 16);
    let mut traffic = Traffic::new(cluster, inputs);
    let arrivals = Arrivals { mean: mean_time(inputs, load), until: SPAN.end };
    traffic.run(
        CLIENTS,
        arrivals,
        &mut |dice, _| (dice.index(SERVERS.len()), BYTES, ServiceClass::Latency),
        &mut |_, _| {},
    );
    let mut times = traffic.times(BYTES, SPAN);
    let goodput = traffic.goodput(SPAN) / SERVERS.len() as f64;
    Outcome { median: quantile(&mut times, 0.5) / 1e3, tail: quantile(&mut times, 0.99) / 1e3, goodput }
}

pub(super) fn figure_8(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    for percent in [10, 30, 50, 70, 90, 120] {
        let Outcome { median, tail, goodput } = run(inputs, f64::from(percent) / 100.0);
        let row = |what: &str, unit, value| {
            OutputRow::new(FIGURE, format!("load of {percent} %: {what}"), unit, value)
        };
        rows.push(row("median of a lookup", "µs", median));
        rows.push(row("99 % of lookups", "µs", tail));
        let of_link = goodput / inputs.link_goodput();
        let reached = row("goodput of a server", "Gb/s", goodput);
        rows.push(if percent > 100 {
            reached
                .said("§7.1: ramps to the maximum practical throughput; the serving NIC is the bottleneck")
                .holds(of_link > 0.9)
                .reading("at least 90 % of the data that the link of a server carries")
        } else {
            reached
        });
    }
    rows
}
