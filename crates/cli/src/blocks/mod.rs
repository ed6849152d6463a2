//! `portcullis blocks`: files as immutable blocks in the memory of several nodes.
//!
//! The key of a block is the SHA-256 of its bytes. So equal blocks are stored once, and each read can be checked.

mod command_error;
mod get;
mod list;
mod manifest;
mod progress;
mod put;
mod rebalance;
mod stat;
mod target;
mod verify;

use crate::outcome::CommandOutcome;
use crate::output::complain;
use clap::{Args, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  portcullis serve --listen shm:/run/a.sock --longest-keep forever
  portcullis serve --listen shm:/run/b.sock --longest-keep forever
  portcullis blocks put --node shm:/run/a.sock --node shm:/run/b.sock \\
      --copies 2 models models.json
  portcullis blocks get --node shm:/run/a.sock --node shm:/run/b.sock \\
      --copies 2 models.json restored
  portcullis blocks stat --below bank/kv --json
  portcullis blocks verify --below bank/kv --copies 2 models.json
  portcullis blocks rebalance --below bank/kv --copies 2

Each block lies on --copies nodes, and is there as long as one of them is. A
node that does not answer for --within (here 2s by default) is left out. A node
that is full evicts blocks that were not used for long.

All commands on a store name the same nodes in the same way: either each by
--node, or by --below all nodes that are registered below a name in the
directory, which PORTCULLIS_DIRECTORY names.

Exit codes: 0 done; 1 a block is missing or damaged, or only a part could be
done; 2 the call or its input was wrong; 3 no node can be reached, or nodes
refuse.";

/// Options of `portcullis blocks`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BlocksOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Store all files of a folder, and write the list of their blocks.
    Put(put::BlocksPutOptions),
    /// Restore the files of such a list.
    Get(get::BlocksGetOptions),
    /// Print the keys of all blocks, with the nodes that have them.
    List(list::BlocksListOptions),
    /// Show how many blocks each node has.
    Stat(stat::BlocksStatOptions),
    /// Read all blocks of a list, and compare them with their SHA-256.
    Verify(verify::BlocksVerifyOptions),
    /// Copy blocks to the nodes that should have them.
    Rebalance(rebalance::BlocksRebalanceOptions),
}

/// Runs the command.
pub fn run(options: &BlocksOptions) -> ExitCode {
    let done = match &options.command {
        Command::Put(options) => put::run(options),
        Command::Get(options) => get::run(options),
        Command::List(options) => list::run(options),
        Command::Stat(options) => stat::run(options),
        Command::Verify(options) => verify::run(options),
        Command::Rebalance(options) => rebalance::run(options),
    };
    match done {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            let text = format!("portcullis blocks: {error}");
            crate::output::complain_lines(&text);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Reports blocks that are missing or were not stored, with the first of the reasons.
fn complain_of(what: &str, count: usize, reason: Option<String>) {
    if count > 0 {
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        complain(format_args!("portcullis blocks: {count} {what}{reason}"));
    }
}
