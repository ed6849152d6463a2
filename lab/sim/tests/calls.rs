//! Calls through shared memory under the checkers: processes that die and stand still at every step, and peers that write garbage.
//!
//! `PORTCULLIS_SEEDS=10000 cargo test --release -p portcullis-sim --features planted --test simulator calls::` runs more seeds.

use crate::extent;
use portcullis_sim::{FaultKind, Plan, Programs, campaign, run};

/// Number of seeds, unless the environment requests more.
const SEEDS: u64 = 300;

fn plan_for(seed: u64) -> Plan {
    Plan::draw(seed).with(Programs::Calls)
}

#[test]
fn no_seed_of_calls_breaks_a_promise() {
    let seeds = extent::seeds(SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    let (mut events, mut calls, mut heaps, mut tried, mut refused) = (0, 0, 0, 0, 0);
    let mut faults = std::collections::BTreeMap::<FaultKind, u64>::new();
    campaign(0..seeds, threads, plan_for, |report| {
        events += report.events;
        (calls, heaps) = (calls + report.accesses, heaps + report.grants);
        (tried, refused) = (tried + report.violations_tried, refused + report.violations_refused);
        report.faults.iter().for_each(|(&kind, count)| *faults.entry(kind).or_default() += count);
        if let Some(failure) = report.failures.first() {
            failed.push(format!("{failure}\n  {}", plan_for(report.seed).command()));
        }
        failed.len() < 5
    });
    eprintln!(
        "{events} events, {calls} calls, {heaps} heaps, {tried} holds tried, {refused} refused; {faults:?}"
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // A run without work would keep every promise.
    assert!(calls > 100 * seeds && heaps > 5 * seeds && faults.len() == 4, "{calls} {heaps} {faults:?}");
    assert!(tried > seeds && tried == refused, "{tried} {refused}");
}

#[test]
fn a_run_with_calls_can_be_had_again() {
    for seed in 0..6 {
        assert_eq!(run(&plan_for(seed)), run(&plan_for(seed)), "{}", plan_for(seed).command());
    }
}
