//! The files of a folder. A file's path in the folder is its key.

use super::{Item, Record, too_long};
use crate::kv::command_error::KvCommandError;
use indicatif::ProgressBar;
use portcullis_structures::table::VALUE_BYTES_MAX;
use rustix::fs::{Mode, OFlags};
use std::fs::{File, ReadDir};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The files below a folder. Links are not followed.
pub fn items(
    folder: &Path,
    bar: ProgressBar,
) -> Result<impl Iterator<Item = Result<Item, KvCommandError>> + use<>, KvCommandError> {
    let unreadable =
        |error: io::Error| KvCommandError::Call(format!("{} cannot be read: {error}", folder.display()));
    let mut open = vec![std::fs::read_dir(folder).map_err(unreadable)?];
    let root = folder.to_owned();
    Ok(std::iter::from_fn(move || {
        let item = next(&root, &mut open)?;
        if let Item::Record(record) = &item {
            // The files were not counted before: the bar grows with each of them.
            bar.inc_length(record.value.len() as u64);
            bar.inc(record.value.len() as u64);
        }
        Some(Ok(item))
    }))
}

/// The next file, or an entry that is left out.
fn next(root: &Path, open: &mut Vec<ReadDir>) -> Option<Item> {
    loop {
        let Some(entry) = open.last_mut()?.next() else {
            open.pop();
            continue;
        };
        let read = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
        return Some(match read {
            Err(error) => Item::LeftOut(format!("{}: {error}", root.display())),
            Ok((path, kind)) if kind.is_dir() => match std::fs::read_dir(&path) {
                Ok(entries) => {
                    open.push(entries);
                    continue;
                }
                Err(error) => left_out(&path, &error.to_string()),
            },
            Ok((path, kind)) if kind.is_file() => file(root, &path),
            Ok((path, _)) => left_out(&path, "it is not a file"),
        });
    }
}

fn file(root: &Path, path: &Path) -> Item {
    match content(path) {
        Ok(value) if value.len() > VALUE_BYTES_MAX => {
            let bytes = path.metadata().map_or(value.len() as u64, |metadata| metadata.len());
            left_out(path, &too_long(bytes))
        }
        Ok(value) => {
            let key = path.strip_prefix(root).unwrap_or(path).as_os_str().as_bytes().to_vec();
            Item::Record(Record { key, value, ttl: None })
        }
        Err(error) => left_out(path, &error.to_string()),
    }
}

/// The content of a file, cut one byte after the length of the longest value. If a link or a pipe has replaced the file
/// since the folder was read, the link is not followed and the pipe not waited for.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn left_out(path: &Path, why: &str) -> Item {
    let path: PathBuf = path.to_owned();
    Item::LeftOut(format!("{}: {why}", path.display()))
}
