//! The conformance suite on devices with known defects: the promises that they break have to fail, and tests that they
//! do not survive are skipped.

use super::spoilt::{Spoiler, Spoilt};
use portcullis_conformance::{PromiseOutcome, Report, run};

/// The promises that a device breaks if its FETCH_AND_ADD adds twice.
const ADDS_TWICE: [&str; 12] = [
    "atomics::region::add_and_give_the_value_before",
    "atomics::region::add_past_the_largest_number_by_wrapping",
    "atomics::region::of_one_queue_see_each_other_in_order",
    "atomics::type_1::add_and_give_the_value_before",
    "atomics::type_1::add_past_the_largest_number_by_wrapping",
    "atomics::type_1::of_one_queue_see_each_other_in_order",
    "atomics::type_2::add_and_give_the_value_before",
    "atomics::type_2::add_past_the_largest_number_by_wrapping",
    "atomics::type_2::of_one_queue_see_each_other_in_order",
    "chains::nothing_runs_beyond_a_limit",
    "chains::managed_queues_execute_their_ring_again",
    "chains::requests_see_what_those_before_them_wrote_to_them",
];

fn failures(report: &Report) -> Vec<&'static str> {
    report.outcomes.iter().filter(|(_, outcome)| outcome.is_failure()).map(|(name, _)| *name).collect()
}

fn admitting(deviations: &[&'static str]) -> Report {
    run(|| Spoilt::admitting(Spoiler::AddsTwice, deviations))
}

#[test]
fn a_promise_that_a_device_is_known_to_break_has_to_fail_and_the_others_not() {
    let broken = failures(&admitting(&[]));
    assert_eq!(broken, ADDS_TWICE);
    let report = admitting(&broken);
    assert!(report.is_kept(), "{report}");
    let deviates = |outcome: &PromiseOutcome| matches!(outcome, PromiseOutcome::ExpectedDeviation(_));
    assert_eq!(report.outcomes.iter().filter(|(_, outcome)| deviates(outcome)).count(), ADDS_TWICE.len());
}

#[test]
fn a_deviation_that_is_none_is_an_error() {
    let mended = "queues::go_round_and_lose_nothing";
    let report = admitting(&[&ADDS_TWICE[..], &[mended]].concat());
    assert_eq!(failures(&report), [mended], "{report}");
}

#[test]
fn a_deviation_from_no_promise_is_an_error() {
    let report = admitting(&[&ADDS_TWICE[..], &["queues::never_are_blue"]].concat());
    assert_eq!(failures(&report), ["queues::never_are_blue"], "{report}");
}

/// The device panics at these misuses, also in the test bench's teardown.
#[test]
fn what_a_device_does_not_survive_is_skipped_aloud() {
    let report = run(|| Spoilt::nic(Spoiler::DiesOfMisuse));
    assert!(report.is_kept(), "{report}");
    let skipped = report.outcomes.iter().filter(|(_, outcome)| matches!(outcome, PromiseOutcome::Skipped(_)));
    let skipped: Vec<_> = skipped.map(|(name, _)| *name).collect();
    assert_eq!(
        skipped,
        [
            "type_2::invalidates_of_a_free_window_fail",
            "teardown::of_a_queue_pair_waits_for_its_type_2_windows"
        ]
    );
}
