//! `portcullis kv queue stat`.

use super::{Alone, CommandOutcome, KvCommandError};
use crate::output::{print_json, say};
use serde_json::json;

/// Shows the limits of a queue and how full it is.
pub fn run(options: &Alone) -> Result<CommandOutcome, KvCommandError> {
    let Alone { target, json } = options;
    let pipeline = target.connect()?;
    let queue = target.open(&pipeline)?;
    let found = pipeline.block_on(queue.statistics()).map_err(target.command_error())?;
    let claims = queue.options().claims;
    if *json {
        print_json(&json!({
            "queue": target.queue.as_str(), "slots": found.slots, "claims": claims, "claimed": found.claimed,
            "segments": found.segments, "bytes": found.bytes, "is_ended": found.is_closed,
        }));
        return Ok(CommandOutcome::AsAsked);
    }
    let ended = if found.is_closed { ", ended" } else { "" };
    let claimed = if claims { format!("\n  {} entries are claimed", found.claimed) } else { String::new() };
    say(format_args!(
        "queue {}{ended}\n  {} slots wait for consumers{claimed}\n  {} bytes in {} segments",
        target.queue, found.slots, found.bytes, found.segments
    ));
    Ok(CommandOutcome::AsAsked)
}
