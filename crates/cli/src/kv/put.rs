//! `portcullis kv put`.

use super::CommandOutcome;
use super::bytes::{argument, beginning};
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Target};
use super::making::open_or_make;
use crate::files::{self, Input};
use crate::output::{complain, print_json, say};
use clap::Args;
use portcullis::Lifetime;
use portcullis_structures::table::{Condition, Stored, VALUE_BYTES_MAX};
use serde_json::json;
use std::ffi::OsString;
use std::io::Read;

const EXAMPLES: &str = "\
Examples:
  portcullis kv put --node shm:/run/p.sock cities Bern 134591
  portcullis kv put --node shm:/run/p.sock cities Bern --file bern.json
  date | portcullis kv put --node shm:/run/p.sock log last -
  # The key expires after ten minutes.
  portcullis kv put --node shm:/run/p.sock sessions 4711 anna --ttl 10min
  # If several clients try this at once, one succeeds.
  portcullis kv put --node shm:/run/p.sock locks job \"$HOSTNAME\" --if-absent

A key has at most 65,535 bytes, a value 1 MiB. If there is no such table, it is
made as `portcullis kv create` makes it without options.

Exit codes: 0 it is stored; 1 --if-absent or --if-present did not hold, and
nothing was changed; 2 the call was wrong; 3 the node refuses or is gone.";

/// Options of `portcullis kv put`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvPutOptions {
    #[command(flatten)]
    target: Target,
    /// The key.
    #[arg(value_name = "KEY")]
    key: OsString,
    /// The value; `-` reads it from standard input.
    #[arg(value_name = "VALUE", required_unless_present = "file", conflicts_with = "file")]
    value: Option<OsString>,
    /// Store this file's content as the value; `-` reads standard input.
    #[arg(long, value_name = "FILE", value_parser = files::input())]
    file: Option<Input>,
    /// The key is not found after this time. Its memory is free when the key is stored again, or after `kv sweep`.
    #[arg(long, value_name = "TIME")]
    ttl: Option<Lifetime>,
    /// Store only if the key does not exist.
    #[arg(long, conflicts_with = "if_present")]
    if_absent: bool,
    /// Store only if the key exists.
    #[arg(long)]
    if_present: bool,
    /// Print one JSON object: {"stored": "inserted", "replaced" or "unchanged"}.
    #[arg(long)]
    json: bool,
}

impl KvPutOptions {
    fn value(&self) -> Result<Vec<u8>, KvCommandError> {
        let file = match (&self.file, &self.value) {
            (None, Some(value)) if value != "-" => return Ok(argument(value)),
            (file, _) => file.as_ref().unwrap_or(&Input::Standard),
        };
        let read = file.open().and_then(content);
        read.map_err(|error| KvCommandError::File { what: format!("{file} cannot be read"), error })
    }

    fn condition(&self) -> Condition<'static> {
        match (self.if_absent, self.if_present) {
            (true, _) => Condition::Absent,
            (_, true) => Condition::Present,
            _ => Condition::Always,
        }
    }
}

/// The bytes of a value. Reading stops one byte after the longest value.
fn content(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Stores one value.
pub fn run(options: &KvPutOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvPutOptions { target, ttl, json, .. } = options;
    let (key, value) = (argument(&options.key), options.value()?);
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = open_or_make(target, &pipeline)?;
    let stored = pipeline.block_on(async {
        let stored = table.store(&key, &value, options.condition(), *ttl).await;
        table.close().await?;
        stored
    });
    let stored = stored.map_err(KvCommandError::of(target.table))?;
    let (word, text) = match stored {
        Stored::Inserted => ("inserted", "new"),
        Stored::Replaced => ("replaced", "replaced"),
        Stored::Unchanged => ("unchanged", ""),
    };
    let key = beginning(&key);
    match stored {
        _ if *json => {
            print_json(&json!({"stored": word}));
        }
        Stored::Unchanged if options.if_absent => {
            complain(format_args!("portcullis kv: {key} exists already: nothing was changed"));
        }
        Stored::Unchanged => {
            complain(format_args!("portcullis kv: {key} does not exist: nothing was changed"));
        }
        _ => say(format_args!("{key}: {text}")),
    }
    Ok(if stored == Stored::Unchanged { CommandOutcome::NotAll } else { CommandOutcome::AsAsked })
}
