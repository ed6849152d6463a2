//! The tests of each structure that programs share.

use crate::extent;
use portcullis_sim::{FaultKind, Plan, Programs, Report, run};

/// Checks that runs of this many seeds break no promise. Returns their reports.
pub fn break_nothing(programs: Programs, seeds: u64) -> Vec<Report> {
    (0..extent::seeds(seeds))
        .map(|seed| {
            let plan = Plan::draw(seed).with(programs);
            let report = run(&plan);
            assert!(report.ok, "{:?}: {}", report.failures, plan.command());
            report
        })
        .collect()
}

/// Checks that a run of a seed is the same every time.
pub fn can_be_had_again(programs: Programs) {
    for seed in [1, 2, 3] {
        let plan = Plan::draw(seed).with(programs);
        assert_eq!(run(&plan), run(&plan), "{}", plan.command());
    }
}

/// Checks that runs of this many seeds break no promise if programs die and stand still.
pub fn outlive_their_users(programs: Programs, seeds: u64) {
    for seed in 0..extent::seeds(seeds) {
        let faults = vec![FaultKind::ClientPause, FaultKind::ClientStop];
        let plan = Plan { faults, ..Plan::draw(seed) }.with(programs);
        let report = run(&plan);
        assert!(report.ok, "{:?}: {}", report.failures, plan.command());
    }
}
