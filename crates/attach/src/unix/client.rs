//! The client's side of an attach.

use super::message_socket::{MessageError, MessageSocket};
use super::messages::{AttachReply, AttachRequest, REPLY_BYTES};
use crate::handshake::Reason;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::EndpointSize;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Reason for which an attach failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No node listens there.
    #[error("no node listens at {path}: {source}. Start one with `portcullis serve --listen shm:{path}`")]
    NoNode {
        /// The node's path.
        path: PathBuf,
        /// The kernel's error.
        source: Errno,
    },
    /// This user may not connect there.
    #[error(
        "this user ({user}) may not connect to {path}: {source}. The node's operator can give other users \
         access with `portcullis serve --socket-group GROUP` or `--socket-mode MODE`, and with the rights of \
         the folders above"
    )]
    Denied {
        /// The node's path.
        path: PathBuf,
        /// The user's number.
        user: u32,
        /// The kernel's error.
        source: Errno,
    },
    /// The node refuses.
    #[error("the node refuses: {0}")]
    Refused(String),
    /// The node did not answer in time.
    #[error("the node at {path} did not answer within {within:?}")]
    Silent {
        /// The node's path.
        path: PathBuf,
        /// Time that the client waited.
        within: Duration,
    },
    /// The client's time for the attach was up before the attach was complete.
    #[error(
        "the attach took longer than the node at {path} waits for a client: this program or its machine \
         stalled meanwhile. Try again"
    )]
    TooLate {
        /// The node's path.
        path: PathBuf,
    },
    /// The connection ended in the middle, without a reason.
    #[error("the peer at {path} closed the connection during the attach: it may have ended. Try again")]
    HungUp {
        /// The node's path.
        path: PathBuf,
    },
    /// The peer at the path is not a node of this version.
    #[error("the peer at {path} is not a Portcullis node of this version")]
    NotANode {
        /// The path.
        path: PathBuf,
    },
    /// The node's offer cannot be used.
    #[error("{0}")]
    Unusable(#[source] Reason),
    /// The machine refused.
    #[error("the machine refused: {0}")]
    Machine(#[from] Errno),
}

impl Coded for AttachError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoNode { .. } => ErrorCode::NoNode,
            Self::Denied { .. } => ErrorCode::SocketDenied,
            Self::Refused(_) => ErrorCode::AttachRefused,
            Self::Silent { .. } => ErrorCode::NodeSilent,
            Self::TooLate { .. } | Self::HungUp { .. } => ErrorCode::HungUp,
            Self::NotANode { .. } => ErrorCode::NotANode,
            Self::Unusable(_) => ErrorCode::UnfitOffer,
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// A node's offer to a client.
#[derive(Debug)]
pub struct Offer {
    /// The size of the port.
    pub size: EndpointSize,
    /// Bytes of the port's file.
    pub memory_bytes: u64,
    /// The port's file.
    pub memory: OwnedFd,
    /// The page that says whether the node's engine sleeps.
    pub page: OwnedFd,
    /// The event that wakes the engine.
    pub event: OwnedFd,
    /// The alarm: the engine makes it readable for a program that waits for a descriptor.
    pub alarm: OwnedFd,
}

/// An attached client.
#[derive(Debug)]
pub struct Attached<T> {
    /// The client's number on the node.
    pub client: u64,
    /// The key of the client's arena.
    pub arena_key: u32,
    /// The value that `make` returned for the offer.
    pub made: T,
    /// The node serves the client as long as this is open. The node hangs up when it stops serving the client.
    pub socket: OwnedFd,
}

/// Requests a port with an arena of `arena_bytes` from the node at `path`. `make` maps the memory of the offer. The
/// whole attach takes at most `within`, plus the time for `make`.
///
/// # Errors
/// No node listens, it does not answer in time, it refuses, or `make` failed.
pub fn attach<T>(
    path: &Path,
    arena_bytes: u64,
    within: Duration,
    make: impl FnOnce(Offer) -> Result<T, Reason>,
) -> Result<Attached<T>, AttachError> {
    let node = NodeSocket::connect(path, within)?;
    let not_a_node = || AttachError::NotANode { path: path.to_owned() };
    node.say(AttachRequest::Hello { arena_bytes })?;
    let (AttachReply::Offer { size, memory_bytes }, descriptors) = node.hear()? else {
        return Err(not_a_node());
    };
    let [memory, page, event, alarm]: [OwnedFd; 4] = descriptors.try_into().map_err(|_| not_a_node())?;
    let made =
        make(Offer { size, memory_bytes, memory, page, event, alarm }).map_err(AttachError::Unusable)?;
    node.say(AttachRequest::Mapped)?;
    let (AttachReply::Welcome { client, arena_key }, _) = node.hear()? else { return Err(not_a_node()) };
    Ok(Attached { client, arena_key, made, socket: node.socket.into_socket() })
}

/// A connection to a node on which the client is not attached yet.
struct NodeSocket<'a> {
    socket: MessageSocket,
    path: &'a Path,
    within: Duration,
}

impl<'a> NodeSocket<'a> {
    fn connect(path: &'a Path, within: Duration) -> Result<Self, AttachError> {
        let error = |error| Self::told(path, within, error);
        let socket = MessageSocket::connect(path, Instant::now() + within).map_err(error)?;
        Ok(Self { socket, path, within })
    }

    fn told(path: &Path, within: Duration, error: MessageError) -> AttachError {
        match error {
            MessageError::NoPeer(source @ (Errno::ACCESS | Errno::PERM)) => {
                let user = rustix::process::geteuid().as_raw();
                AttachError::Denied { path: path.to_owned(), user, source }
            }
            MessageError::NoPeer(source) => AttachError::NoNode { path: path.to_owned(), source },
            MessageError::Silent => AttachError::Silent { path: path.to_owned(), within },
            MessageError::Machine(source) => AttachError::Machine(source),
        }
    }

    fn say(&self, request: AttachRequest) -> Result<(), AttachError> {
        self.socket.say(&request.encode()).map_err(|error| Self::told(self.path, self.within, error))
    }

    /// Receives the node's next message, with its descriptors.
    fn hear(&self) -> Result<(AttachReply, Vec<OwnedFd>), AttachError> {
        let heard = self.socket.hear(REPLY_BYTES);
        let (bytes, descriptors) = heard.map_err(|error| Self::told(self.path, self.within, error))?;
        match AttachReply::parse(&bytes) {
            _ if bytes.is_empty() => Err(AttachError::HungUp { path: self.path.to_owned() }),
            Some(AttachReply::TooLate) => Err(AttachError::TooLate { path: self.path.to_owned() }),
            None => Err(AttachError::NotANode { path: self.path.to_owned() }),
            Some(AttachReply::Refused(reason)) => Err(AttachError::Refused(reason)),
            Some(reply) => Ok((reply, descriptors)),
        }
    }
}
