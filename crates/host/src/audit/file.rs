//! The file of an audit log: it is opened, checked, and opened anew after it was renamed.

use super::LINE_START;
use super::lines::Store;
use crate::log_file;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The longest incomplete line at the end of a file, in bytes: records are far shorter.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// An audit log, opened for appending.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// Whether the file ended with an incomplete line, which is cut off.
    torn: bool,
}

impl LogFile {
    /// Opens the file at `path`. If there is none, creates one that only the node's own user can open. Cuts off an
    /// incomplete line of an earlier run, since it must not make the next record unreadable too.
    ///
    /// # Errors
    /// The errors of [`log_file::open`]; also, another node writes to the file, or the file is not an audit log.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = log_file::open(path)?;
        let mut log = Self { path: path.to_owned(), file, torn: false };
        if log.file.metadata()?.is_file() {
            log.lock()?;
            log.torn = log.mend()?;
        }
        Ok(log)
    }

    /// Locks the file: two nodes that write to one file could cut off each other's records.
    fn lock(&self) -> io::Result<()> {
        match self.file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                Err(io::Error::other("another node writes there: give each node a file of its own"))
            }
            // A file system may have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
        }
    }

    fn mend(&self) -> io::Result<bool> {
        let tail = self.tail()?;
        if tail.is_empty() {
            return Ok(false);
        }
        // After a power failure a file may end with zeros that were never written.
        let text = &tail[..tail.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1)];
        let start = LINE_START.as_bytes();
        if !text.starts_with(start) && !start.starts_with(text) {
            let why = "it ends in the middle of a line that is not an audit record: name another file";
            return Err(io::Error::other(why));
        }
        self.file.set_len(self.file.metadata()?.len().saturating_sub(tail.len() as u64))?;
        Ok(true)
    }

    /// Returns the bytes after the last newline. They are read from the open file, since its path may name another file
    /// by now, or none.
    fn tail(&self) -> io::Result<Vec<u8>> {
        let mut file = &self.file;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LINE_BYTES_MAX)))?;
        let mut end = Vec::new();
        file.take(LINE_BYTES_MAX).read_to_end(&mut end)?;
        let line = end.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        Ok(end.split_off(line))
    }

    /// The file's path when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether an incomplete line was cut off. Returns `true` only once.
    pub fn take_torn(&mut self) -> bool {
        std::mem::take(&mut self.torn)
    }

    /// Opens the file that is at the path now, if this file was renamed.
    ///
    /// # Errors
    /// The errors of [`LogFile::open`].
    pub fn successor(&self) -> io::Result<Option<Self>> {
        let own = self.file.metadata()?;
        match std::fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => Ok(None),
            _ => Self::open(&self.path).map(Some),
        }
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Store for LogFile {
    fn cut(&mut self, bytes: usize) -> bool {
        let Ok(about) = self.file.metadata() else { return false };
        about.is_file() && self.file.set_len(about.len().saturating_sub(bytes as u64)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn log(&self, content: &str) -> PathBuf {
            let path = self.0.path().join("audit.jsonl");
            std::fs::write(&path, content).expect("written");
            path
        }
    }

    fn content(path: &Path) -> String {
        std::fs::read_to_string(path).expect("it is there")
    }

    const WHOLE: &str = "{\"time\":\"2026-01-01T00:00:00.000000Z\",\"event\":\"start\"}\n";

    #[test]
    fn a_line_that_a_crash_left_half_is_cut_off() {
        let folder = Folder::new();
        for torn in ["{", "{\"time\"", "{\"time\":\"2026-01-01T00:00", "{\"time\":\"20\0\0\0\0", "\0\0\0"] {
            for before in ["", WHOLE, &WHOLE.repeat(2000)] {
                let path = folder.log(&format!("{before}{torn}"));
                let mut log = LogFile::open(&path).expect("a log");
                assert!(log.take_torn() && !log.take_torn());
                log.write_all(WHOLE.as_bytes()).expect("written");
                assert_eq!(content(&path), format!("{before}{WHOLE}"));
            }
        }
    }

    #[test]
    fn a_whole_log_is_left_as_it_is() {
        let folder = Folder::new();
        for whole in ["", WHOLE, "what an older version wrote\n"] {
            let path = folder.log(whole);
            assert!(!LogFile::open(&path).expect("a log").take_torn());
            assert_eq!(content(&path), whole);
        }
    }

    #[test]
    fn a_file_that_is_no_audit_log_is_not_touched() {
        let folder = Folder::new();
        for foreign in ["no newline at the end", &"x".repeat(100_000), "{\"name\":1}"] {
            let path = folder.log(foreign);
            let error = LogFile::open(&path).expect_err("not ours").to_string();
            assert!(error.contains("name another file"), "{error}");
            assert_eq!(content(&path), foreign);
        }
    }

    #[test]
    fn two_nodes_do_not_write_into_one_file() {
        let folder = Folder::new();
        let path = folder.log("");
        let log = LogFile::open(&path).expect("a log");
        let error = LogFile::open(&path).expect_err("somebody is there").to_string();
        assert!(error.contains("a file of its own"), "{error}");
        drop(log);
        LogFile::open(&path).expect("nobody is there any more");
    }

    #[test]
    fn a_log_that_is_renamed_while_it_is_opened_is_mended_all_the_same() {
        let folder = Folder::new();
        let path = folder.log("");
        let mut log = LogFile::open(&path).expect("a log");
        log.write_all(format!("{WHOLE}{{").as_bytes()).expect("written");
        let renamed = folder.0.path().join("audit.jsonl.1");
        std::fs::rename(&path, &renamed).expect("renamed");
        assert!(log.mend().expect("the file is open"));
        assert_eq!(content(&renamed), WHOLE);
        folder.log("the next file");
        assert!(!log.mend().expect("the file is open"));
        assert_eq!(content(&path), "the next file");
    }

    #[test]
    fn a_log_that_was_renamed_has_a_successor_and_another_has_none() {
        let folder = Folder::new();
        let path = folder.log("");
        let log = LogFile::open(&path).expect("a log");
        assert!(log.successor().expect("it is there").is_none());
        std::fs::rename(&path, folder.0.path().join("audit.jsonl.1")).expect("renamed");
        let mut next = log.successor().expect("a file").expect("another one");
        next.write_all(WHOLE.as_bytes()).expect("written");
        assert_eq!(content(&path), WHOLE);
    }
}
