//! The identity of a peer for which the kernel has no number, because the node is in its own namespace.

use crate::child::{self, Child};
use crate::rig::alone;
use portcullis::host::admin::Admin;
use portcullis::host::{Host, HostConfig, Listen};
use portcullis::{Allocate, ConnectError, Lifetime};
use std::path::Path;
use std::process::Command;

/// Not a test: a node with a socket for users and one for a tenant, which runs until it is killed.
#[test]
fn a_child_that_is_a_node() {
    let Some(folder) = child::path() else { return };
    let listen = |name: &str, tenant: Option<&str>| Listen {
        path: folder.join(name),
        tenant: tenant.map(str::to_owned),
    };
    let listen = vec![listen("users", None), listen("tenant", Some("orange"))];
    let admin = Some(folder.join("admin"));
    let host = Host::start(HostConfig { listen, admin, ..HostConfig::default() }).expect("a node starts");
    child::say_ready("");
    // The read ends when the parent kills this process or dies.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(host);
}

/// Starts a node under `unshare` with these options. Prints a message and returns `None` if namespaces are not
/// available.
fn node_in_a_namespace(options: &[&str], folder: &Path) -> Option<Child> {
    let command: Vec<&str> = ["unshare"].into_iter().chain(options.iter().copied()).collect();
    let tried = Command::new("unshare").args(options).arg("true").output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        println!("SKIPPED: `{} true` does not work here: {tried:?}", command.join(" "));
        return None;
    }
    Some(Child::start_under(&command, "peers::a_child_that_is_a_node", folder).0)
}

fn is_served(socket: &Path) -> Result<(), ConnectError> {
    let mut session = portcullis::connect(&format!("shm:{}", socket.display()))?;
    let object = session.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(1))).expect("memory");
    session.write(&object, 0, b"bytes").expect("a write");
    Ok(())
}

#[test]
fn a_client_of_another_pid_namespace_has_no_process_and_is_served() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(_node) = node_in_a_namespace(&["--pid", "--fork", "--kill-child"], folder.path()) else {
        return;
    };
    is_served(&folder.path().join("users")).expect("it is served");
    let _session = portcullis::connect(&format!("shm:{}", folder.path().join("users").display()));
    let clients = Admin::at(folder.path().join("admin")).clients().expect("the node answers");
    assert_eq!(clients.last().expect("a client").process, None);
}

#[test]
fn users_that_the_kernel_cannot_name_are_no_tenant() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(_node) = node_in_a_namespace(&["--user"], folder.path()) else { return };
    let refused = is_served(&folder.path().join("users")).expect_err("nobody knows who this is").to_string();
    assert!(refused.contains("?tenant=NAME"), "{refused}");
    is_served(&folder.path().join("tenant")).expect("a socket says whom its clients act for");
    // A peer that cannot be named is not the operator either.
    Admin::at(folder.path().join("admin"))
        .clients()
        .expect_err("this is not known to be the node's own user");
}
