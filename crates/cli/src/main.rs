//! The `portcullis` program.
#![forbid(unsafe_code)]
// Output goes through `output`: the macros panic when the reader is gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod blocks;
mod certificates;
mod doctor;
#[cfg(test)]
mod examples;
mod far;
mod kv;
mod memcached;
mod outcome;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use portcullis::size;
use portcullis_program::log::{self, LevelFilter};
use portcullis_program::{expiry, files, network, output, samples, signals, sockets};
use portcullis_serve as serve;
use std::process::ExitCode;

/// Protected remote memory: lend memory, use it one-sided, and let no client touch more than it holds.
#[derive(Parser)]
#[command(name = "portcullis", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  portcullis serve --memory 1GiB --listen shm:/run/portcullis.sock
  portcullis admin --node /run/portcullis.admin list   # bars and pauses
  portcullis kv --help                  # a table of keys in a node's memory
  portcullis blocks --help              # files as blocks on several nodes
  portcullis memcached --help           # tables for clients of memcached
  portcullis far -- sort big.txt        # with most of its memory on a node
  portcullis doctor                     # the guarantees that your device keeps
  portcullis certificates --help        # an authority for nodes elsewhere

Exit codes: 0 done; 1 what was shown or tried did not hold; 2 the call was
wrong; 3 the machine refused; 4 there was nothing to try it on.";

#[derive(Subcommand)]
enum Command {
    /// Lend this machine's memory to clients.
    Serve(Box<serve::ServeOptions>),
    /// Show the clients of a running node and its bars, and lift bars.
    Admin(admin::AdminCommandOptions),
    /// Keep keys and values in a table in a node's memory.
    Kv(Box<kv::KvOptions>),
    /// Keep files as immutable blocks on several nodes.
    Blocks(Box<blocks::BlocksOptions>),
    /// Serve clients of memcached, with the items in a node's memory.
    Memcached(Box<memcached::MemcachedOptions>),
    /// Run a program with most of its memory on a node.
    Far(Box<far::FarOptions>),
    /// Examine what permissions need on this machine's device, and which protection it can carry.
    Doctor(doctor::DoctorOptions),
    /// Make the certificates with which nodes and clients of different machines identify themselves.
    Certificates(certificates::CertificatesOptions),
}

impl Command {
    /// The level of the log on standard error if `RUST_LOG` is not set. Commands that run for months log warnings for
    /// their operator.
    fn log_level(&self) -> LevelFilter {
        match self {
            Self::Serve(_) | Self::Memcached(_) => serve::LOG_LEVEL,
            _ => LevelFilter::ERROR,
        }
    }
}

fn main() -> ExitCode {
    let matches = Arguments::command().try_get_matches().unwrap_or_else(|error| log::refuse(&error));
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| log::refuse(&error));
    log::start(arguments.command.log_level());
    match arguments.command {
        // `serve` must distinguish the options that were given from the others, because a file may give the others.
        Command::Serve(_) => serve::run(matches.subcommand_matches("serve").unwrap_or(&matches)),
        Command::Admin(options) => admin::run(&options),
        Command::Kv(options) => kv::run(&options),
        Command::Blocks(options) => blocks::run(&options),
        Command::Memcached(options) => memcached::run(&options),
        Command::Far(options) => far::run(*options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Certificates(options) => certificates::run(&options),
    }
}
