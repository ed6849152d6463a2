//! The audit log of a running node.

use super::node::{Node, count, errors, folder, growing_log, log, wait_for};
use portcullis::{Allocate, Session};
use rustix::fs::{CWD, FileType, Mode};
use rustix::process::Signal;
use std::path::Path;

/// Acquires and revokes `grants` permissions.
fn use_it(session: &mut Session, grants: usize) {
    for _ in 0..grants {
        let it = session.allocate(Allocate::bytes(64)).expect("a permission");
        session.revoke(it).expect("it ends");
    }
}

fn wait_for_events(path: &Path, event: &str, times: usize) {
    wait_for(event, || count(&growing_log(path), event) == times);
}

#[test]
fn each_record_says_when_it_was_and_in_which_run_of_the_node() {
    let started = time_now();
    let node = Node::start(folder(), &["--audit", "audit.jsonl"]);
    use_it(&mut node.connect(), 3);
    let (output, folder) = node.stop();
    assert!(output.status.success(), "{}", errors(&output));
    let first = log(&folder.path().join("audit.jsonl"));
    let node = Node::start(folder, &["--audit", "audit.jsonl"]);
    use_it(&mut node.connect(), 1);
    let (_, folder) = node.stop();
    let both = log(&folder.path().join("audit.jsonl"));
    assert_eq!(both[..first.len()], first, "what was written stays");
    assert_eq!((count(&first, "grant"), count(&both, "grant")), (3, 4));
    assert_eq!((&first[0]["event"], &first[first.len() - 1]["event"]), (&"start".into(), &"stop".into()));
    let run = |records: &[serde_json::Value]| {
        let runs = records.iter().map(|record| record["incarnation"].as_str().expect("a run").to_owned());
        runs.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!((run(&first).len(), run(&both).len()), (1, 2));
    let times: Vec<&str> = both.iter().filter_map(|record| record["time"].as_str()).collect();
    assert_eq!(times.len(), both.len());
    assert!(times.is_sorted(), "{times:?}");
    assert!(*times[0] >= *started && *times[times.len() - 1] <= *time_now(), "{times:?}");
}

fn time_now() -> String {
    portcullis::host::WallTime::from(std::time::SystemTime::now()).to_string()
}

#[test]
fn only_the_events_that_were_chosen_are_written() {
    let node = Node::start(folder(), &["--audit", "audit.jsonl", "--audit-events", "attach,revoke"]);
    use_it(&mut node.connect(), 3);
    let (_, folder) = node.stop();
    let log = log(&folder.path().join("audit.jsonl"));
    let events: Vec<_> = log.iter().filter_map(|record| record["event"].as_str()).collect();
    assert_eq!(events, ["start", "attach", "revoke", "revoke", "revoke", "stop"]);
}

#[test]
fn after_a_rename_and_a_signal_a_new_file_goes_on_where_the_old_one_ended() {
    let node = Node::start(folder(), &["--audit", "audit.jsonl"]);
    let mut session = node.connect();
    let path = node.path("audit.jsonl");
    use_it(&mut session, 5);
    wait_for_events(&path, "revoke", 5);
    std::fs::rename(&path, node.path("audit.jsonl.1")).expect("renamed");
    use_it(&mut session, 5);
    wait_for_events(&node.path("audit.jsonl.1"), "revoke", 10);
    node.signal(Signal::HUP);
    wait_for("the new file", || path.exists());
    use_it(&mut session, 5);
    wait_for_events(&path, "revoke", 5);
    drop(session);
    let (output, folder) = node.stop();
    assert!(output.status.success(), "{}", errors(&output));
    let [old, new] = ["audit.jsonl.1", "audit.jsonl"].map(|name| log(&folder.path().join(name)));
    assert_eq!((count(&old, "grant"), count(&old, "revoke")), (10, 10));
    assert_eq!((count(&new, "grant"), count(&new, "revoke"), count(&new, "stop")), (5, 5, 1));
    assert_eq!((count(&old, "lost"), count(&new, "lost")), (0, 0));
}

#[test]
fn a_full_disk_is_counted_shown_and_tried_again_and_the_node_serves_on() {
    let folder = folder();
    // A log follows no link to /dev/full, so the folder has the device itself.
    let device = folder.path().join("audit.jsonl");
    let full = rustix::fs::stat("/dev/full").expect("the device").st_rdev;
    if let Err(error) =
        rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, full)
    {
        eprintln!("SKIPPED: a full disk under the log: no device can be made here: {error}");
        return;
    }
    let mut node = Node::start(folder, &["--audit", "audit.jsonl"]);
    let mut session = node.connect();
    use_it(&mut session, 5);
    wait_for("a second attempt", || {
        let status = &node.counters()["audit"];
        assert_eq!(status["written"], 0);
        status["failures"].as_u64() >= Some(2)
            && status["failing"].as_str().is_some_and(|why| why.contains("No space left"))
    });
    // Room is made: here, by removing the device, so that the node creates a file in its place.
    let path = node.path("audit.jsonl");
    std::fs::remove_file(&path).expect("the device");
    node.signal(Signal::HUP);
    wait_for_events(&path, "revoke", 5);
    assert_eq!(node.counters()["audit"]["failing"], serde_json::Value::Null);
    drop(session);
    let (output, folder) = node.stop();
    assert!(output.status.success(), "{}", errors(&output));
    let log = log(&folder.path().join("audit.jsonl"));
    assert_eq!((count(&log, "start"), count(&log, "grant"), count(&log, "lost")), (1, 5, 0));
}

#[test]
fn a_node_that_ends_on_a_full_disk_says_how_many_records_are_missing() {
    let node = Node::start(folder(), &["--audit", "/dev/full"]);
    use_it(&mut node.connect(), 2);
    let (output, _) = node.stop();
    assert_eq!(output.status.code(), Some(3));
    let said = errors(&output);
    assert!(said.contains("8 audit records") && said.contains("No space left"), "{said}");
}

#[test]
fn a_node_that_was_killed_leaves_whole_lines_and_no_stop() {
    let mut folder = folder();
    for round in 1..=5 {
        let node = Node::start(folder, &["--audit", "audit.jsonl"]);
        let mut session = node.connect();
        use_it(&mut session, 50);
        folder = node.kill();
        let path = folder.path().join("audit.jsonl");
        // The state after a crash of the machine in the middle of a line.
        let whole = std::fs::read_to_string(&path).expect("a log");
        std::fs::write(&path, format!("{whole}{{\"time\":\"20")).expect("written");
        let node = Node::start(folder, &["--audit", "audit.jsonl"]);
        folder = node.stop().1;
        let log = log(&path);
        assert_eq!(
            (count(&log, "start"), count(&log, "stop"), count(&log, "lost")),
            (2 * round, round, round)
        );
    }
}
