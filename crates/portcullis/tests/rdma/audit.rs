//! The parts of the node's audit log that these tests read.

use std::fmt;
use std::path::Path;

/// The part of the log that is written so far.
pub struct Audit(String);

impl Audit {
    pub fn read(path: &Path) -> Self {
        Self(std::fs::read_to_string(path).expect("there is a log"))
    }

    /// Violations that this tenant is charged with.
    pub fn violations(&self, tenant: &str) -> u64 {
        let named = format!("\"tenant\":\"{tenant}\"");
        self.lines("violation").filter(|line| line.contains(&named)).count() as u64
    }

    pub fn all_violations(&self) -> u64 {
        self.lines("violation").count() as u64
    }

    pub fn has(&self, event: &str) -> bool {
        self.lines(event).next().is_some()
    }

    fn lines(&self, event: &str) -> impl Iterator<Item = &str> {
        let named = format!("\"event\":\"{event}\"");
        // A line without a newline is still being written.
        self.0.split_inclusive('\n').filter(move |line| line.ends_with('\n') && line.contains(&named))
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
