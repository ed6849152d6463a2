//! Access to a node's sockets: its options, and its description for people.

use clap::Args;
use portcullis::host::{SocketAccess, Sockets};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Options for access to the sockets of `--listen shm:`.
#[derive(Args, Debug)]
pub struct SocketOptions {
    /// The mode of the socket files, in octal [default: 0660 with --socket-group; otherwise 0666, since each client
    /// acts for the user it runs as, or 0600 with ?tenant=NAME, where any process that opens the socket is that
    /// tenant].
    #[arg(long, value_name = "MODE", value_parser = mode)]
    socket_mode: Option<u32>,
    /// The group of the socket files, by name or number.
    #[arg(long, value_name = "GROUP", value_parser = group)]
    socket_group: Option<u32>,
}

impl SocketOptions {
    /// The options in the library's type.
    pub fn sockets(&self) -> Sockets {
        Sockets { mode: self.socket_mode, group: self.socket_group }
    }
}

/// Parses a mode. A mode begins with a zero, so that a decimal number is not mistaken for one.
pub fn mode(text: &str) -> Result<u32, String> {
    let octal = text.strip_prefix("0o").or_else(|| text.strip_prefix('0')).filter(|rest| !rest.is_empty());
    let mode = octal.and_then(|digits| u32::from_str_radix(digits, 8).ok()).filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "a mode is written in octal, as in \"0660\"".to_owned())
}

/// Parses a group's name or number.
pub fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err("there is no such group on this machine".to_owned()),
        Err(error) => Err(format!("the groups of this machine cannot be read: {error}")),
    }
}

/// Which users can connect to a socket, as text.
pub fn audience(path: &Path, access: SocketAccess) -> String {
    let user = rustix::process::geteuid().as_raw();
    let group = access.group.map_or("the socket's group".to_owned(), |group| format!("group {group}"));
    let may_write = |bit: u32| access.mode & bit != 0;
    let who = match (may_write(0o002), may_write(0o020)) {
        (true, true) => "every user of this machine".to_owned(),
        (true, false) => format!("every user of this machine but those of {group}"),
        (false, true) => format!("user {user} and {group}"),
        (false, false) => format!("user {user} alone"),
    };
    let gate = (access.mode & 0o022 != 0).then(|| closed_directory(path)).flatten();
    let gate = gate.map(|directory| format!(", as far as they may enter {}", directory.display()));
    format!("open to {who}{}", gate.unwrap_or_default())
}

/// The outermost directory above a file that not every user may enter.
fn closed_directory(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    let closed = |directory: &&Path| {
        directory.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 == 0)
    };
    above.into_iter().find(closed).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_look_like_it() {
        assert_eq!((mode("0660"), mode("0o600"), mode("0000")), (Ok(0o660), Ok(0o600), Ok(0)));
        for wrong in ["", "0", "660", "432", "0888", "01777", "rw"] {
            assert!(mode(wrong).expect_err(wrong).contains("octal"), "{wrong}");
        }
    }

    #[test]
    fn groups_go_by_name_or_number() {
        assert_eq!((group("0"), group("root"), group("4711")), (Ok(0), Ok(0), Ok(4711)));
        assert!(group("nobody's friends").is_err());
    }

    #[test]
    fn people_are_told_who_can_connect() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.sock");
        std::fs::write(&path, "").expect("a file");
        let own = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder.path(), own).expect("it is ours");
        let told = |mode, group| audience(&path, SocketAccess { mode, group });
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(told(0o600, None), format!("open to user {user} alone"));
        let entered =
            format!(", as far as they may enter {}", folder.path().canonicalize().expect("it is").display());
        assert_eq!(told(0o660, Some(7)), format!("open to user {user} and group 7{entered}"));
        assert_eq!(told(0o666, None), format!("open to every user of this machine{entered}"));
    }
}
