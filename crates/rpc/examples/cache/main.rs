//! A cache that is called through shared memory, as memcached is called over a socket (RPCool §6.3), under the workloads of YCSB.
//!
//! The server is a process of its own. Every value that is read is checked.
//!
//! ```text
//! cargo run --release -p portcullis-rpc --example cache -- --workload a,b,c
//! ```

mod cache;
mod client;
#[path = "../../../../lab/program/src/bench/ycsb/workload.rs"]
mod workload;
mod ycsb;

use clap::Parser;
use client::Client;
use indicatif::{ProgressBar, ProgressStyle};
use portcullis_rpc::channel::ServerOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use workload::Workload;
use ycsb::{BoxError, Loaded, Report};

/// The limit of the cache's bytes. Beyond it, the least recently used values are removed.
const CACHE_BYTES: u64 = 4 << 30;

/// Uses a cache in another process as the workloads of YCSB say, and prints how long that took.
#[derive(Debug, Parser)]
struct Arguments {
    /// Mixes of operations.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "a,b,c", ignore_case = true)]
    workload: Vec<Workload>,
    /// Keys that are loaded before, with a thousand bytes each.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// Operations of each mix.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// Print the results as one JSON object.
    #[arg(long)]
    json: bool,
    /// Be the server at this path, until the standard input ends.
    #[arg(long, hide = true, value_name = "PATH")]
    serve: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match &arguments.serve {
        Some(path) => be_server(path),
        None => run(&arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cache: {error}");
            ExitCode::FAILURE
        }
    }
}

fn be_server(path: &Path) -> Result<(), BoxError> {
    let _server = cache::start(path, CACHE_BYTES, ServerOptions::default())?;
    println!("serving");
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
    fn start() -> Result<Self, BoxError> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("cache.sock");
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve").arg(&path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let server = Self { child, input, path, _folder: folder };
        let mut line = String::new();
        BufReader::new(output.ok_or("no output")?).read_line(&mut line)?;
        if line.is_empty() { Err("the server ended before it served".into()) } else { Ok(server) }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

fn run(arguments: &Arguments) -> Result<(), BoxError> {
    let server = ServerProcess::start()?;
    let mut client = Client::open(&server.path)?;
    let steps = u64::from(arguments.keys) + arguments.operations * arguments.workload.len() as u64;
    let style = ProgressStyle::with_template("{msg:>9} {wide_bar} {percent} %")?;
    let bar = ProgressBar::new(steps).with_style(style).with_message("load");
    let mut loaded = Loaded::new(&mut client, arguments.keys, |more| bar.inc(more))?;
    let reports = arguments.workload.iter().map(|&workload| {
        bar.set_message(workload.text());
        loaded.run(&mut client, workload, arguments.operations, |more| bar.inc(more))
    });
    let reports = reports.collect::<Result<Vec<Report>, _>>()?;
    loaded.delete(&mut client)?;
    bar.finish_and_clear();
    if arguments.json {
        println!("{}", serde_json::to_string(&reports)?);
    } else {
        for Report { workload, operations, seconds, p50 } in reports {
            println!("{workload}: {operations} operations in {seconds:.3} s; one typically in {p50:.2} usec");
        }
    }
    Ok(())
}
