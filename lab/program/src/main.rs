//! The `portcullis-lab` program, which proves and measures Portcullis.
//!
//! It serves only clients that it starts itself.
#![forbid(unsafe_code)]
// Output goes through `output`: the macros panic when the reader is gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "bench")]
mod bench;
mod demo;
#[cfg(all(test, feature = "bench", feature = "sim"))]
#[path = "../../../crates/cli/src/examples.rs"]
mod examples;
#[cfg(feature = "sim")]
mod sim;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
#[cfg(any(feature = "bench", feature = "sim"))]
use portcullis::size;
use portcullis_program::log::{self, LevelFilter};
#[cfg(feature = "bench")]
use portcullis_program::protection;
use portcullis_program::{files, network, output, samples};
use std::process::ExitCode;

/// The laboratory of Portcullis: show what protection does, measure it, and simulate clusters with checkers.
#[derive(Parser)]
#[command(name = "portcullis-lab", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  portcullis-lab demo                      # protection, on this folder's files
  portcullis-lab bench read_lat -s 64      # 64-byte reads on this machine
  portcullis-lab bench permissions --json  # the steps of Patronus, Table 4
  portcullis-lab sim --seeds 1000          # clusters in virtual time, checked

Exit codes: 0 done; 1 what was shown or tried did not hold; 2 the call was
wrong; 3 the machine refused; 4 there was nothing to try it on.";

#[derive(Subcommand)]
enum Command {
    /// Show what protection does, with real files and processes.
    Demo(demo::DemoOptions),
    /// Measure latencies, rates and the cost of protection.
    #[cfg(feature = "bench")]
    Bench(Box<bench::Arguments>),
    /// Simulate a whole cluster in virtual time, with every fault, from seeds.
    #[cfg(feature = "sim")]
    Sim(sim::SimOptions),
    /// Run a node, as `portcullis serve` does: those of demo and benchmarks.
    #[command(hide = true)]
    Serve(Box<portcullis_serve::ServeOptions>),
}

fn main() -> ExitCode {
    let matches = Arguments::command().try_get_matches().unwrap_or_else(|error| log::refuse(&error));
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| log::refuse(&error));
    log::start(match &arguments.command {
        Command::Serve(_) => portcullis_serve::LOG_LEVEL,
        _ => LevelFilter::ERROR,
    });
    match arguments.command {
        Command::Demo(options) => demo::run(options),
        #[cfg(feature = "bench")]
        Command::Bench(options) => bench::run(&options),
        #[cfg(feature = "sim")]
        Command::Sim(options) => sim::run_command(&options),
        Command::Serve(_) => portcullis_serve::run(matches.subcommand_matches("serve").unwrap_or(&matches)),
    }
}
