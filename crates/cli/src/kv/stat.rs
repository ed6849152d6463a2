//! `portcullis kv stat`: shows how full a table is, and how much of its node's memory it uses.

use super::CommandOutcome;
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Source};
use crate::output::{print_json, say};
use clap::Args;
use comfy_table::{Table as TextTable, presets};
use portcullis::Lifetime;
use portcullis_structures::table::{Grain, Statistics};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  portcullis kv stat --node shm:/run/p.sock cities
  portcullis kv stat --node shm:/run/p.sock cities --json | jq .load_factor

Each key takes a slot in a subtable, and with its value a block in an extent.
Claimed blocks that are in no slot are being written, or clients keep them
ready, or dead clients have left them: `portcullis kv sweep` frees the last.
Dangling slots name a free block: a few are changes in progress, more are
damage.

The table is read while other clients may use it: the figures are then only
roughly consistent.";

/// Options of `portcullis kv stat`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvStatOptions {
    #[command(flatten)]
    source: Source,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The figures of a table.
struct Figures {
    found: Statistics,
    grain: Grain,
    lease: Lifetime,
    /// Bytes of all keys.
    keys_bytes: u64,
    /// Bytes of all values.
    values_bytes: u64,
}

/// Prints the figures of a table.
pub fn run(options: &KvStatOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvStatOptions { source, json } = options;
    let target = &source.target;
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = source.open(&pipeline)?;
    let (mut keys_bytes, mut values_bytes) = (0, 0);
    let found = pipeline.block_on(async {
        let each = |key: &[u8], value: &[u8]| {
            keys_bytes += key.len() as u64;
            values_bytes += value.len() as u64;
        };
        table.for_each(each).await?;
        table.statistics().await
    });
    let found = found.map_err(KvCommandError::of(target.table))?;
    let figures = Figures { found, grain: table.grain(), lease: table.lease(), keys_bytes, values_bytes };
    if *json {
        print_json(&figures.object());
    } else {
        say(figures.text());
    }
    Ok(CommandOutcome::AsAsked)
}

impl Figures {
    fn grain(&self) -> &'static str {
        match self.grain {
            Grain::Block => "block",
            Grain::Extent => "extent",
        }
    }

    /// Average bytes per key: the key's own, its value's, and the rest of blocks, claims, subtables and head.
    fn each(&self) -> [(&'static str, f64); 7] {
        let Statistics { keys, bytes, subtable_bytes, block_bytes, claim_bytes, .. } = self.found;
        #[allow(clippy::cast_precision_loss, reason = "no node has so much memory")]
        let each = |bytes: u64| bytes as f64 / keys.max(1) as f64;
        let own = self.keys_bytes + self.values_bytes;
        [
            ("all", each(bytes)),
            ("key", each(self.keys_bytes)),
            ("value", each(self.values_bytes)),
            ("blocks_rest", each(block_bytes.saturating_sub(own))),
            ("claims", each(claim_bytes)),
            ("subtables", each(subtable_bytes)),
            ("head", each(bytes - subtable_bytes - block_bytes - claim_bytes)),
        ]
    }

    fn object(&self) -> Value {
        let Statistics { keys, slots, subtables, depth, extents, blocks, unlinked, dangling, bytes, .. } =
            self.found;
        let each: serde_json::Map<String, Value> =
            self.each().into_iter().map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect();
        json!({
            "keys": keys,
            "load_factor": self.found.load_factor(),
            "slots": slots,
            "subtables": subtables,
            "depth": depth,
            "extents": extents,
            "blocks": blocks,
            "unlinked": unlinked,
            "dangling": dangling,
            "bytes": bytes,
            "subtable_bytes": self.found.subtable_bytes,
            "block_bytes": self.found.block_bytes,
            "claim_bytes": self.found.claim_bytes,
            "bytes_per_key": each,
            "grain": self.grain(),
            "lease": self.lease,
        })
    }

    fn text(&self) -> TextTable {
        let found = &self.found;
        let mut table = TextTable::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["figure", ""]);
        let mut row = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        row("keys", found.keys.to_string());
        row("load factor", format!("{:.3} of {} slots", found.load_factor(), found.slots));
        row("subtables", format!("{}, depth {}", found.subtables, found.depth));
        row("extents", format!("{}, {} blocks", found.extents, found.blocks));
        row("claimed and in no slot", found.unlinked.to_string());
        row("dangling", found.dangling.to_string());
        row("bytes", found.bytes.to_string());
        for (name, bytes) in self.each() {
            let name = match name {
                "all" => "bytes for each key",
                "blocks_rest" => "  other bytes of blocks",
                "claims" => "  claims of blocks",
                "key" => "  the key",
                "value" => "  its value",
                "subtables" => "  subtables",
                _ => "  head",
            };
            row(name, format!("{bytes:.1}"));
        }
        row("grain", self.grain().to_owned());
        row("lease", self.lease.to_string());
        table
    }
}
