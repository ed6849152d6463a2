//! The node's side of one attach over a Unix socket.
//!
//! ```text
//! Hello ──► Mapped ──► Preparing ──► Attached
//! ```
//!
//! A peer that is refused, or breaks the rules, is sent the reason and hung up on at once. On a message socket the last
//! message arrives all the same.

use super::listener::Listener;
use super::messages::{AttachReply, AttachRequest, REPLY_BYTES, REQUEST_BYTES};
use super::peer::Peer;
use super::policy::{AdmissionPolicy, Admitted, PortOffer};
use crate::Limits;
use crate::handshake::{
    Accepted, Dismissal, Errand, Handshake, HasRoom, Holder, Outgoing, Reason, RefusedPeer,
};
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::fmt;
use std::time::{Duration, Instant};

/// A user at a listener. Clients of different listeners act for different tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// The number of the listener.
    pub listener: usize,
    /// The user, if it has a number on this machine.
    pub user: Option<u32>,
}

impl Holder for User {
    /// Always true: the kernel names the user.
    fn is_proven(&self) -> bool {
        true
    }
}

/// Reason for which the node hangs up on a peer.
#[derive(Debug, thiserror::Error)]
pub enum Breach {
    /// The peer was sent the reason.
    #[error("{0}")]
    Refused(String),
    /// The peer sent bytes after its attach. It is sent no reason.
    #[error("sent something after the attach was over")]
    AfterTheEnd,
}

impl Coded for Breach {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(_) => ErrorCode::ShownOut,
            Self::AfterTheEnd => ErrorCode::SentAfterTheEnd,
        }
    }
}

#[derive(Debug)]
enum UnixAttachState {
    /// No message has been received yet.
    Hello { until: Instant },
    /// The client has been offered a port, and must map it.
    Mapped { until: Instant },
    /// The holder's thread fills the port's memory.
    Preparing,
    /// The client has a port.
    Attached(u64),
}

/// One peer and the offer to it.
pub struct UnixHandshake<A: AdmissionPolicy> {
    peer: Peer,
    /// Time that the peer may take for each step.
    within: Duration,
    state: UnixAttachState,
    offer: Option<A::Offer>,
    errand: Option<Errand>,
    outgoing: Option<Message>,
}

struct Message {
    bytes: [u8; REPLY_BYTES],
    /// Whether the offer's descriptors are sent with the message.
    is_offer: bool,
}

impl<A: AdmissionPolicy> fmt::Debug for UnixHandshake<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnixHandshake")
            .field("peer", &self.peer)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<A: AdmissionPolicy> UnixHandshake<A> {
    fn say(&mut self, reply: &AttachReply) {
        let is_offer = matches!(reply, AttachReply::Offer { .. });
        self.outgoing = Some(Message { bytes: reply.encode(), is_offer });
    }

    fn offer(&mut self, arena_bytes: u64, policy: &A, now: Instant) -> Result<(), Reason> {
        let offer = policy.offer(&self.peer, arena_bytes)?;
        self.say(&AttachReply::Offer { size: offer.size(), memory_bytes: offer.memory_bytes() });
        self.offer = Some(offer);
        self.state = UnixAttachState::Mapped { until: now + self.within };
        Ok(())
    }

    fn prepare(&mut self) {
        self.state = UnixAttachState::Preparing;
        self.errand = self.offer.as_ref().map(PortOffer::preparation);
    }

    fn let_in(&mut self, policy: &A) -> Result<(), Reason> {
        let offer = self.offer.as_mut().expect("a port was offered before it was prepared");
        let Admitted { client, arena_key } = policy.admit(&self.peer, offer)?;
        // From here on the client ends when the connection ends.
        self.state = UnixAttachState::Attached(client);
        self.say(&AttachReply::Welcome { client, arena_key });
        Ok(())
    }

    fn refuse(&mut self, reason: &Reason) -> Breach {
        let reason = reason.to_string();
        self.say(&AttachReply::Refused(reason.clone()));
        Breach::Refused(reason)
    }
}

impl<A: AdmissionPolicy> Handshake for UnixHandshake<A> {
    type Listener = Listener;
    type Policy = A;
    type Holder = User;
    type Breach = Breach;

