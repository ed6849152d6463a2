//! `portcullis blocks stat`: shows how many blocks each node has.

use super::CommandOutcome;
use super::command_error::BlocksCommandError;
use super::target::Target;
use crate::output::{print_json, say};
use clap::Args;
use comfy_table::{Table as TextTable, presets};
use serde_json::json;
use std::collections::BTreeMap;

/// Options of `portcullis blocks stat`.
#[derive(Args, Debug)]
pub struct BlocksStatOptions {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Prints the counts of each node.
pub fn run(options: &BlocksStatOptions) -> Result<CommandOutcome, BlocksCommandError> {
    let store = options.target.open()?;
    let mut lists: BTreeMap<_, _> = store.list().into_iter().collect();
    let status = store.status();
    store.close();
    let mut table = TextTable::new();
    table
        .load_style(presets::ASCII_MARKDOWN)
        .set_header(["node", "weight", "blocks", "bytes", "pinned", "state"]);
    let (mut objects, mut silent) = (Vec::new(), 0);
    for node in status {
        let list = lists.remove(&node.name);
        let lost = node.lost.or_else(|| match &list {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        });
        silent += usize::from(lost.is_some());
        let list = list.and_then(Result::ok).unwrap_or_default();
        // Any program of the tenant may have written a length.
        let bytes = list.iter().fold(0_u64, |sum, listed| sum.saturating_add(listed.length));
        let pinned = list.iter().filter(|listed| listed.is_pinned).count();
        objects.push(json!({
            "node": node.name, "weight": node.weight, "is_near": node.is_near, "blocks": list.len(),
            "bytes": bytes, "pinned": pinned, "lost": lost,
        }));
        let numbers = [u64::from(node.weight), list.len() as u64, bytes, pinned as u64];
        let cells = numbers.iter().map(u64::to_string);
        let state = lost.unwrap_or_else(|| "reached".to_owned());
        table.add_row([node.name].into_iter().chain(cells).chain([state]));
    }
    if options.json {
        print_json(&json!({"copies": options.target.copies, "nodes": objects}));
    } else {
        say(table.trim_fmt());
    }
    Ok(if silent == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}
