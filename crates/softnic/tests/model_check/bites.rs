//! Tests of the checks themselves: each check gets a wrong model and must find the error.

use crate::completion_ring::{Manners, nothing_is_overrun};
use crate::engines::{ALL, OF_ENTRIES, OF_TURNS, an_entry_is_read_whole, no_access_follows_the_confirmation};
use crate::exploration::{Bound, finds};
use crate::orderings::{CopyFences, Orderings};
use crate::pieces::none_moves_after_the_confirmation;
use crate::sleep::{Fences, Wait, the_client_wakes, the_client_wakes_for_both, the_engine_wakes};
use crate::{receive_ring, send_ring, transfers};
use std::sync::atomic::Ordering;

/// A lap is stored without waiting for the rest of the entry.
const LAP_STORED_EARLY: Orderings = Orderings { store: Ordering::Relaxed, ..Orderings::OF_MAPPING };
/// The rest of an entry is loaded without waiting for its lap.
const ENTRY_LOADED_EARLY: Orderings = Orderings { load: Ordering::Relaxed, ..Orderings::OF_MAPPING };

/// A copy stores its bytes without waiting for earlier stores.
const COPIED_EARLY: Orderings =
    Orderings { copy: CopyFences { before: false, after: true }, ..Orderings::OF_MAPPING };
/// Later loads do not wait for a copy's.
const LOOKED_EARLY: Orderings =
    Orderings { copy: CopyFences { before: true, after: false }, ..Orderings::OF_MAPPING };

const NO_FENCE_ON_WAKING: Fences = Fences { waking: false, ..Fences::BOTH };
const NO_FENCE_ON_SLEEPING: Fences = Fences { sleeping: false, ..Fences::BOTH };

const WRONG_REQUEST: &str = "a request is not the one that is due";
const WRONG_RECEIVE: &str = "a receive is not the one that is due";
const WRONG_COMPLETION: &str = "a completion is not the one that is due";
const DEADLOCK: &str = "deadlock";

#[test]
fn a_lap_stored_relaxed_is_found() {
    finds(WRONG_REQUEST, || {
        send_ring::everything_arrives(LAP_STORED_EARLY, Bound::Interruptions(2));
    });
    finds(WRONG_RECEIVE, || {
        receive_ring::everything_arrives(LAP_STORED_EARLY, Bound::Interruptions(2));
    });
    finds(WRONG_COMPLETION, || {
        nothing_is_overrun(LAP_STORED_EARLY, Bound::Interruptions(2), Manners::Asks);
    });
}

#[test]
fn a_lap_loaded_relaxed_is_found() {
    finds(WRONG_REQUEST, || {
        send_ring::everything_arrives(ENTRY_LOADED_EARLY, Bound::Interruptions(2));
    });
    finds(WRONG_RECEIVE, || {
        receive_ring::everything_arrives(ENTRY_LOADED_EARLY, Bound::Interruptions(2));
    });
    finds(WRONG_COMPLETION, || {
        nothing_is_overrun(ENTRY_LOADED_EARLY, Bound::Interruptions(2), Manners::Asks);
    });
}

#[test]
fn a_batch_whose_first_request_is_stored_first_is_found() {
    finds("the second request is not there", || {
        send_ring::both_or_none(Orderings::OF_MAPPING, Bound::Interruptions(2), |poster, [first, second]| {
            assert_eq!(poster.post(&[*first]) + poster.post(&[*second]), 2);
        });
    });
}

#[test]
fn a_batch_with_relaxed_laps_is_found() {
    finds("the first request is not whole", || {
        send_ring::both_or_none(LAP_STORED_EARLY, Bound::Interruptions(2), |poster, requests| {
            assert_eq!(poster.post(requests), 2);
        });
    });
}

#[test]
fn a_nic_that_does_not_ask_for_room_is_found() {
    finds("a completion is", || {
        nothing_is_overrun(Orderings::OF_MAPPING, Bound::Interruptions(2), Manners::Pushes);
    });
}

#[test]
fn a_bell_without_its_fence_is_found() {
    finds(DEADLOCK, || the_engine_wakes(1, 1, NO_FENCE_ON_WAKING, Bound::Interruptions(2)));
    finds(DEADLOCK, || the_engine_wakes(1, 1, NO_FENCE_ON_SLEEPING, Bound::Interruptions(2)));
}

#[test]
fn a_futex_flag_without_its_fence_is_found() {
    for wait in [Wait::Futex, Wait::Alarm] {
        finds(DEADLOCK, || the_client_wakes(1, wait, NO_FENCE_ON_WAKING, Bound::Interruptions(2)));
        finds(DEADLOCK, || the_client_wakes(1, wait, NO_FENCE_ON_SLEEPING, Bound::Interruptions(2)));
    }
}

#[test]
fn a_piece_that_is_finished_relaxed_is_found() {
    finds("a piece has not arrived", || {
        none_moves_after_the_confirmation::<true>(Bound::Interruptions(2), 0);
    });
}

#[test]
fn a_last_piece_that_is_not_awaited_is_found() {
    finds("a piece has not arrived", || {
        none_moves_after_the_confirmation::<false>(Bound::Interruptions(2), 1);
    });
}

#[test]
fn a_copy_without_one_of_its_fences_is_found() {
    finds("a WRITE arrives before an earlier one", || {
        transfers::writes_arrive_in_order(COPIED_EARLY, Bound::Every);
    });
    finds("a READ sees less than an earlier one", || {
        transfers::reads_look_in_order(LOOKED_EARLY, Bound::Every);
    });
    for orderings in [COPIED_EARLY, LOOKED_EARLY] {
        finds("new bytes have an old name", || {
            transfers::new_bytes_have_their_new_name(orderings, Bound::Every);
        });
    }
}

#[test]
fn a_key_that_is_changed_without_fences_is_found() {
    finds("an entry is read in parts", || {
        an_entry_is_read_whole::<OF_TURNS>(Bound::Interruptions(2));
    });
}

#[test]
fn a_withdrawal_that_does_not_wait_for_an_engine_or_without_fences_is_found() {
    finds("an access follows the confirmation", || {
        no_access_follows_the_confirmation::<ALL>(Bound::Interruptions(2), false);
    });
    finds("an access follows the confirmation", || {
        no_access_follows_the_confirmation::<OF_ENTRIES>(Bound::Interruptions(2), true);
    });
}

#[test]
fn a_waker_that_acts_on_what_it_saw_before_is_found() {
    finds(DEADLOCK, || the_client_wakes_for_both(false, Bound::Interruptions(3)));
}
