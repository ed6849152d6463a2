//! The decision whether to admit a client.

use crate::handshake::{Reason, RefusedPeer};
use crate::tls::terms::{Ends, Offer};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The peer of an attach, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The tenant that the peer's certificate names. `None` if the listener uses no certificates.
    pub tenant: Option<String>,
    /// The address that the peer connects from.
    pub address: SocketAddr,
    /// The listener's number.
    pub listener: usize,
}

impl Peer {
    /// Returns the tenant that the peer acts for: the one that its certificate names, else the listener's, else one for
    /// its address.
    #[must_use]
    pub fn tenant_or(&self, of_listener: Option<&str>) -> String {
        let named = self.tenant.as_deref().or(of_listener);
        named.map_or_else(|| format!("address:{}", self.address.ip().to_canonical()), str::to_owned)
    }
}

/// A client that was admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// The client's number on the node.
    pub client: u64,
    /// The node's queue pairs for the client, connected to the client's.
    pub ends: Ends,
}

/// Decides which clients are admitted. Called on the acceptor's thread, one call at a time: while a call waits, all
/// attaches wait.
pub trait AdmissionPolicy {
    /// Returns the offer to a client, with the terms that the client would have to meet.
    ///
    /// # Errors
    /// The reason for which the peer is refused. It is sent to the client.
    fn offer(&self, peer: &Peer) -> Result<Offer, Reason>;

    /// Admits a client whose ends fit the terms of the [`Offer::QueuePairs`] that was made to it.
    ///
    /// # Errors
    /// The reason for which the client is refused. It is sent to the client. No state is left behind.
    fn admit(&self, _peer: &Peer, _ends: Ends) -> Result<Admitted, Reason> {
        Err("this node offers no queue pairs".into())
    }

    /// Admits a client to which an [`Offer::OneShots`] was made. Returns its number.
    ///
    /// # Errors
    /// The reason for which the client is refused. It is sent to the client. No state is left behind.
    fn admit_without_queue_pairs(&self, _peer: &Peer) -> Result<u64, Reason> {
        Err("this node offers queue pairs only".into())
    }

    /// Handles a control message of a client without queue pairs.
    ///
    /// # Errors
    /// The client does not keep to the protocol: its connection is closed.
    fn heard(&self, _client: u64, _message: &[u8]) -> Result<(), Reason> {
        Err("the client sends no messages over this connection".into())
    }

    /// Notes that the client's connection is over: the client hung up or broke the rules, it was evicted, or the
    /// acceptor ends. Called exactly once for every client that was admitted.
    fn depart(&self, client: u64);

    /// Notes that a peer was refused, or hung up on for the bytes that it sent. Does not wait.
    fn report(&self, _refused: RefusedPeer) {}
}

/// Key by which addresses are counted: an IPv4 address, or the 64-bit network in which an IPv6 host can choose its
/// address.
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
