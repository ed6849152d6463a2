//! A queue under the checkers: its users die, stand still and get results late, and all results fit one order.

use crate::structures::{break_nothing, can_be_had_again, outlive_their_users};
use portcullis_sim::Programs;

#[test]
fn what_the_users_of_a_queue_are_told_fits_one_order() {
    let reports = break_nothing(Programs::Queues, 60);
    let accesses: u64 = reports.iter().map(|report| report.accesses).sum();
    assert!(accesses > 1_600 * reports.len() as u64, "they do their work: {accesses} accesses");
}

#[test]
fn a_run_with_a_queue_can_be_had_again() {
    can_be_had_again(Programs::Queues);
}

#[test]
fn users_of_a_queue_die_and_stand_still() {
    outlive_their_users(Programs::Queues, 30);
}
