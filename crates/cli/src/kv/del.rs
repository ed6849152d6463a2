//! `portcullis kv del`.

use super::CommandOutcome;
use super::bytes::{argument, beginning};
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Target};
use crate::output::{complain, print_json};
use clap::Args;
use portcullis_structures::table::Access;
use serde_json::json;
use std::ffi::OsString;

const EXAMPLES: &str = "\
Examples:
  portcullis kv del --node shm:/run/p.sock cities Bern
  portcullis kv del --node shm:/run/p.sock cities Bern Basel --json

Exit codes: 0 all keys are removed; 1 a key did not exist; 2 the call was wrong;
3 there is no such table, or the node refuses or is gone.";

/// Options of `portcullis kv del`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvDelOptions {
    #[command(flatten)]
    target: Target,
    /// The keys.
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<OsString>,
    /// Print one JSON object: how many keys were `removed`, and how many were `absent`.
    #[arg(long)]
    json: bool,
}

/// Removes keys.
pub fn run(options: &KvDelOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvDelOptions { target, json, .. } = options;
    let keys: Vec<Vec<u8>> = options.keys.iter().map(argument).collect();
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = target.open(&pipeline, Access::Write)?;
    let (mut removed, mut absent) = (0, 0);
    for key in &keys {
        if pipeline.block_on(table.remove(key)).map_err(KvCommandError::of(target.table))? {
            removed += 1;
        } else {
            absent += 1;
            complain(format_args!("portcullis kv: there is no key {}", beginning(key)));
        }
    }
    pipeline.block_on(table.close()).map_err(KvCommandError::of(target.table))?;
    if *json {
        print_json(&json!({"removed": removed, "absent": absent}));
    }
    Ok(if absent == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}
