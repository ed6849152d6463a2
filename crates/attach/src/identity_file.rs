//! Reads the files that prove an identity: certificates, and private keys that no other user can read.
//!
//! Reading ends, whatever file is at the path: only regular files are read, opening never waits, and a file has a
//! limit.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The largest file that is read, in bytes: a chain of certificates has a few thousand.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Byte order mark that Windows editors write before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Kind of content in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Certificates, which any user may read.
    Certificates,
    /// A private key.
    PrivateKey,
}

/// Reason for which a file is not read.
#[derive(Debug)]
pub enum Unread {
    /// The machine refuses, or the path names something other than a regular file.
    Machine(io::Error),
    /// Users other than the owner and the members of a group of this process can use the private key.
    Exposed {
        /// The file's permissions.
        mode: u32,
        /// The file's group.
        group: u32,
    },
    /// The content is not text that can contain PEM, with the reason.
    NoText(String),
}

/// Reads a text file into `bytes`, which must be empty and is allocated at once: a growing buffer would leave copies of
/// a key behind. A byte order mark is left out.
///
/// # Errors
/// See [`Unread`].
pub fn read(path: &Path, holds: Holds, bytes: &mut Vec<u8>) -> Result<(), Unread> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| Unread::Machine(error.into()))?;
    let file = File::from(opened);
    let about = file.metadata().map_err(Unread::Machine)?;
    if !about.is_file() {
        return Err(Unread::Machine(io::Error::other("it is not a regular file")));
    }
    if holds == Holds::PrivateKey && !is_private(about.mode(), about.gid(), &own_groups()) {
        return Err(Unread::Exposed { mode: about.mode() & 0o7777, group: about.gid() });
    }
    bytes.reserve_exact(usize::try_from(FILE_BYTES_MAX + 1).unwrap_or(0));
    file.take(FILE_BYTES_MAX + 1).read_to_end(bytes).map_err(Unread::Machine)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Unread::NoText(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(Unread::NoText("it is UTF-16: save it as UTF-8 or ASCII".to_owned()));
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(())
}

/// Whether only its owner, root and the members of one of `groups` can read a private key with this mode and group.
fn is_private(mode: u32, group: u32, groups: &[u32]) -> bool {
    match mode & 0o077 {
        0 => true,
        0o040 => group == 0 || groups.contains(&group),
        _ => false,
    }
}

/// The groups of this process.
fn own_groups() -> Vec<u32> {
    let further = rustix::process::getgroups().unwrap_or_default();
    further.into_iter().chain([rustix::process::getegid()]).map(rustix::process::Gid::as_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_key_is_for_its_owner_and_at_most_for_readers_of_an_own_group_or_roots() {
        for (mode, group, private) in [
            (0o100_600, 7, true),
            (0o100_400, 7, true),
            (0o100_640, 7, true),
            (0o100_440, 7, true),
            (0o100_640, 0, true),
            (0o100_640, 8, false),
            (0o100_660, 7, false),
            (0o100_620, 7, false),
            (0o100_650, 7, false),
            (0o100_644, 7, false),
            (0o100_604, 7, false),
            (0o100_660, 0, false),
        ] {
            assert_eq!(is_private(mode, group, &[7]), private, "{mode:o} of {group}");
        }
    }

    fn told(path: &Path) -> Unread {
        let started = Instant::now();
        let unread = read(path, Holds::Certificates, &mut Vec::new()).expect_err("it is not read");
        assert!(started.elapsed() < Duration::from_secs(20), "it waited");
        unread
    }

    #[test]
    fn what_never_ends_or_never_begins_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
            assert!(matches!(told(path), Unread::Machine(_)), "{path:?}");
        }
        let large = folder.path().join("large");
        File::create(&large).and_then(|file| file.set_len(FILE_BYTES_MAX + 1)).expect("a file");
        assert!(matches!(told(&large), Unread::NoText(why) if why.contains("1048576")));
    }

    #[test]
    fn the_mark_of_an_editor_is_left_out_and_another_encoding_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, b"\xef\xbb\xbfx").expect("a file");
        let mut bytes = Vec::new();
        read(&path, Holds::Certificates, &mut bytes).expect("read");
        assert_eq!(bytes, b"x");
        std::fs::write(&path, b"\xff\xfex\0").expect("a file");
        assert!(matches!(told(&path), Unread::NoText(why) if why.contains("UTF-16")));
    }
}
