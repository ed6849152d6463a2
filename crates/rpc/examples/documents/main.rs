//! A store of JSON documents that is called through shared memory (RPCool's CoolDB, §6.3).
//!
//! The server is a process of its own. The client builds each document where the server reads it, as a tree with native
//! pointers; no document is serialised. The two need not trust each other: see `store.rs`. The documents and the
//! searches are those of NoBench, and every document that is found is compared with the one that was stored.
//!
//! ```text
//! cargo run --release -p portcullis-rpc --example documents -- --documents 100000 --searches 1000
//! ```

mod client;
mod course;
mod nobench;
mod query;
mod store;
mod value;

use clap::Parser;
use client::Client;
use course::{BoxError, Report};
use indicatif::{ProgressBar, ProgressStyle};
use nobench::Documents;
use portcullis_rpc::channel::ServerOptions;
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

/// Stores JSON documents in another process, searches them, and prints how long that took.
#[derive(Debug, Parser)]
struct Arguments {
    /// Documents to store.
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    documents: u64,
    /// Searches.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    searches: u64,
    /// Seed of the documents and searches.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
            eprintln!("documents: {error}");
            ExitCode::FAILURE
        }
    }
}

fn be_server(path: &Path) -> Result<(), BoxError> {
    let _server = store::start(path, ServerOptions::default())?;
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
        let path = folder.path().join("documents.sock");
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
    let documents = Documents::new(arguments.seed, arguments.documents);
    let bar = bar(arguments.documents + arguments.searches);
    let report = course::run(&mut client, documents, arguments.searches, |what, more| {
        bar.set_message(what);
        bar.inc(more);
    })?;
    bar.finish_and_clear();
    by_key(&mut client, documents)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// Tests the other operations of a store: documents are read, replaced and removed by their keys.
fn by_key(client: &mut Client, documents: Documents) -> Result<(), BoxError> {
    let (key, other) = (0, json!({ "title": "On shared memory", "pages": [1, 2.5, null, { "true": true }] }));
    let read = client.get(key)?;
    let replaced = client.put(key, &other)?;
    let read_again = client.get(key)?;
    let removed = client.remove(key)?;
    let is_gone = client.get(key).is_err_and(|error| error.is_no_document());
    let as_stored = read == documents.document(key) && read_again == other;
    if as_stored && replaced && removed && is_gone {
        Ok(())
    } else {
        Err(format!("document {key} is not what was done with it: {read}, {read_again}").into())
    }
}

/// Makes a progress bar on the standard error, if that is a terminal.
fn bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:>9} {wide_bar} {percent} %");
    let bar = ProgressBar::new(steps);
    if let Ok(style) = style { bar.with_style(style) } else { bar }
}

fn print(report: &Report) {
    let Report { documents, build_seconds, put_p50, searches, .. } = *report;
    let Report { search_seconds, text_p50, range_p50, found, .. } = *report;
    println!("{documents} documents stored in {build_seconds:.3} s; one typically in {put_p50:.2} usec");
    println!(
        "{searches} searches in {search_seconds:.3} s; one by a text typically in {text_p50:.2} usec, by a range in {range_p50:.2}"
    );
    println!("{found} documents were found, and each is what was stored");
}
