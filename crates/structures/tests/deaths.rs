//! A client dies, or stands still, at each single step of each operation. No other client loses a key, reads a torn
//! value, finds a key twice or waits for ever, and after a sweep no memory is leaked.

use crate::trials::{
    self, Deed, End, ExtentDeed, a_change_is_posted_late, a_change_of_extents_ends_at_each_step,
    a_change_takes_one_round_trip, a_reader_is_late_at_each_step, a_refill_stands_still,
    a_remembered_slot_is_a_guess, a_removal_of_what_has_expired_ends_at_each_step,
    a_write_takes_no_message_of_its_own, a_writer_is_late_at_each_step, at_each_step, at_each_step_in,
    at_each_step_of_a_split, changes_of_one_key_are_made_in_their_order,
    changes_that_share_a_turn_are_stored, many_updates_leak_nothing,
};
use portcullis_structures::table::Grain;

#[test]
fn a_client_is_killed_at_each_step_of_an_insert() {
    at_each_step(Grain::Extent, Deed::Insert, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_the_first_insert_which_makes_an_extent() {
    at_each_step_in(0, Grain::Extent, Deed::Insert, End::Killed);
}

#[test]
fn a_client_is_late_at_each_step_of_the_first_insert_which_makes_an_extent() {
    at_each_step_in(0, Grain::Extent, Deed::Insert, End::Late);
}

#[test]
fn a_client_is_killed_at_each_step_of_an_update() {
    at_each_step(Grain::Extent, Deed::Update, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_a_removal() {
    at_each_step(Grain::Extent, Deed::Remove, End::Killed);
}

#[test]
fn a_client_is_killed_at_each_step_of_a_split_with_which_the_directory_doubles() {
    at_each_step_of_a_split(Grain::Extent, End::Killed);
}

#[test]
fn a_client_is_late_at_each_step_of_an_insert() {
    at_each_step(Grain::Extent, Deed::Insert, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_an_update() {
    at_each_step(Grain::Extent, Deed::Update, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_a_removal() {
    at_each_step(Grain::Extent, Deed::Remove, End::Late);
}

#[test]
fn a_client_is_late_at_each_step_of_a_split_with_which_the_directory_doubles() {
    at_each_step_of_a_split(Grain::Extent, End::Late);
}

#[test]
fn keys_are_changed_at_each_step_of_a_split() {
    at_each_step_of_a_split(Grain::Extent, End::Slow);
}

#[test]
fn a_client_is_late_at_each_step_of_an_update_where_each_block_has_a_permission_of_its_own() {
    at_each_step(Grain::Block, Deed::Update, End::Late);
}

#[test]
fn a_reader_that_is_late_at_any_step_finds_its_key_and_no_other() {
    a_reader_is_late_at_each_step();
}

#[test]
fn a_reader_that_is_late_while_its_extent_goes_finds_its_key_and_no_other() {
    trials::a_reader_is_late_while_its_extent_goes();
}

#[test]
fn a_sweep_leaves_what_keys_lead_to() {
    trials::a_sweep_leaves_what_keys_lead_to();
}

#[test]
fn a_writer_that_is_late_at_any_step_uses_no_block_that_others_have() {
    a_writer_is_late_at_each_step();
}

#[test]
fn the_block_of_a_value_goes_back_at_once_when_another_takes_its_place() {
    many_updates_leak_nothing();
}

#[test]
fn changes_that_share_a_turn_end_when_the_last_is_stored() {
    changes_that_share_a_turn_are_stored();
}

#[test]
fn a_refill_that_stands_still_brings_no_block_that_others_have() {
    a_refill_stands_still();
}

#[test]
fn a_slot_that_a_handle_remembers_is_a_guess() {
    a_remembered_slot_is_a_guess();
}

#[test]
fn a_change_of_a_key_that_was_just_stored_takes_one_round_trip() {
    a_change_takes_one_round_trip();
}

#[test]
fn a_change_that_is_posted_late_uses_no_block_that_others_have() {
    a_change_is_posted_late();
}

#[test]
fn a_write_takes_no_message_of_its_own_in_the_common_case() {
    a_write_takes_no_message_of_its_own();
}

#[test]
fn changes_of_one_key_by_one_handle_are_made_in_the_order_in_which_they_began() {
    changes_of_one_key_are_made_in_their_order();
}

#[test]
fn a_client_is_killed_at_each_step_of_a_removal_of_what_has_expired() {
    a_removal_of_what_has_expired_ends_at_each_step(End::Killed);
}

#[test]
fn a_client_is_late_at_each_step_of_a_removal_of_what_has_expired() {
    a_removal_of_what_has_expired_ends_at_each_step(End::Late);
}

#[test]
fn a_client_is_killed_at_each_step_while_it_empties_an_extent() {
    a_change_of_extents_ends_at_each_step(ExtentDeed::Vacate, End::Killed);
}

#[test]
fn a_client_is_late_at_each_step_while_it_empties_an_extent() {
    a_change_of_extents_ends_at_each_step(ExtentDeed::Vacate, End::Late);
}

#[test]
fn a_client_is_killed_at_each_step_while_it_writes_a_value_in_pieces() {
    a_change_of_extents_ends_at_each_step(ExtentDeed::LongValue, End::Killed);
}

#[test]
fn a_client_is_late_at_each_step_while_it_writes_a_value_in_pieces() {
    a_change_of_extents_ends_at_each_step(ExtentDeed::LongValue, End::Late);
}
