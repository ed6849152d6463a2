//! Devices that are known not to keep something, and what must not be tried on them.
//!
//! This is what the conformance suite expects, and it complains when a device does better: a kernel that mends a
//! deviation is noticed. What a node relies on is not this list: it tries the device itself when it starts.

use crate::device::Limits;
use portcullis_nic::{Guarantee, Misuse};

/// Vendor and part of Soft-RoCE: it has no vendor, and says so.
const SOFT_ROCE: (u32, u32) = (0x00ff_ffff, 0);

/// What is known of a device.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub unenforced: Vec<Guarantee>,
    pub deviations: Vec<&'static str>,
    pub crashes_on: Vec<Misuse>,
}

pub(crate) fn known(limits: &Limits) -> Known {
    if (limits.vendor, limits.part) == SOFT_ROCE { soft_roce() } else { Known::default() }
}

/// Linux's rdma_rxe, as of 6.1 and 6.12.
fn soft_roce() -> Known {
    Known {
        // It compares with the region under the window (`mr_check_range`), not with the window.
        unenforced: vec![Guarantee::WindowRange],
        deviations: vec![
            // A local mistake breaks the queue pair as it should, under another name.
            "local::keys_that_nobody_gave_are_refused",
            "local::keys_of_another_domain_are_refused",
            "local::keys_of_windows_are_refused",
            "local::regions_that_are_gone_are_refused",
            "local::spans_of_the_owners_end_are_checked_too",
            "messages::longer_than_their_receive_fail_at_both_ends",
            "messages::into_the_wrong_bytes_fail_at_both_ends",
            // A receive that is posted to a queue pair in ERR waits for ever.
            "queues::in_error_flush_what_is_posted",
            // It acknowledges a message before it looks at what that invalidates, does not look whose it is, and sets
            // another flag than the one that says so.
            "type_1::windows_cannot_be_freed_by_a_peer",
            "type_2::windows_are_not_freed_by_the_peer_of_another_queue_pair",
            "type_2::messages_cannot_invalidate_what_is_no_window",
            "type_2::windows_are_freed_by_the_peers_message_and_it_says_which",
        ],
        // Invalidating a free window follows a null pointer; a bound one holds its queue pair for good.
        crashes_on: vec![Misuse::InvalidateFreeWindow, Misuse::QueuePairBeforeBoundWindow],
    }
}
