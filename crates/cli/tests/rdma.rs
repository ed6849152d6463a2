//! The program on an RDMA device, as people and scripts call it. The tests are ignored by default, because they need a
//! device. They are written for Soft-RoCE, whose deviations they expect by name.

use portcullis_nic::Guarantee;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    portcullis(arguments).output().expect("the program starts")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A node that ends with its test, because its standard input ends then.
struct Node {
    child: Child,
    said: Value,
}

impl Node {
    fn start(arguments: &[&str]) -> Self {
        let mut command = portcullis(&["serve", "--json", "--stop-at-end-of-input", "--memory", "32MiB"]);
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says {line:?} and no address"));
        Self { child, said }
    }

    fn address(&self) -> String {
        let place = self.said["listening"][0].as_str().expect("an address");
        place.split('?').next().expect("the address").to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn doctor_finds_that_soft_roce_windows_have_no_range_and_nothing_else() {
    let output = run(&["doctor", "--json"]);
    let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let names = |verdict: &str| -> Vec<&str> {
        let all = said["guarantees"].as_array().expect("a list").iter();
        all.filter(|it| it["verdict"] == verdict).filter_map(|it| it["name"].as_str()).collect()
    };
    assert_eq!(names("broken"), ["range-window-1", "range-window-2"], "{said:#}");
    assert!(names("untried").contains(&"survives-misuse"), "Soft-RoCE is not provoked: {said:#}");
    assert_eq!(said["mechanism"], "memory-region");
    assert_eq!(said["chunks"], "cpu");
    assert_eq!(output.status.code(), Some(1), "windows cannot be relied on: {}", errors(&output));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_node_refuses_windows_without_a_range_and_names_what_holds() {
    let output = run(&["serve", "--listen", "rdma:127.0.0.1:0", "--protection", "memory-window"]);
    assert_eq!(output.status.code(), Some(2));
    let said = errors(&output);
    for part in ["--allow-unenforced range", "memory-region", "node-copy"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_node_takes_what_the_device_keeps_or_says_what_it_goes_without() {
    let by_itself = Node::start(&["--listen", "rdma:127.0.0.1:0"]);
    assert_eq!(by_itself.said["protection"], "memory-region");
    assert_eq!(by_itself.said["unenforced"], serde_json::json!([]));
    drop(by_itself);
    let arguments =
        ["--listen", "rdma:127.0.0.1:0", "--protection", "memory-window", "--allow-unenforced", "range"];
    let told = Node::start(&arguments);
    assert_eq!(told.said["protection"], "memory-window");
    assert_eq!(told.said["unenforced"], serde_json::json!([Guarantee::WindowRange.name()]));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_node_beyond_this_machine_wants_certificates() {
    let output = run(&["serve", "--listen", "rdma:0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("--dangerous-no-certificates"), "{}", errors(&output));
}

fn certificate(directory: &Path, arguments: &[&str]) {
    let directory = directory.to_str().expect("text");
    let output = run(&[&["certificates", "--directory", directory], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
}

fn table_with(address: &str, directory: &Path, tenant: &str) -> Output {
    let directory = directory.to_str().expect("text");
    let credentials = ["--certificates", directory, "--tenant", tenant];
    run(&[&["kv", "create", "--node", address, "cities"], &credentials[..]].concat())
}

#[test]
#[ignore = "needs an RDMA device"]
fn certificates_let_a_tenant_in_and_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let [ours, foreign] = ["ours", "foreign"].map(|name| folder.path().join(name));
    for directory in [&ours, &foreign] {
        certificate(directory, &["authority"]);
        certificate(directory, &["tenant", "orange"]);
    }
    certificate(&ours, &["node", "memory1", "--host", "127.0.0.1"]);
    let (directory, log) = (ours.to_str().expect("text"), folder.path().join("audit.jsonl"));
    let audit = ["--audit", log.to_str().expect("text")];
    let listen = ["--listen", "rdma:127.0.0.1:0", "--certificates", directory, "--name", "memory1"];
    let node = Node::start(&[&listen[..], &audit[..]].concat());
    let address = node.address();

    let good = table_with(&address, &ours, "orange");
    assert_eq!(good.status.code(), Some(0), "{}", errors(&good));
    let bad = table_with(&address, &foreign, "orange");
    assert_eq!(bad.status.code(), Some(3), "{}", errors(&bad));
    let without = run(&["kv", "create", "--node", &address, "cities"]);
    assert_eq!(without.status.code(), Some(3), "{}", errors(&without));
    drop(node);
    let mut lines = String::new();
    std::fs::File::open(log).expect("a log").read_to_string(&mut lines).expect("text");
    assert!(lines.contains("\"tenant\":\"orange\""), "the certificate names the tenant: {lines}");
    assert_eq!(lines.matches("\"event\":\"attach\"").count(), 1, "{lines}");
}
