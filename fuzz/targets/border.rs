//! Programs in C that call the library with handles that are closed, of other kinds, of other sessions, made up or null, in any order.
#![no_main]

#[path = "../../crates/capi/tests/calls.rs"]
mod calls;

use calls::{CALLS, Known, TENANT, step};
use libfuzzer_sys::fuzz_target;
use portcullis_capi::border::Text;
use portcullis_capi::errors::portcullis_error_name;
use portcullis_capi::handles::{Node, QueueHandle, Session, TableHandle};
use portcullis_capi::node::{portcullis_node_connect, portcullis_node_start, portcullis_node_stop};
use portcullis_capi::queue::portcullis_queue_close;
use portcullis_capi::session::portcullis_session_close;
use portcullis_capi::table::portcullis_table_close;
use std::cell::Cell;
use std::ptr::null;

/// The number of the error of a mistake in the library itself.
const PANICKED: i32 = 1109;

thread_local! {
    static NODE: Cell<Node> = const { Cell::new(Node { id: 0 }) };
}

/// The node of the inputs before, unless one of them has stopped it.
fn node_with_session() -> (Node, Session) {
    let (mut node, mut session) = (NODE.get(), Session::default());
    // SAFETY: the pointers lead to values of their types.
    let mut connect = |node| unsafe { portcullis_node_connect(node, TENANT, None, Some(&mut session)) };
    if connect(node) != 0 {
        // SAFETY: the pointers are null or lead to values of their types.
        assert_eq!(unsafe { portcullis_node_start(16 << 20, Text(null()), Some(&mut node)) }, 0);
        assert_eq!(connect(node), 0);
    }
    NODE.set(node);
    (node, session)
}

fuzz_target!(|input: &[u8]| {
    let (node, session) = node_with_session();
    let mut known = Known::default();
    known.ids.extend([node.id, session.id]);
    for bytes in input.chunks_exact(5) {
        let (call, one, two) = (bytes[0], [bytes[1], bytes[2]], [bytes[3], bytes[4]]);
        let numbers = [one, two].map(|it| u64::from(u16::from_le_bytes(it)));
        let result = step(&mut known, u64::from(call) % CALLS, numbers[0], numbers[1]);
        assert!(result == 0 || !portcullis_error_name(result).is_null());
        assert_ne!(result, PANICKED);
    }
    for id in known.ids.split_off(1) {
        portcullis_session_close(Session { id });
        portcullis_table_close(TableHandle { id });
        portcullis_queue_close(QueueHandle { id });
        if id != node.id {
            portcullis_node_stop(Node { id });
        }
    }
});
