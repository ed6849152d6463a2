//! `portcullis kv queue` as a program: entries are pushed, popped, and claimed for commands.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

/// A node that ends with its test, because its standard input ends then.
struct Node {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

fn portcullis() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("shm:{}", folder.path().join("node.sock").display());
        let mut command = portcullis();
        command.args([
            "serve",
            "--json",
            "--stop-at-end-of-input",
            "--memory",
            "32MiB",
            "--listen",
            &address,
        ]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        Self { child, address, folder }
    }

    fn command(&self, what: &str, arguments: &[&str]) -> Command {
        let mut command = portcullis();
        command.args(["kv", "queue", what, "--node", &self.address]).args(arguments);
        command
    }

    /// Runs a command and checks its exit code. Returns its output and its standard error.
    #[track_caller]
    fn run(&self, code: i32, what: &str, arguments: &[&str]) -> (String, String) {
        said(self.command(what, arguments).output().expect("it starts"), code)
    }

    #[track_caller]
    fn json(&self, what: &str, arguments: &[&str]) -> Value {
        let (output, _) = self.run(0, what, &[arguments, &["--json"]].concat());
        serde_json::from_str(&output).expect("one object")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[track_caller]
fn said(output: Output, code: i32) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{errors}");
    (out, errors)
}

#[test]
fn entries_come_out_as_they_went_in() {
    let node = Node::start();
    let made = node.json("create", &["jobs", "--keep", "1min"]);
    assert_eq!((&made["queue"], &made["made"]), (&json!("jobs"), &json!(true)));
    assert!(node.run(1, "create", &["jobs"]).1.contains("queue jobs exists already"));
    assert_eq!(node.json("push", &["jobs", "one", "two words"]), json!({"pushed": 2}));
    let mut lines = node.command("push", &["jobs"]).stdin(Stdio::piped()).spawn().expect("it starts");
    lines.stdin.take().expect("it is piped").write_all(b"three\nfour\n").expect("it reads");
    assert!(lines.wait().expect("it ends").success());
    assert_eq!(node.run(0, "pop", &["jobs", "--count", "3"]).0, "one\ntwo words\nthree\n");
    assert_eq!(node.json("stat", &["jobs"])["slots"], 1);
    assert_eq!(node.json("pop", &["jobs"]), json!({"entry": "four"}));
    assert!(node.run(1, "pop", &["jobs"]).1.contains("queue jobs had 0 entries"));
    node.run(0, "end", &["jobs"]);
    assert!(node.run(3, "push", &["jobs", "late"]).1.contains("the queue is closed"));
    node.run(0, "sweep", &["jobs"]);
    assert_eq!(node.json("drop", &["jobs"]), json!({"dropped": "jobs"}));
    assert!(
        node.run(3, "stat", &["jobs"]).1.contains("there is no queue jobs: `portcullis kv queue create`")
    );
    assert!(node.run(2, "create", &["odd", "--cell-bytes", "12"]).1.contains("multiple of 8"));
}

#[test]
fn a_command_gets_each_entry_and_what_it_fails_at_comes_again_until_it_is_a_dead_letter() {
    let node = Node::start();
    for (queue, claims) in [("jobs", &["--claims"][..]), ("failed", &[])] {
        node.run(0, "create", &[&[queue, "--keep", "1min"], claims].concat());
    }
    assert!(node.run(2, "pop", &["jobs"]).1.contains("claimed and acknowledged, and not popped"));
    assert!(
        node.run(2, "claim", &["failed", "--", "true"]).1.contains("make a queue with the option `claims`")
    );
    assert!(node.run(1, "claim", &["jobs", "--", "true"]).1.contains("no entry to claim"));
    node.run(0, "push", &["jobs", "good", "bad", "better"]);
    let list = node.folder.path().join("done");
    let work =
        format!("read -r job; echo $job $PORTCULLIS_DELIVERIES >> {}; [ $job != bad ]", list.display());
    let each =
        ["jobs", "--each", "--wait", "1s", "--deliveries-max", "3", "--dead-letters", "failed", "--", "sh"];
    let (_, errors) = node.run(1, "claim", &[&each[..], &["-c", &work]].concat());
    assert!(errors.contains("the command for bad ended with"), "{errors}");
    let text = std::fs::read_to_string(&list).expect("it worked");
    let mut done: Vec<_> = text.lines().collect();
    done.sort_unstable();
    assert_eq!(done, ["bad 1", "bad 2", "bad 3", "better 1", "good 1"]);
    assert_eq!(node.run(0, "pop", &["failed"]).0, "bad\n");
    let left = node.json("stat", &["jobs"]);
    assert_eq!((&left["slots"], &left["claimed"]), (&json!(0), &json!(0)));
}

#[test]
fn a_claim_lasts_as_long_as_its_command_and_an_entry_of_a_killed_program_comes_again() {
    let node = Node::start();
    node.run(0, "create", &["jobs", "--claims", "--keep", "1min"]);
    node.run(0, "push", &["jobs", "job"]);
    let (lease, started) = (["--lease", "300ms"], node.folder.path().join("started"));
    // The command outlives the program that is killed, and ends by itself.
    let slow = format!("touch {}; exec sleep 5", started.display());
    let arguments = [&["jobs"][..], &lease, &["--", "sh", "-c", &slow]].concat();
    let mut claim = node.command("claim", &arguments);
    let mut killed = claim.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let since = std::time::Instant::now();
    while !started.exists() {
        assert!(since.elapsed().as_secs() < 60, "the command is not started");
        std::thread::yield_now();
    }
    // This wait is longer than the lease: the claim is extended.
    node.run(1, "claim", &["jobs", "--wait", "1s", "--", "true"]);
    killed.kill().expect("it runs");
    killed.wait().expect("it ends");
    node.run(0, "claim", &["jobs", "--wait", "60s", "--", "sh", "-c", "[ $PORTCULLIS_DELIVERIES = 2 ]"]);
    assert!(node.run(3, "claim", &["none", "--", "true"]).1.contains("there is no queue none"));
    node.run(0, "push", &["jobs", "job"]);
    assert!(
        node.run(3, "claim", &["jobs", "--", "/no/such/program"])
            .1
            .contains("/no/such/program cannot be run")
    );
    node.run(0, "claim", &["jobs", "--wait", "60s", "--", "true"]);
}
