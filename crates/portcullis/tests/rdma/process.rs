//! Child processes of a test: the same test binary, which runs one of its functions.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// The environment variable that holds the address of a child's node, or marks a child that is to be a node.
const ADDRESS: &str = "PORTCULLIS_RDMA_ADDRESS";
/// The text before the line that a child prints when it is ready.
const READY: &str = "ready: ";

/// A running child. It is killed when this value is dropped.
pub struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    /// The test reads no more from this, but keeps it open: the child must be able to print at its end.
    _stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Starts the test `name` in a process of its own, and waits until it is ready. Returns what the child printed
    /// then.
    pub fn start(name: &str, address: &str) -> (Self, String) {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let lines = stdout.by_ref().lines();
        let said = lines.map_while(Result::ok).find_map(|line| line.strip_prefix(READY).map(str::to_owned));
        let stdin = process.stdin.take();
        (Self { process, stdin, _stdout: stdout }, said.expect("a child that gets ready"))
    }

    /// Kills the child with SIGKILL, so that it cannot clean up.
    pub fn kill(self) {
        drop(self);
    }

    /// Closes the child's standard input, so that the child ends, and waits until it has ended.
    pub fn end(mut self) {
        drop(self.stdin.take());
        self.process.wait().expect("a child of this process");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the address that a child was given. `None`: this process is no child.
pub fn address() -> Option<String> {
    std::env::var(ADDRESS).ok()
}

/// Prints that a child is ready.
pub fn say_ready(what: impl Display) {
    println!("\n{READY}{what}");
}

/// Waits in a child until its parent wants it to end.
pub fn until_asked_to_end() {
    // Standard input carries no data. It ends when the parent closes it or dies.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}
