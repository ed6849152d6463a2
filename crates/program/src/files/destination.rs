//! Destinations of a command's result.
//!
//! A file is replaced whole or not at all: its previous content stays until the last byte of the new content is
//! written. Until then, the new content is collected in a temporary file beside it.

use crate::output;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A destination of a result. [`finish`](Self::finish) completes it.
pub enum Destination {
    /// Standard output, or a device or pipe that has a path.
    Stream(Box<dyn Write>),
    /// A file, and its new content.
    File {
        /// The path of the finished file.
        path: PathBuf,
        /// A temporary file in the same folder, which holds the content until then.
        content: BufWriter<NamedTempFile>,
    },
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(_) => f.write_str("Stream"),
            Self::File { path, .. } => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Destination {
    /// Standard output.
    pub fn standard() -> Self {
        Self::Stream(output::data())
    }

    /// A file. The file is not changed until [`finish`](Self::finish).
    ///
    /// # Errors
    /// Errors of the operating system: no file can be created in that folder, or the device cannot be opened.
    pub fn file(path: &Path) -> io::Result<Self> {
        // If the path is a link, its target is replaced. A link to a missing file has no content to keep.
        let is_link = fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink());
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let there = match fs::metadata(&path) {
            Ok(there) if there.is_file() => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link => None,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(Self::Stream(Box::new(BufWriter::new(File::create(&path)?)))),
        };
        if there.is_some() {
            // A user who may not write a file may not replace it either.
            File::options().write(true).open(&path)?;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let permissions = there.map_or_else(readable_as_new_files_are, |there| there.permissions());
        let content = tempfile::Builder::new()
            .prefix("portcullis-")
            .suffix(".partial")
            .permissions(permissions)
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        Ok(Self::File { path, content: BufWriter::new(content) })
    }

    /// Writes the rest, and puts the result in its place.
    ///
    /// # Errors
    /// Errors of the operating system, a full disk included. After an error, a file is as it was.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Stream(mut stream) => stream.flush(),
            Self::File { path, content } => {
                let content = content.into_inner().map_err(io::IntoInnerError::into_error)?;
                content.as_file().sync_all()?;
                content.persist(path)?;
                Ok(())
            }
        }
    }
}

/// Permissions of a new file before the process's umask is applied.
fn readable_as_new_files_are() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stream(stream) => stream.write(bytes),
            Self::File { content, .. } => content.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.flush(),
            Self::File { content, .. } => content.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn write(path: &Path, bytes: &[u8]) -> Destination {
        let mut to = Destination::file(path).expect("a file");
        to.write_all(bytes).expect("written");
        to.flush().expect("written");
        to
    }

    #[test]
    fn a_file_is_as_it_was_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("backup");
        fs::write(&path, b"old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        drop(write(&path, b"half of the n"));
        assert_eq!(fs::read(&path).expect("there"), b"old");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing stays beside it");
        let to = write(&path, b"the new one");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        to.finish().expect("finished");
        assert_eq!(fs::read(&path).expect("there"), b"the new one");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_new_file_has_the_permissions_that_the_system_gives_new_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("new"), folder.path().join("other"));
        write(&path, b"1").finish().expect("finished");
        fs::write(&other, b"1").expect("written");
        let mode = |path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&path), mode(&other));
    }

    #[test]
    fn a_name_may_be_as_long_as_the_system_lets_it_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x".repeat(255));
        write(&path, b"new").finish().expect("finished");
        assert_eq!(fs::read(&path).expect("there"), b"new");
    }

    #[test]
    fn a_link_and_a_device_stay_what_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, b"old").expect("written");
        symlink(&path, &link).expect("a link");
        write(&link, b"new").finish().expect("finished");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read(&path).expect("there"), b"new");
        let (nowhere, target) = (folder.path().join("nowhere"), folder.path().join("target"));
        symlink(&target, &nowhere).expect("a link");
        write(&nowhere, b"new").finish().expect("finished");
        assert!(fs::symlink_metadata(&nowhere).expect("there").is_symlink());
        assert_eq!(fs::read(&target).expect("there"), b"new");
        write(Path::new("/dev/null"), b"nothing").finish().expect("finished");
        assert!(!fs::metadata("/dev/null").expect("there").is_file());
    }
}
