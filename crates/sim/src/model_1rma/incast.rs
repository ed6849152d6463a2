//! Incast with congestion control: many clients that read all they can from one server (§6, §7.5).

use super::bench::{REGION_BYTES, begin, read, world_with_servers};
use super::inputs::OneShotInputs;
use crate::clock::{MILLISECOND, Nanos};
use crate::model_report::OutputRow;
use crate::one_shot::World;
use portcullis_onerma::{
    Destination, ExecutorCounters, OperationType, ResponderLimits, ServiceClass, Signal,
};
use std::ops::Range;

const FIGURE: &str = "Incast";
const CLIENTS: Range<usize> = 1..9;
const SPAN: Range<Nanos> = MILLISECOND..3 * MILLISECOND;
/// Transfers of 4 MB that each client has under way.
const UNDER_WAY: usize = 2;

/// The sum of all clients' counters.
fn counters(world: &mut World) -> Vec<ExecutorCounters> {
    CLIENTS.map(|client| world.with_executor(client, |it, _| it.counters())).collect()
}

fn start(world: &mut World, client: usize, to: &Destination) {
    let bytes = usize::try_from(REGION_BYTES).expect("4 MB");
    begin(world, client, read(to, bytes, ServiceClass::Bulk));
}

/// What each client has done within the span.
fn run(inputs: &OneShotInputs, threshold: u64) -> Vec<(u64, u64)> {
    let mut world = world_with_servers(inputs, CLIENTS.end, 0..0, REGION_BYTES);
    let limits = ResponderLimits { waiting_max: threshold, ..inputs.responder_limits() };
    world.add_responder(0, REGION_BYTES, limits);
    let grants: Vec<Destination> =
        CLIENTS.map(|client| world.grant(0, client, OperationType::Read)).collect();
    for (client, to) in CLIENTS.zip(&grants) {
        world.add_executor(client, inputs.executor(Signal::Apart));
        (0..UNDER_WAY).for_each(|_| start(&mut world, client, to));
    }
    let mut before = Vec::new();
    for until in [SPAN.start, SPAN.end] {
        before = if until == SPAN.end { counters(&mut world) } else { before };
        while world.step(until).is_some() {
            for (client, to) in CLIENTS.zip(&grants) {
                while world.with_executor(client, |it, _| it.poll_end()).is_some() {
                    start(&mut world, client, to);
                }
            }
        }
    }
    let failures = |it: &ExecutorCounters| it.nacks + it.timeouts + it.dispatch_timeouts + it.refused;
    let pairs = before.iter().zip(counters(&mut world));
    pairs.map(|(before, after)| (after.ok - before.ok, failures(&after) - failures(before))).collect()
}

pub(super) fn incast(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let carried = inputs.link_operations() * (SPAN.end - SPAN.start) as f64 / 1e9;
    let mut rows = Vec::new();
    for (name, threshold) in [("with NACKs", inputs.nack_threshold()), ("without NACKs", u64::MAX)] {
        let done = run(inputs, threshold);
        let ok: u64 = done.iter().map(|it| it.0).sum();
        let failed: u64 = done.iter().map(|it| it.1).sum();
        let (least, most) = (done.iter().map(|it| it.0).min(), done.iter().map(|it| it.0).max());
        let row = |what: &str, unit, value| {
            OutputRow::new(FIGURE, format!("8 clients, {name}: {what}"), unit, value)
        };
        rows.push(
            row("goodput with congestion control", "% of the link", 100.0 * ok as f64 / carried)
                .said("§6: not to waste bandwidth")
                .holds(ok as f64 >= 0.9 * carried),
        );
        rows.push(row(
            "operations that were not OK",
            "%",
            100.0 * failed as f64 / (ok + failed).max(1) as f64,
        ));
        let ratio = most.unwrap_or(0) as f64 / least.unwrap_or(0).max(1) as f64;
        rows.push(
            row("the most of a client, of the least", "times", ratio)
                .said("§6: to allocate bandwidth fairly"),
        );
    }
    rows
}
