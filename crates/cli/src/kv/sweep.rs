//! `portcullis kv sweep`.

use super::Outcome;
use super::connection::{ARENA_BYTES, Target};
use super::trouble::Trouble;
use crate::output::say;
use clap::Args;
use portcullis_structures::table::{Access, Swept};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  portcullis kv sweep --node shm:/run/p.sock cities
  portcullis kv sweep --node shm:/run/p.sock cities --json

A client that is killed leaves blocks that it has claimed and not used, now and
then a split that is half done, and seldom memory that it was just adding. None
of this is in anybody's way, but it takes room. A sweep looks for it twice, two
leases of the table apart, and frees what nobody has touched in between. All
other clients go on meanwhile. `portcullis kv stat` shows how much there may
be.";

/// Options of `portcullis kv sweep`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Frees what dead clients have left.
pub fn run(options: &Options) -> Result<Outcome, Trouble> {
    let Options { target, json } = options;
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = target.open(&pipeline, Access::Write)?;
    let swept = pipeline.block_on(async {
        let swept = table.sweep().await;
        table.close().await?;
        swept
    });
    let swept = swept.map_err(Trouble::of(target.table))?;
    let Swept { blocks, pending, subtables, unfinished, splits } = swept;
    if *json {
        say(json!({
            "blocks": blocks,
            "pending": pending,
            "subtables": subtables,
            "unfinished": unfinished,
            "splits": splits,
        }));
    } else if swept == Swept::default() {
        say("there was nothing to free");
    } else {
        say(format_args!(
            "freed {blocks} blocks, {pending} keys whose insertion nobody finished, {subtables} subtables that \
             nobody linked and {unfinished} pieces of memory that nobody finished; finished {splits} splits"
        ));
    }
    Ok(Outcome::AsAsked)
}
