//! Events that a running node writes to standard error if `RUST_LOG` requests them.

use super::node::{Node, count, errors, folder, log, wait_for};
use portcullis::{
    Access, Allocate, Credential, Error, RemoteAddress, Session, SessionOptions, Unchecked, connect_with,
};

/// Writes past the end of the held memory, unless the node lets this client wait. Returns whether the session can go
/// on.
fn break_a_rule(session: &mut Session) -> bool {
    let held = match session.allocate(Allocate::bytes(64)) {
        Ok(held) => held,
        Err(Error::Paused { .. }) => return true,
        Err(_) => return false,
    };
    let Credential::Keys { buffer: key, .. } = held.credential() else {
        panic!("a key for one-sided access")
    };
    let beyond = RemoteAddress(held.address().0 + held.length());
    let buffer = session.buffer(8).expect("room");
    let write = Access::write(Unchecked::new(beyond, key), 0, buffer);
    let Ok(crime) = session.client().dangerous_access(write) else { return false };
    session.wait(crime).is_ok()
}

#[test]
fn it_tells_who_comes_and_goes_is_paused_or_barred_and_what_is_rebuilt() {
    let limits = ["--violations-free", "1", "--violations-pause-max", "1ms", "--violations-bar-after", "3"];
    let audit = ["--audit", "audit.jsonl", "--audit-events", "grant"];
    let mut node = Node::start_telling(folder(), "info", &[&limits[..], &audit].concat());
    let mut session = node.connect();
    break_a_rule(&mut session);
    wait_for("the queue pair to be rebuilt", || {
        session.poll();
        node.counters()["counters"]["recoveries"] == 1
    });
    while break_a_rule(&mut session) {}
    drop(session);
    wait_for("the client to be gone", || node.counters()["counters"]["clients"] == 0);
    let (output, folder) = node.stop();
    let said = errors(&output);
    let tenant = format!("tenant=\"uid:{}\"", rustix::process::getuid().as_raw());
    for told in [
        "a client attached",
        "a broken queue pair works again",
        "paused for its violations",
        "barred for its violations",
        "a client detached",
    ] {
        let line = said.lines().find(|line| line.contains(told)).unwrap_or_else(|| panic!("{told}: {said}"));
        assert!(line.contains(&tenant), "{line}");
    }
    assert!(said.contains(&format!("process={}", std::process::id())), "{said}");
    assert!(!said.contains('\x1b') && !said.contains("key"), "{said}");
    let log = log(&folder.path().join("audit.jsonl"));
    assert!(count(&log, "grant") > 0);
    assert_eq!(count(&log, "attach"), 0, "what is told is not written unless that was chosen");
}

/// Runs with an empty `RUST_LOG`.
#[test]
fn it_warns_of_refused_clients_and_of_quotas_that_are_used_up_and_writes_both_down() {
    let quota = ["--quota-bytes", "64KiB", "--arena-max", "4MiB", "--audit", "audit.jsonl"];
    let node = Node::start(folder(), &quota);
    let address = format!("shm:{}", node.path("node.sock").display());
    let greedy = SessionOptions { arena_bytes: 8 << 20, ..SessionOptions::default() };
    let refusal = connect_with(&address, greedy).expect_err("the arena is too large").to_string();
    let mut session = node.connect();
    for _ in 0..3 {
        let refused = session.allocate(Allocate::bytes(128 << 10));
        assert!(matches!(refused, Err(Error::Quota { .. })), "{refused:?}");
    }
    drop(session);
    let (output, folder) = node.stop();
    let said = errors(&output);
    let line = |what: &str| said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{said}"));
    let refused = line("a client was refused");
    let process = format!("process {} of user {}", std::process::id(), rustix::process::getuid().as_raw());
    let reason = refusal.strip_prefix("the node refuses: ").expect("the node says why");
    assert!(refused.contains("WARN") && refused.contains(&process) && refused.contains(reason), "{refused}");
    let full = line("quota is used up: 0 of 65536");
    assert!(full.contains("WARN") && full.contains("tenant=\"uid:"), "{full}");
    let further = line("more of them within a minute");
    assert!(further.contains("further=2"), "{further}");
    let log = log(&folder.path().join("audit.jsonl"));
    let of = |event: &str| log.iter().find(|record| record["event"] == event).expect("it is written down");
    assert_eq!((&of("refuse")["peer"], &of("refuse")["reason"]), (&process.into(), &reason.into()));
    assert_eq!(of("quota")["process"], std::process::id());
}

#[test]
fn it_tells_nothing_that_nobody_asked_for() {
    let node = Node::start(folder(), &[]);
    drop(node.connect());
    let (output, _folder) = node.stop();
    assert_eq!(errors(&output), "");
}
