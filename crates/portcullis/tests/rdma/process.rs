//! Other processes for a test: this test binary again, told to run one of its functions.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// Tells a child the address of the node that it works with, or that it is to be one.
const ADDRESS: &str = "PORTCULLIS_RDMA_ADDRESS";
/// What a child says before it says that it is ready.
const READY: &str = "ready: ";

/// A running child. It is killed when this goes.
pub struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    /// Read no further, but open: it must not fail to say what it says at its end.
    _stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Starts the test `name` in a process of its own, and waits until it is ready. Returns what it said then.
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

    /// SIGKILL: it gets to clean nothing up.
    pub fn kill(self) {
        drop(self);
    }

    /// Asks it to end by itself, and waits until it has.
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

/// In a child: the address that it was given. `None`: this is no child.
pub fn address() -> Option<String> {
    std::env::var(ADDRESS).ok()
}

/// In a child: it is ready.
pub fn say_ready(what: impl Display) {
    println!("\n{READY}{what}");
}

/// In a child: waits until it is asked to end.
pub fn until_asked_to_end() {
    // Standard input says nothing, and ends when the parent says so or is gone.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}
