//! A path whose MTU changes under a session, in a network namespace of its own.

use crate::child::{self, Child};
use crate::rig::{LONG, RED, Rig, config, wait_for};
use portcullis::{Allocate, Lifetime, NodeConfig, Session, SessionEndpoint};
use std::path::Path;
use std::process::Command;

const BYTES: usize = 1 << 20;
/// A lifetime that is longer than the test.
const LIFETIME: Lifetime = Lifetime::seconds(120);

/// Runs `ip`. Panics with its output if it fails.
fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().expect("the program ip");
    assert!(done.status.success(), "ip {arguments}: {done:?}");
}

fn datagram_max(session: &mut Session) -> u32 {
    match session.client().endpoint() {
        SessionEndpoint::Udp(udp) => udp.datagram_max(),
        _ => unreachable!("the session is over UDP"),
    }
}

/// Not a test: the program of a child that has a loopback link of its own.
#[test]
fn a_child_whose_path_changes() {
    if child::path().is_none() {
        return;
    }
    ip("link set lo up");
    ip("link set lo mtu 65536");
    let rig = Rig::with(NodeConfig { longest_lifetime: LIFETIME, ..config() }, |_| {});
    let mut session = rig.session(RED);
    let ask = Allocate::bytes(BYTES as u64).lifetime(LIFETIME);
    let block = session.allocate(ask).expect("memory");
    let mut there = vec![0; BYTES];
    for (round, mtu) in (1u8..).zip([65536, 9000, 1500, 1280, 4400, 2400, 1300]) {
        ip(&format!("link set lo mtu {mtu}"));
        let bytes = vec![round; BYTES];
        session.write(&block, 0, &bytes).unwrap_or_else(|error| panic!("a write, MTU {mtu}: {error}"));
        session.read(&block, 0, &mut there).unwrap_or_else(|error| panic!("a read, MTU {mtu}: {error}"));
        assert!(there == bytes, "MTU {mtu}");
        let word = session.fetch_and_add(&block, 8, 1).expect("an atomic");
        assert_eq!(word.to_le_bytes(), [round; 8]);
        let mut other = rig.session(RED);
        let its = other.allocate(Allocate::bytes(65536)).expect("memory for a new client");
        other.write(&its, 0, &there[..65536]).expect("a new client's write");
    }
    assert!(datagram_max(&mut session) < 1300);
    ip("link set lo mtu 65536");
    wait_for("long datagrams to be used again", || {
        session.read(&block, 0, &mut there).expect("a read");
        datagram_max(&mut session) > 4000
    });
    child::say_ready("");
}

#[test]
fn operations_go_on_whatever_the_mtu_of_the_path_becomes() {
    let alone = ["--net", "--map-root-user"];
    let tried = Command::new("unshare").args(alone).args(["ip", "link", "set", "lo", "up"]).output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        println!("SKIPPED: there are no network namespaces here, or no program ip: {tried:?}");
        return;
    }
    let command: Vec<&str> = ["unshare"].into_iter().chain(alone).collect();
    let began = std::time::Instant::now();
    Child::start_under(&command, "mtu::a_child_whose_path_changes", Path::new("/"));
    assert!(began.elapsed() < 3 * LONG);
}
