//! `portcullis blocks rebalance`: copies blocks to the nodes that should have them, for example after a node has
//! joined or was started anew.

use super::command_error::BlocksCommandError;
use super::list::placed_blocks;
use super::manifest::BLOCK_BYTES;
use super::progress::{Progress, rate};
use super::target::Target;
use super::{CommandOutcome, complain_of};
use crate::output::{print_json, say};
use clap::Args;
use portcullis_blocks::spread_store::{Bytes, Key, SpreadStore};
use serde_json::json;
use std::sync::Arc;

/// Bytes of blocks that are copied together.
const TOGETHER_BYTES: u64 = 32 << 20;

/// Options of `portcullis blocks rebalance`.
#[derive(Args, Debug)]
pub struct BlocksRebalanceOptions {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// The counts of a rebalance.
#[derive(Default)]
struct Counts {
    copied: usize,
    /// Blocks that could not be read, or have fewer copies than wanted afterwards.
    short: usize,
    reason: Option<String>,
}

/// Copies the blocks.
pub fn run(options: &BlocksRebalanceOptions) -> Result<CommandOutcome, BlocksCommandError> {
    let store = options.target.open()?;
    let (blocks, silent, reason) = placed_blocks(&store);
    let lacking: Vec<(Key, u64)> = blocks
        .into_iter()
        .filter(|(key, placed)| {
            let home = store.home(key);
            !home.iter().all(|node| placed.nodes.contains(node))
        })
        .map(|(key, placed)| (key, placed.length))
        .collect();
    let bytes = sum_of(&lacking);
    let progress = Progress::begin(bytes);
    let mut counts = Counts::default();
    let mut rest = &lacking[..];
    while let Some((_, first)) = rest.first() {
        let mut sum = *first;
        let more = rest[1..].iter().take_while(|(_, length)| {
            sum = sum.saturating_add(*length);
            sum <= TOGETHER_BYTES
        });
        let (together, others) = rest.split_at(1 + more.count());
        copy(&store, together, &mut counts);
        progress.moved(sum_of(together));
        rest = others;
    }
    let seconds = progress.end();
    store.close();
    let Counts { copied, short, reason: why } = counts;
    if options.json {
        print_json(&json!({"blocks_copied": copied, "blocks_with_fewer_copies": short, "seconds": seconds}));
    } else {
        say(format_args!("{copied} blocks were copied: {}", rate(bytes, seconds)));
    }
    complain_of("nodes have not listed their blocks", silent, reason);
    complain_of("blocks have fewer copies than wanted", short, why);
    Ok(if silent + short == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}

fn sum_of(blocks: &[(Key, u64)]) -> u64 {
    blocks.iter().fold(0, |sum, (_, length)| sum.saturating_add(*length))
}

/// Reads blocks and stores them: a node that has a block already copies nothing.
fn copy(store: &SpreadStore, blocks: &[(Key, u64)], counts: &mut Counts) {
    // Any program of the tenant may have written a length.
    let block_bytes = |length: u64| usize::try_from(length).ok().filter(|_| length <= *BLOCK_BYTES.end());
    let wanted = blocks.iter().filter_map(|(key, length)| Some((key.clone(), block_bytes(*length)?)));
    let wanted: Vec<_> = wanted.collect();
    let keys: Vec<_> = wanted.iter().map(|(key, _)| key.clone()).collect();
    let read = keys.into_iter().zip(store.get(wanted));
    let found: Vec<(Key, Bytes)> =
        read.filter_map(|(key, bytes)| Some((key, Arc::new(bytes?) as Bytes))).collect();
    counts.short += blocks.len() - found.len();
    // The reads have begun to copy blocks by themselves.
    store.settle();
    for end in store.put(found) {
        match end.refusal {
            None => counts.copied += 1,
            Some(refusal) => {
                counts.short += 1;
                counts.reason.get_or_insert_with(|| refusal.to_string());
            }
        }
    }
}
