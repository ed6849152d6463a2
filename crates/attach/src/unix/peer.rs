//! The process that attaches, as the kernel describes it.

use nix::sys::socket::{GetSockOpt, sockopt::PeerCredentials};
use rustix::fd::AsFd;
use std::fmt;
use std::sync::OnceLock;

/// The file with the number that the kernel reports for a user without a number in this namespace.
const OVERFLOW_USER: &str = "/proc/sys/kernel/overflowuid";
/// The content of that file unless an administrator changed it.
const OVERFLOW_USER_USUALLY: u32 = 65534;

/// A process that attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process's number. `None` for a process of another PID namespace, which has no number here.
    pub process: Option<u32>,
    /// The user that the process runs as. `None` for a user of another user namespace, without a number here: all such
    /// users look alike, and like the user `nobody`.
    pub user: Option<u32>,
    /// The listener's number.
    pub listener: usize,
}

impl Peer {
    /// Returns the process at the other end of a connection.
    ///
    /// # Errors
    /// The kernel does not report the process.
    pub fn of(socket: &impl AsFd, listener: usize) -> std::io::Result<Self> {
        // Raw numbers: other libraries' types have no room for process 0, which stands for processes of other
        // namespaces.
        let credentials = PeerCredentials.get(&socket.as_fd())?;
        let process = u32::try_from(credentials.pid()).ok().filter(|&process| process != 0);
        let user = Some(credentials.uid()).filter(|&user| user != overflow_user());
        Ok(Self { process, user, listener })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}")?,
            None => f.write_str("a process of another PID namespace")?,
        }
        match self.user {
            Some(user) => write!(f, " of user {user}"),
            None => f.write_str(" of a user without a number here"),
        }
    }
}

/// Returns the number that stands for all users without a number here.
fn overflow_user() -> u32 {
    static USER: OnceLock<u32> = OnceLock::new();
    *USER.get_or_init(|| {
        let said = std::fs::read_to_string(OVERFLOW_USER).ok();
        said.and_then(|said| said.trim().parse().ok()).unwrap_or(OVERFLOW_USER_USUALLY)
    })
}
