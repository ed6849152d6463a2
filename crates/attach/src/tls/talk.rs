//! A connection of a client without queue pairs, as the client has it after the attach: control messages come and go over it,
//! and its end is the end of the client.

use crate::tls::channel::Channel;
use crate::tls::frames::{Frames, framed};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes that are received at once.
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

    /// Whether something waits until the connection has room for it.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.alive && !self.channel.outgoing().is_empty()
    }

    /// The next message of the node, if one is there.
    pub fn hear(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.frames.next_frame() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                // Nothing more can be understood.
                Err(_) => self.alive = false,
            }
            if !self.alive || !self.receive() {
                return None;
            }
        }
    }

    /// Takes in bytes. Returns whether there were any.
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

    /// Whether the node still held its end when something was last sent or received. A node whose machine vanishes is noticed
    /// within about five seconds.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive
    }
}

/// To wait on: the descriptor becomes readable when a message has come, or the node has gone.
impl AsFd for Talk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
