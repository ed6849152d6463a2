//! Calls through shared memory, in virtual time.
//!
//! Servers and clients are processes with leases in a directory. *Real* are both ends of every connection
//! (`rpc::channel::ends`), the heaps with their allocators, the rings, and the directory's state. *Simulated* are
//! the processes: when each takes a step, how long it stands still, and at which step of an allocator or of a call it
//! dies. The messages between processes are simulated too, such as the notice that a socket is closed. Some clients
//! and servers write arbitrary data into rings and heaps.
//!
//! A process that finds its lease ended gives up all that it had, as if it had died: a process that holds heaps by a
//! lease must not touch them without one.

mod calling;
mod client;
mod directory;
mod holding;
mod hostile;
mod judge;
mod methods;
mod server;
mod world;

use crate::oracle::Promise;
use crate::plan::Plan;
use crate::report::Report;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

/// Runs a plan with calls.
pub(crate) fn run(plan: &Plan) -> Report {
    let mut world = World::new(plan.clone());
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run())) {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("nothing");
        world.judge.fail(Promise::Soundness, format!("a panic: {said}"));
    }
    Report {
        ok: world.judge.failures.is_empty(),
        seed: plan.seed,
        trace_hash: world.trace.hash(),
        events: world.trace.events(),
        faults: std::mem::take(&mut world.faults),
        accesses: world.judge.answered,
        grants: world.directory.given,
        permissions_peak: world.judge.under_way_peak,
        violations_tried: world.directory.tried,
        violations_refused: world.directory.refused,
        late_and_harmless: 0,
        virtual_us: world.now / 1000,
        failures: std::mem::take(&mut world.judge.failures),
        lines: world.trace.take_lines(),
    }
}
