//! The cost of allocating and freeing by chain, and the cost of chains for clients that only read.

use super::super::Progress;
use super::super::inputs::{Inputs, micro};
use super::lap::{Lap, Laps, Request, laps};
use super::times::{Timed, thousands_a_second};
use crate::report::OutputRow;
use crate::time::Nanos;
use portcullis_offload::chain::Listing;

const RESULT: &str = "OneSidedMW: chains";
const GROUPS: [u64; 4] = [1, 2, 4, 8];
const SAID: &str = "slides: no number; «highly efficient remote memory allocation»";

/// The times and rates of a pool of chunks by chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolCosts {
    /// Time from the client's request until its reply.
    pub allocation_ns: Nanos,
    /// Allocations of a worker per second, in thousands.
    pub of_a_worker: f64,
    /// Allocations of a pool per second, in thousands, as its lock allows.
    pub of_a_pool: f64,
    /// Allocations of the NIC per second, in thousands, as its atomics and its binds allow.
    pub of_the_nic: f64,
    /// Queue pairs with chains that a client's machine has.
    pub armed: u64,
}

impl PoolCosts {
    pub fn new(inputs: &Inputs, chunk_bytes: u64) -> Self {
        let laps = laps(inputs.one_sided.group, chunk_bytes);
        let timed = Timed::lap(inputs, &laps.chains.alloc, &laps.alloc);
        Self {
            allocation_ns: inputs.network_ns + timed.answer_ns(),
            of_a_worker: thousands_a_second(timed.lap_ns()),
            of_a_pool: thousands_a_second(timed.held_ns()),
            of_the_nic: of_the_nic(inputs, &laps.alloc),
            armed: laps.workers,
        }
    }

    /// Returns the allocations per second, in thousands, of this many machines with a pair of workers each, from one
    /// pool.
    pub fn rate(&self, machines: u64) -> f64 {
        (machines as f64 * self.of_a_worker).min(self.of_a_pool).min(self.of_the_nic)
    }
}

/// Laps per second, in thousands, that the NIC's atomics and binds allow.
fn of_the_nic(inputs: &Inputs, lap: &Lap) -> f64 {
    let each = |rate: u64, count: u64| rate as f64 / count.max(1) as f64;
    let atomics = lap.count(|request| request == Request::Atomic);
    let windows = lap.count(|request| request == Request::Window);
    each(inputs.one_sided.atomics_of_a_nic, atomics).min(each(inputs.binds_of_a_nic, windows))
}

pub(super) fn chains(inputs: &Inputs, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    for group in GROUPS {
        progress.step(&format!("{RESULT}: groups of {group}"));
        let laps = laps(group, inputs.one_sided.chunk_bytes);
        rows.extend(of_a_group(inputs, group, &laps));
    }
    progress.step(&format!("{RESULT}: READs"));
    rows.extend(reads(inputs));
    rows
}

fn of_a_group(inputs: &Inputs, group: u64, laps: &Laps) -> Vec<OutputRow> {
    let row = |what: &str, unit, value: f64| {
        OutputRow::new(RESULT, format!("groups of {group}: {what}"), unit, value)
    };
    let both = [("allocation", &laps.chains.alloc, &laps.alloc), ("free", &laps.chains.free, &laps.free)];
    let mut rows = Vec::new();
    for (name, listing, lap) in both {
        let timed = Timed::lap(inputs, listing, lap);
        rows.push(counted(&row, name, lap, &timed, listing));
        rows.push(
            row(&format!("{name}, until the reply"), "µs", micro(inputs.network_ns + timed.answer_ns()))
                .said(SAID)
                .reading("one client, no other client at the lock"),
        );
        rows.push(
            row(&format!("{name}s of a worker"), "K/s", thousands_a_second(timed.lap_ns()))
                .reading("a lap goes on behind its reply: counters for the next one"),
        );
        rows.push(row(&format!("{name}, the lock is held"), "µs", micro(timed.held_ns())));
        rows.push(
            row(&format!("{name}s of the NIC"), "K/s", of_the_nic(inputs, lap)).reading(
                "whatever the pools: its atomics, most of which count for the next lap, and its binds",
            ),
        );
    }
    let refused = Timed::lap(inputs, &laps.chains.alloc, &laps.refused).answer_ns();
    rows.push(
        row("allocation where no chunk is free, until the reply", "µs", micro(inputs.network_ns + refused))
            .reading(
                "the same requests: a chain has no branch that is shorter. What is spared are the binds",
            ),
    );
    let [pop, push] = both.map(|(_, listing, lap)| Timed::lap(inputs, listing, lap).held_ns());
    rows.push(row("pops and pushes of a pool", "K/s", 2.0 * thousands_a_second(pop + push)).reading(
        "the holder of the lock keeps all others of the pool out, so more workers do not help, and more \
            pools do",
    ));
    rows
}

fn counted(
    row: &dyn Fn(&str, &'static str, f64) -> OutputRow,
    name: &str,
    lap: &Lap,
    timed: &Timed<'_>,
    listing: &Listing,
) -> OutputRow {
    let atomics = lap.count(|request| request == Request::Atomic);
    let padding = listing.ring() - listing.rows().len();
    row(&format!("{name}, requests"), "", lap.requests().count() as f64).reading(format!(
        "counted on the real NIC: {} segments, {atomics} atomics, {} window operations, {padding} NOPs of padding; no \
         turn of the node's CPU",
        timed.segments(),
        lap.count(|request| request == Request::Window),
    ))
}

/// Returns the times of READs beside queue pairs with chains.
fn reads(inputs: &Inputs) -> [OutputRow; 2] {
    let prices = &inputs.one_sided;
    let workers = PoolCosts::new(inputs, prices.chunk_bytes).armed;
    let longer = |armed: u64| 100.0 * (prices.read_factor(armed) - 1.0);
    let (few, many) = (workers * prices.machines, prices.machines * prices.threads);
    [
        OutputRow::new(RESULT, format!("READ, {few} queue pairs with chains"), "% longer", longer(few))
            .said("slides: up to 12.6 % at 96 queue pairs, which is an input here")
            .reading(format!(
                "{workers} workers for each of {} machines, counted: management and access are separate",
                prices.machines
            )),
        OutputRow::new(RESULT, format!("READ, {many} queue pairs with chains"), "% longer", longer(many))
            .said("slides: the same")
            .reading("a chain on each queue pair of each thread, which the separation avoids"),
    ]
}
