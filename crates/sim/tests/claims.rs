//! A queue of claims under the checkers: its users die, stand still and hear late, and no entry is lost, acknowledged twice or
//! delivered after its end.

use portcullis_sim::{FaultKind, Plan, Programs, run};

fn plan_for(seed: u64) -> Plan {
    Plan::draw(seed).with(Programs::Claims)
}

#[test]
fn no_entry_is_lost_or_done_twice() {
    let mut accesses = 0;
    for seed in 0..60 {
        let report = run(&plan_for(seed));
        assert!(report.ok, "{:?}: {}", report.failures, plan_for(seed).command());
        accesses += report.accesses;
    }
    assert!(accesses > 100_000, "they do their work: {accesses} accesses");
}

#[test]
fn a_run_with_claims_can_be_had_again() {
    for seed in [1, 2, 3] {
        assert_eq!(run(&plan_for(seed)), run(&plan_for(seed)), "{}", plan_for(seed).command());
    }
}

#[test]
fn users_of_claims_die_and_stand_still() {
    for seed in 0..30 {
        let faults = vec![FaultKind::ClientPause, FaultKind::ClientStop];
        let plan = Plan { faults, ..Plan::draw(seed) }.with(Programs::Claims);
        let report = run(&plan);
        assert!(report.ok, "{:?}: {}", report.failures, plan.command());
    }
}
