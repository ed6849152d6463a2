//! A store of blocks under the checkers: its users die, stand still and get results late. A block that is found is the one
//! that was stored, and what a look-up has found is there for the read.

use crate::structures::{break_nothing, can_be_had_again, outlive_their_users};
use portcullis_sim::Programs;

#[test]
fn what_the_users_of_blocks_are_told_is_true() {
    let reports = break_nothing(Programs::Blocks, 60);
    let grants: u64 = reports.iter().map(|report| report.grants).sum();
    assert!(grants > 50 * reports.len() as u64, "they do their work: {grants} grants");
}

#[test]
fn a_run_with_blocks_can_be_had_again() {
    can_be_had_again(Programs::Blocks);
}

#[test]
fn users_of_blocks_die_and_stand_still() {
    outlive_their_users(Programs::Blocks, 30);
}
