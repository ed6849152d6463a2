//! Proof that the tests work: each mistake that is planted in the store is found, and by its effect.
//!
//! Needs `--features planted`; without it there is no mistake to plant.
#![cfg(feature = "planted")]

use crate::{leases, several, spread};
use portcullis_planted::{self as planted, Mistake};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Checks that the test finds the mistake, and that the text of its panic contains one of these.
fn is_found(mistake: Mistake, test: impl FnOnce(), words: &[&str]) {
    planted::plant(Some(mistake));
    let end = catch_unwind(AssertUnwindSafe(test));
    planted::plant(None);
    let panic = end.expect_err("the mistake is not found");
    let said = panic.downcast_ref::<String>().cloned();
    let said =
        said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned())).unwrap_or_default();
    assert!(words.iter().any(|words| said.contains(words)), "{mistake:?} is found by another check: {said}");
}

#[test]
fn block_lease_not_taken() {
    is_found(Mistake::BlockLeaseNotTaken, leases::a_found_block_is_read, &["that was found is gone"]);
}

#[test]
fn joined_nodes_forgotten() {
    is_found(Mistake::JoinedNodesForgotten, spread::copies_are_found, &["found on None"]);
}

#[test]
fn refusal_counted() {
    is_found(Mistake::RefusalCounted, spread::copies_are_found, &["copies are reported"]);
}

#[test]
fn forwarded_after_removal() {
    is_found(
        Mistake::ForwardedAfterRemoval,
        several::a_removal_reaches_a_copy_that_is_under_way,
        &["is back after its removal"],
    );
}
