//! `portcullis kv load`: loads all keys of files, with many operations in flight.

mod dialect;
mod folder;
mod in_flight_limits;
mod incoming;
mod json_lines;
mod progress;
mod rejects;
mod rows;

use super::CommandOutcome;
use super::command_error::KvCommandError;
use super::connection::{LARGE_ARENA_BYTES, Target};
use super::making::open_or_make;
use crate::files::{self, Input};
use crate::output::{complain, print_json, say};
use crate::size;
use clap::{Args, ValueEnum};
use in_flight_limits::{InFlightLimits, Turn};
use incoming::Incoming;
use portcullis::{Error, Lifetime};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Condition, KEY_BYTES_MAX, Stored, Table, TableError, VALUE_BYTES_MAX};
use progress::Progress;
use rows::Rows;
use serde_json::json;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

pub use dialect::delimiter_of;

/// Operations in flight at once.
const DEPTH: usize = 64;
/// Bytes of keys and values in flight at once. They take part of the arena; the rest is for blocks that are read.
const BYTES_AT_ONCE: usize = 10 << 20;
const _: () = assert!(BYTES_AT_ONCE as u64 <= LARGE_ARENA_BYTES / 3);
/// The time between two tries of an operation for which the arena has no room.
const BETWEEN_TRIES: Lifetime = Lifetime::millis(1);
/// Number of left-out files of a folder that are named. The others are only counted.
const NAMED_MOST: usize = 20;

const EXAMPLES: &str = "\
Examples:
  # Rows with a header. The columns are `key` and `value` by default.
  portcullis kv load --node shm:/run/p.sock cities towns.csv \\
      --key name --value population
  # A JSON object in each line. The value is the whole line, or one field.
  portcullis kv load --node shm:/run/p.sock users users.jsonl --key id
  # The output of `kv dump`.
  portcullis kv load --node shm:/run/p.sock cities dump.jsonl --value value
  # As spreadsheets write it; columns have numbers if there is no header.
  portcullis kv load --node shm:/run/p.sock cities towns.csv --delimiter ';'
  portcullis kv load --node shm:/run/p.sock cities towns.tsv --no-header \\
      --key 2 --value 5
  # Keys that expire: all after a day, or each after its own time.
  portcullis kv load --node shm:/run/p.sock sessions s.csv --ttl 1d
  portcullis kv load --node shm:/run/p.sock sessions s.csv --ttl-column left
  # Wrong rows are reported, and written to a file to correct and load again.
  portcullis kv load --node shm:/run/p.sock cities towns.csv --reject bad.csv
  # Each file of a folder: its path in the folder is the key.
  portcullis kv load --node shm:/run/p.sock photos ~/photos
  zcat towns.csv.gz | portcullis kv load --node shm:/run/p.sock cities - \\
      --format csv

The format follows from the name: a folder, .csv and .tsv, or .jsonl and
.ndjson. A file `-` is standard input. If a key occurs several times, its
last value counts. Keys of the table stay, with a new value if a file has the
same key. If there is no such table, it is made as `portcullis kv create` makes
it.

CSV: the fields' bytes as they are; each row has as many as the header, or as
the first row. JSON: a text is stored as its bytes, and a number, list or object
as it is written; `key_base64` holds a key that is not UTF-8, and so for
each field. A byte order mark is left out, and UTF-16 refused. A time to live is
a TIME, such as 90s, 1h or 7d, or a number of seconds; empty means none.
Folders: links are not followed; files over 1 MiB and entries that are not files
are left out and reported.

If the command is killed, some of the keys are stored, each one complete. Load
again, or continue without the rest: other clients need not wait.

Exit codes: 0 everything is stored; 1 something was left out or rejected; 2 the
call or a file was wrong, which is reported with its line: the rows before it
are stored; 3 the node refuses or is gone.";

