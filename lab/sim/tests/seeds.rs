//! Many seeds: no promise is broken.
//!
//! `PORTCULLIS_SEEDS=100000 cargo test --release -p portcullis-sim --features planted --test simulator seeds::` runs more of them,
//! `make mutants` fewer.

use crate::extent;
use portcullis_sim::{Plan, campaign};

/// Number of seeds of everything; `make test` runs a tenth.
const SEEDS: u64 = 2_000;

#[test]
fn no_seed_breaks_a_promise() {
    let seeds = extent::seeds(SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    let (mut events, mut tried, mut refused) = (0, 0, 0);
    campaign(0..seeds, threads, Plan::draw, |report| {
        events += report.events;
        tried += report.violations_tried;
        refused += report.violations_refused;
        if let Some(failure) = report.failures.first() {
            failed.push(format!("{failure}\n  {}", Plan::draw(report.seed).command()));
        }
        failed.len() < 5
    });
    eprintln!("{events} events, {tried} violations tried, {refused} refused");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // A run without work would keep every promise.
    assert!(events > 500 * seeds && tried > 5 * seeds && tried == refused, "{events} {tried} {refused}");
}
