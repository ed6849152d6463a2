//! Times of single operations, and their statistics.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Times in nanoseconds, with three significant digits; reported in microseconds.
#[derive(Debug)]
pub struct Samples {
    nanoseconds: Histogram<u64>,
}

/// Statistics in microseconds, with perftest's names.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    /// The shortest.
    pub t_min: f64,
    /// The longest.
    pub t_max: f64,
    /// The median.
    pub t_typical: f64,
    /// The mean.
    pub t_avg: f64,
    /// The standard deviation.
    pub t_stdev: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

impl Default for Samples {
    fn default() -> Self {
        Self::new()
    }
}

impl Samples {
    /// An empty set of times.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Self {
            nanoseconds: histogram.expect("the bounds and the digits are within what the histogram takes"),
        }
    }

    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        self.nanoseconds.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all times of `others`.
    pub fn add_all(&mut self, others: &Self) {
        let added = self.nanoseconds.add(&others.nanoseconds);
        added.expect("all histograms have the same bounds");
    }

    /// The median, in microseconds.
    pub fn typical(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The time below which this share of all times lies, in microseconds.
    pub fn quantile(&self, quantile: f64) -> f64 {
        micros(self.nanoseconds.value_at_quantile(quantile))
    }

    /// The statistics of all times.
    pub fn summary(&self) -> Summary {
        Summary {
            t_min: micros(self.nanoseconds.min()),
            t_max: micros(self.nanoseconds.max()),
            t_typical: self.typical(),
            t_avg: self.nanoseconds.mean() / 1_000.0,
            t_stdev: self.nanoseconds.stdev() / 1_000.0,
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
        }
    }
}

/// Converts nanoseconds to microseconds.
#[allow(clippy::cast_precision_loss, reason = "times of a benchmark are far below 2^53 ns")]
pub fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1_000.0
}

/// A rate in millions per second.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^53")]
pub fn mops(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64() / 1e6
}

/// Average per item: `total` divided by `count`, or by 1 if `count` is 0.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^53")]
pub fn per(total: u64, count: u64) -> f64 {
    total as f64 / count.max(1) as f64
}
