//! The connection of a client without queue pairs after the attach, as the client holds it: it carries control messages
//! in both directions, and its end ends the client.

use crate::tls::channel::Channel;
use crate::tls::frames::{Frames, framed};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Maximum number of bytes in one receive call.
const HEARD_BYTES: usize = 16 << 10;
const NOT_WAITING: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// An attached client's connection to its node. When it is dropped, the node ends the client. No call waits.
#[derive(Debug)]
pub struct Talk {
    stream: TcpStream,
    channel: Channel,
    frames: Frames,
    alive: bool,
}

impl Talk {
    pub(crate) fn new(stream: TcpStream, channel: Channel) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, channel, frames: Frames::default(), alive: true })
    }

    /// Sends a message, now or, if the connection has no room, with a later call.
    pub fn say(&mut self, message: &[u8]) {
        self.channel.say(&framed(message));
        self.go_on();
    }

    /// Sends what the connection had no room for.
    pub fn go_on(&mut self) {
        while self.alive && !self.channel.outgoing().is_empty() {
            match rustix::net::send(&self.stream, self.channel.outgoing(), NOT_WAITING) {
                Ok(sent) => self.channel.sent(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.alive = false,
            }
        }
    }

    /// Whether bytes wait until the connection has room for them.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.alive && !self.channel.outgoing().is_empty()
    }

    /// Returns the next message of the node, if one has arrived.
    pub fn hear(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.frames.next_frame() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                // The stream cannot be parsed any more.
                Err(_) => self.alive = false,
            }
            if !self.alive || !self.receive() {
                return None;
            }
        }
    }

    /// Receives bytes. Returns whether there were any.
    fn receive(&mut self) -> bool {
        let mut bytes = [0; HEARD_BYTES];
        match rustix::net::recv(&self.stream, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, there)) if there > 0 => match self.channel.take_in(&bytes[..there]) {
                Ok(heard) => {
                    self.frames.push(&heard.said);
                    self.alive &= !heard.hung_up;
                    true
                }
                Err(_) => {
                    self.alive = false;
                    false
                }
            },
            Err(Errno::AGAIN | Errno::INTR) => false,
            Ok(_) | Err(_) => {
                self.alive = false;
                false
            }
        }
    }

    /// Whether the node still held its end at the last send or receive. A node whose machine vanishes is noticed within
    /// about five seconds.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive
    }
}

/// The descriptor to poll: it becomes readable when a message has arrived, or the node has left.
impl AsFd for Talk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
