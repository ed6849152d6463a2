//! The handshake over TCP, as the acceptor drives it.

use super::channel::Channel;
use super::frames::framed;
use super::handshake::{Breach, ServerSide};
use super::listener::{Listener, NodeSecurity};
use super::messages::NodeSays;
use super::policy::{AdmissionPolicy, Admitted, Origin, Peer};
use super::tcp;
use super::terms::{Ends, Offer};
use crate::Limits;
use crate::handshake::{Accepted, Dismissal, Handshake, HasRoom, Holder, Outgoing, Reason, RefusedPeer};
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use rustls::ServerConnection;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// The party whose connections are counted together: a tenant, or an address without a certificate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TcpHolder {
    /// A tenant.
    Tenant(String),
    /// An address, or a network of them.
    Origin(Origin),
}

impl TcpHolder {
    fn of(peer: &Peer) -> Self {
        match &peer.tenant {
            Some(tenant) => Self::Tenant(tenant.clone()),
            None => Self::Origin(Origin::of(peer.address.ip())),
        }
    }
}

impl Holder for TcpHolder {
    fn is_proven(&self) -> bool {
        matches!(self, Self::Tenant(_))
    }
}

/// The node's side of one attach over TCP, with TLS or without.
#[derive(Debug)]
pub struct TlsHandshake(ServerSide);

/// The admission policy, with the acceptor's own limit checked before it.
struct LimitedPolicy<'a> {
    policy: &'a dyn AdmissionPolicy,
    has_room: HasRoom<'a, TlsHandshake>,
}

impl LimitedPolicy<'_> {
    fn check_room(&self, peer: &Peer) -> Result<(), Reason> {
        let has_room = (self.has_room)(&TcpHolder::of(peer));
        if has_room { Ok(()) } else { Err("the node has no room for more of your clients".into()) }
    }
}

impl AdmissionPolicy for LimitedPolicy<'_> {
    fn offer(&self, peer: &Peer) -> Result<Offer, Reason> {
        self.check_room(peer)?;
        self.policy.offer(peer)
    }

    fn admit_without_queue_pairs(&self, peer: &Peer) -> Result<u64, Reason> {
        self.check_room(peer)?;
        self.policy.admit_without_queue_pairs(peer)
    }

    fn heard(&self, client: u64, message: &[u8]) -> Result<(), Reason> {
        self.policy.heard(client, message)
    }

    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, Reason> {
        self.check_room(peer)?;
        self.policy.admit(peer, ends)
    }

    fn depart(&self, client: u64) {
        self.policy.depart(client);
    }
}

impl Handshake for TlsHandshake {
    type Listener = Listener;
    type Policy = Box<dyn AdmissionPolicy + Send>;
    type Holder = TcpHolder;
    type Breach = Breach;

    const IS_CERTAIN_AT_ONCE: bool = false;
    const IS_SLOW: bool = false;
    const HEARD_BYTES: usize = 16 << 10;

    fn begin(listener: &Listener, accepted: Accepted<'_>, limits: &Limits) -> Option<Self> {
        tcp::keep_watch(accepted.socket).ok()?;
        let address = SocketAddr::try_from(accepted.address?).ok()?;
        let channel = match &listener.security {
            NodeSecurity::Plain => Channel::plain(),
            NodeSecurity::Tls(identity) => {
                let connection = ServerConnection::new(Arc::clone(&identity.config));
                let failed = |error: &rustls::Error| tracing::error!(%error, "cannot start TLS");
                Channel::secured(connection.inspect_err(failed).ok()?)
            }
        };
        let peer = Peer { tenant: None, address, listener: accepted.listener };
        Some(Self(ServerSide::new(peer, channel, accepted.now + limits.attach_within)))
    }

    /// Sends the refusal only if the listener uses no TLS.
    fn excuse(listener: &Listener, socket: &OwnedFd, reason: &str) {
        if matches!(listener.security, NodeSecurity::Plain) {
            let refusal = framed(&NodeSays::Refused(reason.to_owned()).encode());
            let _ = rustix::net::send(socket, &refusal, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    fn holder(&self) -> TcpHolder {
        TcpHolder::of(self.0.peer())
    }

    fn peer_name(&self) -> String {
        let Peer { tenant, address, .. } = self.0.peer();
        match tenant {
            Some(tenant) => format!("{address} with a certificate of {tenant:?}"),
            None => address.to_string(),
        }
    }

    fn take_refusal(&mut self) -> Option<String> {
        self.0.take_refusal()
    }

    fn is_departure(breach: &Breach) -> bool {
        matches!(breach, Breach::HungUp)
    }

    fn report(policy: &Box<dyn AdmissionPolicy + Send>, refused: RefusedPeer) {
        policy.report(refused);
    }

    fn hear(
        &mut self,
        bytes: &[u8],
        policy: &Box<dyn AdmissionPolicy + Send>,
        has_room: HasRoom<'_, Self>,
        _: Instant,
    ) -> Result<(), Breach> {
        self.0.hear(bytes, &LimitedPolicy { policy: &**policy, has_room })
    }

    fn say(&mut self, message: &[u8]) -> Result<(), Breach> {
        self.0.say(message)
    }

    fn outgoing(&self) -> Outgoing<'_> {
        Outgoing { bytes: self.0.outgoing(), descriptors: Vec::new() }
    }

    fn sent(&mut self, bytes: usize) {
        self.0.sent(bytes);
    }

    fn take_half_close(&mut self) -> bool {
        self.0.take_half_close()
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.0.is_attached()).then_some(self.0.deadline())
    }

    fn client(&self) -> Option<u64> {
        self.0.client()
    }

    fn is_attached(&self) -> bool {
        self.0.is_attached()
    }

    fn dismiss(&mut self, why: Dismissal) {
        self.0.dismiss(why);
    }

    fn depart(policy: &Box<dyn AdmissionPolicy + Send>, client: u64) {
        policy.depart(client);
    }
}
