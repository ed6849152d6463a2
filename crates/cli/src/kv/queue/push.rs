//! `portcullis kv queue push`.

use super::super::bytes::argument;
use super::{CommandOutcome, KvCommandError, Target};
use crate::output::{print_json, say};
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::io::BufRead;

const EXAMPLES: &str = "\
Examples:
  portcullis kv queue push --node shm:/run/p.sock jobs one two three
  # Each line of standard input is an entry.
  ls | portcullis kv queue push --node shm:/run/p.sock jobs";

/// Options of `portcullis kv queue push`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvQueuePushOptions {
    #[command(flatten)]
    target: Target,
    /// The entries [default: the lines of standard input].
    #[arg(value_name = "ENTRY")]
    entries: Vec<OsString>,
    /// Print one JSON object with the number of entries.
    #[arg(long)]
    json: bool,
}

/// Adds entries.
pub fn run(options: &KvQueuePushOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvQueuePushOptions { target, entries, json } = options;
    let pipeline = target.connect()?;
    let queue = target.open(&pipeline)?;
    let mut pushed = 0u64;
    let mut push = |entry: &[u8]| -> Result<(), KvCommandError> {
        pipeline.block_on(queue.push(entry)).map_err(target.command_error())?;
        pushed += 1;
        Ok(())
    };
    if entries.is_empty() {
        for line in std::io::stdin().lock().split(b'\n') {
            let what = || "standard input cannot be read".to_owned();
            push(&line.map_err(|error| KvCommandError::File { what: what(), error })?)?;
        }
    } else {
        entries.iter().try_for_each(|entry| push(&argument(entry)))?;
    }
    if *json {
        print_json(&json!({ "pushed": pushed }));
    } else {
        say(format_args!("pushed {pushed} entries"));
    }
    Ok(CommandOutcome::AsAsked)
}
