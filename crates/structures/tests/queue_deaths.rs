//! A client dies, or stands still, at each single step of each operation on a queue. No entry is lost, doubled or out
//! of order, no other client waits for ever, and no memory is leaked.

use crate::queue_trials::{Deed, End, FULL, HALF_FULL, NEARLY_CONSUMED, at_each_step};

#[test]
fn a_client_is_killed_at_each_step_of_a_push() {
    at_each_step(HALF_FULL, Deed::Push, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_a_push_that_takes_several_slots() {
    at_each_step(HALF_FULL, Deed::PushLong, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_a_push_that_adds_a_segment() {
    at_each_step(FULL, Deed::Push, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_a_pop() {
    at_each_step(HALF_FULL, Deed::Pop, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_a_pop_that_retires_a_segment() {
    at_each_step(NEARLY_CONSUMED, Deed::Pop, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_a_close() {
    at_each_step(HALF_FULL, Deed::Close, End::Killed);
}

#[test]
fn a_client_is_late_at_each_step_of_a_push() {
    at_each_step(HALF_FULL, Deed::Push, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_a_push_that_takes_several_slots() {
    at_each_step(HALF_FULL, Deed::PushLong, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_a_push_that_adds_a_segment() {
    at_each_step(FULL, Deed::Push, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_a_pop() {
    at_each_step(HALF_FULL, Deed::Pop, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_a_pop_that_retires_a_segment() {
    at_each_step(NEARLY_CONSUMED, Deed::Pop, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_a_close() {
    at_each_step(HALF_FULL, Deed::Close, End::Late);
}
