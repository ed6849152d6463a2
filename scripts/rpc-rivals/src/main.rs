//! Calls through shared memory beside what else there is on one machine, in one run: the store of the example `documents` beside
//! the same store over gRPC (tonic) and over JSON on a Unix socket, with the same documents and searches; the cache of the example
//! `cache` beside memcached over a Unix socket, under YCSB; and a call with a word alone beside gRPC, JSON and iceoryx2's
//! request-response. Servers are processes of their own, on the first processor; this end
//! runs on the second. Rounds take turns; ratios are of one round.
//!
//!     cargo run --release --manifest-path scripts/rpc-rivals/Cargo.toml

#[path = "../../../crates/rpc/examples/cache/cache.rs"]
mod cache;
#[path = "../../../crates/rpc/examples/cache/client.rs"]
mod cache_client;
#[path = "../../../crates/rpc/examples/documents/client.rs"]
#[allow(dead_code, reason = "the example does more with a store than is compared")]
mod client;
#[path = "../../../crates/rpc/examples/documents/course.rs"]
mod course;
mod grpc;
mod iceoryx;
mod json;
mod kept;
mod memcached;
#[path = "../../../crates/rpc/examples/documents/nobench.rs"]
mod nobench;
#[path = "../../../crates/rpc/examples/documents/query.rs"]
mod query;
mod servers;
#[path = "../../../crates/rpc/examples/documents/store.rs"]
mod store;
#[path = "../../../crates/rpc/examples/documents/value.rs"]
mod value;
#[path = "../../../lab/program/src/bench/ycsb/workload.rs"]
mod workload;
#[path = "../../../crates/rpc/examples/cache/ycsb.rs"]
#[allow(dead_code, reason = "the example also deletes")]
mod ycsb;

use clap::Parser;
use comfy_table::{Table, presets};
use course::{BoxError, Course};
use indicatif::{ProgressBar, ProgressStyle};
use nobench::Documents;
use portcullis_memory::pin;
use portcullis_rpc::channel::Connection;
use serde::Serialize;
use servers::{Kind, Process, WORD};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use workload::Workload;
use ycsb::Loaded;

const CLIENT: usize = 1;

/// Measures calls and a document store beside the rivals.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Documents in the store.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    documents: u64,
    /// Searches of a round, half by a text and half by a range.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(2..))]
    searches: u64,
    /// Calls of a round.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Keys in the cache.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Operations of each workload on the cache, in a round.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Be a server.
    #[arg(long, hide = true, requires = "at")]
    serve: Option<Kind>,
    #[arg(long, hide = true)]
    at: Option<PathBuf>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Call,
    Build,
    Put,
    Search,
    Text,
    Range,
    A,
    B,
    C,
}

/// The workloads of YCSB.
const WORKLOADS: [(What, Workload); 3] =
    [(What::A, Workload::A), (What::B, Workload::B), (What::C, Workload::C)];

/// Microseconds of one rival in one round.
struct Half {
    what: What,
    who: &'static str,
    each: f64,
}

