//! The connecting end of a Unix message socket, whose messages can carry descriptors.

use portcullis_errors::{Coded, ErrorCode};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// A connection to the process that listens at a path.
#[derive(Debug)]
pub struct MessageSocket {
    socket: OwnedFd,
    until: Instant,
}

/// Reason for which a message was not sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// No process listens there, or not any more.
    #[error("no process listens: {0}")]
    NoPeer(Errno),
    /// No message arrived in time.
    #[error("nothing was received in time")]
    Silent,
    /// The machine refused.
    #[error("the machine refused: {0}")]
    Machine(#[from] Errno),
}

impl Coded for MessageError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoPeer(_) => ErrorCode::NoNode,
            Self::Silent => ErrorCode::NodeSilent,
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl MessageSocket {
    /// Connects to the socket at `path`. All messages must arrive before `until`.
    ///
    /// # Errors
    /// No process listens at the path, or this user may not connect there.
    pub fn connect(path: &Path, until: Instant) -> Result<Self, MessageError> {
        let address = SocketAddrUnix::new(path).map_err(MessageError::NoPeer)?;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // A peer that accepts no connection, or reads no bytes, has the same time.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        rustix::net::connect(&socket, &address).map_err(|error| match error {
            Errno::AGAIN => MessageError::Silent,
            error => MessageError::NoPeer(error),
        })?;
        Ok(Self { socket, until })
    }

    /// Sends a message. A peer that has hung up already is no error: its reason may be in a message that is still to be
    /// read.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn say(&self, message: &[u8]) -> Result<(), MessageError> {
        match rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(Errno::AGAIN) => Err(MessageError::Silent),
            Err(source) => Err(MessageError::NoPeer(source)),
        }
    }

    /// Receives the peer's next message of at most `most` bytes, with its descriptors, four at most. A longer message
    /// is returned cut off to `most + 1` bytes.
    ///
    /// # Errors
    /// No message arrived in time, or the machine refuses.
    pub fn hear(&self, most: usize) -> Result<(Vec<u8>, Vec<OwnedFd>), MessageError> {
        match self.hear_until(most, self.until) {
            // If this program itself was stopped for a while, an answer or a notice that it is too late may have
            // arrived.
            Err(MessageError::Silent) => self.take_arrived(most),
            heard => heard,
        }
    }

    /// Receives the peer's next message like [`hear`](Self::hear), but with a deadline of its own: for a conversation
    /// that goes on after the first message.
    ///
    /// # Errors
    /// The errors of [`hear`](Self::hear).
    pub fn hear_until(&self, most: usize, until: Instant) -> Result<(Vec<u8>, Vec<OwnedFd>), MessageError> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // A peer that sends without pause is not received from for longer.
            if left.is_zero() {
                return Err(MessageError::Silent);
            }
            match rustix::event::poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Ok(0) => return Err(MessageError::Silent),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.receive(most)
    }

    /// Receives the peer's next message, if it has arrived already.
    fn take_arrived(&self, most: usize) -> Result<(Vec<u8>, Vec<OwnedFd>), MessageError> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) => Err(MessageError::Silent),
            Ok(_) => self.receive(most),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the connection, which shows from now on whether the peer is there.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends a message if there is room for it at once, and does not wait otherwise. Returns whether it was sent.
    pub fn say_at_once(&self, message: &[u8]) -> bool {
        rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
    }

    fn receive(&self, most: usize) -> Result<(Vec<u8>, Vec<OwnedFd>), MessageError> {
        let mut bytes = vec![0; most + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let received =
            match rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // The peer hung up before it read a message from this side. The kernel reports that once; the peer's
                // message is behind it.
                Err(Errno::CONNRESET) => {
                    rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?
                }
                other => other?,
            };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        bytes.truncate(received.bytes);
        Ok((bytes, descriptors))
    }
}
