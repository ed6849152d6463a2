//! Progress of a command that moves the bytes of blocks: a bar on a terminal, and the rate at the end.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

const MIB: f64 = 1_048_576.0;

/// The bar, and the time since the beginning.
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// Begins. `bytes`: as many as will be moved.
    pub fn begin(bytes: u64) -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}");
        Self {
            bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
            began: Instant::now(),
        }
    }

    pub fn moved(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Removes the bar. Returns the seconds since the beginning.
    pub fn end(&self) -> f64 {
        self.bar.finish_and_clear();
        self.began.elapsed().as_secs_f64()
    }
}

/// The amount and the rate, as text.
#[expect(clippy::cast_precision_loss, reason = "the text has one digit behind the point")]
pub fn rate(bytes: u64, seconds: f64) -> String {
    let mib = bytes as f64 / MIB;
    format!("{mib:.1} MiB in {seconds:.1} s, {:.1} MiB/s", mib / seconds.max(1e-6))
}
