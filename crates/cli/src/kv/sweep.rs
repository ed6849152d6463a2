//! `portcullis kv sweep`: frees what dead clients have left, and removes keys whose time to live has ended.

use super::CommandOutcome;
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Target};
use crate::output::{print_json, say};
use clap::Args;
use portcullis_structures::table::{Access, Swept, TableError};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  portcullis kv sweep --node shm:/run/p.sock cities
  portcullis kv sweep --node shm:/run/p.sock cities --json

A client that is killed leaves blocks that it has claimed and not used, now and
then a split that is half done, and seldom memory that it was just adding. These
leftovers do not disturb other clients, but take memory. A sweep reads the
table twice, two leases of the table apart, and frees the leftovers that no
client has changed meanwhile. `portcullis kv stat` shows how much that may be.

A sweep also removes the keys whose time to live has ended. No client gets them
any more, but until then they take memory, and `portcullis kv stat` counts them.

Other clients can use the table during a sweep.";

/// Options of `portcullis kv sweep`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvSweepOptions {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Removes the keys whose time to live has ended, and frees what dead clients have left.
pub fn run(options: &KvSweepOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvSweepOptions { target, json } = options;
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = target.open(&pipeline, Access::Write)?;
    let swept = pipeline.block_on(async {
        let swept = async {
            let swept = table.sweep().await?;
            Ok::<_, TableError>((table.remove_expired(|_| ()).await?, swept))
        };
        let swept = swept.await;
        table.close().await?;
        swept
    });
    let (expired, swept) = swept.map_err(KvCommandError::of(target.table))?;
    let Swept { blocks, pending, subtables, unfinished, extents, splits } = swept;
    if *json {
        print_json(&json!({
            "expired": expired,
            "blocks": blocks,
            "pending": pending,
            "subtables": subtables,
            "unfinished": unfinished,
            "extents": extents,
            "splits": splits,
        }));
    } else if (expired, swept) == (0, Swept::default()) {
        say("there was nothing to free");
    } else {
        say(format_args!(
            "freed {expired} expired keys, {blocks} blocks, {pending} keys with unfinished insertions, \
             {subtables} unlinked subtables, {unfinished} unfinished pieces of memory and {extents} extents \
             without blocks in use; finished {splits} splits"
        ));
    }
    Ok(CommandOutcome::AsAsked)
}
