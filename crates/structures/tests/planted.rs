//! Proof that the tests of the structures work: each mistake that is planted in the real code is found, and by its
//! effect. These are the mistakes that show if one user ends at some step. The simulator finds those that take a race.
//!
//! Needs `--features planted`; without it there is no mistake to plant.
#![cfg(feature = "planted")]

use crate::trials::{End, at_each_step_of_a_split};
use crate::{claim_trials, queue_trials, trials};
use portcullis_planted::{self as planted, Mistake};
use portcullis_structures::table::Grain;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a test with a fault. Returns the text of the test's panic.
fn said(fault: Mistake, test: impl FnOnce()) -> Option<String> {
    planted::plant(Some(fault));
    let end = catch_unwind(AssertUnwindSafe(test));
    planted::plant(None);
    let panic = end.err()?;
    let words = panic.downcast_ref::<String>().cloned();
    Some(words.or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned())).unwrap_or_default())
}

/// Checks that the test finds the fault, and that its text contains one of these words.
fn is_found(fault: Mistake, said: Option<String>, words: &[&str]) {
    let said = said.unwrap_or_else(|| panic!("{fault:?} is not found"));
    let first = said.lines().next().unwrap_or_default();
    eprintln!("{fault:?}: {first}");
    assert!(words.iter().any(|words| said.contains(words)), "{fault:?} is found by another check: {said}");
}

macro_rules! faults {
    ($($name:ident: $fault:ident by $trial:expr => $words:expr;)*) => {
        $(#[test]
        fn $name() {
            is_found(Mistake::$fault, said(Mistake::$fault, || $trial), &$words);
        })*

        #[test]
        fn every_fault_of_a_step_has_its_test() {
            let missing: Vec<_> =
                Mistake::OF_STEPS.iter().filter(|fault| ![$(Mistake::$fault),*].contains(fault)).collect();
            assert!(missing.is_empty(), "no test plants {missing:?}");
        }
    };
}

faults! {
    version_not_compared: VersionNotCompared by trials::a_reader_is_late_at_each_step() => ["is lost"];
    header_before_copy: HeaderBeforeCopy
        by at_each_step_of_a_split(Grain::Extent, End::Killed) => ["keys are lost", "Damaged"];
    // Found in two of three rounds: another client has to change a key within a few milliseconds of the split.
    bucket_used_too_early: BucketUsedTooEarly
        by (0..8).for_each(|_| at_each_step_of_a_split(Grain::Extent, End::Slow)) => ["keys are lost"];
    slots_not_frozen: SlotsNotFrozen by at_each_step_of_a_split(Grain::Extent, End::Slow)
        => ["keys are lost", "blocks are leaked or lost"];
    split_not_taken_over: SplitNotTakenOver
        by at_each_step_of_a_split(Grain::Extent, End::Killed) => ["TimedOut"];
    late_claim_used: LateClaimUsed
        by trials::a_writer_is_late_at_each_step() => ["is lost", "blocks are leaked or lost", "Damaged"];
    expiry_not_compared: ExpiryNotCompared
        by trials::a_removal_of_what_has_expired_ends_at_each_step(End::Late) => ["keys are lost"];
    claimed_not_compared: ClaimedNotCompared
        by trials::a_sweep_leaves_what_keys_lead_to() => ["keys are lost", "Damaged"];
    pieces_not_spared: PiecesNotSpared
        by trials::a_sweep_leaves_what_keys_lead_to() => ["keys are lost", "Damaged"];
    versions_begin_again: VersionsBeginAgain
        by trials::a_reader_is_late_while_its_extent_goes() => ["is lost", "never the key's"];
    old_block_not_freed: OldBlockNotFreed by trials::many_updates_leak_nothing() => ["leaked"];
    turn_not_awaited: TurnNotAwaited by trials::changes_of_one_key_are_made_in_their_order() => ["out of order"];
    turn_shared_too_early: TurnSharedTooEarly by trials::changes_that_share_a_turn_are_stored() => ["is lost"];
    lost_race_counts: LostRaceCounts by trials::a_remembered_slot_is_a_guess() => ["is lost"];
    segment_left_behind: SegmentLeftBehind by queue_trials::at_each_step(
        queue_trials::FULL,
        queue_trials::Deed::Push,
        queue_trials::End::Killed,
    ) => ["objects are leaked"];
    claim_not_compared: ClaimNotCompared
        by claim_trials::an_entry_belongs_to_its_last_consumer() => ["acknowledged more than once"];
    lapsed_not_delivered: LapsedNotDelivered by claim_trials::at_each_step(
        claim_trials::Deed::Claim,
        claim_trials::End::Killed,
    ) => ["not delivered again"];
    segment_goes_with_claims: SegmentGoesWithClaims by claim_trials::at_each_step(
        claim_trials::Deed::Claim,
        claim_trials::End::Killed,
    ) => ["entries are lost", "not delivered again"];
    claim_ends_early: ClaimEndsEarly
        by claim_trials::an_entry_belongs_to_its_last_consumer() => ["before its lease"];
}
