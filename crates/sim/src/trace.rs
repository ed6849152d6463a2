//! What happened, as a hash that tells two runs apart and, when asked for, as text.

use crate::clock::Nanos;
use std::collections::VecDeque;
use std::fmt;
use std::hash::Hasher;
use twox_hash::XxHash64;

/// Lines that are kept of a run: the last so many.
const LINES_MAX: usize = 4000;

/// The trace of one run.
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
    /// An empty trace; `readable` also keeps text.
    pub fn new(readable: bool) -> Self {
        let lines = readable.then(VecDeque::new);
        Self { hash: XxHash64::with_seed(0), events: 0, lines }
    }

    /// Notes an event: what tells it apart, as numbers, and as text for whoever reads it.
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

    /// A line for the reader that is no event.
    pub fn remark(&mut self, now: Nanos, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push_back(format!("{:>12.3} µs  {}", micros(now), text()));
        }
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// The text that was kept.
    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().map(Vec::from).unwrap_or_default()
    }
}

#[allow(clippy::cast_precision_loss, reason = "for the reader's eye only")]
fn micros(now: Nanos) -> f64 {
    now as f64 / 1000.0
}
