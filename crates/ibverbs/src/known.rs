//! Guarantees that devices are known not to keep, and mistakes that must not be tried on them.
//!
//! The conformance suite expects exactly these deviations, and reports a device that does better: so a kernel that
//! removes a deviation is noticed. A node does not rely on this list: it examines the device itself when it starts.

use crate::device::Limits;
use portcullis_nic::{Guarantee, Misuse};

/// Vendor and part numbers that Soft-RoCE reports: it has no vendor.
const SOFT_ROCE: (u32, u32) = (0x00ff_ffff, 0);

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
        // The device compares with the region under the window (`mr_check_range`), not with the window.
        unenforced: vec![Guarantee::WindowRange, Guarantee::Type2Range],
        deviations: vec![
            // A local mistake breaks the queue pair as it should, but with another status.
            "local::keys_that_nobody_gave_are_refused",
            "local::keys_of_another_domain_are_refused",
            "local::keys_of_windows_are_refused",
            "local::regions_that_are_gone_are_refused",
            "local::spans_of_the_owners_end_are_checked_too",
            "messages::longer_than_their_receive_fail_at_both_ends",
            "messages::into_the_wrong_bytes_fail_at_both_ends",
            // A receive that is posted to a queue pair in ERR waits for ever.
            "queues::in_error_flush_what_is_posted",
            // The device acknowledges a message before it examines the invalidation in it, does not check the owner of
            // the key, and sets another flag than the invalidation's.
            "type_1::windows_cannot_be_freed_by_a_peer",
            "type_2::windows_are_not_freed_by_the_peer_of_another_queue_pair",
            "type_2::messages_cannot_invalidate_what_is_no_window",
            "type_2::windows_are_freed_by_the_peers_message_and_it_says_which",
        ],
        // Invalidating a free window dereferences a null pointer. A bound window keeps its queue pair for ever.
        crashes_on: vec![Misuse::InvalidateFreeWindow, Misuse::QueuePairBeforeBoundWindow],
    }
}
