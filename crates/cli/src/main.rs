//! The `portcullis` program.
#![forbid(unsafe_code)]
// Output goes through `output`: the macros panic when the reader is gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod bench;
mod certificates;
mod demo;
mod doctor;
#[cfg(test)]
mod examples;
mod expiry;
mod far;
mod files;
mod kv;
mod memcached;
mod output;
mod protection;
mod rdma;
mod samples;
mod serve;
mod signals;
mod sim;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::escape::{Escaped, Kept, acts};
use portcullis::size;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format;

/// Protected remote memory: lend memory, use it one-sided, and let no client touch more than it holds.
#[derive(Parser)]
#[command(name = "portcullis", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  portcullis demo                       # protection, on this folder's files
  portcullis serve --memory 1GiB --listen shm:/run/portcullis.sock
  portcullis admin --node /run/portcullis.admin list   # who is barred
  portcullis kv --help                  # a table of keys in a node's memory
  portcullis memcached --help           # the same for memcached's clients
  portcullis far -- sort big.txt        # with most of its memory on a node
  portcullis bench read_lat -s 64       # 64-byte reads on this machine
  portcullis bench permissions --json   # the steps of Patronus, Table 4
  portcullis doctor                     # what of all this your device keeps
  portcullis sim --seeds 1000           # clusters in virtual time, checked
  portcullis certificates --help        # an authority for nodes elsewhere

Exit codes: 0 done; 1 what was shown or tried did not hold; 2 the call was
wrong; 3 the machine refused; 4 there was nothing to try it on.";

#[derive(Subcommand)]
enum Command {
    /// Lend this machine's memory to clients.
    Serve(Box<serve::Options>),
    /// Show the clients of a running node and its bars, and lift bars.
    Admin(admin::Options),
    /// Show what protection does, with real files and processes.
    Demo(demo::Options),
    /// Keep keys and values in a table in a node's memory.
    Kv(kv::Options),
    /// Serve clients of memcached, with the items in a node's memory.
    Memcached(Box<memcached::Options>),
    /// Run a program with most of its memory on a node.
    Far(Box<far::Options>),
    /// Measure latencies, rates and the cost of protection.
    Bench(bench::Arguments),
    /// Examine what permissions need on this machine's device, and which protection it can carry.
    Doctor(doctor::Options),
    /// Simulate a whole cluster in virtual time, with every fault, from seeds.
    Sim(sim::Options),
    /// Make the certificates with which nodes and clients of different machines identify themselves.
    Certificates(certificates::Options),
}

impl Command {
    /// What is logged to standard error unless `RUST_LOG` says something else. Those that run for months warn their operator.
    fn log_level(&self) -> LevelFilter {
        match self {
            Self::Serve(_) | Self::Memcached(_) => LevelFilter::WARN,
            _ => LevelFilter::ERROR,
        }
    }
}

fn start_log(level: LevelFilter) {
    // What an event says may be foreign text: its fields are escaped as messages are. Colours are the formatter's own.
    let fields = format::debug_fn(|writer, field, value| match field.name() {
        "message" => write!(writer, "{}", Escaped(format_args!("{value:?}"), Kept::Nothing)),
        name => write!(writer, "{name}={}", Escaped(format_args!("{value:?}"), Kept::Nothing)),
    });
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().with_default_directive(level.into()).from_env_lossy())
        .fmt_fields(fields.delimited(" "))
        .with_writer(std::io::stderr)
        .with_ansi(output::errors_in_colour())
        .log_internal_errors(false)
        .init();
}

fn main() -> ExitCode {
    let matches = Arguments::command().try_get_matches().unwrap_or_else(|error| refuse(&error));
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| refuse(&error));
    start_log(arguments.command.log_level());
    match arguments.command {
        // `serve` needs to know which options were given, because a file may give the others.
        Command::Serve(_) => serve::run(matches.subcommand_matches("serve").unwrap_or(&matches)),
        Command::Admin(options) => admin::run(&options),
        Command::Demo(options) => demo::run(options),
        Command::Kv(options) => kv::run(&options),
        Command::Memcached(options) => memcached::run(&options),
        Command::Far(options) => far::run(*options),
        Command::Bench(options) => bench::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Sim(options) => sim::run_command(&options),
        Command::Certificates(options) => certificates::run(&options),
    }
}

/// Ends with what clap has to print: help, or what is wrong with the call. A mistake repeats words of the call, and a
/// name that a shell has put there is foreign text. Then colours, which clap mixes with those words, are left out.
fn refuse(error: &clap::Error) -> ! {
    let is_plain = std::env::args_os().all(|word| !word.to_string_lossy().contains(acts));
    if is_plain {
        error.exit();
    }
    output::complain_lines(&error.to_string());
    std::process::exit(error.exit_code());
}
