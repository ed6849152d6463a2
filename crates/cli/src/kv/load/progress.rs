//! Progress of a load: a bar on a terminal, and the rates at the end.

use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two updates of the bar.
const FRAME: Duration = Duration::from_millis(100);
const MIB: f64 = 1_048_576.0;

/// The bar, and the counts behind it.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    keys: Cell<u64>,
    bytes: Cell<u64>,
    drawn: Cell<Instant>,
    ended: Cell<Option<Instant>>,
}

impl Progress {
    pub fn new() -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:40} {percent} %  {msg}");
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let now = Instant::now();
        Self {
            bar,
            started: now,
            keys: Cell::new(0),
            bytes: Cell::new(0),
            drawn: Cell::new(now),
            ended: Cell::new(None),
        }
    }

    /// The bar, for the readers of the files: it counts the bytes that are read.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Counts a key that was stored.
    pub fn stored(&self, bytes: usize) {
        self.keys.set(self.keys.get() + 1);
        self.bytes.set(self.bytes.get() + bytes as u64);
        if !self.bar.is_hidden() && self.drawn.get().elapsed() >= FRAME {
            self.drawn.set(Instant::now());
            self.bar.set_message(self.told());
        }
    }

    /// Prints something else beside the bar.
    pub fn aside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub fn end(&self) {
        self.ended.set(Some(Instant::now()));
        self.bar.finish_and_clear();
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub fn seconds(&self) -> f64 {
        self.ended.get().unwrap_or_else(Instant::now).duration_since(self.started).as_secs_f64()
    }

    /// The amount and the rates, as text.
    #[allow(clippy::cast_precision_loss, reason = "counts of a load are far below 2^53")]
    pub fn told(&self) -> String {
        let (keys, mib, seconds) = (self.keys.get() as f64, self.bytes.get() as f64 / MIB, self.seconds());
        let least = seconds.max(1e-6);
        format!("{mib:.1} MiB in {seconds:.1} s, {:.0} keys/s, {:.1} MiB/s", keys / least, mib / least)
    }
}
