//! A client's connection over TCP or a Unix socket, and the client's address.

use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Origin of a client: an identity that a client cannot multiply at no cost. Clients with the same peer share one turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// An IPv4 address.
    V4([u8; 4]),
    /// The network of an IPv6 address: a client with one address can use all addresses of its network.
    V6([u8; 8]),
    /// A user of this machine, by number.
    User(u32),
}

impl Peer {
    /// The peer at an address.
    pub fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// See the module's documentation. Reads and writes do not block.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    peer: Peer,
}

impl Stream {
    /// Wraps `socket`, a connected socket that does not block.
    pub fn new(socket: OwnedFd, peer: Peer) -> Self {
        Self { socket, peer }
    }

    /// Returns the origin of the client.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Reads bytes that have arrived. Zero: the client sends nothing more.
    ///
    /// # Errors
    /// The errors of `recv`.
    pub fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.socket, bytes, RecvFlags::empty())?.1)
    }

    /// Writes as many bytes as the client accepts. Returns their number.
    ///
    /// # Errors
    /// The errors of `send`.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)?)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_and_of_one_machine_are_one_peer() {
        let peer = |text: &str| Peer::at(text.parse().expect("an address"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::7"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
    }
}
