//! `portcullis kv queue`: queues in a node's memory, for people and scripts.

mod claim;
mod create;
mod pop;
mod push;
mod stat;

use super::CommandOutcome;
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, NodeOptions};
use crate::output::{print_json, say};
use clap::{Args, Subcommand};
use portcullis::DirectoryName;
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Queue, QueueError};
use serde_json::json;
use std::rc::Rc;

const EXAMPLES: &str = "\
Examples:
  portcullis serve --listen shm:/run/p.sock --longest-keep forever
  portcullis kv queue create --node shm:/run/p.sock jobs --claims
  portcullis kv queue push --node shm:/run/p.sock jobs one two three
  ls *.png | portcullis kv queue push --node shm:/run/p.sock jobs
  # Runs the command for each entry; an entry that fails is delivered again.
  portcullis kv queue claim --node shm:/run/p.sock jobs --lease 30s --each \\
      -- sh -c 'read file && optipng \"$file\"'
  portcullis kv queue stat --node shm:/run/p.sock jobs

A queue is found by its name, and belongs to the tenant that the client acts
for. An entry of a plain queue is popped, and is lost if its consumer dies.
An entry of a queue with --claims is claimed for a lease, and is delivered again
until it is acknowledged.

Exit codes: 0 done; 1 there was no entry, or the command for it has failed; 2
the call was wrong; 3 there is no such queue, or the node refuses or is gone.";

/// Options of `portcullis kv queue`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvQueueOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make an empty queue.
    Create(create::KvQueueCreateOptions),
    /// Add entries at the end.
    Push(push::KvQueuePushOptions),
    /// Take the first entries and print them.
    Pop(pop::KvQueuePopOptions),
    /// Run a command for an entry that is claimed meanwhile.
    Claim(claim::KvQueueClaimOptions),
    /// Show how full a queue is, and how much memory it takes.
    Stat(Alone),
    /// Refuse further pushes: consumers take the entries that are left.
    End(Alone),
    /// Free consumed entries, and what dead clients have left.
    Sweep(Alone),
    /// Remove a queue with all its entries.
    Drop(Alone),
}

/// A queue on a node.
#[derive(Args, Clone, Debug)]
pub struct Target {
    #[command(flatten)]
    node: NodeOptions,
    /// The queue's name: 1 to 48 bytes of text.
    #[arg(value_name = "QUEUE")]
    queue: DirectoryName,
}

impl Target {
    /// A session with the node, and a pipeline on it.
    fn connect(&self) -> Result<Rc<Pipeline>, KvCommandError> {
        self.node.connect(ARENA_BYTES)
    }

    /// Opens the queue, which must exist.
    fn open(&self, pipeline: &Rc<Pipeline>) -> Result<Queue, KvCommandError> {
        open(pipeline, self.queue)
    }

    fn command_error(&self) -> impl Fn(QueueError) -> KvCommandError + Copy + use<> {
        KvCommandError::of_queue(self.queue)
    }
}

fn open(pipeline: &Rc<Pipeline>, name: DirectoryName) -> Result<Queue, KvCommandError> {
    pipeline.block_on(Queue::open_named(pipeline, name)).map_err(KvCommandError::of_queue(name))
}

/// A command whose only argument is the queue.
#[derive(Args, Debug)]
pub struct Alone {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

impl Alone {
    /// Performs an operation on the queue and reports it.
    fn run(
        &self,
        done: &'static str,
        act: impl AsyncFnOnce(Queue) -> Result<(), QueueError>,
    ) -> Result<CommandOutcome, KvCommandError> {
        let Self { target, json } = self;
        let pipeline = target.connect()?;
        let queue = target.open(&pipeline)?;
        pipeline.block_on(act(queue)).map_err(target.command_error())?;
        if *json {
            print_json(&json!({ done: target.queue.as_str() }));
        } else {
            say(format_args!("queue {} is {done}", target.queue));
        }
        Ok(CommandOutcome::AsAsked)
    }
}

/// Runs the command.
pub fn run(options: &KvQueueOptions) -> Result<CommandOutcome, KvCommandError> {
    match &options.command {
        Command::Create(options) => create::run(options),
        Command::Push(options) => push::run(options),
        Command::Pop(options) => pop::run(options),
        Command::Claim(options) => claim::run(options),
        Command::Stat(options) => stat::run(options),
        Command::End(options) => options.run("ended", async |queue| queue.close().await),
        Command::Sweep(options) => options.run("swept", async |queue| queue.sweep().await),
        Command::Drop(options) => options.run("dropped", async |queue| queue.destroy().await),
    }
}
