//! `portcullis-lab bench call`: calls through shared memory (RPCool, Table 1).

mod rows;
mod serving;

use super::course::Length;
use super::pingpong::RoundTrip;
use super::report::print_json;
use super::turns::{Spread, in_turns};
use super::{BenchError, pingpong};
use crate::output::say;
use clap::Args;
use comfy_table::{Table, presets};
use portcullis_rpc::channel::{Connection, DEPTH};
use rows::{Half, Kind, SANDBOXED, one};
use serde::Serialize;
use serving::{ServerProcess, be_server};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  portcullis-lab bench call  # all rows, a second each
  portcullis-lab bench call -n 100000 --json

The server is a process of its own, on processor 0; this end runs on processor
1. Both poll. A round measures each row once; times and ratios are medians of
the rounds. A row with pages passes a scope of that size: with `copied`
the server copies it before its method begins, with `trusted` the method reads
one word of each page in place, with `sealed before` the kernel
lets no process write it any more. `paper` is RPCool's nearest figure (Table 1,
CXL emulated on two sockets), in microseconds; sealed and sandboxed for copied
and sandboxed here, a seal and its release for a permanent seal here.";

const ROUNDS: usize = 5;

/// The measurement, and how it is done.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchCallOptions {
    /// Calls to measure in all rounds of a row together.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Run for this many seconds instead [default: one for each row].
    #[arg(short = 'D', long, conflicts_with = "iterations", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Run as the server at this path.
    #[arg(long, hide = true, value_name = "PATH")]
    serve: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// In microseconds.
    p50: f64,
    p99: f64,
    paper: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    rounds: usize,
    /// In microseconds.
    pingpong_rtt: RoundTrip,
    /// A call without arguments for each ping-pong, if that was measured.
    call_to_pingpong: Option<Spread>,
    /// Time that one copied page adds to a call without arguments, in microseconds.
    page_added: Spread,
    /// Time that one page adds that is copied and read in a sandbox.
    sandboxed_page_added: Spread,
    calls_per_second: f64,
    rows: Vec<Row>,
}

/// Runs the benchmark, or serves as its server.
pub fn run(options: &BenchCallOptions) -> Result<(), BenchError> {
    match &options.serve {
        Some(path) => be_server(path),
        None => measure(options),
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Call(error.to_string())
}

fn measure(options: &BenchCallOptions) -> Result<(), BenchError> {
    let length = Length::new(options.iterations, options.duration).part(ROUNDS);
    let server = ServerProcess::start()?;
    let mut connection = Connection::open(&server.path).map_err(failed)?;
    let mut pingpongs = Vec::new();
    let mut kinds = Kind::ALL;
    let halves = in_turns(&mut kinds, ROUNDS, |kind, round| {
        if matches!(kind, Kind::Empty) {
            // The server's thread is idle, and sleeps.
            pingpongs.push(pingpong::round_trip());
        }
        one(*kind, &mut connection, &server.path, length, round)
    })?;
    let report = report(&pingpongs, &halves);
    if options.json {
        print_json(&report)
    } else {
        print_table(&report)
    }
    Ok(())
}

fn report(pingpongs: &[RoundTrip], halves: &[Vec<Half>]) -> Report {
    let is_sandboxed = |kind: &Kind| *kind == Kind::Pages { method: SANDBOXED, pages: 1 };
    let sandboxed = Kind::ALL.iter().position(is_sandboxed).expect("it is a row");
    let typical = |row: usize| halves[row].iter().map(|half| half.samples.typical());
    let rows = Kind::ALL.iter().zip(halves).map(|(kind, halves)| {
        let median = |quantile| Spread::of(halves.iter().map(|half| half.samples.quantile(quantile))).median;
        Row { name: kind.name(), p50: median(0.5), p99: median(0.99), paper: kind.paper() }
    });
    let round_trips: Option<Vec<f64>> = pingpongs.iter().map(|time| time.microseconds()).collect();
    let rates = halves[Kind::ALL.len() - 1].iter().map(|half| half.rate * 1e6);
    Report {
        benchmark: "call",
        rounds: ROUNDS,
        pingpong_rtt: RoundTrip::median(pingpongs),
        call_to_pingpong: round_trips.map(|times| Spread::of_ratios(typical(0).zip(times))),
        page_added: Spread::of(typical(1).zip(typical(0)).map(|(page, empty)| page - empty)),
        sandboxed_page_added: Spread::of(
            typical(sandboxed).zip(typical(0)).map(|(page, empty)| page - empty),
        ),
        calls_per_second: Spread::of(rates).median,
        rows: rows.collect(),
    }
}

fn print_table(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["", "p50 [usec]", "p99 [usec]", "RPCool [usec]"]);
    for Row { name, p50, p99, paper } in &report.rows {
        let paper = paper.map_or_else(String::new, |paper| format!("{paper}"));
        table.add_row([name.clone(), format!("{p50:.2}"), format!("{p99:.2}"), paper]);
    }
    let Report { pingpong_rtt, call_to_pingpong, page_added, calls_per_second, rounds, .. } = report;
    let sandboxed = &report.sandboxed_page_added;
    let in_pingpongs = call_to_pingpong.map_or_else(String::new, |Spread { least, median, most }| {
        format!("A call takes {median:.2} ({least:.2}-{most:.2}) ping-pongs. ")
    });
    say(format_args!(
        "Medians of {rounds} rounds; pingpong RTT {pingpong_rtt}\n{table}\n\
         {in_pingpongs}A copied page adds {:.2} usec ({:.2}-{:.2}),\n\
         and in a sandbox {:.2} usec ({:.2}-{:.2}).\n\
         {:.2} M calls a second with {DEPTH} under way.",
        page_added.median,
        page_added.least,
        page_added.most,
        sandboxed.median,
        sandboxed.least,
        sandboxed.most,
        calls_per_second / 1e6,
    ));
}
