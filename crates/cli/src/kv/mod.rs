//! `portcullis kv`: a hash table in a node's memory, for people and scripts.
//!
//! The table is the one of `portcullis-structures`. No part of it runs on the node: each command is a client that
//! accesses the table with one-sided operations, and then leaves.

mod bytes;
mod command_error;
mod connection;
mod create;
mod del;
mod discard;
mod dump;
mod get;
mod keeping;
mod list;
mod load;
mod making;
mod put;
mod queue;
mod share;
mod stat;
mod sweep;
mod watch;

use crate::outcome::CommandOutcome;
use crate::output::complain;
use clap::{Args, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  portcullis serve --listen shm:/run/p.sock --longest-keep forever
  portcullis kv put --node shm:/run/p.sock cities Bern 134591
  portcullis kv get --node shm:/run/p.sock cities Bern
  portcullis kv load --node shm:/run/p.sock cities towns.csv --key name
  portcullis kv list --node shm:/run/p.sock cities --prefix B
  portcullis kv dump --node shm:/run/p.sock cities copy.jsonl
  portcullis kv stat --node shm:/run/p.sock cities --json
  portcullis kv drop --node shm:/run/p.sock cities

A table is found by its name, and belongs to the tenant that the client acts
for. Any number of clients may use it at once, and each may die at any moment:
the others continue after at most two leases, no key is lost or duplicated, and
`kv sweep` frees what dead clients have left, and expired keys.

Keys and values are bytes. Text shows them as they are if they are UTF-8
without control characters, and in quotes with escapes otherwise. JSON has the
fields `key` and `value`, or `key_base64` and `value_base64` for bytes that
are not UTF-8.

Exit codes: 0 done; 1 no such key, or only a part could be done; 2 the call or
its input was wrong; 3 there is no such table, or the node refuses or is gone.";

/// Options of `portcullis kv`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make an empty table.
    Create(create::KvCreateOptions),
    /// Store a value under a key.
    Put(put::KvPutOptions),
    /// Print the values of keys.
    Get(get::KvGetOptions),
    /// Remove keys.
    Del(del::KvDelOptions),
    /// Print the keys.
    List(list::KvListOptions),
    /// Store all keys of files.
    Load(load::KvLoadOptions),
    /// Write all keys and values to a file or folder.
    Dump(dump::KvDumpOptions),
    /// Show how full a table is, and how much memory it takes.
    Stat(stat::KvStatOptions),
    /// Print what changes, until interrupted.
    Watch(watch::KvWatchOptions),
    /// Free what dead clients have left, and expired keys.
    Sweep(sweep::KvSweepOptions),
    /// Let another tenant read a table.
    Share(share::KvShareOptions),
    /// Stop another tenant from reading a table.
    Unshare(share::KvShareOptions),
    /// Remove a table with all its keys.
    Drop(discard::KvDropOptions),
    /// Push entries to queues, pop them, or claim them for commands.
    Queue(queue::KvQueueOptions),
}

/// Runs the command.
pub fn run(options: &KvOptions) -> ExitCode {
    let done = match &options.command {
        Command::Create(options) => create::run(options),
        Command::Put(options) => put::run(options),
        Command::Get(options) => get::run(options),
        Command::Del(options) => del::run(options),
        Command::List(options) => list::run(options),
        Command::Load(options) => load::run(options),
        Command::Dump(options) => dump::run(options),
        Command::Stat(options) => stat::run(options),
        Command::Watch(options) => watch::run(options),
        Command::Sweep(options) => sweep::run(options),
        Command::Share(options) => share::share(options),
        Command::Unshare(options) => share::unshare(options),
        Command::Drop(options) => discard::run(options),
        Command::Queue(options) => queue::run(options),
    };
    match done {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            complain(format_args!("portcullis kv: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
