//! Opens the files to which a service appends lines: the audit log, and reports.
//!
//! Opening never waits. A service that waits in `open` for the reader of a pipe cannot be stopped. A symbolic link is
//! not followed: a process that may write to a log's folder could redirect the service's own writes to any file of its
//! user.

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens the file at `path` for appending, and also for reading if it is a regular file. If there is none, creates one
/// that only the process's own user can open (mode 0600).
///
/// A pipe needs a reader already. A pipe or terminal that accepts no bytes now refuses a write with
/// [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting.
///
/// # Errors
/// The file system refuses; the path is a symbolic link, a folder, a socket or a block device; or no process reads the
/// pipe.
pub fn open(path: &Path) -> io::Result<File> {
    let common = OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = Mode::from_raw_mode(0o600);
    // A pipe is opened for writing only: if both its ends were open here, a missing reader would go unnoticed. The path
    // is opened once: a log may be renamed at any time, and a second open would find no file or another one.
    let writes_only = path.symlink_metadata().is_ok_and(|about| {
        let kind = about.file_type();
        kind.is_fifo() || kind.is_char_device()
    });
    let access = if writes_only { OFlags::WRONLY } else { OFlags::RDWR };
    let flags = common | access | OFlags::CREATE;
    let file = File::from(rustix::fs::open(path, flags, mode).map_err(|error| in_words(error, path))?);
    match (kind(&file)?, writes_only) {
        (FileType::RegularFile, false) | (FileType::Fifo | FileType::CharacterDevice, true) => Ok(file),
        (FileType::RegularFile | FileType::Fifo | FileType::CharacterDevice, _) => {
            Err(io::Error::other("it was replaced while it was opened"))
        }
        _ => Err(io::Error::other("it is not a file, pipe or terminal: name a file")),
    }
}

fn kind(file: &File) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode))
}

fn in_words(error: Errno, path: &Path) -> io::Error {
    match error {
        Errno::LOOP if path.is_symlink() => {
            io::Error::other("it is a symbolic link, which a log does not follow: name the file itself")
        }
        Errno::NXIO => io::Error::other("this pipe has no reader: start the reader first, or name a file"),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    fn refused(path: &Path) -> String {
        let started = Instant::now();
        let told = open(path).expect_err("it is refused").to_string();
        assert!(started.elapsed() < Duration::from_secs(20), "it waited");
        told
    }

    #[test]
    fn a_link_is_not_followed_wherever_it_leads() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        symlink(&file, &link).expect("a link");
        assert!(refused(&link).contains("symbolic link"));
        assert!(!file.exists(), "nothing was made where it leads");
        std::fs::write(&file, "mine").expect("a file");
        assert!(refused(&link).contains("symbolic link"));
        assert!(refused(Path::new("/dev/stdout")).contains("symbolic link"));
        assert_eq!(std::fs::read(&file).expect("a file"), b"mine");
    }

    #[test]
    fn a_pipe_is_taken_once_somebody_reads_it_and_a_full_one_refuses_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .expect("a pipe");
        assert!(refused(&path).contains("no reader"));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let reader = rustix::fs::open(&path, flags, Mode::empty()).expect("its other end");
        let mut pipe = open(&path).expect("it is read");
        let full = loop {
            if let Err(error) = pipe.write(&[b'x'; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(reader);
    }

    #[test]
    fn a_log_that_is_renamed_while_it_is_opened_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, rotated) = (folder.path().join("log"), folder.path().join("log.1"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // There may be no file at the path yet.
                    let _ = std::fs::rename(&path, &rotated);
                }
            });
            let failed = (0..20_000).find_map(|_| open(&path).err());
            is_over.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        refused(folder.path());
        let socket = folder.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        refused(&socket);
        open(Path::new("/dev/null")).expect("a device that takes all");
    }
}
