//! Nodes that stand still for longer than the limit of sessions: each operation ends within its limit, in virtual time.

use crate::extent;
use portcullis_protocol::Lifetime;
use portcullis_sim::{FaultKind, Plan, Programs, run};

/// Returns the plan of a seed, with programs whose sessions have a limit, and nodes that freeze.
fn plan_for(seed: u64) -> Plan {
    let within = Some(Lifetime::micros(1_000 + seed % 4 * 700));
    let faults = vec![FaultKind::NodeFreeze];
    let (programs, duration_ns) = (Programs::Sessions, 120_000_000);
    Plan { programs, faults, within, duration_ns, hostile: 0, ..Plan::draw(seed) }
}

#[test]
fn sessions_end_what_a_frozen_node_does_not_answer_and_keep_every_promise() {
    let (mut grants, mut frozen) = (0, 0);
    let seeds = extent::seeds(40);
    for seed in 0..seeds {
        let report = run(&plan_for(seed));
        assert!(report.ok, "{:?}: {}", report.failures, plan_for(seed).command());
        grants += report.grants;
        frozen += report.faults.values().sum::<u64>();
    }
    assert!(
        grants > 25 * seeds && frozen > 2 * seeds,
        "they do their work: {grants} grants, {frozen} times a node was frozen"
    );
}

#[test]
fn sessions_over_udp_do_so_too() {
    for seed in 0..extent::seeds(20) {
        let plan = Plan { udp: 100, ..plan_for(seed) };
        let report = run(&plan);
        assert!(report.ok, "{:?}: {}", report.failures, plan.command());
    }
}

#[test]
fn a_run_with_frozen_nodes_can_be_had_again() {
    for seed in [1, 2, 3] {
        assert_eq!(run(&plan_for(seed)), run(&plan_for(seed)), "{}", plan_for(seed).command());
    }
}
