//! Proof that the tests of the structures bite: each mistake that is planted in the real code is found, and by what it breaks.
//! These are the mistakes that show where one user ends at some step. The simulator finds those that take a race.
//!
//! Needs `--features planted`; without it there is nothing to plant.
#![cfg(feature = "planted")]

use crate::trials::{End, at_each_step_of_a_split};
use portcullis_protocol::planted::{self, Fault};
use portcullis_structures::table::Grain;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a test with a fault. Returns what the test says.
fn said(fault: Fault, test: impl FnOnce()) -> Option<String> {
    planted::plant(Some(fault));
    let end = catch_unwind(AssertUnwindSafe(test));
    planted::plant(None);
    let panic = end.err()?;
    let words = panic.downcast_ref::<String>().cloned();
    Some(words.or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned())).unwrap_or_default())
}

/// The test finds the fault, and says one of these words.
fn is_found(fault: Fault, said: Option<String>, words: &[&str]) {
    let said = said.unwrap_or_else(|| panic!("{fault:?} is not found"));
    let first = said.lines().next().unwrap_or_default();
    eprintln!("{fault:?}: {first}");
    assert!(words.iter().any(|words| said.contains(words)), "{fault:?} is found by another check: {said}");
}

fn by_a_death_in_a_split(fault: Fault, end: End, words: &[&str]) {
    is_found(fault, said(fault, || at_each_step_of_a_split(Grain::Extent, end)), words);
}

#[test]
fn version_not_compared() {
    let said = said(Fault::VersionNotCompared, crate::trials::a_reader_is_late_at_each_step);
    is_found(Fault::VersionNotCompared, said, &["is lost"]);
}

#[test]
fn header_before_copy() {
    by_a_death_in_a_split(Fault::HeaderBeforeCopy, End::Killed, &["keys are lost", "Damaged"]);
}

#[test]
fn bucket_used_too_early() {
    by_a_death_in_a_split(Fault::BucketUsedTooEarly, End::Slow, &["keys are lost"]);
}

#[test]
fn slots_not_frozen() {
    by_a_death_in_a_split(Fault::SlotsNotFrozen, End::Slow, &["keys are lost"]);
}

#[test]
fn split_not_taken_over() {
    by_a_death_in_a_split(Fault::SplitNotTakenOver, End::Killed, &["TimedOut"]);
}

#[test]
fn late_claim_used() {
    let said = said(Fault::LateClaimUsed, crate::trials::a_writer_is_late_at_each_step);
    is_found(Fault::LateClaimUsed, said, &["is lost", "blocks are leaked or lost", "Damaged"]);
}

#[test]
fn expiry_not_compared() {
    let said = said(Fault::ExpiryNotCompared, || {
        crate::trials::a_removal_of_what_has_expired_ends_at_each_step(End::Late);
    });
    is_found(Fault::ExpiryNotCompared, said, &["keys are lost"]);
}

#[test]
fn old_block_not_freed() {
    let said = said(Fault::OldBlockNotFreed, crate::trials::many_updates_leak_nothing);
    is_found(Fault::OldBlockNotFreed, said, &["leaked"]);
}

#[test]
fn segment_left_behind() {
    let said = said(Fault::SegmentLeftBehind, || {
        crate::queue_trials::at_each_step(
            crate::queue_trials::FULL,
            crate::queue_trials::Deed::Push,
            crate::queue_trials::End::Killed,
        );
    });
    is_found(Fault::SegmentLeftBehind, said, &["objects are leaked"]);
}
