//! `portcullis kv create`.

use super::CommandOutcome;
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Target};
use super::keeping::say_made;
use super::making::{Making, make};
use clap::Args;
use portcullis_structures::table::{Access, Opened};

const EXAMPLES: &str = "\
Examples:
  portcullis kv create --node shm:/run/p.sock cities
  # For a hundred million keys, in subtables of 21,504 keys each.
  portcullis kv create --node shm:/run/p.sock cities --groups 1024
  # No client waits longer than 100 ms for a client that has died.
  portcullis kv create --node shm:/run/p.sock cities --lease 50ms
  # Each value is guarded by a permission of its own.
  portcullis kv create --node shm:/run/p.sock secrets --grain block
  # It is freed a day after the last client of its tenant has gone.
  portcullis kv create --node shm:/run/p.sock visits --keep 1440min

Without --keep a table stays for as long as the node allows (`portcullis serve
--longest-keep`), and until `portcullis kv drop`. A table is not on disk: it
ends with its node.

Exit codes: 0 the table is made; 1 a table of that name exists already, and is
unchanged; 2 the call was wrong; 3 the node refuses or is gone.";

/// Options of `portcullis kv create`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvCreateOptions {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    making: Making,
    /// Print one JSON object: `table`, `made` and `keep`.
    #[arg(long)]
    json: bool,
}

/// Makes a table.
pub fn run(options: &KvCreateOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvCreateOptions { target, making, json } = options;
    let name = target.table;
    let pipeline = target.connect(ARENA_BYTES)?;
    let keep = match target.open(&pipeline, Access::Read) {
        Ok(_) => None,
        Err(KvCommandError::NoTable { .. }) => {
            let made = pipeline.block_on(make(&pipeline, name, making));
            let (opened, keep) = made.map_err(KvCommandError::of(name))?;
            matches!(opened, Opened::Made(_)).then_some(keep)
        }
        Err(error) => return Err(error),
    };
    Ok(say_made("table", name, keep, (*json, "kv drop")))
}
