//! Incast with congestion control: many clients that read all they can from one server (§6, §7.5).

use super::bench::{REGION_BYTES, begin, read, world_with_servers};
use super::inputs::OneShotInputs;
use crate::one_shot::World;
use crate::report::OutputRow;
use crate::time::{MILLISECOND, Nanos};
use portcullis_onerma::{Destination, ExecutorCounters, ResponderLimits, ServiceClass, Signal};
use std::ops::Range;

const FIGURE: &str = "Incast";
const CLIENTS: Range<usize> = 1..9;
/// The spans that are counted: the first moments, in which all windows are as they begin, and a while after that.
const SPANS: [Range<Nanos>; 2] = [0..MILLISECOND / 5, MILLISECOND..3 * MILLISECOND];
/// Transfers of 4 MB that each client has under way.
const UNDER_WAY: usize = 2;

/// Returns the counters of each client.
fn counters(world: &mut World) -> Vec<ExecutorCounters> {
    CLIENTS.map(|client| world.with_executor(client, |it, _| it.counters())).collect()
}

fn start(world: &mut World, client: usize, to: &Destination) {
    let bytes = usize::try_from(REGION_BYTES).expect("4 MB");
    begin(world, client, read(to, bytes, ServiceClass::Bulk));
}

/// The operations of each client within a span: those with `OK`, and others.
type Done = Vec<(u64, u64)>;

/// Runs the incast. Returns the operations in each of [`SPANS`].
fn run(inputs: &OneShotInputs, threshold: u64) -> [Done; 2] {
    let mut world = world_with_servers(inputs, CLIENTS.end, 0..0, REGION_BYTES);
    let limits = ResponderLimits { waiting_max: threshold, ..inputs.responder_limits() };
    world.add_responder(0, REGION_BYTES, limits);
    let grants: Vec<Destination> = CLIENTS.map(|client| world.grant(0, client)).collect();
    for (client, to) in CLIENTS.zip(&grants) {
        world.add_executor(client, inputs.executor(Signal::Apart));
        (0..UNDER_WAY).for_each(|_| start(&mut world, client, to));
    }
    SPANS.map(|span| {
        go_on(&mut world, &grants, span.start);
        let before = counters(&mut world);
        go_on(&mut world, &grants, span.end);
        let pairs = before.iter().zip(counters(&mut world));
        pairs.map(|(before, after)| (after.ok - before.ok, failures(&after) - failures(before))).collect()
    })
}

/// Begins a transfer for each one that ends.
fn go_on(world: &mut World, grants: &[Destination], until: Nanos) {
    while world.step(until).is_some() {
        for (client, to) in CLIENTS.zip(grants) {
            while world.with_executor(client, |it, _| it.poll_end()).is_some() {
                start(world, client, to);
            }
        }
    }
}

fn failures(it: &ExecutorCounters) -> u64 {
    it.nacks + it.timeouts + it.dispatch_timeouts + it.refused
}

/// Returns the rows of one span.
fn rows(inputs: &OneShotInputs, name: &str, span: &Range<Nanos>, done: &Done) -> [OutputRow; 3] {
    let carried = inputs.link_operations() * (span.end - span.start) as f64 / 1e9;
    let (ok, failed) = done.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let [least, most] =
        [done.iter().map(|it| it.0).min(), done.iter().map(|it| it.0).max()].map(|it| it.unwrap_or(0));
    let row =
        |what: &str, unit, value| OutputRow::new(FIGURE, format!("8 clients, {name}: {what}"), unit, value);
    [
        row("goodput with congestion control", "% of the link", 100.0 * ok as f64 / carried),
        row("operations that were not OK", "%", 100.0 * failed as f64 / (ok + failed).max(1) as f64),
        row("the most of a client, of the least", "times", most as f64 / least.max(1) as f64),
    ]
}

pub(super) fn incast(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let [with, without] = [inputs.nack_threshold(), u64::MAX].map(|threshold| run(inputs, threshold));
    let mut all = Vec::new();
    let mut at_first = Vec::new();
    for (name, done) in [("with NACKs", with), ("without NACKs", without)] {
        let [goodput, failed, ratio] = rows(inputs, &format!("{name}, first 0.2 ms"), &SPANS[0], &done[0]);
        at_first.push(goodput.model);
        all.extend([goodput, failed, ratio]);
        let [goodput, failed, ratio] = rows(inputs, name, &SPANS[1], &done[1]);
        let holds = goodput.model >= 90.0;
        all.push(goodput.said("§6: not to waste bandwidth").holds(holds));
        all.extend([failed, ratio.said("§6: to allocate bandwidth fairly")]);
    }
    let times = at_first[0] / at_first[1].max(0.1);
    all.push(
        OutputRow::new(FIGURE, "goodput with NACKs, of that without, first 0.2 ms", "times", times)
            .said("§7.5: NACKs defend servers and clients alike during sudden load shifts")
            .holds(times >= 2.0)
            .reading("until congestion control has shrunk the windows, requests that are not NACKed are served too late"),
    );
    all
}
