//! Programs on the paved path under the checkers: sessions whose calls wait, and their keepers.

use crate::extent;
use portcullis_sim::{FaultKind, Plan, Programs, run};

/// Returns the plan of a seed, with programs on the paved path.
fn plan_for(seed: u64) -> Plan {
    Plan { programs: Programs::Sessions, ..Plan::draw(seed) }
}

#[test]
fn sessions_and_their_keepers_keep_every_promise() {
    let mut grants = 0;
    let seeds = extent::seeds(60);
    for seed in 0..seeds {
        let report = run(&plan_for(seed));
        assert!(report.ok, "{:?}: {}", report.failures, plan_for(seed).command());
        grants += report.grants;
    }
    assert!(grants > 16 * seeds, "they do their work: {grants} grants");
}

#[test]
fn a_run_with_sessions_can_be_had_again() {
    for seed in [1, 2, 3] {
        assert_eq!(run(&plan_for(seed)), run(&plan_for(seed)), "{}", plan_for(seed).command());
    }
}

#[test]
fn sessions_stand_still_hear_late_and_end() {
    for seed in 0..extent::seeds(20) {
        let faults = vec![FaultKind::ClientPause, FaultKind::LateCompletions, FaultKind::ClientStop];
        let plan = Plan { faults, hostile: 0, ..plan_for(seed) };
        let report = run(&plan);
        assert!(report.ok, "{:?}: {}", report.failures, plan.command());
    }
}
