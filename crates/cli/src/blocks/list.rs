//! `portcullis blocks list`: prints the keys of all blocks, with the nodes that have them.

use super::command_error::BlocksCommandError;
use super::manifest::in_hexadecimal;
use super::target::Target;
use super::{CommandOutcome, complain_of};
use crate::output::{Reader, print_json, tell};
use clap::Args;
use portcullis_blocks::spread_store::{Key, SpreadStore};
use serde_json::json;
use std::collections::BTreeMap;

/// Options of `portcullis blocks list`.
#[derive(Args, Debug)]
pub struct BlocksListOptions {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object for each block.
    #[arg(long)]
    json: bool,
}

/// A block, and the nodes that have it.
pub struct Placed {
    pub length: u64,
    pub is_pinned: bool,
    /// The names of the nodes.
    pub nodes: Vec<String>,
}

/// Lists the blocks of all nodes. Returns also the number of nodes that did not list theirs, and the first reason.
pub fn placed_blocks(store: &SpreadStore) -> (BTreeMap<Key, Placed>, usize, Option<String>) {
    let mut blocks: BTreeMap<Key, Placed> = BTreeMap::new();
    let (mut silent, mut reason) = (0, None);
    for (node, list) in store.list() {
        match list {
            Ok(list) => {
                for listed in list {
                    let placed = blocks.entry(listed.key).or_insert_with(|| Placed {
                        length: listed.length,
                        is_pinned: false,
                        nodes: Vec::new(),
                    });
                    placed.is_pinned |= listed.is_pinned;
                    placed.nodes.push(node.clone());
                }
            }
            Err(error) => {
                silent += 1;
                reason.get_or_insert_with(|| format!("{node}: {error}"));
            }
        }
    }
    (blocks, silent, reason)
}

/// Prints the blocks.
pub fn run(options: &BlocksListOptions) -> Result<CommandOutcome, BlocksCommandError> {
    let store = options.target.open()?;
    let (blocks, silent, reason) = placed_blocks(&store);
    store.close();
    for (key, Placed { length, is_pinned, nodes }) in &blocks {
        let key = in_hexadecimal(key);
        let reader = if options.json {
            print_json(&json!({"key": key, "bytes": length, "pinned": is_pinned, "nodes": nodes}))
        } else {
            let pinned = if *is_pinned { " pinned" } else { "" };
            tell(format_args!("{key} {length}{pinned} {}", nodes.join(" ")))
        };
        if reader == Reader::Gone {
            break;
        }
    }
    complain_of("nodes have not listed their blocks", silent, reason);
    Ok(if silent == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}
