//! Child processes of a test: the same test binary, which runs one of its functions.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

/// The environment variable that holds the path for a child to work with.
const PATH: &str = "PORTCULLIS_HOSTILE_PATH";
/// The text before the line that a child prints when it is ready.
const READY: &str = "ready: ";

/// A running child. It is killed when this value is dropped.
pub struct Child {
    process: std::process::Child,
    _stdin: Option<ChildStdin>,
}

impl Child {
    /// Starts the test `name` in a process of its own, and waits until it is ready. Returns what the child printed
    /// then.
    pub fn start(name: &str, path: &Path) -> (Self, String) {
        Self::start_by(Command::new(std::env::current_exe().expect("this program")), name, path)
    }

    /// Starts the test `name` in a child under a command that takes the program and its arguments, for example
    /// `unshare`.
    pub fn start_under(command: &[&str], name: &str, path: &Path) -> (Self, String) {
        let mut words = command.iter();
        let mut command = Command::new(words.next().expect("a command"));
        command.args(words).arg(std::env::current_exe().expect("this program"));
        Self::start_by(command, name, path)
    }

    fn start_by(mut command: Command, name: &str, path: &Path) -> (Self, String) {
        let mut process = command
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let said = lines.map_while(Result::ok).find_map(|line| line.strip_prefix(READY).map(str::to_owned));
        let stdin = process.stdin.take();
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

/// Returns the path for a child to work with. `None`: this process is no child.
pub fn path() -> Option<PathBuf> {
    std::env::var_os(PATH).map(PathBuf::from)
}

/// Prints that a child is ready.
pub fn say_ready(what: impl Display) {
    println!("\n{READY}{what}");
}
