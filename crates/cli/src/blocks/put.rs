//! `portcullis blocks put`: stores the files of a folder.

use super::command_error::BlocksCommandError;
use super::manifest::{BLOCK_BYTES, FileBlocks, Manifest, in_hexadecimal, key_of};
use super::progress::{Progress, rate};
use super::target::Target;
use super::{CommandOutcome, complain_of};
use crate::files;
use crate::output::{print_json, say};
use clap::Args;
use portcullis_blocks::spread_store::{Bytes, Key, PutEnd, SpreadStore};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes of blocks that are on their way at a time.
const UNDER_WAY_MAX: u64 = 64 << 20;

/// Options of `portcullis blocks put`.
#[derive(Args, Debug)]
pub struct BlocksPutOptions {
    #[command(flatten)]
    target: Target,
    /// The folder. Links and what is neither a file nor a folder are left out.
    #[arg(value_name = "FOLDER", value_parser = files::path())]
    folder: PathBuf,
    /// The file that gets the list of the files and their blocks, as JSON.
    #[arg(value_name = "LIST", value_parser = files::path())]
    list: PathBuf,
    /// Bytes of a block.
    #[arg(long, value_name = "SIZE", default_value = "2MiB", value_parser = block_bytes)]
    block_bytes: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

fn block_bytes(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    if BLOCK_BYTES.contains(&bytes) { Ok(bytes) } else { Err("a block has 1KiB to 1GiB".to_owned()) }
}

/// The blocks under way, and the ends of the others.
struct Putting<'a> {
    store: &'a SpreadStore,
    progress: &'a Progress,
    sender: Sender<(u64, PutEnd)>,
    ends: Receiver<(u64, PutEnd)>,
    under_way: u64,
    /// Blocks with fewer copies than wanted, and the first reason.
    short: usize,
    /// Blocks that no node has.
    lost: usize,
    reason: Option<String>,
}

impl Putting<'_> {
    fn put(&mut self, key: Key, bytes: Vec<u8>) {
        let length = bytes.len() as u64;
        while self.under_way > 0 && self.under_way + length > UNDER_WAY_MAX {
            self.take_end();
        }
        self.under_way += length;
        let sender = self.sender.clone();
        let bytes: Bytes = Arc::new(bytes);
        self.store.begin_put(vec![(key, bytes)], move |ends| {
            // The command takes all ends before it stops.
            let _ = sender.send((length, ends[0]));
        });
    }

    fn take_end(&mut self) {
        let (length, end) = self.ends.recv().expect("the sender is here");
        self.under_way -= length;
        self.progress.moved(length);
        if let Some(refusal) = end.refusal {
            self.short += 1;
            self.lost += usize::from(end.copies == 0);
            self.reason.get_or_insert_with(|| refusal.to_string());
        }
    }
}

/// Stores the files, and writes the list.
pub fn run(options: &BlocksPutOptions) -> Result<CommandOutcome, BlocksCommandError> {
    let mut paths = Vec::new();
    find_files(&options.folder, Path::new(""), &mut paths)?;
    paths.sort();
    let bytes = paths.iter().map(|(_, bytes)| bytes).sum();
    let store = options.target.open()?;
    let progress = Progress::begin(bytes);
    let (sender, ends) = channel();
    let mut putting = Putting {
        store: &store,
        progress: &progress,
        sender,
        ends,
        under_way: 0,
        short: 0,
        lost: 0,
        reason: None,
    };
    let mut files = Vec::new();
    for (path, _) in &paths {
        files.push(put_file(&mut putting, options, path)?);
    }
    while putting.under_way > 0 {
        putting.take_end();
    }
    let seconds = progress.end();
    let Putting { short, lost, reason, .. } = putting;
    store.close();
    let list = Manifest::new(options.block_bytes, files);
    let blocks: usize = list.files.iter().map(|file| file.blocks.len()).sum();
    if lost == 0 {
        let text = serde_json::to_string_pretty(&list).expect("texts and numbers are JSON");
        files::write_report(&options.list, &text)
            .map_err(BlocksCommandError::of_file("write", &options.list))?;
    }
    let copies = options.target.copies;
    if options.json {
        print_json(&json!({
            "files": list.files.len(), "blocks": blocks, "bytes": list.bytes(), "copies": copies,
            "blocks_with_fewer_copies": short, "blocks_not_stored": lost, "seconds": seconds,
        }));
    } else {
        say(format_args!("{} files, {blocks} blocks: {}", list.files.len(), rate(list.bytes(), seconds)));
    }
    complain_of("blocks were not stored, and no list was written", lost, reason.clone());
    complain_of(&format!("blocks have fewer than {copies} copies"), short - lost, reason);
    Ok(if short == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}

/// Finds the files below a folder, with their lengths. `below`: the path in the folder.
fn find_files(
    folder: &Path,
    below: &Path,
    found: &mut Vec<(PathBuf, u64)>,
) -> Result<(), BlocksCommandError> {
    let here = folder.join(below);
    let failed = BlocksCommandError::of_file("read the folder", &here);
    for entry in std::fs::read_dir(&here).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let (kind, path) = (entry.file_type().map_err(&failed)?, below.join(entry.file_name()));
        if kind.is_dir() {
            find_files(folder, &path, found)?;
        } else if kind.is_file() {
            let length = entry.metadata().map_err(&failed)?.len();
            found.push((path, length));
        }
    }
    Ok(())
}

fn put_file(
    putting: &mut Putting<'_>,
    options: &BlocksPutOptions,
    path: &Path,
) -> Result<FileBlocks, BlocksCommandError> {
    let name = path.to_str().ok_or_else(|| {
        BlocksCommandError::Call(format!("{}: the name of a file must be UTF-8", path.display()))
    })?;
    let whole = options.folder.join(path);
    let failed = BlocksCommandError::of_file("read", &whole);
    let mut file = File::open(&whole).map_err(&failed)?;
    let mut stored = FileBlocks { path: name.to_owned(), bytes: 0, blocks: Vec::new() };
    loop {
        let mut bytes = Vec::new();
        file.by_ref().take(options.block_bytes).read_to_end(&mut bytes).map_err(&failed)?;
        if bytes.is_empty() {
            return Ok(stored);
        }
        let key = key_of(&bytes);
        stored.bytes += bytes.len() as u64;
        stored.blocks.push(in_hexadecimal(&key));
        putting.put(key, bytes);
    }
}
