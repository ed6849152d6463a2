//! A block store whose blocks are recycled while some reads are late on purpose. During the run a reader is killed and
//! the node is restarted.
//!
//! A producer writes blocks into remote memory, one after the other into the same few places, and lists them in a
//! catalogue, which lies in remote memory as well. Consumers look blocks up there and read them: at once, with
//! references that they kept for too long, or with keys whose lease has ended. Every word of a block depends on the
//! block's number, so the reader detects a byte of another block. At the end the example prints how many blocks were
//! read, which errors late readers got, and whether a reader got another block than the requested one.
//!
//! ```text
//! cargo run --release --example block_store -- --seconds 600
//! ```

mod catalogue;
mod consumer;
mod content;
mod producer;
mod scene;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Places for blocks.
pub const BLOCKS: u64 = 256;
/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 64 << 10;

/// Recycles blocks under late readers and prints the results.
#[derive(Parser)]
struct Arguments {
    /// How long the example runs. A reader is killed after a third of the time, and the node after two thirds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(3..))]
    seconds: u64,
    /// Number of readers.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    consumers: u32,
    /// Print the results as one JSON object.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// The role of a process of the example.
#[derive(Subcommand)]
enum Role {
    #[command(hide = true)]
    Node { folder: PathBuf },
    #[command(hide = true)]
    Producer { folder: PathBuf },
    #[command(hide = true)]
    Consumer { folder: PathBuf, seed: u64 },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let played = match &arguments.role {
        None => return scene::play(arguments.seconds, arguments.consumers, arguments.json),
        Some(Role::Node { folder }) => scene::serve(folder),
        Some(Role::Producer { folder }) => producer::run(folder),
        Some(Role::Consumer { folder, seed }) => consumer::run(folder, *seed),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("block_store: {error}");
            ExitCode::FAILURE
        }
    }
}
