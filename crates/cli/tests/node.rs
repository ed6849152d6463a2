//! A node's program, as people and scripts start and stop it.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A process that does not outlive its test.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = portcullis(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
        let (sender, lines) = channel();
        let output = child.stdout.take().expect("it is piped");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    fn exit(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            std::thread::yield_now();
        }
        panic!("it did not end within {PATIENCE:?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(folder: &Path) -> String {
    format!("shm:{}", folder.join("node.sock").display())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_node_stops_cleanly_on_each_polite_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut node =
            Running::start(&["serve", "--memory", "16MiB", "--json", "--listen", &listen(folder.path())]);
        let said: serde_json::Value = serde_json::from_str(&node.line()).expect("an object");
        assert_eq!(said["listening"], serde_json::json!([listen(folder.path())]));
        assert_eq!(said["process"], node.child.id());
        node.signal(Signal::USR1);
        let counted: serde_json::Value = serde_json::from_str(&node.line()).expect("an object");
        assert_eq!(counted["counters"]["grants"], 0);
        node.signal(signal);
        assert_eq!(node.exit().code(), Some(0));
        assert!(!folder.path().join("node.sock").exists(), "the socket goes with its node");
    }
}

#[test]
fn a_node_tells_whom_its_clients_act_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("audit.jsonl");
    let named = format!("shm:{}?tenant=orange", folder.path().join("named.sock").display());
    let mut node = Running::start(&[
        "serve",
        "--listen",
        &listen(folder.path()),
        "--listen",
        &named,
        "--audit",
        log.to_str().expect("text"),
    ]);
    assert!(node.line().starts_with("listening at shm:"));
    drop(portcullis::connect(&listen(folder.path())).expect("a session"));
    drop(portcullis::connect(named.split('?').next().expect("an address")).expect("a session"));
    node.signal(Signal::TERM);
    assert_eq!(node.exit().code(), Some(0));
    let log = std::fs::read_to_string(log).expect("a log");
    let user = format!("\"tenant\":\"uid:{}\"", rustix::process::getuid().as_raw());
    assert!(log.contains(&user), "{log}");
    assert!(log.contains("\"tenant\":\"orange\""), "{log}");
}

#[test]
fn a_wrong_call_says_what_to_write_instead() {
    for (arguments, meant) in [
        (&["serve"][..], "--listen"),
        (&["serve", "--listen", "/run/a.sock"], "shm:PATH"),
        (&["serve", "--listen", "shm:/a", "--listen", "shm:/a?tenant=x"], "twice"),
        (&["serve", "--listen", "shm:/a", "--memory", "12 parsecs"], "GiB"),
        (&["serve", "--listen", "shm:/a", "--memory", "1"], "65536"),
        (&["serve", "--listen", "shm:/a", "--protection", "hope"], "memory-window"),
        (&["serve", "--listen", "shm:/a", "--longest-lifetime", "10"], "50ms"),
        (&["serve", "--listen", "shm:/a", "--without", "care"], "handover"),
    ] {
        let output = portcullis(arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(meant), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn what_the_machine_refuses_is_told_apart_from_a_wrong_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = listen(folder.path());
    let first = Running::start(&["serve", "--listen", &address]);
    first.line();
    let nowhere = listen(&folder.path().join("nowhere"));
    for (arguments, meant) in [
        (&["serve", "--listen", &address][..], "listens there already"),
        (&["serve", "--listen", &nowhere], "cannot listen"),
        (&["serve", "--listen", &nowhere, "--processors", "99999"], "processor 99999"),
        (&["serve", "--listen", &nowhere, "--audit", "/nowhere/at/all"], "audit log"),
    ] {
        let output = portcullis(arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(meant), "{arguments:?}: {}", said(&output));
    }
    assert!(portcullis::connect(&address).is_ok(), "the first one still serves");
}

#[test]
fn a_node_that_is_told_to_ends_with_its_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = listen(folder.path());
    // The node's input is empty from the start.
    let mut node = Running::start(&["serve", "--stop-at-end-of-input", "--listen", &address]);
    assert_eq!(node.exit().code(), Some(0));
}
