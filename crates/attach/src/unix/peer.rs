//! Who attaches, as the kernel tells it.

use nix::sys::socket::{GetSockOpt, sockopt::PeerCredentials};
use rustix::fd::AsFd;
use std::sync::OnceLock;

/// Where the kernel says which user it names when it has no number for one.
const OVERFLOW_USER: &str = "/proc/sys/kernel/overflowuid";
/// What that file says unless an administrator changed it.
const OVERFLOW_USER_USUALLY: u32 = 65534;

/// A process that attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number. None in another PID namespace, where it has no number here.
    pub process: Option<u32>,
    /// The user it runs as. None in another user namespace, where it has no number here: all users of such a namespace
    /// look alike, and like the user `nobody`.
    pub user: Option<u32>,
    /// Which of the listeners it came to.
    pub listener: usize,
}

impl Peer {
    /// Who is at the other end of a connection.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn of(socket: &impl AsFd, listener: usize) -> std::io::Result<Self> {
        // Raw numbers: the types of other libraries have no room for process 0, which the kernel tells for a process of
        // another namespace.
        let credentials = PeerCredentials.get(&socket.as_fd())?;
        let process = u32::try_from(credentials.pid()).ok().filter(|&process| process != 0);
        let user = Some(credentials.uid()).filter(|&user| user != overflow_user());
        Ok(Self { process, user, listener })
    }
}

/// The user that stands for all those without a number here.
fn overflow_user() -> u32 {
    static USER: OnceLock<u32> = OnceLock::new();
    *USER.get_or_init(|| {
        let said = std::fs::read_to_string(OVERFLOW_USER).ok();
        said.and_then(|said| said.trim().parse().ok()).unwrap_or(OVERFLOW_USER_USUALLY)
    })
}
