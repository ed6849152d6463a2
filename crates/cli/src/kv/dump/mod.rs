//! `portcullis kv dump`: all keys and values, in a form that `kv load` reads.

mod folder;

use super::CommandOutcome;
use super::bytes::{beginning, pair};
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Source};
use super::load::{Format, delimiter_of};
use crate::files::{self, Destination, Output};
use crate::output::{complain, escape};
use clap::Args;
use folder::Folder;
use serde_json::Value;
use std::io::{self, Write};
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  portcullis kv dump --node shm:/run/p.sock cities | head
  portcullis kv dump --node shm:/run/p.sock cities cities.csv
  portcullis kv load --node shm:/run/q.sock cities cities.csv
  portcullis kv dump --node shm:/run/p.sock cities cities.jsonl
  portcullis kv load --node shm:/run/q.sock cities cities.jsonl --value value
  portcullis kv dump --node shm:/run/p.sock photos photos --format folder

The format follows from the name: .csv, .tsv or .jsonl; standard output gets
JSON lines unless --format is given. `kv load` restores the table from each:
  csv     columns `key` and `value`, with their bytes as they are
  jsonl   {\"key\": ..., \"value\": ...}; bytes that are not UTF-8 are base64, in
          `key_base64` and `value_base64`
  folder  a file for each key. The folder must be new or empty. A key that is
          not a path in it, as ../x or /x, is left out and reported.

An existing file keeps its content until the dump is complete.
Keys are in no order, and their times to live are not written. Other clients may
use the table: a key that exists all the time is in the dump once.

Exit codes: 0 everything is written; 1 some keys were left out; 2 the call was
wrong; 3 there is no such table, or the node or the disk refuses.";

/// Options of `portcullis kv dump`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KvDumpOptions {
    #[command(flatten)]
    source: Source,
    /// The file or folder to write; `-` is standard output.
    #[arg(value_name = "FILE", default_value = "-", value_parser = files::output())]
    file: Output,
    /// The format [default: by the name].
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// Destination of the keys.
enum Sink {
    Rows(Box<csv::Writer<Destination>>),
    Lines(Destination),
    Folder(Folder),
}

/// Result of writing one key.
enum Written {
    Done,
    /// The key cannot be written there, for this reason.
    LeftOut(String),
}

impl Sink {
    fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<Written> {
        match self {
            Self::Rows(rows) => rows.write_record([key, value]).map_err(io::Error::from)?,
            Self::Lines(lines) => {
                let line = Value::Object(pair(key, Some(value))).to_string();
                writeln!(lines, "{}", escape::in_json(&line))?;
            }
            Self::Folder(folder) => return folder.write(key, value),
        }
        Ok(Written::Done)
    }

    /// Writes the rest, and puts a file in the place of the previous one.
    fn finish(self) -> io::Result<()> {
        match self {
            Self::Rows(rows) => rows.into_inner().map_err(csv::IntoInnerError::into_error)?.finish(),
            Self::Lines(lines) => lines.finish(),
            Self::Folder(_) => Ok(()),
        }
    }
}

/// Writes all keys and values.
pub fn run(options: &KvDumpOptions) -> Result<CommandOutcome, KvCommandError> {
    let KvDumpOptions { source, file, .. } = options;
    let format = format_of(options)?;
    let target = &source.target;
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = source.open(&pipeline)?;
    let mut sink = sink(file, format)?;
    let (mut failed, mut left_out) = (None, 0u64);
    let looked = pipeline.block_on(table.try_for_each(|key, value| {
        match sink.write(key, value) {
            Ok(Written::Done) => {}
            Ok(Written::LeftOut(why)) => {
                left_out += 1;
                complain(format_args!("portcullis kv: left out: {}: {why}", beginning(key)));
            }
            Err(error) => failed = Some(error),
        }
        if failed.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }));
    looked.map_err(KvCommandError::of(target.table))?;
    files::orderly(failed.map_or_else(|| sink.finish(), Err)).map_err(|error| not_written(file, error))?;
    Ok(if left_out == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}

fn format_of(options: &KvDumpOptions) -> Result<Format, KvCommandError> {
    let by_name = options.file.path().map_or(Some(Format::Jsonl), Format::of);
    let format = options.format.or(by_name).ok_or_else(|| {
        KvCommandError::Call(
            "the format does not follow from the name: add --format csv, jsonl or folder".to_owned(),
        )
    })?;
    if format == Format::Folder && options.file == Output::Standard {
        return Err(KvCommandError::Call(
            "--format folder needs the folder: name a new or empty one".to_owned(),
        ));
    }
    Ok(format)
}

fn not_written(file: &Output, error: io::Error) -> KvCommandError {
    KvCommandError::File { what: format!("{file} cannot be written"), error }
}

fn sink(file: &Output, format: Format) -> Result<Sink, KvCommandError> {
    if let (Format::Folder, Some(path)) = (format, file.path()) {
        return Folder::new(path).map(Sink::Folder);
    }
    let output = file.create().map_err(|error| not_written(file, error))?;
    if format == Format::Jsonl {
        return Ok(Sink::Lines(output));
    }
    let mut rows = csv::WriterBuilder::new().delimiter(delimiter_of(file.path())).from_writer(output);
    // A reader that has left already is noticed at the first key.
    let _ = rows.write_record(["key", "value"]);
    Ok(Sink::Rows(Box::new(rows)))
}
