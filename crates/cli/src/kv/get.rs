//! `portcullis kv get`.

use super::CommandOutcome;
use super::bytes::{argument, beginning, pair, readable};
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, LARGE_ARENA_BYTES, Source};
use crate::files::{self, Output};
use crate::output::{Reader, complain, print_json, tell};
use clap::Args;
use serde_json::Value;
use std::ffi::OsString;

/// Keys that are looked up at once. Their largest values fit into the arena.
const AT_ONCE: usize = 16;

const EXAMPLES: &str = "\
Examples:
  portcullis kv get --node shm:/run/p.sock cities Bern
  portcullis kv get --node shm:/run/p.sock photos cat.jpg --output cat.jpg
  # A line for each key: the key, a tab, the value.
  portcullis kv get --node shm:/run/p.sock cities Bern Basel
  portcullis kv get --node shm:/run/p.sock cities Bern Basel --json

The value of a single key is written byte for byte, without a line break after
it; only on a terminal, characters that would control it are escaped. With
--json each key is one line, {\"key\": ..., \"value\": ...}; the value of a key that
does not exist is null.

Exit codes: 0 all keys exist; 1 a key does not exist; 2 the call was wrong; 3
there is no such table, or the node refuses or is gone.";

/// Options of `portcullis kv get`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvGetOptions {
    #[command(flatten)]
    source: Source,
    /// The keys.
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<OsString>,
    /// Write the value of the only key to this file; `-` is standard output.
    #[arg(long, value_name = "FILE", conflicts_with = "json", value_parser = files::output())]
    output: Option<Output>,
    /// Print one JSON object for each key.
    #[arg(long)]
    json: bool,
}

/// Prints the values of keys.
pub fn run(options: &KvGetOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvGetOptions { source, keys, output, json } = options;
    if output.is_some() && keys.len() > 1 {
        return Err(KvCommandError::Call("--output takes the value of one key: give one KEY".to_owned()));
    }
    let keys: Vec<Vec<u8>> = keys.iter().map(argument).collect();
    let target = &source.target;
    let pipeline = target.connect(if keys.len() > 1 { LARGE_ARENA_BYTES } else { ARENA_BYTES })?;
    let table = source.open(&pipeline)?;
    let mut outcome = CommandOutcome::AsAsked;
    for keys in keys.chunks(AT_ONCE) {
        let some: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = pipeline.block_on(table.get_many(&some)).map_err(KvCommandError::of(target.table))?;
        for (key, value) in keys.iter().zip(found) {
            if value.is_none() {
                outcome = CommandOutcome::NotAll;
            }
            let reader = match (value, output) {
                (value, _) if *json => print_json(&line(key, value.as_deref())),
                (None, _) => {
                    complain(format_args!("portcullis kv: there is no key {}", beginning(key)));
                    Reader::Listens
                }
                (Some(value), output) if options.keys.len() == 1 => {
                    let to = output.as_ref().unwrap_or(&Output::Standard);
                    let what = || format!("{to} cannot be written");
                    to.write(&value).map_err(|error| KvCommandError::File { what: what(), error })?;
                    Reader::Listens
                }
                (Some(value), _) => tell(format_args!("{}\t{}", readable(key), readable(&value))),
            };
            if reader == Reader::Gone {
                return Ok(outcome);
            }
        }
    }
    Ok(outcome)
}

fn line(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = pair(key, value);
    if value.is_none() {
        object.insert("value".to_owned(), Value::Null);
    }
    Value::Object(object)
}
