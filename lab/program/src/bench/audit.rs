//! The cost of the audit log: the rate of permissions without a log, with violations and bars only, and with all
//! events.
//!
//! A machine's speed drifts by more than the cost of a log. So the three settings take turns.

use super::node_process::Setup;
use super::permissions::{LifeCourse, Run};
use super::report::{Setting, print_json};
use super::turns::{Round, Spread, in_turns};
use super::{BenchError, BenchOptions, pingpong};
use crate::output::say;
use comfy_table::{Table, presets};
use serde::Serialize;

/// Rounds, each with one run of each kind. The odd number gives a median.
const ROUNDS: usize = 11;

/// A log, and the events that are written to it.
struct Log {
    name: &'static str,
    events: Option<&'static [&'static str]>,
}

const LOGS: [Log; 3] = [
    Log { name: "none", events: None },
    Log { name: "violations and bars", events: Some(&["violation", "pause", "bar"]) },
    Log { name: "everything", events: Some(&[]) },
];

#[derive(Debug, Serialize)]
struct Row {
    log: &'static str,
    /// Permissions acquired and ended, in millions a second.
    mops: Spread,
    /// The rate, divided by the rate of the run without a log in the same round.
    of_none: Spread,
    /// Percentage of records that were lost. The node does not wait for its log.
    percent_lost: Spread,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    setting: Setting,
    rounds: usize,
    logs: Vec<Row>,
}

/// Runs all rounds, each run on a node of its own.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let pingpong_rtt = pingpong::round_trip();
    let runs = in_turns(&mut LOGS.each_ref(), ROUNDS, |log, round| run_with(options, log, round))?;
    let iterations = runs.iter().flatten().map(|run| run.ended).min().unwrap_or_default();
    let logs = LOGS.iter().zip(&runs).map(|(log, own)| row(log, own, &runs[0])).collect();
    let report = Report { setting: Setting::new(options, iterations, pingpong_rtt), rounds: ROUNDS, logs };
    if options.json {
        print_json(&report);
    } else {
        print_table(&report);
    }
    Ok(())
}

fn run_with(options: &BenchOptions, log: &Log, round: Round) -> Result<Run, BenchError> {
    let setup = Setup { audit: log.events, ..options.setup() };
    Run::on_own_node(options, &setup, (&format!("{round}: {}", log.name), LifeCourse::SINGLE))
}

fn row(log: &Log, runs: &[Run], without: &[Run]) -> Row {
    let spread = |of: fn(&Run) -> f64| Spread::of(runs.iter().map(of));
    Row {
        log: log.name,
        mops: spread(Run::mops),
        of_none: Spread::of_ratios(runs.iter().zip(without).map(|(run, none)| (run.mops(), none.mops()))),
        percent_lost: spread(Run::percent_lost),
    }
}

fn print_table(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["audit log", "Mops", "least", "most", "of none", "least", "most", "lost [%]"]);
    for row in &report.logs {
        table.add_row([
            row.log.to_owned(),
            format!("{:.3}", row.mops.median),
            format!("{:.3}", row.mops.least),
            format!("{:.3}", row.mops.most),
            format!("{:.3}", row.of_none.median),
            format!("{:.3}", row.of_none.least),
            format!("{:.3}", row.of_none.most),
            format!("{:.1}", row.percent_lost.median),
        ]);
    }
    let Setting { size, iterations, pingpong_rtt, .. } = report.setting;
    let rounds = report.rounds;
    say(format_args!(
        "Permissions over {size} bytes acquired and revoked, at least {iterations} in each of {rounds} rounds, medians; \
         pingpong RTT {pingpong_rtt}\n{table}"
    ));
}
