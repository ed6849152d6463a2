//! A process of this program that serves during a benchmark, beside its node.

use super::BenchError;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A process that ends with its standard input. Dropping this ends it.
pub struct OwnProcess {
    child: Child,
    input: Option<ChildStdin>,
    first_line: String,
}

impl OwnProcess {
    /// Starts this program with these arguments and waits for the first line of its output, which it writes when it
    /// serves. `what` is its name in errors. The process may use the processors that this thread may use.
    pub fn start<A: AsRef<OsStr>>(
        what: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut first_line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut first_line)?;
        }
        let process = Self { child, input, first_line };
        if process.first_line.is_empty() {
            return Err(std::io::Error::other(format!("{what} ended before it served")).into());
        }
        Ok(process)
    }

    /// The line that the process has written.
    pub fn first_line(&self) -> &str {
        self.first_line.trim_end()
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Waits, in such a process, until its standard input ends.
pub fn wait_for_the_end() -> Result<(), BenchError> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
