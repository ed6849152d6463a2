//! A node inside the program, for tests.

use crate::border::{Text, call, given};
use crate::handles::{self, Node, Session, SessionState};
use crate::session::SessionOptions;
use portcullis_foreign::LocalNode;
use std::ffi::c_int;

/// Starts a node in this process, which lends `memory` bytes. `socket` may be null; otherwise it is a path, and other
/// processes of this user can connect to the node at the address `shm:` followed by that path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_node_start(memory: u64, socket: Text, node: Option<&mut Node>) -> c_int {
    call(|| {
        let node = given("node", node)?;
        *node = Node::default();
        let started = LocalNode::start(memory, socket.read_or_none("socket")?.map(Into::into))?;
        node.id = handles::open(started)?;
        Ok(())
    })
}

/// Opens a session with a node of this process, for a tenant of any name. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_node_connect(
    node: Node,
    tenant: Text,
    options: Option<&SessionOptions>,
    session: Option<&mut Session>,
) -> c_int {
    call(|| {
        let session = given("session", session)?;
        *session = Session::default();
        let tenant = tenant.read("tenant")?;
        let attached =
            handles::enter::<LocalNode>(node.id)?.connect(tenant, SessionOptions::options(options))?;
        session.id = handles::open(SessionState::new(attached))?;
        Ok(())
    })
}

/// Ends a node of this process. Its sessions notice this in their next call.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_node_stop(node: Node) -> c_int {
    call(|| {
        drop(handles::close::<LocalNode>(node.id)?);
        Ok(())
    })
}
