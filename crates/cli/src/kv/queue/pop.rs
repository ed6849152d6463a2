//! `portcullis kv queue pop`.

use super::super::bytes::{enter, readable};
use super::{CommandOutcome, KvCommandError, Target};
use crate::output::{Reader, complain, print_json, tell};
use clap::Args;
use portcullis::Lifetime;
use portcullis_structures::queue::QueueError;
use serde_json::{Map, Value};

const EXAMPLES: &str = "\
Examples:
  portcullis kv queue pop --node shm:/run/p.sock jobs
  portcullis kv queue pop --node shm:/run/p.sock jobs --count 10 --wait 5s
  portcullis kv queue pop --node shm:/run/p.sock jobs --json

Each entry is a line; with --json an object with `entry`, or `entry_base64` for
bytes that are not UTF-8. A popped entry is lost if this command dies.

Exit codes: 0 --count entries were popped; 1 there were fewer; 2 the call was
wrong; 3 there is no such queue, or the node refuses or is gone.";

/// Options of `portcullis kv queue pop`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvQueuePopOptions {
    #[command(flatten)]
    target: Target,
    /// The number of entries to pop.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
    /// The longest wait for each entry.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Lifetime,
    /// Print one JSON object for each entry.
    #[arg(long)]
    json: bool,
}

/// Takes entries and prints them.
pub fn run(options: &KvQueuePopOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvQueuePopOptions { target, count, wait, json } = options;
    let pipeline = target.connect()?;
    let queue = target.open(&pipeline)?;
    for number in 0..*count {
        let entry = match pipeline.block_on(queue.pop_within(*wait)) {
            Err(QueueError::Closed) => None,
            popped => popped.map_err(target.command_error())?,
        };
        let Some(entry) = entry else {
            complain(format_args!("portcullis kv: queue {} had {number} entries", target.queue));
            return Ok(CommandOutcome::NotAll);
        };
        let reader = if *json {
            let mut object = Map::new();
            enter(&mut object, "entry", &entry);
            print_json(&Value::Object(object))
        } else {
            tell(readable(&entry))
        };
        if reader == Reader::Gone {
            break;
        }
    }
    Ok(CommandOutcome::AsAsked)
}
