//! Listening socket for clients: a TCP address, or a Unix socket.

use super::stream::{Peer, Stream};
use crate::GatewayError;
use portcullis::host::{SocketAccess, SocketListener};
use rustix::net::SocketFlags;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

/// Address at which a gateway listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// `HOST:PORT`. With port 0 the kernel chooses one.
    Tcp(String),
    /// A Unix socket.
    Unix {
        /// The path of its file. An existing socket on which no process listens is replaced; nothing else is.
        path: PathBuf,
        /// Users that may open it.
        access: SocketAccess,
    },
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// See the module's documentation.
pub enum Listener {
    Tcp(TcpListener),
    Unix(SocketListener),
}

impl Listener {
    pub fn bind(listen: &Listen) -> Result<Self, GatewayError> {
        let bound = match listen {
            Listen::Tcp(address) => TcpListener::bind(address)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| Self::Tcp(listener))),
            Listen::Unix { path, access } => SocketListener::bind_stream(path, *access).map(Self::Unix),
        };
        bound.map_err(|error| GatewayError::Listen { address: listen.to_string(), error })
    }

    /// Returns the address, if it is a TCP address.
    pub fn address(&self) -> Option<io::Result<SocketAddr>> {
        match self {
            Self::Tcp(listener) => Some(listener.local_addr()),
            Self::Unix(_) => None,
        }
    }

    /// Accepts a connection. Its reads and writes do not block.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Stream::new(stream.into(), Peer::at(address.ip())))
            }
            Self::Unix(listener) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = rustix::net::accept_with(listener, flags)?;
                let user = rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw();
                Ok(Stream::new(socket, Peer::User(user)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}
