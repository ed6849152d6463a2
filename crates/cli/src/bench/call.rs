//! `portcullis bench call`: calls through shared memory (RPCool, Table 1).

use super::course::{Course, Length};
use super::report::print_json;
use super::turns::{Round, Spread, in_turns};
use super::{BenchError, pingpong, processors};
use crate::output::say;
use crate::samples::{Samples, mops};
use clap::Args;
use comfy_table::{Table, presets};
use portcullis_rpc::channel::{CallId, Connection, Copied, DEPTH, ServerOptions, Trusted, serve};
use portcullis_rpc::{Boxed, Scope, ScopeRef, Source};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  portcullis bench call                 # all rows, a second each
  portcullis bench call -n 100000 --json

The server is a process of its own, on processor 0; this end runs on processor
1. Both poll. A round measures each row once; times and ratios are medians of
the rounds. A row with pages passes a scope of that size: `copied` has the
server copy it before its method begins, `trusted` has the method read one word
of each page where this end has it. `paper` is RPCool's figure for what is
nearest (Table 1, CXL emulated on two sockets), in microseconds; sealed and
sandboxed where this one is copied.";

/// Calls of one word more, with arguments copied, and read in place.
const COPIED: u32 = 1;
const TRUSTED: u32 = 2;
const ROUNDS: usize = 5;
const PAGE: u64 = 4096;

/// What is measured, and how.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Calls to measure in all rounds of a row together.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Run for this many seconds instead [default: one for each row].
    #[arg(short = 'D', long, conflicts_with = "iterations", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Be the server at this path.
    #[arg(long, hide = true, value_name = "PATH")]
    serve: Option<PathBuf>,
}

/// A row: what is called, and how.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One call at a time, without arguments.
    Empty,
    /// One at a time, with so many pages.
    Pages { method: u32, pages: u64 },
    /// As many under way as can be, without arguments.
    Pipelined,
    /// A connection made and ended.
    Connect,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Empty,
        Self::Pages { method: COPIED, pages: 1 },
        Self::Pages { method: COPIED, pages: 4 },
        Self::Pages { method: COPIED, pages: 16 },
        Self::Pages { method: COPIED, pages: 64 },
        Self::Pages { method: COPIED, pages: 1024 },
        Self::Pages { method: TRUSTED, pages: 1 },
        Self::Connect,
        Self::Pipelined,
    ];

    fn name(self) -> String {
        let plural = |pages| if pages == 1 { "" } else { "s" };
        match self {
            Self::Empty => "call".to_owned(),
            Self::Pages { method: COPIED, pages } => format!("call, {pages} page{} copied", plural(pages)),
            Self::Pages { pages, .. } => format!("call, {pages} page{} trusted", plural(pages)),
            Self::Pipelined => format!("call, {DEPTH} under way"),
            Self::Connect => "connect".to_owned(),
        }
    }

    /// What RPCool says of it, in microseconds.
    fn paper(self) -> Option<f64> {
        match self {
            Self::Empty => Some(1.5),
            Self::Pages { method: COPIED, pages: 1 } => Some(2.6),
            Self::Connect => Some(400_000.0),
            Self::Pages { .. } | Self::Pipelined => None,
        }
    }
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
    pingpong_rtt: f64,
    /// A call without arguments for each ping-pong.
    call_to_pingpong: Spread,
    /// What one copied page adds to a call without arguments, in microseconds.
    page_added: Spread,
    calls_per_second: f64,
    rows: Vec<Row>,
}

/// Runs the benchmark, or is its server.
pub fn run(options: &Options) -> Result<(), BenchError> {
    match &options.serve {
        Some(path) => be_server(path),
        None => measure(options),
    }
}

/// Serves until its standard input ends.
fn be_server(path: &Path) -> Result<(), BenchError> {
    let options = ServerOptions { arguments_max: 16 << 20, ..ServerOptions::default() };
    let serving = serve(path)
        .with(options)
        .copied(COPIED, |page: Copied<'_, u64>, reply| {
            let value = if page.view().bytes().is_empty() { 0 } else { *page.get()? };
            reply.set_word(page.word() + value);
            Ok(())
        })
        .trusted(TRUSTED, |page: Trusted<'_, u64>, reply| {
            let mut sum = page.word();
            let from = page.root().address();
            for at in (0..page.scope().length).step_by(usize::try_from(PAGE).unwrap_or(usize::MAX)) {
                sum = sum.wrapping_add(page.heap().value::<u64>(from.saturating_add(at))?);
            }
            reply.set_word(sum);
            Ok(())
        })
        .on_processor(processors::pair().map(|(server, _)| server))
        .start();
    let _server = serving.map_err(failed)?;
    say("serving");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The server's process. Dropping it ends the process.
struct ServerProcess {
    child: Child,
    input: Option<ChildStdin>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl ServerProcess {
    fn start() -> Result<Self, BenchError> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("calls.sock");
        processors::unpin();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "call", "--serve"]).arg(&path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line)?;
        }
        let server = Self { child, input, path, _folder: folder };
        if line.is_empty() {
            return Err(std::io::Error::other("the server ended before it served").into());
        }
        processors::pin_client();
        Ok(server)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Call(error.to_string())
}

