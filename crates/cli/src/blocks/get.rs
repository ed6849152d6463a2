//! `portcullis blocks get`: restores the files of a list.

use super::command_error::BlocksCommandError;
use super::manifest::{FileBlocks, Manifest};
use super::progress::{Progress, rate};
use super::target::Target;
use super::verify::Reading;
use super::{CommandOutcome, complain_of};
use crate::files::{self, Destination};
use crate::output::{print_json, say};
use clap::Args;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Options of `portcullis blocks get`.
#[derive(Args, Debug)]
pub struct BlocksGetOptions {
    #[command(flatten)]
    target: Target,
    /// The list that `put` has written.
    #[arg(value_name = "LIST", value_parser = files::path())]
    list: PathBuf,
    /// The folder that gets the files. Files of the same names are replaced. A file with a missing block is left out.
    #[arg(value_name = "FOLDER", value_parser = files::path())]
    folder: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Restores the files.
pub fn run(options: &BlocksGetOptions) -> Result<CommandOutcome, BlocksCommandError> {
    let list = Manifest::read(&options.list)?;
    let store = options.target.open()?;
    let progress = Progress::begin(list.bytes());
    let mut reading = Reading::new(&store, &progress);
    let (mut restored, mut bytes) = (0_usize, 0);
    for file in &list.files {
        if restore(&mut reading, &list, file, &options.folder)? {
            restored += 1;
            bytes += file.bytes;
        }
    }
    let seconds = progress.end();
    let (missing, damaged) = (reading.missing, reading.damaged);
    store.close();
    let left_out = list.files.len() - restored;
    if options.json {
        print_json(&json!({
            "files": restored, "bytes": bytes, "files_left_out": left_out, "blocks_missing": missing,
            "blocks_damaged": damaged, "seconds": seconds,
        }));
    } else {
        say(format_args!("{restored} files: {}", rate(bytes, seconds)));
    }
    complain_of("files were left out, since blocks of them are missing", left_out, None);
    Ok(if left_out == 0 { CommandOutcome::AsAsked } else { CommandOutcome::NotAll })
}

/// Restores a file. Returns false if a block is missing. The file appears as a whole.
fn restore(
    reading: &mut Reading<'_>,
    list: &Manifest,
    file: &FileBlocks,
    folder: &Path,
) -> Result<bool, BlocksCommandError> {
    let below = file.place().map_err(|why| BlocksCommandError::Input { place: file.path.clone(), why })?;
    let path = folder.join(below);
    let parent = path.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(BlocksCommandError::of_file("make the folder", parent))?;
    let failed = BlocksCommandError::of_file("write", &path);
    let mut new = Destination::file(&path).map_err(&failed)?;
    let mut is_whole = true;
    let mut written = Ok(());
    reading.read(list.blocks_of(file), |bytes| match bytes {
        Some(bytes) if is_whole && written.is_ok() => written = new.write_all(&bytes),
        Some(_) => {}
        None => is_whole = false,
    });
    written.map_err(&failed)?;
    if is_whole {
        new.finish().map_err(&failed)?;
    }
    Ok(is_whole)
}
