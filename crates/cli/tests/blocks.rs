//! `portcullis blocks` as a program, with several node processes, some of which are killed.

use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

fn portcullis<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("PORTCULLIS_DIRECTORY");
    command
}

/// A node process. It ends with its test, because its standard input ends then.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        // SIGKILL: nothing is told to any client.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Node processes, a folder of files, and the store of these files on the nodes.
struct Rig {
    folder: TempDir,
    nodes: Vec<Option<Node>>,
}

impl Rig {
    fn new(nodes: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut rig = Self { folder, nodes: (0..nodes).map(|_| None).collect() };
        (0..nodes).for_each(|node| rig.start(node));
        let files = rig.path("files");
        std::fs::create_dir_all(files.join("below")).expect("a folder");
        let lengths = [("empty", 0_usize), ("small", 5), ("below/large", 700_001), ("equal", 700_001)];
        for (name, length) in lengths {
            let bytes: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(length).collect();
            std::fs::write(files.join(name), bytes).expect("a file");
        }
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self, node: usize) -> String {
        format!("shm:{}", self.path(&format!("node-{node}")).display())
    }

    fn start(&mut self, node: usize) {
        // Otherwise the socket of a killed node is in the way.
        let _ = std::fs::remove_file(self.path(&format!("node-{node}")));
        let mut command = portcullis(["serve", "--json", "--stop-at-end-of-input", "--memory", "32MiB"]);
        command.args(["--longest-keep", "forever", "--listen", &self.address(node)]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it says something");
        assert!(line.contains("listening"), "{line}");
        self.nodes[node] = Some(Node(child));
    }

    fn run(&self, command: &str, more: &[&str]) -> Output {
        let mut call = portcullis(["blocks", command]);
        for node in 0..self.nodes.len() {
            call.args(["--node", &self.address(node)]);
        }
        call.args(["--copies", "2"]).args(more).current_dir(self.folder.path());
        call.output().expect("it runs")
    }

    /// Runs a command with `--json`, and returns its exit code and its object.
    fn json(&self, command: &str, more: &[&str]) -> (i32, Value) {
        let output = self.run(command, &[more, &["--json"]].concat());
        let object = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().expect("it exits"), object)
    }

    fn put(&self) -> (i32, Value) {
        self.json("put", &["--block-bytes", "64KiB", "files", "list.json"])
    }
}

/// Returns the files below a folder, with their bytes.
fn files_of(folder: &Path) -> BTreeSet<(PathBuf, Vec<u8>)> {
    let mut files = BTreeSet::new();
    for name in ["empty", "small", "below/large", "equal"] {
        files.extend(std::fs::read(folder.join(name)).ok().map(|bytes| (PathBuf::from(name), bytes)));
    }
    files
}

#[test]
fn a_folder_comes_back_as_it_was_although_a_node_is_killed() {
    let mut rig = Rig::new(3);
    let (code, stored) = rig.put();
    assert_eq!(code, 0, "{stored}");
    // Of the two equal files each block is stored once.
    assert_eq!((&stored["files"], &stored["blocks"]), (&4.into(), &23.into()), "{stored}");
    let (code, there) = rig.json("verify", &["list.json"]);
    assert_eq!((code, &there["blocks_right"]), (0, &23.into()), "{there}");
    for node in 0..3 {
        rig.nodes[node] = None;
        let restored = format!("restored-{node}");
        let (code, got) = rig.json("get", &["list.json", &restored]);
        assert_eq!((code, &got["files"]), (0, &4.into()), "{got}");
        assert_eq!(files_of(&rig.path(&restored)), files_of(&rig.path("files")));
        rig.start(node);
        // The node has come back empty. Each block has two copies again before the next one is killed.
        let (code, copied) = rig.json("rebalance", &[]);
        assert_eq!((code, &copied["blocks_with_fewer_copies"]), (0, &0.into()), "{copied}");
        let (_, copied) = rig.json("rebalance", &[]);
        assert_eq!(copied["blocks_copied"], 0, "{copied}");
    }
    let (code, stat) = rig.json("stat", &[]);
    assert_eq!(code, 0, "{stat}");
    let nodes = stat["nodes"].as_array().expect("a list");
    let blocks: u64 = nodes.iter().map(|node| node["blocks"].as_u64().expect("a count")).sum();
    // Of 23 blocks of files, 11 of `below/large` are those of `equal`.
    assert_eq!((nodes.len(), blocks), (3, 24), "{stat}");
    let listed = String::from_utf8(rig.run("list", &[]).stdout).expect("text");
    assert_eq!(listed.lines().count(), 12, "{listed}");
}

#[test]
fn missing_blocks_are_reported_and_no_file_is_made_of_a_part() {
    let mut rig = Rig::new(2);
    assert_eq!(rig.put().0, 0);
    for node in 0..2 {
        rig.nodes[node] = None;
        rig.start(node);
    }
    let (code, there) = rig.json("verify", &["list.json"]);
    assert_eq!(
        (code, &there["blocks_missing"], &there["blocks_damaged"]),
        (1, &23.into(), &0.into()),
        "{there}"
    );
    let (code, got) = rig.json("get", &["list.json", "restored"]);
    assert_eq!((code, &got["files"], &got["files_left_out"]), (1, &1.into(), &3.into()), "{got}");
    assert_eq!(files_of(&rig.path("restored")), [("empty".into(), Vec::new())].into());
    // One node of two is there: each block has one copy, and the command says so.
    rig.nodes[0] = None;
    let output = rig.run("put", &["files", "list.json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("have fewer than 2 copies"), "{errors}");
    rig.nodes[1] = None;
    let output = rig.run("stat", &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("none of the nodes can be reached"), "{errors}");
}

#[test]
fn a_wrong_call_is_refused_with_the_reason() {
    let rig = Rig::new(1);
    std::fs::write(rig.path("wrong.json"), "{\"portcullis_blocks\": 1}").expect("a file");
    let climbing = r#"{"portcullis_blocks": 1, "block_bytes": 1024, "files": [{"path": "../a", "bytes": 0, "blocks": []}]}"#;
    std::fs::write(rig.path("climbing.json"), climbing).expect("a file");
    for (command, more, code, text) in [
        ("get", vec!["wrong.json", "restored"], 2, "it is no list that `portcullis blocks put` has written"),
        ("get", vec!["climbing.json", "restored"], 2, "the path leads out of the folder"),
        ("verify", vec!["nothing.json"], 3, "cannot read nothing.json"),
        ("put", vec!["nothing", "list.json"], 3, "cannot read the folder nothing"),
        ("put", vec!["--block-bytes", "7", "files", "list.json"], 2, "a block has 1KiB to 1GiB"),
        ("stat", vec!["--node", "tcp:a"], 0, ""),
    ] {
        let output = rig.run(command, &more);
        let errors = String::from_utf8_lossy(&output.stderr);
        // A node that cannot be reached is named, and the command goes on with the others.
        let expected = if command == "stat" { 1 } else { code };
        assert_eq!(output.status.code(), Some(expected), "{command}: {errors}");
        assert!(errors.contains(text), "{text:?} is not in {errors}");
    }
    let output = portcullis(["blocks", "stat"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}
