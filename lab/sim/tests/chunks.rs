//! Chunks that the nodes' NICs hand out, under the checkers: clients allocate and free them, lose them, die and
//! return, and others try to reach chunks that are not theirs.

use crate::extent;
use portcullis_sim::{FaultKind, Plan, Programs, run};

fn plan_for(seed: u64) -> Plan {
    Plan::draw(seed).with(Programs::Chunks)
}

#[test]
fn a_chunk_has_one_holder_comes_as_zeros_and_is_free_when_all_have_gone() {
    let (mut grants, mut accesses, mut refused) = (0, 0, 0);
    let seeds = extent::seeds(100);
    for seed in 0..seeds {
        let report = run(&plan_for(seed));
        assert!(report.ok, "{:?}: {}", report.failures, plan_for(seed).command());
        grants += report.grants;
        accesses += report.accesses;
        refused += report.violations_refused;
    }
    assert!(
        grants > 50 * seeds && accesses > 100 * seeds,
        "they do their work: {grants} chunks, {accesses} accesses"
    );
    assert!(refused > 10 * seeds, "others try to reach what is not theirs: {refused} accesses");
}

#[test]
fn a_run_with_chunks_can_be_had_again() {
    for seed in [1, 2, 3, 4] {
        assert_eq!(run(&plan_for(seed)), run(&plan_for(seed)), "{}", plan_for(seed).command());
    }
}

#[test]
fn clients_of_chunks_die_and_stand_still_and_leave_nothing() {
    for seed in 0..extent::seeds(60) {
        let faults = vec![FaultKind::ClientPause, FaultKind::ClientStop, FaultKind::LateCompletions];
        let plan = Plan { faults, ..plan_for(seed) };
        let report = run(&plan);
        assert!(report.ok, "{:?}: {}", report.failures, plan.command());
    }
}
