//! Addresses that are valid only within a scope around the place where they were registered.
//!
//! A Unix socket is a file of one machine, and another machine can have another server at the same path. So its address
//! identifies the file: the boot of its machine, its device and its inode. A loopback address identifies the machine
//! that it belongs to. A process that looks up such an address elsewhere ignores it.

use crate::entry::{Address, EntryError};
use portcullis_errors::{Coded, ErrorCode};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Prefix of the address of a Unix socket, before its path.
const SOCKET: &str = "shm:";
/// The kernel's file that identifies the boot of this machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The scope within which an address leads to the process that has registered it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// Every place from which its host can be reached.
    Everywhere,
    /// One machine, until its next boot.
    Machine {
        /// The boot.
        boot: Box<str>,
    },
    /// One file of one machine.
    File {
        /// The boot.
        boot: Box<str>,
        /// The file's device.
        device: u64,
        /// The file's inode.
        inode: u64,
    },
}

/// An address with its scope. In the text the scope follows the address: `udp:10.0.0.7:7472`,
/// `udp:127.0.0.1:7472?boot=ID`, `shm:/run/node.sock?boot=ID&device=NUMBER&inode=NUMBER`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScopedAddress {
    text: Box<str>,
    scope: Scope,
}

/// Reason for which an address is not valid here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotHere {
    /// The address belongs to another machine, or to this one before its last boot.
    #[error("it is an address of another machine")]
    OtherMachine,
    /// There is no file at the path, or this process may not see it.
    #[error("there is no such socket here: {0}")]
    NoFile(String),
    /// Another file is at the path.
    #[error("another socket is at that path here")]
    OtherFile,
    /// The address does not identify the socket file.
    #[error("it does not identify the socket file")]
    Unscoped,
    /// This machine cannot be identified.
    #[error("this machine cannot be identified: {0}")]
    UnknownMachine(String),
}

impl Coded for NotHere {
    fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownMachine(_) => ErrorCode::Machine,
            _ => ErrorCode::NameLeadsNowhere,
        }
    }
}

impl ScopedAddress {
    /// Creates an address that is valid everywhere.
    #[must_use]
    pub fn everywhere(text: &str) -> Self {
        Self { text: text.into(), scope: Scope::Everywhere }
    }

    /// Creates an address that is valid on this machine alone.
    ///
    /// # Errors
    /// The kernel does not identify this machine.
    pub fn on_this_machine(text: &str) -> io::Result<Self> {
        Ok(Self { text: text.into(), scope: Scope::Machine { boot: boot_id()? } })
    }

    /// Creates the address of the Unix socket that is at this path now: `shm:PATH`, with an absolute path.
    ///
    /// # Errors
    /// There is no such file, its path is not UTF-8, or the kernel does not identify this machine.
    pub fn of_socket(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = std::fs::symlink_metadata(&path)?;
        let no_text = || io::Error::new(io::ErrorKind::InvalidFilename, "the socket's path is not UTF-8");
        let text = format!("{SOCKET}{}", path.to_str().ok_or_else(no_text)?);
        let scope = Scope::File { boot: boot_id()?, device: file.dev(), inode: file.ino() };
        Ok(Self { text: text.into(), scope })
    }

    /// Parses a registered address. `None`: the text has an unknown scope.
    #[must_use]
    pub fn parse(address: &Address) -> Option<Self> {
        // A path may have a question mark of its own; the scope is always last.
        let (text, scope) = match address.as_str().rsplit_once("?boot=") {
            None => (address.as_str(), Scope::Everywhere),
            Some((text, scope)) => (text, parse_scope(scope)?),
        };
        (!text.is_empty()).then(|| Self { text: text.into(), scope })
    }

