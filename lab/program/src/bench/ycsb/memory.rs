//! Memory of a node that a table takes for each key: after the table is loaded, and after nine of ten keys are removed.

use super::super::BenchError;
use super::super::rivals::Rival;
use super::BenchYcsbOptions;
use super::loaded::{self, Loaded, blocks_text, grain_text, key};
use crate::samples::per;
use comfy_table::{Table, presets};
use portcullis_structures::{Pipeline, table};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// Bytes for each key, and their parts. The parts add up to the whole.
#[derive(Debug, Serialize)]
pub struct Memory {
    pub value_bytes: u32,
    pub grain: &'static str,
    pub blocks: &'static str,
    pub keys: u64,
    /// Keys for each slot.
    pub load_factor: f64,
    pub bytes_per_key: f64,
    pub parts: Parts,
    /// Keys that are left after nine of ten keys were removed.
    pub keys_left: u64,
    /// Bytes for each key that is left.
    pub bytes_per_key_left: f64,
    /// Share of the bytes that blocks took before the removal that the node has got back.
    pub returned: f64,
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

/// Percentage of the keys that is removed, as in OneSidedMW.
const REMOVED: u32 = 90;
/// Removals in flight at once.
const DEPTH: usize = 64;

impl Memory {
    /// Measures the memory of a table, then removes most of its keys and measures again.
    pub fn of(options: &BenchYcsbOptions, rival: &Rival<Loaded>) -> Result<Self, BenchError> {
        let loaded = &rival.state;
        let opened = match loaded.own_table() {
            Some(_) => None,
            None => Some(loaded::open(loaded::session(options, rival.address())?, loaded.contents.head)?),
        };
        let own = loaded.own_table().or(opened.as_ref().map(|(pipeline, table)| (pipeline, table)));
        let (pipeline, table) = own.expect("it was opened just now");
        let before = pipeline.block_on(table.statistics())?;
        remove_most(pipeline, table, loaded.contents.keys.load(Ordering::Relaxed))?;
        let after = pipeline.block_on(table.statistics())?;
        let returned = per(before.block_bytes.saturating_sub(after.block_bytes), before.block_bytes);
        Ok(Self {
            keys_left: after.keys,
            bytes_per_key_left: per(after.bytes, after.keys),
            returned,
            ..Self::loaded(loaded)
        })
    }

    fn loaded(loaded: &Loaded) -> Self {
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
            blocks: blocks_text(loaded.contents.shape.blocks),
            keys: found.keys,
            load_factor: found.load_factor(),
            bytes_per_key: each(found.bytes),
            parts,
            keys_left: 0,
            bytes_per_key_left: 0.0,
            returned: 0.0,
        }
    }
}

/// Removes keys at random.
fn remove_most(pipeline: &Pipeline, table: &table::Table, keys: u32) -> Result<(), BenchError> {
    let mut random = Pcg64Mcg::seed_from_u64(0);
    let removed = (0..keys).filter(|_| random.random_range(0..100) < REMOVED);
    let remove = async |number: u32| table.remove(&key(number)).await;
    let mut failed = None;
    pipeline.run(DEPTH, removed.map(remove), |result| failed = failed.take().or(result.err()));
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The figures of all rows as a table.
pub fn as_table(rows: &[Memory]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let parts = ["key", "value", "rest of block", "blocks without key", "claims", "subtables", "head"];
    let first = ["value [B]", "grain", "blocks", "keys", "load", "bytes per key"];
    table.set_header([&first[..], &parts[..], &["keys left", "bytes per key left", "returned"]].concat());
    for row in rows {
        let Parts { key, value, block_rest, blocks_without_key, claims, subtables, head } = row.parts;
        let parts = [row.bytes_per_key, key, value, block_rest, blocks_without_key, claims, subtables, head];
        let mut cells = vec![
            row.value_bytes.to_string(),
            row.grain.to_owned(),
            row.blocks.to_owned(),
            row.keys.to_string(),
            format!("{:.2}", row.load_factor),
        ];
        cells.extend(parts.map(|bytes| format!("{bytes:.1}")));
        cells.extend([
            row.keys_left.to_string(),
            format!("{:.1}", row.bytes_per_key_left),
            format!("{:.2}", row.returned),
        ]);
        table.add_row(cells);
    }
    table
}
