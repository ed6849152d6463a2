//! `portcullis kv list`.

use super::CommandOutcome;
use super::bytes::{argument, pair, readable};
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Source};
use crate::output::{Reader, print_json, tell};
use clap::Args;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  portcullis kv list --node shm:/run/p.sock cities
  portcullis kv list --node shm:/run/p.sock cities --prefix B --limit 10
  portcullis kv list --node shm:/run/p.sock cities --json | jq -r .key

Keys are in the order of their bytes. The table has no such order: all of it is
read, and keys that are added or removed meanwhile may be in the list or not.
`portcullis kv dump` prints keys with their values, and keeps none of them in
its memory.";

/// Options of `portcullis kv list`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvListOptions {
    #[command(flatten)]
    source: Source,
    /// Print only keys that begin with this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: OsString,
    /// Print no more than the first N keys.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print one JSON object for each key.
    #[arg(long)]
    json: bool,
}

/// Prints keys.
pub fn run(options: &KvListOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvListOptions { source, limit, json, .. } = options;
    let prefix = argument(&options.prefix);
    let target = &source.target;
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = source.open(&pipeline)?;
    let mut keys = BTreeSet::new();
    let looked = pipeline.block_on(table.try_for_each(|key, _| {
        if key.starts_with(&prefix) {
            keys.insert(key.to_vec());
            if limit.is_some_and(|limit| keys.len() > limit) {
                keys.pop_last();
            }
        }
        if *limit == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }));
    looked.map_err(KvCommandError::of(target.table))?;
    for key in keys {
        let told = if *json { print_json(&pair(&key, None)) } else { tell(readable(&key)) };
        if told == Reader::Gone {
            break;
        }
    }
    Ok(CommandOutcome::AsAsked)
}
