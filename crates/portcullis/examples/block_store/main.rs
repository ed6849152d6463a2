//! A block store whose blocks are recycled under readers that come late on purpose, while a reader is killed and the node
//! starts again in the middle.
//!
//! A producer puts blocks into remote memory, one after the other into the same few places, and lists them in a catalogue
//! that lies in remote memory itself. Consumers look blocks up there and read them: at once, with references that they
//! have kept for too long, and with keys whose lease is over. Each block says which one it is in every word, so a byte of
//! another block is noticed. At the end the example says how many blocks were read, what late readers were told, and
//! whether any of them got another block than it asked for.
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

/// Recycles blocks under late readers, and says what came of it.
#[derive(Parser)]
struct Arguments {
    /// How long it goes on. A reader is killed after a third of it, and the node after two.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(3..))]
    seconds: u64,
    /// Readers.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    consumers: u32,
    /// Says what came of it as one JSON object.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What the processes of the example are started as.
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
