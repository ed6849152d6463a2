//! Tests with callers that break the rules in every way that is not undefined behaviour in C itself: they use handles
//! that are closed, of other kinds, of other sessions, or made up, in any order. No call may crash, hang, or touch an
//! object for which its handle does not stand.

use crate::calls::{CALLS, Known, TENANT, step};
use portcullis_capi::border::Text;
use portcullis_capi::errors::{portcullis_error_name, portcullis_last_error};
use portcullis_capi::handles::{Node, QueueHandle, Session, TableHandle};
use portcullis_capi::node::{portcullis_node_connect, portcullis_node_start, portcullis_node_stop};
use portcullis_capi::queue::portcullis_queue_close;
use portcullis_capi::session::{portcullis_poll, portcullis_session_close};
use portcullis_capi::table::portcullis_table_close;
use proptest::prelude::*;
use std::ptr::null;

fn node() -> Node {
    let mut node = Node::default();
    // SAFETY: the pointers are null or point to values of their types.
    let result = unsafe { portcullis_node_start(32 << 20, Text(null()), Some(&mut node)) };
    assert_eq!(result, 0);
    node
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The node is one of the handles with which calls are made, so it may also be stopped in the middle.
    #[test]
    fn handles_in_any_order_lead_to_results_or_to_errors_that_have_a_name(
        calls in proptest::collection::vec((0..CALLS, any::<u64>(), any::<u64>()), 1..300),
    ) {
        let node = node();
        let mut known = Known::default();
        known.ids.push(node.id);
        step(&mut known, 0, 1, 0);
        for (call, one, two) in calls {
            let result = step(&mut known, call, one, two);
            prop_assert!(result == 0 || !portcullis_error_name(result).is_null(), "call {call}: {result}");
            prop_assert!(result != 1109, "call {call} panicked: {}", last_text());
        }
        for id in known.ids {
            portcullis_session_close(Session { id });
            portcullis_table_close(TableHandle { id });
            portcullis_queue_close(QueueHandle { id });
            portcullis_node_stop(Node { id });
        }
    }
}

fn last_text() -> String {
    let mut error = portcullis_capi::errors::Error {
        number: 0,
        fault: 0,
        is_retryable: false,
        text: [0; portcullis_capi::errors::PORTCULLIS_TEXT_BYTES],
    };
    portcullis_last_error(Some(&mut error));
    error
        .text
        .iter()
        .take_while(|letter| **letter != 0)
        .map(|letter| char::from(letter.to_ne_bytes()[0]))
        .collect()
}

#[test]
fn a_place_that_was_closed_is_used_again_and_its_old_handles_stay_closed() {
    let node = node();
    let mut old = Vec::new();
    for _ in 0..300 {
        let mut session = Session::default();
        // SAFETY: the pointers are null or point to values of their types.
        let connected = unsafe { portcullis_node_connect(node, TENANT, None, Some(&mut session)) };
        assert_eq!((connected, portcullis_session_close(session)), (0, 0));
        assert!(!old.contains(&session.id), "a number was given out twice");
        old.push(session.id);
    }
    let mut size = 0;
    for id in old {
        assert_eq!(portcullis_poll(Session { id }, Some(&mut size)), 1101);
    }
    assert_eq!(portcullis_node_stop(node), 0);
}
