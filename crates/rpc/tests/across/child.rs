//! Child processes of a test: this test binary again, which runs one of its functions.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdin, Command, Stdio};

/// The environment variable with the child's parameter.
const WORD: &str = "PORTCULLIS_ACROSS_CHILD";
/// The text before the line that a child prints when it is ready.
const READY: &str = "ready: ";

/// A running child. It is killed when this is dropped.
pub struct Child {
    process: std::process::Child,
    _stdin: ChildStdin,
}

impl Child {
    /// Starts the test `name` in a process of its own, and waits until it is ready. Returns what the child printed then.
    pub fn start(name: &str, word: &str) -> (Self, String) {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(WORD, word)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let said = lines.map_while(Result::ok).find_map(|line| line.strip_prefix(READY).map(str::to_owned));
        let stdin = process.stdin.take().expect("a pipe");
        (Self { process, _stdin: stdin }, said.expect("a child that gets ready"))
    }

    /// Kills the child with SIGKILL, so that it cannot clean up.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The child's parameter. `None`: this process is no child.
pub fn word() -> Option<String> {
    std::env::var(WORD).ok()
}

/// Reports to the parent that the child is ready.
pub fn say_ready(what: impl Display) {
    println!("\n{READY}{what}");
}

/// Waits until the parent has ended. Then the child ends too.
pub fn wait_for_the_end() {
    let mut left = String::new();
    let _ = std::io::stdin().read_line(&mut left);
}
