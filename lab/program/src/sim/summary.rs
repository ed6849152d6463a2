//! The summary of all runs.

use crate::output::{print_json, say};
use portcullis_sim::{FaultKind, Report};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The sum of some runs. It does not depend on their order.
#[derive(Debug, Default)]
pub struct Summary {
    /// The trace hash of each seed.
    hashes: BTreeMap<u64, u64>,
    failed: BTreeMap<u64, String>,
    totals: Totals,
}

#[derive(Debug, Default, Serialize)]
struct Totals {
    events: u64,
    faults: BTreeMap<FaultKind, u64>,
    accesses: u64,
    grants: u64,
    permissions_peak: u64,
    violations_tried: u64,
    violations_refused: u64,
    late_and_harmless: u64,
    virtual_us: u64,
}

/// The summary for programs. Between two runs of the same seeds only `wall_seconds` differs.
#[derive(Serialize)]
struct Json<'a> {
    ok: bool,
    seed: u64,
    seeds: usize,
    trace_hash: String,
    #[serde(flatten)]
    totals: &'a Totals,
    failures: &'a BTreeMap<u64, String>,
    wall_seconds: f64,
}

impl Summary {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        self.hashes.insert(report.seed, report.trace_hash);
        if let Some(failure) = report.failures.first() {
            self.failed.insert(report.seed, failure.to_string());
        }
        let totals = &mut self.totals;
        totals.events += report.events;
        for (&kind, count) in &report.faults {
            *totals.faults.entry(kind).or_default() += count;
        }
        totals.accesses += report.accesses;
        totals.grants += report.grants;
        totals.permissions_peak = totals.permissions_peak.max(report.permissions_peak);
        totals.violations_tried += report.violations_tried;
        totals.violations_refused += report.violations_refused;
        totals.late_and_harmless += report.late_and_harmless;
        totals.virtual_us += report.virtual_us;
    }

    /// A single run's hash, or a hash of all runs in the order of their seeds.
    fn trace_hash(&self) -> u64 {
        let mut hashes = self.hashes.values().copied();
        let first = hashes.next().unwrap_or_default();
        hashes.fold(first, |all, hash| all.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash)
    }

    /// Prints the summary as JSON or as text.
    pub fn print(&self, json: bool, wall: Duration) {
        if !json {
            return self.print_text(wall);
        }
        let summary = Json {
            ok: self.failed.is_empty(),
            seed: self.hashes.keys().next().copied().unwrap_or_default(),
            seeds: self.hashes.len(),
            trace_hash: format!("{:016x}", self.trace_hash()),
            totals: &self.totals,
            failures: &self.failed,
            wall_seconds: wall.as_secs_f64(),
        };
        print_json(&summary);
    }

    #[allow(clippy::cast_precision_loss, reason = "for the reader's eye only")]
    fn print_text(&self, wall: Duration) {
        let (seeds, totals) = (self.hashes.len(), &self.totals);
        let rate = totals.events as f64 / wall.as_secs_f64().max(1e-9) / 1e6;
        let what = if self.failed.is_empty() { "no promise broken" } else { "PROMISES BROKEN" };
        say(format_args!(
            "{seeds} seed{} from {}: {what}",
            plural(seeds),
            self.hashes.keys().next().unwrap_or(&0)
        ));
        say(format_args!("  trace hash           {:016x}", self.trace_hash()));
        say(format_args!(
            "  events               {} in {:.1} s ({rate:.2} M/s)",
            totals.events,
            wall.as_secs_f64()
        ));
        say(format_args!("  virtual time         {:.3} s", totals.virtual_us as f64 / 1e6));
        say(format_args!("  grants, accesses     {}, {}", totals.grants, totals.accesses));
        say(format_args!("  permissions held     {} at a time, at most", totals.permissions_peak));
        say(format_args!(
            "  violations           {} tried, {} refused",
            totals.violations_tried, totals.violations_refused
        ));
        say(format_args!("  late and harmless    {}", totals.late_and_harmless));
        let faults: Vec<String> =
            totals.faults.iter().map(|(kind, count)| format!("{} {count}", kind.name())).collect();
        say(format_args!(
            "  faults               {}",
            if faults.is_empty() { "none".to_owned() } else { faults.join(", ") }
        ));
        for (seed, failure) in self.failed.iter().take(20) {
            say(format_args!("  seed {seed}: {failure}"));
        }
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
