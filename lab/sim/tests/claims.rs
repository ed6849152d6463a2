//! A queue of claims under the checkers: its users die, stand still and get results late, and no entry is lost,
//! acknowledged twice or delivered after its end.

use crate::structures::{break_nothing, can_be_had_again, outlive_their_users};
use portcullis_sim::Programs;

#[test]
fn no_entry_is_lost_or_done_twice() {
    let reports = break_nothing(Programs::Claims, 60);
    let accesses: u64 = reports.iter().map(|report| report.accesses).sum();
    assert!(accesses > 1_600 * reports.len() as u64, "they do their work: {accesses} accesses");
}

#[test]
fn a_run_with_claims_can_be_had_again() {
    can_be_had_again(Programs::Claims);
}

#[test]
fn users_of_claims_die_and_stand_still() {
    outlive_their_users(Programs::Claims, 30);
}