    /// Returns the address without its scope.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the path, if it is the address of a Unix socket.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.text.strip_prefix(SOCKET).map(Path::new)
    }

    /// Returns the scope.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Encodes the address for registration.
    ///
    /// # Errors
    /// The text is longer than an entry's address may be, or has control characters.
    pub fn to_address(&self) -> Result<Address, EntryError> {
        Address::new(&self.to_string())
    }

    /// Checks that the address leads from here to the process that has registered it.
    ///
    /// # Errors
    /// The reason for which it does not.
    pub fn check(&self) -> Result<(), NotHere> {
        let unknown = |error: io::Error| NotHere::UnknownMachine(error.to_string());
        match (&self.scope, self.socket()) {
            (Scope::Everywhere, None) => return Ok(()),
            (Scope::Machine { boot } | Scope::File { boot, .. }, _)
                if *boot != boot_id().map_err(unknown)? =>
            {
                return Err(NotHere::OtherMachine);
            }
            (Scope::Machine { .. }, None) => return Ok(()),
            _ => {}
        }
        let (Scope::File { device, inode, .. }, Some(path)) = (&self.scope, self.socket()) else {
            return Err(NotHere::Unscoped);
        };
        let file = std::fs::symlink_metadata(path).map_err(|error| NotHere::NoFile(error.to_string()))?;
        let is_this = (file.dev(), file.ino()) == (*device, *inode);
        if is_this { Ok(()) } else { Err(NotHere::OtherFile) }
    }
}

impl fmt::Display for ScopedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.scope {
            Scope::Everywhere => Ok(()),
            Scope::Machine { boot } => write!(f, "?boot={boot}"),
            Scope::File { boot, device, inode } => write!(f, "?boot={boot}&device={device}&inode={inode}"),
        }
    }
}

/// Parses the text after `?boot=`.
fn parse_scope(text: &str) -> Option<Scope> {
    let mut parts = text.split('&');
    let boot = parts.next().filter(|boot| !boot.is_empty())?.into();
    let (device, inode) = (parts.next(), parts.next());
    let number = |part: &str, name: &str| part.strip_prefix(name)?.parse::<u64>().ok();
    match (device, inode, parts.next()) {
        (None, None, None) => Some(Scope::Machine { boot }),
        (Some(device), Some(inode), None) => {
            Some(Scope::File { boot, device: number(device, "device=")?, inode: number(inode, "inode=")? })
        }
        _ => None,
    }
}

fn boot_id() -> io::Result<Box<str>> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn parsed(text: &str) -> Option<ScopedAddress> {
        ScopedAddress::parse(&Address::new(text).expect("an address"))
    }

    #[test]
    fn addresses_read_back_and_what_nobody_knows_is_none() {
        for text in
            ["udp:a:1", "udp:127.0.0.1:1?boot=b", "shm:/a?b?boot=b&device=1&inode=2", "shm:/a&b", "shm:/a?b"]
        {
            assert_eq!(parsed(text).expect("an address").to_string(), text);
        }
        assert_eq!(
            parsed("shm:/a?b?boot=c&device=1&inode=2").expect("one").socket(),
            Some(Path::new("/a?b"))
        );
        for text in [
            "shm:/a?boot=",
            "shm:/a?boot=b&device=1",
            "shm:/a?boot=b&inode=1&device=2",
            "shm:/a?boot=b&device=-1&inode=2",
            "shm:/a?boot=b&device=1&inode=2&more=3",
            "?boot=b",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn a_socket_is_the_file_that_it_was_and_no_other_at_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.sock");
        let first = UnixListener::bind(&path).expect("a socket");
        let address = ScopedAddress::of_socket(&path).expect("it is there");
        assert_eq!((address.check(), address.socket()), (Ok(()), Some(&*path)));
        // The first one stays a file, so that its inode is not given to the second.
        std::fs::rename(&path, folder.path().join("b.sock")).expect("it is ours");
        assert!(matches!(address.check(), Err(NotHere::NoFile(_))));
        let _second = UnixListener::bind(&path).expect("a socket");
        assert_eq!(address.check(), Err(NotHere::OtherFile));
        drop(first);
    }

    #[test]
    fn what_belongs_to_another_machine_is_left_out() {
        assert_eq!(parsed("udp:10.0.0.7:1").expect("one").check(), Ok(()));
        let here = ScopedAddress::on_this_machine("udp:127.0.0.1:1").expect("it has a boot id");
        assert_eq!(here.check(), Ok(()));
        for (text, told) in [
            ("udp:127.0.0.1:1?boot=another", NotHere::OtherMachine),
            ("shm:/dev/null?boot=another&device=1&inode=2", NotHere::OtherMachine),
            ("shm:/dev/null", NotHere::Unscoped),
        ] {
            assert_eq!(parsed(text).expect("one").check(), Err(told), "{text}");
        }
        let without_file = here.to_string().replace("udp:127.0.0.1:1", "shm:/dev/null");
        assert_eq!(parsed(&without_file).expect("one").check(), Err(NotHere::Unscoped));
    }
}