/// Options of `portcullis kv load`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvLoadOptions {
    #[command(flatten)]
    target: Target,
    /// The files, or folders.
    #[arg(value_name = "FILE", required = true, value_parser = files::input())]
    files: Vec<Input>,
    /// The format of all files [default: by the name].
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The column or field with the key [default: key; with --no-header column 1].
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
    /// The column or field with the value [default: column `value`, with --no-header column 2; of JSON the whole line].
    #[arg(long, value_name = "NAME")]
    value: Option<String>,
    /// The separator of columns in CSV: one character, or \t [default: a comma, in .tsv a tab].
    #[arg(long, value_name = "CHARACTER", value_parser = dialect::delimiter)]
    delimiter: Option<u8>,
    /// The first row of CSV is a row like the others. Columns are numbers, from 1.
    #[arg(long)]
    no_header: bool,
    /// The keys are not found after this time, as with `kv put --ttl`.
    #[arg(long, value_name = "TIME")]
    ttl: Option<Lifetime>,
    /// The column or field with the time after which its key is not found; if it is empty, --ttl applies.
    #[arg(long, value_name = "NAME")]
    ttl_column: Option<String>,
    /// Go on after a wrong row: write it into this file, and the reason on standard error.
    #[arg(long, value_name = "FILE", value_parser = files::path())]
    reject: Option<PathBuf>,
    /// The most bytes of a row of CSV or a line of JSON.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = row_max)]
    row_max: u64,
    /// Print one JSON object: `keys`, `inserted`, `replaced`, `bytes`, `seconds`, `left_out` and `rejected`.
    #[arg(long)]
    json: bool,
}

fn row_max(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    (1..=1 << 30).contains(&bytes).then_some(bytes).ok_or_else(|| "a row has 1 to 1GiB at most".to_owned())
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Rows, with a header unless --no-header is given.
    Csv,
    /// A JSON object in each line.
    Jsonl,
    /// A file for each key.
    Folder,
}

impl Format {
    /// The format that a name suggests.
    pub fn of(path: &Path) -> Option<Self> {
        if path.is_dir() {
            return Some(Self::Folder);
        }
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" | "tsv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Csv => "CSV",
            Self::Jsonl => "lines of JSON",
            Self::Folder => "a folder",
        }
    }
}

/// A key with its value and its time to live.
pub struct Record {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub ttl: Option<Lifetime>,
}

/// Key, value and time to live.
type Content = (Vec<u8>, Vec<u8>, Option<Lifetime>);

/// A row of a file.
pub enum Row {
    Record(Record),
    /// A row that cannot be stored: its place, the reason, and its bytes.
    Wrong {
        place: String,
        why: String,
        row: Vec<u8>,
    },
}

/// The next item of a file.
pub enum Item {
    Record(Record),
    /// A file that is left out, and the reason.
    LeftOut(String),
    /// A row that was written to the file of rejected rows, and the reason.
    Rejected(String),
}

/// Progress of a load.
#[derive(Default)]
struct Loaded {
    inserted: u64,
    replaced: u64,
    left_out: Vec<String>,
    rejected: u64,
    /// The error that ended the load early.
    failed: Option<KvCommandError>,
}

