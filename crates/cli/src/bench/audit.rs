//! The cost of the audit log: the rate of permissions without a log, with violations and bars only, and with all
//! events.
//!
//! A machine's speed drifts by more than a log costs. So the three take turns, and each round is compared only with
//! itself.

use super::node_process::Setup;
use super::permissions::Run;
use super::report::{Setting, print_json};
use super::{BenchError, Options, pingpong};
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

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |position: usize| values.get(position).copied().unwrap_or_default();
        let last = values.len().saturating_sub(1);
        Self { least: at(0), median: at(last / 2), most: at(last) }
    }
}

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
pub fn run(options: &Options) -> Result<(), BenchError> {
    let pingpong_rtt = pingpong::round_trip();
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        rounds.push(run_round(options, round)?);
    }
    let iterations = rounds.iter().flatten().map(|run| run.ended).min().unwrap_or_default();
    let logs = (0..LOGS.len()).map(|log| row(log, &rounds)).collect();
    let report = Report { setting: Setting::new(options, iterations, pingpong_rtt), rounds: ROUNDS, logs };
    if options.json {
        print_json(&report);
    } else {
        print_table(&report);
    }
    Ok(())
}

/// One run of each kind, in the order of [`LOGS`]. Each round begins with another kind.
fn run_round(options: &Options, round: usize) -> Result<[Run; LOGS.len()], BenchError> {
    let mut runs = [const { None }; LOGS.len()];
    for turn in 0..LOGS.len() {
        let log = (round + turn) % LOGS.len();
        let name = format!("round {} of {ROUNDS}: {}", round + 1, LOGS[log].name);
        let setup = Setup { audit: LOGS[log].events, ..options.setup() };
        runs[log] = Some(Run::on_own_node(options, &setup, (&name, false))?);
    }
    match runs {
        [Some(none), Some(wrong), Some(all)] => Ok([none, wrong, all]),
        _ => Err(BenchError::NoCounters),
    }
}

fn row(log: usize, rounds: &[[Run; LOGS.len()]]) -> Row {
    let spread = |of: fn(&Run) -> f64| Spread::of(rounds.iter().map(|runs| of(&runs[log])).collect());
    let of_none = rounds.iter().map(|runs| runs[log].mops() / runs[0].mops()).collect();
    Row {
        log: LOGS[log].name,
        mops: spread(Run::mops),
        of_none: Spread::of(of_none),
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
         pingpong RTT {pingpong_rtt:.3} usec\n{table}"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_told_in_any_order() {
        let spread = Spread { least: 1.0, median: 2.0, most: 9.0 };
        assert_eq!(Spread::of(vec![9.0, 1.0, 2.0]), spread);
        assert_eq!(Spread::of(vec![4.0]), Spread { least: 4.0, median: 4.0, most: 4.0 });
    }
}
