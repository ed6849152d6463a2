//! `portcullis kv queue create`.

use super::super::keeping::{Wish, allowed, say_made, wish};
use super::{CommandOutcome, KvCommandError, Target, open};
use clap::Args;
use portcullis::{Error, Keep, Lifetime, Refusal};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{ENTRY_BYTES_MAX, Queue, QueueError, QueueOptions};
use std::rc::Rc;

const EXAMPLES: &str = "\
Examples:
  portcullis kv queue create --node shm:/run/p.sock jobs
  # Entries are claimed and acknowledged, and not popped.
  portcullis kv queue create --node shm:/run/p.sock jobs --claims
  # For entries of about a kilobyte.
  portcullis kv queue create --node shm:/run/p.sock letters --cell-bytes 1KiB

Exit codes: 0 the queue is made; 1 a queue of that name exists already, and is
unchanged; 2 the call was wrong; 3 the node refuses or is gone.";

/// Options of `portcullis kv queue create`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvQueueCreateOptions {
    #[command(flatten)]
    target: Target,
    /// Entries are claimed and acknowledged, and delivered again if their consumer dies.
    #[arg(long)]
    claims: bool,
    /// Bytes of a slot, a multiple of 8. A longer entry takes several slots.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = cell_bytes)]
    cell_bytes: u32,
    /// How long the death of a client can hold up others.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    lease: Lifetime,
    /// How long the queue stays after the last client of its tenant has gone: a TIME, `longest` for as long as the node
    /// allows, `forever` for as long as the node runs, or `attached` for not at all.
    #[arg(long, value_name = "TIME", default_value = "longest", value_parser = wish)]
    keep: Wish,
    /// Print one JSON object: `queue`, `made` and `keep`.
    #[arg(long)]
    json: bool,
}

fn cell_bytes(text: &str) -> Result<u32, String> {
    let bytes = crate::size::parse(text)?;
    let bytes = u32::try_from(bytes).ok().filter(|&bytes| bytes as usize <= ENTRY_BYTES_MAX);
    bytes.ok_or_else(|| "a slot has 8 bytes to 64KiB".to_owned())
}

/// Makes a queue.
pub fn run(options: &KvQueueCreateOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvQueueCreateOptions { target, json, .. } = options;
    let name = target.queue;
    let pipeline = target.connect()?;
    let keep = match open(&pipeline, name) {
        Ok(_) => None,
        Err(KvCommandError::NoQueue { .. }) => {
            pipeline.block_on(make(&pipeline, options)).map_err(target.command_error())?
        }
        Err(error) => return Err(error),
    };
    Ok(say_made("queue", name, keep, (*json, "kv queue drop")))
}

/// Makes the queue. `None`: another client was quicker, and nothing of this client's remains.
async fn make(pipeline: &Rc<Pipeline>, options: &KvQueueCreateOptions) -> Result<Option<Keep>, QueueError> {
    let KvQueueCreateOptions { target, claims, cell_bytes, lease, keep, .. } = options;
    let keep = allowed(pipeline, *keep).await?;
    let wanted = QueueOptions {
        cell_bytes: *cell_bytes,
        lease: *lease,
        claims: *claims,
        keep,
        ..QueueOptions::default()
    };
    let queue = Queue::create(pipeline, &wanted).await?;
    match queue.publish(target.queue).await {
        Ok(()) => Ok(Some(keep)),
        Err(error) => {
            // The node would keep this queue, and no client could find it.
            queue.destroy().await?;
            let is_taken = matches!(error, QueueError::Session(Error::Refused(Refusal::NameTaken)));
            if is_taken { Ok(None) } else { Err(error) }
        }
    }
}
