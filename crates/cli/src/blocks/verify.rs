//! `portcullis blocks verify`: reads the blocks of a list, and compares them with their SHA-256.

use super::command_error::BlocksCommandError;
use super::manifest::{ListedBlock, Manifest, key_of};
use super::progress::{Progress, rate};
use super::target::Target;
use super::{CommandOutcome, complain_of};
use crate::files;
use crate::output::{print_json, say};
use clap::Args;
use portcullis_blocks::spread_store::SpreadStore;
use serde_json::json;
use std::path::PathBuf;

/// Bytes of blocks that are read together.
const TOGETHER_BYTES: usize = 32 << 20;

/// Options of `portcullis blocks verify`.
#[derive(Args, Debug)]
pub struct BlocksVerifyOptions {
    #[command(flatten)]
    target: Target,
    /// The list that `put` has written.
    #[arg(value_name = "LIST", value_parser = files::path())]
    list: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Reads of blocks whose keys are their SHA-256.
pub struct Reading<'a> {
    store: &'a SpreadStore,
    progress: &'a Progress,
    /// Blocks that were not found.
    pub missing: usize,
    /// Blocks with other bytes than their key says: another program of the tenant has stored them.
    pub damaged: usize,
}

impl<'a> Reading<'a> {
    pub fn new(store: &'a SpreadStore, progress: &'a Progress) -> Self {
        Self { store, progress, missing: 0, damaged: 0 }
    }

    /// Reads blocks, and hands the bytes of each to `each`, in their order. `None`: the block is missing or damaged.
    pub fn read(&mut self, blocks: impl Iterator<Item = ListedBlock>, mut each: impl FnMut(Option<Vec<u8>>)) {
        let mut blocks = blocks.peekable();
        while blocks.peek().is_some() {
            let (mut together, mut bytes) = (Vec::new(), 0);
            while let Some(block) =
                blocks.next_if(|block| together.is_empty() || bytes + block.length <= TOGETHER_BYTES)
            {
                bytes += block.length;
                together.push((block.key, block.length));
            }
            let keys: Vec<_> = together.iter().map(|(key, _)| key.clone()).collect();
            for (key, read) in keys.into_iter().zip(self.store.get(together)) {
                let is_right = read.as_ref().is_some_and(|bytes| key_of(bytes) == key);
                self.missing += usize::from(read.is_none());
                self.damaged += usize::from(read.is_some() && !is_right);
                each(read.filter(|_| is_right));
            }
            self.progress.moved(bytes as u64);
        }
    }
}

/// Reads and compares all blocks.
pub fn run(options: &BlocksVerifyOptions) -> Result<CommandOutcome, BlocksCommandError> {
    let list = Manifest::read(&options.list)?;
    let store = options.target.open()?;
    let progress = Progress::begin(list.bytes());
    let mut reading = Reading::new(&store, &progress);
    let mut right = 0_usize;
    for file in &list.files {
        reading.read(list.blocks_of(file), |bytes| right += usize::from(bytes.is_some()));
    }
    let seconds = progress.end();
    let (missing, damaged) = (reading.missing, reading.damaged);
    store.close();
    if options.json {
        print_json(&json!({
            "blocks_right": right, "blocks_missing": missing, "blocks_damaged": damaged,
            "bytes": list.bytes(), "seconds": seconds,
        }));
    } else {
        say(format_args!("{right} blocks are there and right: {}", rate(list.bytes(), seconds)));
    }
    complain_of("blocks are missing", missing, None);
    complain_of("blocks have other bytes than their key says", damaged, None);
    Ok(if missing + damaged == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}
