//! A folder with a file for each key.
//!
//! A key is anything that a client of the table has written. So a key is used as a path only if that path cannot lead
//! outside the folder, and if the path gives the same key back. The folder is empty at first, so it contains no link
//! that leads elsewhere.

use super::Written;
use crate::kv::command_error::KvCommandError;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The most bytes that a name of a file has.
const NAME_BYTES_MAX: usize = 255;

/// The folder of a dump.
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Creates the folder, or uses an existing one that is empty.
    pub fn new(root: &Path) -> Result<Self, KvCommandError> {
        let at = root.display();
        let wrong = |error| KvCommandError::File { what: format!("{at} cannot be written"), error };
        DirBuilder::new().recursive(true).create(root).map_err(wrong)?;
        if std::fs::read_dir(root).map_err(wrong)?.next().is_some() {
            return Err(KvCommandError::Call(format!("{at} is not empty: name a new or an empty folder")));
        }
        Ok(Self { root: root.to_owned() })
    }

    /// Writes the file of a key.
    pub fn write(&self, key: &[u8], value: &[u8]) -> io::Result<Written> {
        if let Some(why) = no_path(key) {
            return Ok(Written::LeftOut(why.to_owned()));
        }
        let path = self.root.join(OsStr::from_bytes(key));
        match create(&path).and_then(|mut file| file.write_all(value)) {
            Ok(()) => Ok(Written::Done),
            // One key is the beginning of another one's path: a file and a folder cannot have the same name.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::AlreadyExists
                ) =>
            {
                Ok(Written::LeftOut(
                    "its path is a folder for another key, or lies below the file of another key".to_owned(),
                ))
            }
            Err(error) if error.kind() == ErrorKind::InvalidFilename => {
                Ok(Written::LeftOut("its path is too long".to_owned()))
            }
            Err(error) => Err(error),
        }
    }
}

/// Creates a file and the folders above it. A key may be written twice if it is removed and stored again during the
/// dump.
fn create(path: &Path) -> io::Result<File> {
    if let Some(above) = path.parent() {
        DirBuilder::new().recursive(true).create(above)?;
    }
    OpenOptions::new().write(true).create(true).truncate(true).open(path)
}

/// Returns the reason why a key is not a path below a folder that would give the same key back. `None`: the key is one.
fn no_path(key: &[u8]) -> Option<&'static str> {
    if key.is_empty() {
        return Some("an empty key is not a path");
    }
    if key.contains(&0) {
        return Some("no path has a zero byte");
    }
    if key.starts_with(b"/") {
        return Some("the path leads out of the folder: it begins at the root");
    }
    let mut names = key.split(|&byte| byte == b'/');
    names.find_map(|name| match name {
        b".." => Some("the path leads out of a folder: it contains `..`"),
        b"" | b"." => Some("another path means the same: it contains an empty name or `.`"),
        name if name.len() > NAME_BYTES_MAX => Some("a name in the path is longer than 255 bytes"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_leads_out_of_the_folder() {
        let around = tempfile::tempdir().expect("a folder");
        let root = around.path().join("dump");
        let folder = Folder::new(&root).expect("a new folder");
        for key in [
            &b"../x"[..],
            b"/x",
            b"a/../../x",
            b"..",
            b".",
            b"",
            b"a//b",
            b"a/",
            b"./a",
            b"a/./b",
            b"a\0b",
            &[b'a'; 256],
            b"a/..",
            b"/",
            b"//",
        ] {
            assert!(matches!(folder.write(key, b"x"), Ok(Written::LeftOut(_))), "{key:?}");
        }
        for key in [&b"a"[..], b"b/c/d", b"..a", b"...", b"a b", b"\xff", b"C:\\x", b"-", b"~"] {
            assert!(matches!(folder.write(key, b"x"), Ok(Written::Done)), "{key:?}");
        }
        assert!(matches!(folder.write(b"b/c", b"x"), Ok(Written::LeftOut(_))));
        assert!(matches!(folder.write(b"a/c", b"x"), Ok(Written::LeftOut(_))));
        let left = std::fs::read_dir(around.path()).expect("a folder").count();
        assert_eq!(left, 1, "nothing is beside the folder");
        assert!(matches!(Folder::new(&root), Err(KvCommandError::Call(_))), "it is not empty any more");
    }
}
