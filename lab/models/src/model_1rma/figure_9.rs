//! Figure 9: lookups while a replica of the key/value cache fails (§7.1).

use super::bench::{Cluster, quantile};
use super::figure_8::{CLIENTS, SERVERS, mean_time};
use super::inputs::{OneShotInputs, micro};
use super::traffic::{Arrivals, Begun, Ended, Traffic};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, Nanos};
use portcullis_onerma::{OPERATION_MAX, ServiceClass, Status};
use std::cell::RefCell;
use std::ops::Range;

const FIGURE: &str = "Figure 9";
const BYTES: usize = OPERATION_MAX as usize;
/// The replica that fails. `STAYS` is the replica that remains.
const FAILS: usize = 1;
const STAYS: usize = 0;
/// Load of each replica before the failure. After it the replica that remains has twice that load.
const LOAD: f64 = 0.4;
const FAILURE: Nanos = 200 * MICROSECOND;
const END: Nanos = 600 * MICROSECOND;
/// Number of failures, each with arrivals of its own. One run has too few lookups in a bucket to distinguish a change
/// from chance.
const RUNS: u64 = 32;
/// The time over which a median is taken.
const BUCKET: Nanos = 20 * MICROSECOND;

/// Returns the median of lookups of all runs that ended in a span, in µs.
fn median(runs: &[Traffic], from: Nanos, until: Nanos) -> f64 {
    let ended = runs.iter().flat_map(|run| &run.ended);
    let counted = ended.filter(|it| it.status == Status::Ok && (from..until).contains(&it.at));
    quantile(&mut counted.map(Ended::took).collect::<Vec<_>>(), 0.5) / 1e3
}

/// Returns the longest time in a run without a success in a span, in µs: of one client, or of all together.
fn longest_gap(runs: &[Traffic], span: &Range<Nanos>, client: Option<usize>) -> f64 {
    let gap = |run: &Traffic| {
        let is_counted = |it: &&Ended| {
            it.status == Status::Ok && client.is_none_or(|one| one == it.client) && span.contains(&it.at)
        };
        let times: Vec<Nanos> = run.ended.iter().filter(is_counted).map(|it| it.at).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(END)
    };
    micro(runs.iter().map(gap).max().unwrap_or(END))
}

/// Runs lookups. A lookup that the failed replica refuses is begun again at the other one, as are all that follow.
fn run(inputs: &OneShotInputs) -> Traffic {
    let mut traffic = Traffic::new(Cluster::new(inputs, SERVERS, CLIENTS, 1 << 16), inputs);
    traffic.fails = Some((FAILURE, FAILS));
    let knows = RefCell::new(vec![false; CLIENTS.end]);
    let arrivals = Arrivals { mean: mean_time(inputs, LOAD), until: END };
    traffic.run(
        CLIENTS,
        arrivals,
        &mut |dice, client| {
            let drawn = dice.index(SERVERS.len());
            (if knows.borrow()[client] { STAYS } else { drawn }, BYTES, ServiceClass::Latency)
        },
        &mut |traffic, end| {
            if end.status != Status::Ok && end.begun.server == FAILS {
                knows.borrow_mut()[end.client] = true;
                traffic.begin(end.client, Begun { server: STAYS, ..end.begun });
            }
        },
    );
    traffic
}

/// Returns the end of the last bucket after the failure whose median is off the later median by half of what the
/// failure changes.
fn stable_after(runs: &[Traffic], earlier: f64, later: f64) -> Nanos {
    let buckets = (END - FAILURE) / BUCKET;
    let far = (0..buckets).rev().find(|at| {
        let from = FAILURE + at * BUCKET;
        (median(runs, from, from + BUCKET) - later).abs() >= (later - earlier).abs() / 2.0
    });
    far.map_or(0, |at| (at + 1) * BUCKET)
}

/// Returns rows about the operations that the failed replica received.
fn failures(inputs: &OneShotInputs, runs: &[Traffic]) -> [OutputRow; 3] {
    let ended = runs.iter().flat_map(|run| &run.ended);
    let failures: Vec<&Ended> = ended.filter(|it| it.status != Status::Ok).collect();
    let slowest = failures.iter().map(|it| it.took()).fold(0.0, f64::max) / 1e3;
    let is_refusal =
        |it: &&&Ended| it.status == Status::RemoteAuthenticationFailure && it.begun.server == FAILS;
    let refusals = failures.iter().filter(is_refusal).count();
    // An operation that the failed replica refused was begun again, and counts by its new result.
    let lost = runs.iter().map(Traffic::failed).sum::<usize>() - refusals;
    [
        OutputRow::new(FIGURE, "operations that failed, in 32 runs", "", failures.len() as f64)
            .said("§7.1: an immediate op failure")
            .holds(refusals > 0 && refusals == failures.len())
            .reading("all with REMOTE_AUTHENTICATION_FAILURE: the replica's region is invalidated, and its NIC lives"),
        OutputRow::new(FIGURE, "the slowest of these failures", "µs", slowest)
            .said("§7.1: not delayed by even a network transport timeout")
            .holds(slowest < micro(inputs.timeout_round_trips * inputs.round_trip_ns)),
        OutputRow::new(FIGURE, "lookups that never succeeded", "", lost as f64)
            .said(AVAILABLE)
            .holds(lost == 0),
    ]
}

const AVAILABLE: &str = "§7.1: without a period of unavailability";

pub(super) fn figure_9(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let seeds = (0..RUNS).map(|run| inputs.seed.wrapping_mul(RUNS).wrapping_add(run));
    let runs: Vec<Traffic> = seeds.map(|seed| run(&OneShotInputs { seed, ..*inputs })).collect();
    let steady = median(&runs, (FAILURE + END) / 2, END);
    let earlier = median(&runs, FAILURE / 2, FAILURE);
    let stable = micro(stable_after(&runs, earlier, steady));
    let spans = [0..FAILURE, FAILURE..END];
    let [before, after] = spans.each_ref().map(|span| longest_gap(&runs, span, None));
    let of_one = spans
        .each_ref()
        .map(|span| CLIENTS.map(|client| longest_gap(&runs, span, Some(client))).fold(0.0, f64::max));
    let row = |what: &str, value| OutputRow::new(FIGURE, what, "µs", value);
    let mut rows = vec![
        row("median of a lookup before the failure", earlier),
        row("median of a lookup after it", steady),
    ];
    rows.extend(failures(inputs, &runs));
    rows.extend([
        row("latency is stable again after", stable)
            .paper(100.0, "§7.1: stabilizing in < 100 µs")
            .holds(stable < 100.0)
            .reading(
                "medians of 20 µs, of 32 failures, off the later median by less than half of what the failure changes; CPUs of clients and servers are not \
                 modelled",
            ),
        row("longest time without a success before", before),
        row("longest time without a success after", after)
            .said(AVAILABLE)
            .holds(after < micro(2 * inputs.round_trip_ns))
            .reading(format!(
                "of all clients, less than a refusal and its repeat take; of one client {:.1} µs before and {:.1} µs after",
                of_one[0], of_one[1]
            )),
    ]);
    rows
}