    const IS_CERTAIN_AT_ONCE: bool = true;
    const IS_SLOW: bool = true;
    /// Longer messages mean nothing, and are cut off.
    const HEARD_BYTES: usize = REQUEST_BYTES + 1;

    fn begin(_: &Listener, accepted: Accepted<'_>, limits: &Limits) -> Option<Self> {
        let peer = Peer::of(accepted.socket, accepted.listener).ok()?;
        let within = limits.attach_within;
        let state = UnixAttachState::Hello { until: accepted.now + within };
        Some(Self { peer, within, state, offer: None, errand: None, outgoing: None })
    }

    fn excuse(_: &Listener, socket: &OwnedFd, reason: &str) {
        let refused = AttachReply::Refused(reason.to_owned()).encode();
        // This does not wait for a peer that has left or does not read.
        let _ = rustix::net::send(socket, &refused, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn is_slow_to_refuse(listener: &Listener) -> bool {
        listener.takes_descriptors()
    }

    fn retire(listener: Listener) -> Option<OwnedFd> {
        listener.retire()
    }

    fn holder(&self) -> User {
        User { listener: self.peer.listener, user: self.peer.user }
    }

    fn peer_name(&self) -> String {
        self.peer.to_string()
    }

    fn report(policy: &A, refused: RefusedPeer) {
        policy.report(refused);
    }

    fn hear(&mut self, bytes: &[u8], policy: &A, _: HasRoom<'_, Self>, now: Instant) -> Result<(), Breach> {
        let heard = match (&self.state, AttachRequest::parse(bytes)) {
            (UnixAttachState::Hello { .. }, Some(AttachRequest::Hello { arena_bytes })) => {
                self.offer(arena_bytes, policy, now)
            }
            (UnixAttachState::Mapped { .. }, Some(AttachRequest::Mapped)) => {
                self.prepare();
                Ok(())
            }
            (UnixAttachState::Hello { .. } | UnixAttachState::Mapped { .. }, _) => {
                Err("the attach request is not of this version: use a client of the node's version".into())
            }
            (UnixAttachState::Preparing | UnixAttachState::Attached(_), _) => {
                return Err(Breach::AfterTheEnd);
            }
        };
        heard.map_err(|reason| self.refuse(&reason))
    }

    fn take_errand(&mut self) -> Option<Errand> {
        self.errand.take()
    }

    fn errand_done(&mut self, outcome: Result<(), Reason>, policy: &A) -> Result<(), Breach> {
        let done = outcome.and_then(|()| self.let_in(policy));
        done.map_err(|reason| self.refuse(&reason))
    }

    fn outgoing(&self) -> Outgoing<'_> {
        let Some(Message { bytes, is_offer }) = &self.outgoing else { return Outgoing::default() };
        let offered = self.offer.as_ref().filter(|_| *is_offer);
        let descriptors = offered.map_or(Vec::new(), |offer| offer.descriptors().to_vec());
        Outgoing { bytes, descriptors }
    }

    /// Notes that the message has been sent. A message is sent as a whole.
    fn sent(&mut self, _: usize) {
        let sent = self.outgoing.take();
        if let (Some(Message { is_offer: true, .. }), Some(offer)) = (sent, &mut self.offer) {
            offer.was_offered();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state {
            UnixAttachState::Hello { until } | UnixAttachState::Mapped { until } => Some(until),
            UnixAttachState::Preparing | UnixAttachState::Attached(_) => None,
        }
    }

    fn client(&self) -> Option<u64> {
        if let UnixAttachState::Attached(client) = self.state { Some(client) } else { None }
    }

    fn is_attached(&self) -> bool {
        matches!(self.state, UnixAttachState::Attached(_))
    }

    fn dismiss(&mut self, why: Dismissal) {
        self.say(&match why {
            Dismissal::TooLate => AttachReply::TooLate,
            Dismissal::Displaced | Dismissal::Stopping => AttachReply::Refused(why.to_string()),
        });
    }

    fn depart(policy: &A, client: u64) {
        policy.depart(client);
    }

    fn give_up(&mut self) {
        if let Some(offer) = &mut self.offer {
            offer.give_up();
        }
    }
}