/// A rival's row.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    who: &'static str,
    /// Microseconds: the median of the rounds.
    microseconds: f64,
    /// How many times Portcullis's time that is, in the same round: median, least, most.
    ratio: [f64; 3],
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match (arguments.serve, &arguments.at) {
        (Some(kind), Some(path)) => servers::run(kind, path),
        _ => compare(&arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rpc-rivals: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &Arguments) -> Result<(), BoxError> {
    pin(CLIENT);
    let style = ProgressStyle::with_template("{msg:>30} {wide_bar} {percent} %")?;
    let bar = ProgressBar::new(u64::from(arguments.rounds) * 9).with_style(style);
    let mut rounds = Vec::new();
    for _ in 0..arguments.rounds {
        rounds.push(round(arguments, &bar)?);
    }
    bar.finish_and_clear();
    let rows = rows(&rounds);
    if arguments.json {
        println!(
            "{}",
            serde_json::json!({ "rounds": arguments.rounds, "documents": arguments.documents, "searches": arguments.searches, "rows": rows })
        );
    } else {
        print(&rows, arguments);
    }
    Ok(())
}

fn round(arguments: &Arguments, bar: &ProgressBar) -> Result<Vec<Half>, BoxError> {
    let mut halves = Vec::new();
    let call = |who, kind, halves: &mut Vec<Half>| {
        bar.set_message(format!("call, {who}"));
        let each = call(kind, arguments.calls)?;
        halves.push(Half { what: What::Call, who, each });
        bar.inc(1);
        Ok::<_, BoxError>(())
    };
    call("portcullis", Kind::Calls, &mut halves)?;
    call("iceoryx2", Kind::Iceoryx2, &mut halves)?;
    call("gRPC", Kind::Grpc, &mut halves)?;
    call("JSON", Kind::Json, &mut halves)?;
    for (who, kind) in [("portcullis", Kind::Documents), ("gRPC", Kind::Grpc), ("JSON", Kind::Json)] {
        bar.set_message(format!("documents, {who}"));
        halves.extend(documents(who, kind, arguments)?);
        bar.inc(1);
    }
    bar.set_message("cache, portcullis");
    let server = Process::start(Kind::Cache)?;
    halves.extend(cached("portcullis", &mut cache_client::Client::open(&server.path)?, arguments)?);
    drop(server);
    bar.inc(1);
    bar.set_message("cache, memcached");
    match memcached::Memcached::start(CLIENT)? {
        Some(mut memcached) => halves.extend(cached("memcached", &mut memcached, arguments)?),
        None => bar.suspend(|| {
            eprintln!("rpc-rivals: memcached is not installed, so there is nothing to compare the cache with")
        }),
    }
    bar.inc(1);
    Ok(halves)
}

/// The time of one call, typically.
fn call(kind: Kind, calls: u32) -> Result<f64, BoxError> {
    let server = Process::start(kind)?;
    let mut word: Box<dyn FnMut(u64) -> Result<u64, BoxError>> = match kind {
        Kind::Calls | Kind::Cache | Kind::Documents => {
            let mut connection = Connection::open(&server.path)?;
            Box::new(move |word| Ok(connection.call_with_word(WORD, word)?.word()))
        }
        Kind::Grpc => {
            let mut client = grpc::Client::open(&server.path)?;
            Box::new(move |word| client.word(word))
        }
        Kind::Json => {
            let mut client = json::Client::open(&server.path)?;
            Box::new(move |word| client.word(word))
        }
        Kind::Iceoryx2 => {
            let mut client = iceoryx::Client::open(&server.path)?;
            Box::new(move |word| client.word(word))
        }
    };
    let times = (0..u64::from(calls)).map(|at| {
        let before = Instant::now();
        let answer = word(at)?;
        let took = before.elapsed().as_secs_f64() * 1e6;
        if answer == at { Ok(took) } else { Err(BoxError::from(format!("{answer} came back for {at}"))) }
    });
    let times = times.collect::<Result<Vec<f64>, _>>()?;
    Ok(spread(times)[0])
}

fn documents(who: &'static str, kind: Kind, arguments: &Arguments) -> Result<[Half; 5], BoxError> {
    let server = Process::start(kind)?;
    match kind {
        Kind::Grpc => course(who, &mut grpc::Client::open(&server.path)?, arguments),
        Kind::Json => course(who, &mut json::Client::open(&server.path)?, arguments),
        _ => course(who, &mut client::Client::open(&server.path)?, arguments),
    }
}

fn course(who: &'static str, store: &mut impl Course, arguments: &Arguments) -> Result<[Half; 5], BoxError> {
    let documents = Documents::new(1, arguments.documents);
    let report = course::run(store, documents, arguments.searches, |_, _| ())?;
    let each = |seconds: f64, count: u64| seconds * 1e6 / count as f64;
    let half = |what, each| Half { what, who, each };
    Ok([
        half(What::Build, each(report.build_seconds, report.documents)),
        half(What::Put, report.put_p50),
        half(What::Search, each(report.search_seconds, report.searches)),
        half(What::Text, report.text_p50),
        half(What::Range, report.range_p50),
    ])
}

/// Loads a cache, and does what the workloads say. Times are for one operation on average.
fn cached(
    who: &'static str,
    cache: &mut impl ycsb::Cache,
    arguments: &Arguments,
) -> Result<Vec<Half>, BoxError> {
    let mut loaded = Loaded::new(cache, arguments.keys, |_| ())?;
    let halves = WORKLOADS.map(|(what, workload)| {
        let report = loaded.run(cache, workload, arguments.operations, |_| ())?;
        Ok(Half { what, who, each: report.seconds * 1e6 / report.operations as f64 })
    });
    halves.into_iter().collect()
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

fn rows(rounds: &[Vec<Half>]) -> Vec<Row> {
    let of = |round: &[Half], what, who| {
        round.iter().find(|it| it.what == what && it.who == who).map(|it| it.each)
    };
    let row = |(what, name, who)| {
        let times: Vec<f64> = rounds.iter().filter_map(|round| of(round, what, who)).collect();
        let ratio = |round: &Vec<Half>| Some(of(round, what, who)? / of(round, what, "portcullis")?);
        Row {
            what: name,
            who,
            microseconds: spread(times)[0],
            ratio: spread(rounds.iter().filter_map(ratio).collect()),
        }
    };
    let names = [
        (What::Call, "call, typically"),
        (What::Build, "build, a document on average"),
        (What::Put, "build, a document typically"),
        (What::Search, "searches on average"),
        (What::Text, "search by text, typically"),
        (What::Range, "search by a range, typically"),
        (What::A, "YCSB A, an operation on average"),
        (What::B, "YCSB B, an operation on average"),
        (What::C, "YCSB C, an operation on average"),
    ];
    let whos = ["portcullis", "iceoryx2", "gRPC", "JSON", "memcached"];
    let all = names.into_iter().flat_map(|(what, name)| whos.map(|who| (what, name, who)));
    all.filter(|&(what, _, who)| rounds.iter().all(|round| of(round, what, who).is_some())).map(row).collect()
}

fn print(rows: &[Row], arguments: &Arguments) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["", "", "[usec]", "of Portcullis's time (least-most)"]);
    for Row { what, who, microseconds, ratio: [median, least, most] } in rows {
        let ratio = format!("{median:.2} ({least:.2}-{most:.2})");
        table.add_row([what.to_string(), who.to_string(), format!("{microseconds:.2}"), ratio]);
    }
    let Arguments { rounds, documents, searches, calls, .. } = arguments;
    println!(
        "medians of {rounds} rounds: {calls} calls, {documents} documents stored one by one, {searches} searches\n{table}"
    );
}
