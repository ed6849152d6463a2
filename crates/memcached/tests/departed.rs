//! Clients that have left, or seem to have left.

use crate::rig::{Client, LATE_AFTER, Node, counter, send_all, until};
use portcullis_memcached::{Gateway, GatewayOptions, Listen};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tempfile::TempDir;

/// Number of keys of a line that takes long.
const KEYS: usize = 500_000;

fn long_get() -> Vec<u8> {
    [b"get".to_vec(), b" q".repeat(KEYS), b"\r\n".to_vec()].concat()
}

#[test]
fn a_long_get_does_not_outlive_its_client() {
    const CLIENTS: u64 = 12;
    let node = Node::new();
    let options = GatewayOptions { connections_max: CLIENTS + 1, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut honest = Client::new(&gateway);
    honest.ask("mn", "MN");
    let line = long_get();
    let clients: Vec<_> = (0..CLIENTS).map(|_| Client::new(&gateway)).collect();
    clients.iter().for_each(|client| send_all(&client.0, &line));
    until("their keys are looked up", || counter(&gateway, "cmd_get") > 100);
    drop(clients);
    until("their places are free", || counter(&gateway, "curr_connections") == 1);
    until("their memory is free", || counter(&gateway, "request_bytes_granted") == 0);
    let asked = counter(&gateway, "cmd_get");
    assert!(asked < CLIENTS * KEYS as u64 / 4, "{asked} keys were looked up");
    Client::new(&gateway).ask("mn", "MN");
}

#[test]
fn a_client_that_sends_nothing_more_gets_all_of_its_answers() {
    const EACH: usize = 3000;
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let mut sender = client.0.try_clone().expect("a second handle");
    let sends = std::thread::spawn(move || {
        for number in 0..EACH {
            let text = format!("set k{number} 0 0 1\r\n1\r\nget k{number} none\r\nmg none\r\n");
            sender.write_all(text.as_bytes()).expect("the gateway reads");
        }
        sender
            .write_all([b"get".to_vec(), b" none".repeat(900), b"\r\n".to_vec()].concat().as_slice())
            .expect("it reads");
        sender.shutdown(Shutdown::Write).expect("it can be");
    });
    for number in 0..EACH {
        client.expect(format!("STORED\r\nVALUE k{number} 0 1\r\n1\r\nEND\r\nEN\r\n"));
    }
    client.expect_end("END\r\n");
    sends.join().expect("all was sent");
}

/// A gateway that listens at a port and at a Unix socket.
fn gateway_at_both(node: &Node, folder: &TempDir) -> (Gateway, PathBuf) {
    let path = folder.path().join("gateway.sock");
    let access = portcullis::host::SocketAccess { mode: 0o600, group: None };
    let mut options = node.options("orange");
    options.listen.push(Listen::Unix { path: path.clone(), access });
    (Gateway::start(options).expect("a gateway"), path)
}

/// Clients that want no answers store values, and leave.
#[test]
fn what_a_client_has_changed_before_it_went_stays_changed() {
    const EACH: usize = 2000;
    let node = Node::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (gateway, path) = gateway_at_both(&node, &folder);
    let stores = |prefix: &str| -> String {
        (0..EACH).map(|number| format!("set {prefix}{number} 0 0 1 noreply\r\n1\r\n")).collect()
    };
    send_all(&Client::new(&gateway).0, stores("tcp").as_bytes());
    let mut unix = UnixStream::connect(&path).expect("it listens");
    unix.write_all(stores("unix").as_bytes()).expect("the gateway reads");
    drop(unix);
    let mut honest = Client::new(&gateway);
    until("all are there", || counter(&gateway, "curr_items") == 2 * EACH as u64);
    assert!(honest.has(&format!("tcp{}", EACH - 1)) && honest.has(&format!("unix{}", EACH - 1)));
    until("they are gone", || counter(&gateway, "curr_connections") == 1);
}

/// Clients that want answers change a counter, and leave.
#[test]
fn changes_with_answers_do_not_outlive_their_client() {
    const CLIENTS: u64 = 8;
    const CHANGE: &[u8] = b"incr n 1\r\n";
    let node = Node::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (gateway, path) = gateway_at_both(&node, &folder);
    let mut honest = Client::new(&gateway);
    honest.ask("set n 0 0 1\r\n0", "STORED");
    let changes = CHANGE.repeat(10_000);
    let mut sent = 0;
    let clients: Vec<_> = (0..CLIENTS).map(|_| UnixStream::connect(&path).expect("it listens")).collect();
    for mut client in &clients {
        client.set_nonblocking(true).expect("it can be");
        let mut of_this = 0;
        // Until the operating system has no room for more. Its bytes can still be read when the client has left.
        while let Ok(bytes) = client.write(&changes[of_this % CHANGE.len()..]) {
            of_this += bytes;
        }
        sent += of_this;
    }
    until("some are carried out", || counter(&gateway, "incr_hits") > 0);
    drop(clients);
    until("their places are free", || counter(&gateway, "curr_connections") == 1);
    let (carried_out, sent) = (counter(&gateway, "incr_hits"), (sent / CHANGE.len()) as u64);
    assert!(carried_out < sent / 4, "{carried_out} of {sent} changes were carried out");
    honest.ask("mn", "MN");
}

#[test]
fn a_unix_socket_serves_is_its_users_own_and_goes_with_its_gateway() {
    use std::os::unix::fs::PermissionsExt;
    let node = Node::new();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gateway.sock");
    let access = portcullis::host::SocketAccess { mode: 0o640, group: None };
    let listen = || vec![Listen::Unix { path: path.clone(), access }];
    let options = || GatewayOptions { listen: listen(), ..node.options("orange") };
    // A socket file left by a gateway that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let gateway = Gateway::start(options()).expect("nobody listens there");
    let mode = path.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let taken = Gateway::start(options()).expect_err("somebody listens there").to_string();
    assert!(taken.contains("unix:") && taken.contains("listens there already"), "{taken}");
    let mut client = UnixStream::connect(&path).expect("it listens");
    client.set_read_timeout(Some(LATE_AFTER)).expect("a timeout");
    client.write_all(b"set a 0 0 1\r\n1\r\nget a\r\nquit\r\n").expect("it reads");
    let mut answers = String::new();
    client.read_to_string(&mut answers).expect("answers and the end");
    assert_eq!(answers, "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    gateway.stop();
    assert!(!path.exists(), "nothing is left behind");
    std::fs::write(&path, "a file").expect("a file");
    let other = Gateway::start(options()).expect_err("it is no socket").to_string();
    assert!(other.contains("a regular file"), "{other}");
}
