//! The operator's end of the socket.

use super::orders::{Order, Told};
use portcullis_errors::{Coded, ErrorCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most bytes of one packet of an answer.
pub(super) const PIECE_BYTES: usize = 32 << 10;
/// The longest answer, in bytes: enough for the clients of a node that has as many as a node can have.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// The longest time that a node may take to answer. Its thread has other work too, but none that takes long.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// No node listens at that path, or the node does not answer.
#[derive(Debug, thiserror::Error)]
#[error("no node serves operators at {path}: {why}")]
pub struct NoNode {
    path: PathBuf,
    why: String,
}

impl Coded for NoNode {
    fn code(&self) -> ErrorCode {
        ErrorCode::NoNode
    }
}

/// Sends `order` to the node whose socket is at `path` and returns the node's answer.
pub(super) fn ask(path: &Path, order: &Order) -> Result<Told, NoNode> {
    let no_node = |why: String| NoNode { path: path.to_owned(), why };
    let socket = reach(path).map_err(|error| no_node(reason(error)))?;
    let text = serde_json::to_vec(order).map_err(|error| no_node(error.to_string()))?;
    send(&socket, &text, SendFlags::NOSIGNAL).map_err(|error| no_node(reason(error)))?;
    let answer = hear(&socket).map_err(|error| no_node(reason(error)))?;
    let foreign = |_| no_node("the peer there is not a node's socket for operators".to_owned());
    serde_json::from_slice(&answer).map_err(foreign)
}

fn reach(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn hear(socket: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let until = Instant::now() + ANSWER_WITHIN;
    let (mut answer, mut piece) = (Vec::new(), vec![0; PIECE_BYTES]);
    loop {
        match recv(socket, &mut piece[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(answer),
            Ok((_, length)) => answer.extend_from_slice(&piece[..length.min(PIECE_BYTES)]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, until)?,
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(Errno::MSGSIZE);
        }
    }
}

fn wait(socket: &OwnedFd, until: Instant) -> Result<(), Errno> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Errno::TIMEDOUT);
    }
    let left = Timespec::try_from(left).unwrap_or_default();
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Describes the machine's error for the operator.
fn reason(error: Errno) -> String {
    match error {
        Errno::NOENT => "there is no socket: start the node with `portcullis serve --admin`".to_owned(),
        Errno::CONNREFUSED => "no node listens there any more".to_owned(),
        Errno::ACCESS | Errno::PERM => "only root and the node's own user may use it".to_owned(),
        Errno::AGAIN => "the node serves too many other requests".to_owned(),
        Errno::TIMEDOUT => format!("it has not answered for {} s", ANSWER_WITHIN.as_secs()),
        Errno::CONNRESET | Errno::PIPE => "it closed the connection".to_owned(),
        Errno::NOTSOCK | Errno::PROTOTYPE => "it is not a node's socket for operators".to_owned(),
        error => error.to_string(),
    }
}
