//! A node process for a test.

use portcullis::{Session, connect};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest wait on a busy machine for an event that otherwise takes a moment.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, with these arguments.
pub fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A node that ends with its test, because its standard input ends then.
pub struct Node {
    child: Child,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Node {
    /// Starts a node whose files are in `folder`.
    pub fn start(folder: tempfile::TempDir, arguments: &[&str]) -> Self {
        Self::start_telling(folder, "", arguments)
    }

    /// Starts a node that writes the events that `rust_log` requests to its standard error.
    pub fn start_telling(folder: tempfile::TempDir, rust_log: &str, arguments: &[&str]) -> Self {
        let listen = format!("shm:{}", folder.path().join("node.sock").display());
        let mut command =
            portcullis(&["serve", "--json", "--stop-at-end-of-input", "--memory", "16MiB", "--listen"]);
        command.arg(listen).args(arguments).current_dir(&folder).env("RUST_LOG", rust_log);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut node = Self { child, output, folder };
        assert!(node.says()["listening"].is_array());
        node
    }

    /// The next line of the node's output.
    fn says(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says {line:?}"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn connect(&self) -> Session {
        let address = format!("shm:{}", self.path("node.sock").display());
        connect(&address).expect("a session")
    }

    pub fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).expect("it runs");
    }

    pub fn counters(&mut self) -> Value {
        self.signal(Signal::USR1);
        self.says()
    }

    /// Ends the node, and returns its result.
    pub fn stop(mut self) -> (Output, tempfile::TempDir) {
        drop(self.child.stdin.take());
        (self.child.wait_with_output().expect("it ends"), self.folder)
    }

    /// Kills the node's process.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        self.folder
    }
}

pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Each line of an audit log, as JSON. The log must end with a complete line.
pub fn log(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole: {text}");
    text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
}

/// The complete lines of an audit log that a node is still writing: a growing file becomes visible page by page.
pub fn growing_log(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
}

/// Number of records of an event.
pub fn count(log: &[Value], event: &str) -> usize {
    log.iter().filter(|record| record["event"] == event).count()
}

/// Waits until `holds`.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "waiting for {what}");
        std::thread::yield_now();
    }
}
