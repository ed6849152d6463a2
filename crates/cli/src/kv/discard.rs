//! `portcullis kv drop`.

use super::CommandOutcome;
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Target};
use crate::output::{print_json, say};
use clap::Args;
use portcullis_structures::table::Table;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  portcullis kv drop --node shm:/run/p.sock cities

The table's keys are removed, and its memory is returned to the node. Clients
that are using the table get errors.";

/// Options of `portcullis kv drop`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvDropOptions {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Removes a table.
pub fn run(options: &KvDropOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvDropOptions { target, json } = options;
    let name = target.table;
    let pipeline = target.connect(ARENA_BYTES)?;
    let discarded = pipeline.block_on(async {
        let entry = pipeline.lookup(None, name).await?;
        Table::discard(&pipeline, entry.object, Some(name)).await
    });
    discarded.map_err(KvCommandError::of(name))?;
    if *json {
        print_json(&json!({"dropped": name.as_str()}));
    } else {
        say(format_args!("table {name} is removed"));
    }
    Ok(CommandOutcome::AsAsked)
}
