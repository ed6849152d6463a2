//! A run can be repeated: the same plan gives the same events. A failing plan can be shrunk.

use portcullis_sim::{FaultKind, Plan, run};

#[test]
fn the_same_plan_gives_the_same_run_to_the_last_event() {
    for seed in [3, 17, 400] {
        let plan = Plan::draw(seed);
        let first = run(&plan);
        assert_eq!(first, run(&plan), "seed {seed}");
        // Keeping a readable trace changes nothing.
        let readable = run(&Plan { readable: true, ..plan });
        assert_eq!((readable.trace_hash, readable.events), (first.trace_hash, first.events), "seed {seed}");
        assert!(readable.lines.len() > 100);
    }
}

#[test]
fn another_seed_gives_another_run() {
    let hashes: std::collections::HashSet<u64> =
        (0..20).map(|seed| run(&Plan::draw(seed)).trace_hash).collect();
    assert_eq!(hashes.len(), 20);
}

#[test]
fn every_kind_of_fault_happens_and_none_that_was_left_out() {
    let mut happened = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let plan = Plan::draw(seed);
        let report = run(&plan);
        assert!(report.faults.keys().all(|kind| plan.faults.contains(kind)), "seed {seed}");
        happened.extend(report.faults.into_keys());
    }
    // Only runs that request them have a path whose MTU falls, or nodes that freeze.
    let asked_for = [FaultKind::Mtu, FaultKind::NodeFreeze];
    let drawn: std::collections::BTreeSet<_> =
        FaultKind::ALL.into_iter().filter(|kind| !asked_for.contains(kind)).collect();
    assert_eq!(happened, drawn);
}

#[test]
fn faults_have_names_that_read_back() {
    for kind in FaultKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "flood".parse::<FaultKind>().expect_err("there is none");
    assert!(error.to_string().contains("client-stop"), "{error}");
}

#[test]
fn a_report_is_one_json_object_without_anything_that_differs_between_runs() {
    let plan = Plan::draw(11);
    let text = || serde_json::to_string(&run(&plan)).expect("a report is JSON");
    let (first, second) = (text(), text());
    assert_eq!(first, second);
    let value: serde_json::Value = serde_json::from_str(&first).expect("it reads back");
    for field in ["ok", "seed", "trace_hash", "events", "faults", "violations_tried", "violations_refused"] {
        assert!(value.get(field).is_some(), "{field} is missing in {first}");
    }
}
