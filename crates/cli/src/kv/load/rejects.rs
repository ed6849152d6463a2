//! The file of `--reject`: rows that cannot be stored, unchanged, so that they can be corrected and loaded again.

use crate::files::Input;
use crate::kv::command_error::KvCommandError;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file, while it is written.
pub struct Rejects {
    file: File,
    path: PathBuf,
    /// The bytes before the rows. They are written before the first row, so that a load without rejected rows leaves an
    /// empty file.
    preamble: Vec<u8>,
}

impl Rejects {
    /// Creates the file, or empties it. `preamble` is what all inputs have before their rows.
    pub fn create(path: &Path, inputs: &[Input], preamble: Vec<u8>) -> Result<Self, KvCommandError> {
        if inputs.iter().any(|input| is_same(path, input)) {
            let why = format!("--reject {} is a file that is loaded: name another", path.display());
            return Err(KvCommandError::Call(why));
        }
        match File::create(path) {
            Ok(file) => Ok(Self { file, path: path.to_owned(), preamble }),
            Err(error) => Err(not_written(path, error)),
        }
    }

    /// Writes a row. The row is in the file when this returns, however the load ends afterwards.
    pub fn write(&mut self, row: &[u8]) -> Result<(), KvCommandError> {
        let preamble = std::mem::take(&mut self.preamble);
        let line_break: &[u8] = if row.ends_with(b"\n") { b"" } else { b"\n" };
        let written = self.file.write_all(&[&preamble, row, line_break].concat());
        written.map_err(|error| not_written(&self.path, error))
    }
}

fn not_written(path: &Path, error: io::Error) -> KvCommandError {
    KvCommandError::File { what: format!("--reject {} cannot be written", path.display()), error }
}

/// Whether the file at this path is also read.
fn is_same(path: &Path, input: &Input) -> bool {
    let id = |about: Metadata| about.is_file().then_some((about.dev(), about.ino()));
    let of_input = match input.path() {
        Some(path) => std::fs::metadata(path).ok().and_then(id),
        None => rustix::fs::fstat(io::stdin()).ok().map(|about| (about.st_dev, about.st_ino)),
    };
    let of_path = std::fs::metadata(path).ok().and_then(id);
    of_path.is_some() && of_path == of_input
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_behind_what_was_before_them_and_none_leave_an_empty_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rejected");
        let content = || std::fs::read_to_string(&path).expect("a file");
        let mut rejects = Rejects::create(&path, &[], b"key,value\n".to_vec()).expect("a file");
        assert_eq!(content(), "");
        rejects.write(b"a\n").expect("written");
        rejects.write(b"b").expect("written");
        assert_eq!(content(), "key,value\na\nb\n");
    }

    #[test]
    fn what_is_loaded_is_not_overwritten_by_whatever_name_it_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "key,value\n").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        for path in [&file, &link] {
            let refused = Rejects::create(path, &[Input::File(file.clone())], Vec::new());
            assert!(matches!(refused, Err(KvCommandError::Call(why)) if why.contains("--reject")));
        }
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "key,value\n");
    }
}
