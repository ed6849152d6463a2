//! Who comes, and who decides whether to let them in.

use crate::handshake::Reason;
use crate::tls::terms::{Ends, Terms};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Who attaches, as far as it is certain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The tenant that its certificate names. None where the listener does without certificates.
    pub tenant: Option<String>,
    /// Where its connection comes from.
    pub address: SocketAddr,
    /// Which of the listeners it came to.
    pub listener: usize,
}

/// A client that was let in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// Its number on the node.
    pub client: u64,
    /// The node's queue pairs for it, connected to its own.
    pub ends: Ends,
}

/// Decides who gets in. Called on the server's thread, one call at a time; while one waits, so do all who attach.
pub trait AdmissionPolicy: Send + 'static {
    /// What a client would have to bring.
    ///
    /// # Errors
    /// Why it is not let in. The client is told.
    fn terms(&self, peer: &Peer) -> Result<Terms, Reason>;

    /// Lets the client in. Its ends fit the terms.
    ///
    /// # Errors
    /// Why not: the client is told. Nothing is left behind.
    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, Reason>;

    /// The client's connection is over: because it hung up or broke the rules, because it was evicted, or because
    /// the server ends. Called exactly once for everyone who was admitted.
    fn depart(&self, client: u64);
}

/// What addresses are counted by: an IPv4 address, or the network of 64 bits that an IPv6 host can choose its address
/// from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Origin(IpAddr);

impl Origin {
    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_one_origin_whatever_address_it_picks() {
        let origin = |text: &str| Origin::of(text.parse().expect("an address"));
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:1"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
        assert_ne!(origin("10.0.0.2"), origin("10.0.0.1"));
    }
}