/// Stores all keys of files.
pub fn run(options: &KvLoadOptions) -> Result<CommandOutcome, KvCommandError> {
    let progress = Progress::new();
    let incoming = Incoming::open(options, &progress)?;
    let pipeline = options.target.connect(LARGE_ARENA_BYTES)?;
    let table = open_or_make(&options.target, &pipeline)?;
    let mut loaded = Loaded::default();
    store_all(&pipeline, &table, options, &incoming, &progress, &mut loaded);
    let closed = pipeline.block_on(table.close());
    progress.end();
    report(options, &progress, &loaded);
    match loaded.failed {
        Some(error) => Err(error),
        None => {
            closed.map_err(KvCommandError::of(options.target.table))?;
            let is_all = loaded.left_out.is_empty() && loaded.rejected == 0;
            Ok(if is_all { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
        }
    }
}

/// Stores records, many at once. Stops at the first that fails.
fn store_all(
    pipeline: &Pipeline,
    table: &Table,
    options: &KvLoadOptions,
    incoming: &Incoming,
    progress: &Progress,
    loaded: &mut Loaded,
) {
    let limits = InFlightLimits::new(BYTES_AT_ONCE);
    let loaded = RefCell::new(loaded);
    let store_next = async || {
        while let Some(record) = next(incoming, pipeline, progress, &loaded).await {
            // The place in the line is taken before the first await, so it is in the order of the file.
            let turn = limits.queue(&record.key, record.key.len() + record.value.len());
            let stored = store(pipeline, table, &record, options.ttl, turn).await;
            incoming.done();
            let mut loaded = loaded.borrow_mut();
            match stored {
                Ok(stored) => {
                    *if stored == Stored::Inserted { &mut loaded.inserted } else { &mut loaded.replaced } +=
                        1;
                    progress.stored(record.key.len() + record.value.len());
                }
                Err(error) if loaded.failed.is_none() => {
                    loaded.failed = Some(KvCommandError::of(options.target.table)(error));
                }
                Err(_) => {}
            }
        }
    };
    pipeline.run(DEPTH, (0..DEPTH).map(|_| store_next()), |()| {});
}

/// The next record that can be stored. `None` at the end, and after the first mistake.
async fn next(
    incoming: &Incoming,
    pipeline: &Pipeline,
    progress: &Progress,
    loaded: &RefCell<&mut Loaded>,
) -> Option<Record> {
    while loaded.borrow().failed.is_none() {
        let item = incoming.next(pipeline).await?;
        let mut loaded = loaded.borrow_mut();
        match item {
            // After a failure no operation is begun: it would end without having sent a request to the node.
            Ok(Item::Record(record)) if loaded.failed.is_none() => {
                incoming.begun();
                return Some(record);
            }
            Ok(Item::Record(_)) => {}
            Ok(Item::Rejected(what)) => {
                loaded.rejected += 1;
                progress.aside(|| complain(format_args!("portcullis kv: rejected: {what}")));
            }
            Ok(Item::LeftOut(what)) => {
                if loaded.left_out.len() < NAMED_MOST {
                    progress.aside(|| complain(format_args!("portcullis kv: left out: {what}")));
                }
                loaded.left_out.push(what);
            }
            Err(error) => loaded.failed = Some(error),
        }
    }
    None
}

async fn store(
    pipeline: &Pipeline,
    table: &Table,
    record: &Record,
    ttl: Option<Lifetime>,
    turn: Turn<'_>,
) -> Result<Stored, TableError> {
    let turn = turn.come(pipeline).await?;
    let stored = loop {
        match table.store(&record.key, &record.value, Condition::Always, record.ttl.or(ttl)).await {
            // Blocks that other operations of this load read have filled the arena. Each of them alone has room, so
            // room is free soon.
            Err(TableError::Session(Error::ArenaFull { .. })) => pipeline.sleep(BETWEEN_TRIES).await?,
            stored => break stored,
        }
    };
    drop(turn);
    stored
}

/// Whether key and value fit into any table.
fn fit(key: &[u8], value: &[u8]) -> Result<(), String> {
    let (key, value) = (key.len(), value.len());
    match () {
        () if key > KEY_BYTES_MAX => Err(TableError::KeyTooLong { bytes: key as u64 }.to_string()),
        () if value > VALUE_BYTES_MAX => {
            Err(TableError::ValueTooLong { bytes: value as u64, most: VALUE_BYTES_MAX as u64 }.to_string())
        }
        () => Ok(()),
    }
}

fn report(options: &KvLoadOptions, progress: &Progress, loaded: &Loaded) {
    let Loaded { inserted, replaced, left_out, rejected, .. } = loaded;
    let keys = inserted + replaced;
    if options.json {
        let (bytes, seconds) = (progress.bytes(), progress.seconds());
        print_json(&json!({
            "keys": keys, "inserted": inserted, "replaced": replaced,
            "bytes": bytes, "seconds": seconds, "left_out": left_out, "rejected": rejected,
        }));
    } else {
        say(format_args!("stored {keys} keys, {inserted} of them new: {}", progress.told()));
    }
    if left_out.len() > NAMED_MOST {
        complain(format_args!("portcullis kv: left out: {} more", left_out.len() - NAMED_MOST));
    }
    if let (1.., Some(file)) = (rejected, &options.reject) {
        let rows = if *rejected == 1 { "row is" } else { "rows are" };
        complain(format_args!("portcullis kv: {rejected} {rows} not stored, but in {}", file.display()));
    }
}

/// Explains why a value that is too long is left out.
fn too_long(bytes: u64) -> String {
    format!("{bytes} bytes, but a value has at most {VALUE_BYTES_MAX}")
}

#[cfg(test)]
fn read_all(
    rows: impl Iterator<Item = Result<Row, KvCommandError>>,
) -> Result<Vec<(String, String, Option<Lifetime>)>, String> {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let read = rows.map(|row| match row {
        Ok(Row::Record(Record { key, value, ttl })) => Ok((text(key), text(value), ttl)),
        Ok(Row::Wrong { place, why, .. }) => Err(format!("{place}: {why}")),
        Err(error) => Err(error.to_string()),
    });
    read.collect()
}
