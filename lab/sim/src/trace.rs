//! The trace of a run: a hash that distinguishes two runs and, on request, text.

use crate::clock::Nanos;
use std::collections::VecDeque;
use std::fmt;
use std::hash::Hasher;
use twox_hash::XxHash64;

/// The number of last lines that are kept of a run.
const LINES_MAX: usize = 4000;

pub(crate) struct Trace {
    hash: XxHash64,
    events: u64,
    lines: Option<VecDeque<String>>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("events", &self.events).finish_non_exhaustive()
    }
}

impl Trace {
    /// Creates an empty trace. `readable`: text is kept as well.
    pub fn new(readable: bool) -> Self {
        let lines = readable.then(VecDeque::new);
        Self { hash: XxHash64::with_seed(0), events: 0, lines }
    }

    /// Adds an event: numbers for the hash, and a text for the reader.
    pub fn note(&mut self, now: Nanos, numbers: &[u64], text: impl FnOnce() -> String) {
        self.events += 1;
        self.hash.write_u64(now);
        for &number in numbers {
            self.hash.write_u64(number);
        }
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(format!("{:>12.3} µs  {}", micros(now), text()));
        }
    }

    /// Adds a line for the reader that is not an event.
    pub fn remark(&mut self, now: Nanos, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push_back(format!("{:>12.3} µs  {}", micros(now), text()));
        }
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Returns the text that was kept.
    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().map(Vec::from).unwrap_or_default()
    }
}

#[allow(clippy::cast_precision_loss, reason = "for the reader's eye only")]
fn micros(now: Nanos) -> f64 {
    now as f64 / 1000.0
}
