//! The output of an examination: lines and a table for people, one object for programs.

use super::device::Chosen;
use crate::output::{print_json, print_styled, say};
use anstyle::{AnsiColor, Style};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use portcullis_examination::{Examination, Finding, Verdict, names};
use serde::Serialize;

/// Prints which device is examined, and the reason for its choice.
pub fn subject(chosen: &Chosen) {
    let bold = Style::new().bold();
    let what = format_args!("the {} guarantees that permissions rest on, in loopback", names().len());
    print_styled(&[(bold, &chosen.device), (Style::new(), &format_args!(", {}: {what}", chosen.reason))]);
    say("");
}

/// Prints a finding, aligned with the others.
pub fn finding(finding: &Finding) {
    let width = names().iter().map(|name| name.len()).max().unwrap_or_default();
    let (word, style) = match finding.verdict {
        Verdict::Holds => ("holds", AnsiColor::Green.on_default()),
        Verdict::Broken => ("does not hold", AnsiColor::Red.on_default().bold()),
        Verdict::Untried => ("not tried", AnsiColor::Yellow.on_default()),
    };
    let rest = format_args!("  {:width$}  {}", finding.name, finding.detail);
    print_styled(&[(style, &format_args!("{word:13}")), (Style::new(), &rest)]);
}

/// Prints the times of the steps.
pub fn times(examination: &Examination) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["step", "median µs", "least", "most", "rounds"]);
    for time in &examination.times {
        let [median, least, most] =
            [time.median_us, time.least_us, time.most_us].map(|micros| format!("{micros:.2}"));
        table.add_row([time.name.to_owned(), median, least, most, time.rounds.to_string()]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say(format_args!("\n{table}"));
    for untimed in &examination.untimed {
        say(format_args!("not measured: {}: {}", untimed.name, untimed.reason));
    }
}

/// Prints the mechanism that a node on this device chooses.
pub fn mechanism(examination: &Examination) {
    let (mechanism, reason) = examination.mechanism();
    let bold = Style::new().bold();
    say("");
    let what = format_args!("{}: serve will use: ", examination.device);
    print_styled(&[(Style::new(), &what), (bold, &mechanism)]);
    say(format_args!("  {reason}"));
    let chunks = match has_chains(examination) {
        true => "the NIC hands them out by chains, while the node's processor does nothing",
        false => "the node's processor hands them out: the device has no chains",
    };
    say(format_args!("{}: chunks (serve --chunks): {chunks}", examination.device));
}

fn has_chains(examination: &Examination) -> bool {
    examination.capabilities.chains.is_all()
}

/// The output for programs.
#[derive(Serialize)]
struct Json<'a> {
    device: &'a str,
    /// The reason for the choice of this device.
    chosen: &'a str,
    guarantees: Vec<Guarantee<'a>>,
    times: Vec<Time>,
    mechanism: &'static str,
    /// The processor that hands chunks out: `nic` or `cpu`.
    chunks: &'static str,
}

#[derive(Serialize)]
struct Guarantee<'a> {
    name: &'static str,
    verdict: &'static str,
    detail: &'a str,
}

#[derive(Serialize)]
struct Time {
    name: &'static str,
    median_us: f64,
    least_us: f64,
    most_us: f64,
    rounds: usize,
}

/// Prints one JSON object.
pub fn json(chosen: &Chosen, examination: &Examination) {
    let guarantees = examination.findings.iter().map(|finding| Guarantee {
        name: finding.name,
        verdict: finding.verdict.name(),
        detail: &finding.detail,
    });
    let times = examination.times.iter().map(|time| Time {
        name: time.name,
        median_us: time.median_us,
        least_us: time.least_us,
        most_us: time.most_us,
        rounds: time.rounds,
    });
    let json = Json {
        device: &examination.device,
        chosen: chosen.reason,
        guarantees: guarantees.collect(),
        times: times.collect(),
        mechanism: examination.mechanism().0.name(),
        chunks: if has_chains(examination) { "nic" } else { "cpu" },
    };
    print_json(&json);
}
