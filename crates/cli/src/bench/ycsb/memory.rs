//! What a loaded table takes of its node's memory, for each key.

use super::loaded::{Loaded, grain_text, key};
use crate::samples::per;
use comfy_table::{Table, presets};
use serde::Serialize;

/// Bytes for each key, and what they are. The parts add up to the whole.
#[derive(Debug, Serialize)]
pub struct Memory {
    pub value_bytes: u32,
    pub grain: &'static str,
    pub keys: u64,
    /// Keys for each slot.
    pub load_factor: f64,
    pub bytes_per_key: f64,
    pub parts: Parts,
}

/// Bytes for each key.
#[derive(Debug, Serialize)]
pub struct Parts {
    pub key: f64,
    pub value: f64,
    /// The rest of the blocks with keys: headers, and rounding up to the size of a block.
    pub block_rest: f64,
    /// Blocks without a key.
    pub blocks_without_key: f64,
    pub claims: f64,
    pub subtables: f64,
    /// The head: directory and records.
    pub head: f64,
}

impl Memory {
    pub fn of(loaded: &Loaded) -> Self {
        let found = loaded.statistics;
        let each = |bytes: u64| per(bytes, found.keys);
        let (key, value) = (key(0).len() as u64, u64::from(loaded.contents.shape.value_bytes));
        let block = found.block_bytes / found.blocks.max(1);
        let head = found.bytes - found.subtable_bytes - found.block_bytes - found.claim_bytes;
        let parts = Parts {
            key: each(found.keys * key),
            value: each(found.keys * value),
            block_rest: each(found.keys * (block - key - value)),
            blocks_without_key: each(found.block_bytes - found.keys * block),
            claims: each(found.claim_bytes),
            subtables: each(found.subtable_bytes),
            head: each(head),
        };
        Self {
            value_bytes: loaded.contents.shape.value_bytes,
            grain: grain_text(loaded.contents.shape.grain),
            keys: found.keys,
            load_factor: found.load_factor(),
            bytes_per_key: each(found.bytes),
            parts,
        }
    }
}

/// All of it as a table.
pub fn table(rows: &[Memory]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let parts = ["key", "value", "rest of block", "blocks without key", "claims", "subtables", "head"];
    table.set_header([&["value [B]", "grain", "keys", "load", "bytes per key"], &parts[..]].concat());
    for row in rows {
        let Parts { key, value, block_rest, blocks_without_key, claims, subtables, head } = row.parts;
        let parts = [row.bytes_per_key, key, value, block_rest, blocks_without_key, claims, subtables, head];
        let mut cells = vec![
            row.value_bytes.to_string(),
            row.grain.to_owned(),
            row.keys.to_string(),
            format!("{:.2}", row.load_factor),
        ];
        cells.extend(parts.map(|bytes| format!("{bytes:.1}")));
        table.add_row(cells);
    }
    table
}
