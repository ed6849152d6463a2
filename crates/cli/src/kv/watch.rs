//! `portcullis kv watch`: shows the changes of a table, which it reads from time to time.

use super::CommandOutcome;
use super::bytes::{argument, beginning, pair, readable};
use super::command_error::KvCommandError;
use super::connection::{LARGE_ARENA_BYTES, Source};
use crate::output::{Reader, complain, print_json, print_styled};
use anstyle::{AnsiColor, Style};
use clap::Args;
use portcullis::Lifetime;
use portcullis_structures::table::{Table, TableError};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  portcullis kv watch --node shm:/run/p.sock cities
  portcullis kv watch --node shm:/run/p.sock cities Bern --every 100ms
  portcullis kv watch --node shm:/run/p.sock cities --json | jq .key

A line is a key that was added (+), changed (~) or removed (-). With --json it
is {\"change\": \"added\", \"changed\" or \"removed\", \"key\": ..., \"value\":
...}. The table is read again and again (--every): a value that was stored and
removed between two reads is not reported.

The command runs until it is interrupted, or until its output has no reader.";

/// Options of `portcullis kv watch`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvWatchOptions {
    #[command(flatten)]
    source: Source,
    /// Watch only these keys.
    #[arg(value_name = "KEY")]
    keys: Vec<OsString>,
    /// The time between two reads of the table.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: Lifetime,
    /// Print one JSON object for each change.
    #[arg(long)]
    json: bool,
}

/// Digest of a key's value.
type Mark = [u8; 32];

/// A difference from the previous look.
#[derive(Clone, Copy)]
enum Change {
    Added,
    Changed,
    Removed,
}

/// Prints the changes.
pub fn run(options: &KvWatchOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvWatchOptions { source, every, json, .. } = options;
    let keys: Vec<Vec<u8>> = options.keys.iter().map(argument).collect();
    let target = &source.target;
    let pipeline = target.connect(LARGE_ARENA_BYTES)?;
    let table = source.open(&pipeline)?;
    let watched = pipeline.block_on(async {
        let mut before = look(&table, &keys, &HashMap::new(), |_, _, _| Reader::Listens).await?;
        complain(format_args!("portcullis kv: watching {}: {} keys", target.table, before.len()));
        let mut reader = Reader::Listens;
        while reader == Reader::Listens {
            pipeline.sleep(*every).await?;
            let now = look(&table, &keys, &before, |change, key, value| {
                reader = show(*json, change, key, Some(value));
                reader
            })
            .await?;
            for key in before.keys().filter(|key| !now.contains_key(*key)) {
                if reader == Reader::Listens {
                    reader = show(*json, Change::Removed, key, None);
                }
            }
            before = now;
        }
        Ok(())
    });
    watched.map_err(KvCommandError::of(target.table))?;
    Ok(CommandOutcome::AsAsked)
}

/// Reads the given keys, or all keys. Passes new and changed ones to `each`, as long as the output has a reader.
async fn look(
    table: &Table,
    keys: &[Vec<u8>],
    before: &HashMap<Vec<u8>, Mark>,
    mut each: impl FnMut(Change, &[u8], &[u8]) -> Reader,
) -> Result<HashMap<Vec<u8>, Mark>, TableError> {
    let mut now = HashMap::new();
    let mut see = |key: &[u8], value: &[u8]| {
        let mark: Mark = Sha256::digest(value).into();
        let known = before.get(key);
        now.insert(key.to_vec(), mark);
        let change = if known.is_some() { Change::Changed } else { Change::Added };
        let goes_on = known == Some(&mark) || each(change, key, value) == Reader::Listens;
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    if keys.is_empty() {
        table.try_for_each(&mut see).await?;
    }
    for key in keys {
        if let Some(value) = table.get(key).await?
            && see(key, &value).is_break()
        {
            break;
        }
    }
    Ok(now)
}

fn show(json: bool, change: Change, key: &[u8], value: Option<&[u8]>) -> Reader {
    let (word, sign, colour) = match change {
        Change::Added => ("added", '+', AnsiColor::Green),
        Change::Changed => ("changed", '~', AnsiColor::Yellow),
        Change::Removed => ("removed", '-', AnsiColor::Red),
    };
    if json {
        let mut object = pair(key, value);
        object.insert("change".to_owned(), word.into());
        return print_json(&object);
    }
    let style = Style::new().fg_color(Some(colour.into()));
    let value = value.map_or_else(String::new, |value| format!(" = {}", beginning(value)));
    print_styled(&[(style, &sign), (Style::new(), &format_args!(" {}{value}", readable(key)))])
}