/// One row in one round.
struct Half {
    samples: Samples,
    /// Millions a second.
    rate: f64,
}

fn measure(options: &Options) -> Result<(), BenchError> {
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

fn one(
    kind: Kind,
    connection: &mut Connection,
    path: &Path,
    length: Length,
    round: Round,
) -> Result<Half, BenchError> {
    let course = Course::of(length, format!("{}, {round}", kind.name()));
    match kind {
        Kind::Empty => calls(connection, course, COPIED, None),
        Kind::Pages { method, pages } => {
            let scope = connection.scope(pages * PAGE).map_err(failed)?;
            calls(connection, course, method, Some((&scope, pages * PAGE)))
        }
        Kind::Pipelined => pipelined(connection, course),
        Kind::Connect => connects(path, course),
    }
}

/// One call at a time. Each of its pages is written before.
fn calls(
    connection: &mut Connection,
    mut course: Course,
    method: u32,
    scope: Option<(&Scope, u64)>,
) -> Result<Half, BenchError> {
    let (mut samples, mut done) = (Samples::new(), 0);
    let (passed, root) = match scope {
        Some((scope, length)) => {
            (ScopeRef { address: scope.address(), length }, Boxed::<u64>::at(scope.address()))
        }
        None => (ScopeRef::default(), Boxed::NULL),
    };
    while !course.over(done) {
        for page in (0..passed.length).step_by(usize::try_from(PAGE).unwrap_or(usize::MAX)) {
            let value = if page == 0 { done } else { 0 };
            connection.heap().set(Boxed::<u64>::at(passed.address + page), value).map_err(failed)?;
        }
        let before = Instant::now();
        let call = connection.begin(method, passed, root, done, None).map_err(failed)?;
        let answer = connection.wait(call).map_err(failed)?;
        samples.add(before.elapsed());
        let expected = if scope.is_some() { 2 * done } else { done };
        if answer.word() != expected {
            return Err(failed(format_args!("{} came back for {expected}", answer.word())));
        }
        done += 1;
    }
    let rate = mops(done, course.elapsed());
    Ok(Half { samples, rate })
}

/// As many calls under way as can be.
fn pipelined(connection: &mut Connection, mut course: Course) -> Result<Half, BenchError> {
    let (mut samples, mut done, mut begun, mut is_over) = (Samples::new(), 0, 0, false);
    let mut under_way: VecDeque<(CallId, u64, Instant)> = VecDeque::new();
    let nothing = ScopeRef::default();
    loop {
        is_over |= course.over(done);
        while !is_over && under_way.len() < DEPTH as usize {
            let call = connection.begin(COPIED, nothing, Boxed::<u64>::NULL, begun, None).map_err(failed)?;
            under_way.push_back((call, begun, Instant::now()));
            begun += 1;
        }
        let Some((call, word, before)) = under_way.pop_front() else { break };
        if connection.wait(call).map_err(failed)?.word() != word {
            return Err(failed("another word came back"));
        }
        samples.add(before.elapsed());
        done += 1;
    }
    let rate = mops(done, course.elapsed());
    Ok(Half { samples, rate })
}

fn connects(path: &Path, mut course: Course) -> Result<Half, BenchError> {
    let (mut samples, mut done) = (Samples::new(), 0);
    while !course.over(done) && done < 1000 {
        let before = Instant::now();
        drop(Connection::open(path).map_err(failed)?);
        samples.add(before.elapsed());
        done += 1;
    }
    let rate = mops(done, course.elapsed());
    Ok(Half { samples, rate })
}

fn report(pingpongs: &[f64], halves: &[Vec<Half>]) -> Report {
    let typical = |row: usize| halves[row].iter().map(|half| half.samples.typical());
    let rows = Kind::ALL.iter().zip(halves).map(|(kind, halves)| {
        let median = |quantile| Spread::of(halves.iter().map(|half| half.samples.quantile(quantile))).median;
        Row { name: kind.name(), p50: median(0.5), p99: median(0.99), paper: kind.paper() }
    });
    let rates = halves[Kind::ALL.len() - 1].iter().map(|half| half.rate * 1e6);
    Report {
        benchmark: "call",
        rounds: ROUNDS,
        pingpong_rtt: Spread::of(pingpongs.iter().copied()).median,
        call_to_pingpong: Spread::of_ratios(typical(0).zip(pingpongs.iter().copied())),
        page_added: Spread::of(typical(1).zip(typical(0)).map(|(page, empty)| page - empty)),
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
    say(format_args!(
        "Medians of {rounds} rounds; pingpong RTT {pingpong_rtt:.3} usec\n{table}\n\
         A call takes {:.2} ({:.2}-{:.2}) ping-pongs. A copied page adds {:.2} usec ({:.2}-{:.2}).\n\
         {:.2} M calls a second with {DEPTH} under way.",
        call_to_pingpong.median,
        call_to_pingpong.least,
        call_to_pingpong.most,
        page_added.median,
        page_added.least,
        page_added.most,
        calls_per_second / 1e6,
    ));
}
