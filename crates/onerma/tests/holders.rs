//! A node's state does not grow with the number of clients that hold keys (1RMA §3.1): it derives keys when they are
//! used.

use crate::rig;

use portcullis_onerma::{InitiatorLimits, Status};
use rig::{Client, INITIATOR, Node, RESPONDER, at, exchange};
use std::process::Command;

/// Number of holders after which memory does not grow any more: everything bounded has reached its bound.
const FIRST: u64 = 2_000;
const MORE: u64 = 10_000;
/// Bytes by which the process may grow or shrink: an allocator works in pages.
const DIFFERENCE_MOST: u64 = 512 << 10;

/// Returns the resident memory of this process in bytes. `None`: the system does not report it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Lets each of these holders read and write once, and drops it.
fn use_keys(node: &mut Node, region: portcullis_onerma::RegionId, holders: std::ops::Range<u64>) {
    let limits = InitiatorLimits { slots: 2, ..INITIATOR };
    for holder in holders {
        let now = at(holder * 1_000);
        let host = u8::try_from(holder % 200 + 1).expect("it is small");
        let mut client = Client { id: holder, ..Client::new(host.into(), limits) };
        let to = node.grant(region, &client);
        client.read(&to, 0, 64, now);
        client.write(&to, 0, &[host; 64], now);
        exchange(node, &mut client, now);
        let ends: Vec<Status> = std::iter::from_fn(|| client.completed()).map(|end| end.status).collect();
        assert_eq!(ends, [Status::Ok, Status::Ok], "holder {holder}");
        node.responder.handle_timeout(at(holder * 1_000 + 500));
    }
}

#[test]
#[ignore = "run by the test below in a process of its own, where no other test takes memory"]
fn ten_thousand_holders() {
    let mut node = Node::new(RESPONDER);
    let region = node.region(4096, 4096);
    use_keys(&mut node, region, 1..FIRST);
    let Some(before) = resident() else {
        eprintln!("skipped: this system does not say how much memory a process has");
        return;
    };
    use_keys(&mut node, region, FIRST..FIRST + MORE);
    let after = resident().expect("it has just said");
    let grown = after.saturating_sub(before);
    assert!(grown <= DIFFERENCE_MOST, "{MORE} more holders cost {grown} bytes: from {before} to {after}");
    assert_eq!(node.responder.counters().writes, FIRST + MORE - 1);
}

#[test]
fn a_node_keeps_no_more_for_ten_thousand_holders_of_keys() {
    let program = std::env::current_exe().expect("a test is a program");
    let words = ["--ignored", "--exact", "--nocapture", "holders::ten_thousand_holders"];
    let child = Command::new(program).args(words).output().expect("a process");
    eprint!("{}", String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "the process of the test failed");
    assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"));
}
