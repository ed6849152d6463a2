//! The connection that remains after an attach: it carries no bytes, and its end ends the client.

use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// An attached client's connection to its node. When it is dropped, the node ends the client.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    alive: bool,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, alive: true })
    }

    /// Whether the node still holds its end. Never waits. A node that hangs up, breaks the connection or sends anything
    /// counts as gone for good. A node whose machine vanishes is noticed within about five seconds.
    pub fn node_alive(&mut self) -> bool {
        if self.alive {
            let heard = rustix::net::recv(&self.stream, &mut [0u8; 1][..], RecvFlags::DONTWAIT);
            self.alive = matches!(heard, Err(Errno::AGAIN | Errno::INTR));
        }
        self.alive
    }
}

/// The descriptor to poll: it becomes readable when the node has left.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
