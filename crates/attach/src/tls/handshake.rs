//! The node's side of one attach over TCP, with TLS or without, from the first byte to the last: a state machine
//! without a socket.
//!
//! ```text
//! Handshake ──► Hello ──► Ends ──► Welcomed ──► Attached
//!     │           └──────────────────┘ │
//!     └───────────┴────────┴──► Leaving
//! ```
//!
//! A client without queue pairs has no ends to send: it is welcomed after its hello. Once it is attached, control
//! messages travel over the connection in both directions. On other connections no byte is sent after the welcome.
//!
//! A peer that breaks the rules ([`Breach`]) is hung up on at once, and is sent only the alerts of TLS itself. A peer
//! that keeps the rules and is refused is sent the reason. Then the node waits until the peer hangs up or its time is
//! up: closing a socket with unread bytes would discard the reason.

use crate::handshake::{Dismissal, Reason};
use crate::tls::channel::Channel;
use crate::tls::frames::{FrameError, Frames, framed};
use crate::tls::messages::{ClientSays, NodeSays, VERSION};
use crate::tls::policy::{AdmissionPolicy, Admitted, Peer};
use crate::tls::subject::tenant_of;
use crate::tls::terms::{Ends, Offer, Terms};
use portcullis_errors::{Coded, ErrorCode};
use std::time::Instant;

/// Maximum number of bytes received in a whole attach, including TLS and chains of certificates. An honest attach has
/// about three thousand.
pub(crate) const HEARD_MAX: usize = 32 << 10;

/// Reason for which the node hangs up on a peer at once.
#[derive(Debug, thiserror::Error)]
pub enum Breach {
    /// The peer broke the rules of TLS.
    #[error("broke the rules of TLS: {0}")]
    Tls(rustls::Error),
    /// The peer sent bytes that are not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer sent something other than the expected message.
    #[error("sent a malformed or unexpected message")]
    Message,
    /// The peer sent too many bytes.
    #[error("sent more than {HEARD_MAX} bytes")]
    Volume,
    /// The peer sent bytes after the welcome.
    #[error("sent something after the attach was over")]
    AfterTheEnd,
    /// The peer does not read its pending bytes.
    #[error("left more than {UNSENT_MAX} bytes unread")]
    Deaf,
    /// The node does not accept the peer's control message.
    #[error("sent a control message that the node does not accept: {0}")]
    Control(Reason),
    /// The peer ended the attach.
    #[error("closed the connection before it was attached")]
    HungUp,
}

impl Coded for Breach {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Tls(_) => ErrorCode::TlsBreach,
            Self::Frame(error) => error.code(),
            Self::Message => ErrorCode::MessageBreach,
            Self::Volume => ErrorCode::TooMuchSent,
            Self::AfterTheEnd => ErrorCode::SentAfterTheEnd,
            Self::HungUp => ErrorCode::HungUp,
            Self::Deaf => ErrorCode::TooMuchSent,
            Self::Control(_) => ErrorCode::MessageBreach,
        }
    }
}

/// Transport of an attached client's control messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ways {
    /// Queue pairs carry them: no byte is sent over the connection any more.
    QueuePairs,
    /// The connection carries control messages in both directions.
    OneShots,
}

/// Bytes that may wait to be sent to an attached client. Honest clients read the answers to their requests.
const UNSENT_MAX: usize = 1 << 20;

#[derive(Debug)]
enum TlsAttachState {
    /// The TLS handshake is in progress.
    Handshake,
    /// The peer must send its hello.
    Hello,
    /// The peer must send its ends.
    Ends(Terms),
    /// The client is admitted, and its welcome is being sent.
    Welcomed { client: u64, ways: Ways },
    /// The client's welcome has been sent.
    Attached { client: u64, ways: Ways },
    /// The peer is refused, and its reason is sent; after that only its hang-up is outstanding.
    Leaving { told: bool },
}

/// One peer and its connection.
#[derive(Debug)]
pub(crate) struct ServerSide {
    peer: Peer,
    channel: Channel,
    frames: Frames,
    state: TlsAttachState,
    heard: usize,
    deadline: Instant,
    /// Reason for the refusal, until it is reported to the operator.
    refusal: Option<String>,
}

impl ServerSide {
    /// Creates the state of a peer that has until `deadline` to attach.
    pub fn new(peer: Peer, channel: Channel, deadline: Instant) -> Self {
        let state = if channel.is_handshaking() { TlsAttachState::Handshake } else { TlsAttachState::Hello };
        Self { peer, channel, frames: Frames::default(), state, heard: 0, deadline, refusal: None }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The client that the peer has become, if it has.
    pub fn client(&self) -> Option<u64> {
        match self.state {
            TlsAttachState::Welcomed { client, .. } | TlsAttachState::Attached { client, .. } => Some(client),
            _ => None,
        }
    }

    pub fn is_attached(&self) -> bool {
        matches!(self.state, TlsAttachState::Attached { .. })
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the peer's time is up.
    pub fn is_late(&self, now: Instant) -> bool {
        !self.is_attached() && now >= self.deadline
    }

    /// Handles bytes received from the peer.
    ///
    /// # Errors
    /// The peer must be hung up on at once.
    pub fn hear(&mut self, bytes: &[u8], policy: &impl AdmissionPolicy) -> Result<(), Breach> {
        if let TlsAttachState::Attached { client, ways: Ways::OneShots } = self.state {
            return self.hear_messages(client, bytes, policy);
        }
        self.heard = self.heard.saturating_add(bytes.len());
        match self.state {
            TlsAttachState::Welcomed { .. } | TlsAttachState::Attached { .. } => {
                return Err(Breach::AfterTheEnd);
            }
            _ if self.heard > HEARD_MAX => return Err(Breach::Volume),
            TlsAttachState::Leaving { .. } => return Ok(()),
            _ => {}
        }
        let heard = match self.channel.take_in(bytes) {
            Ok(heard) => heard,
            Err(error) if is_about_papers(&error) => {
                self.refusal = Some(error.to_string());
                self.state = TlsAttachState::Leaving { told: false };
                return Ok(());
            }
            Err(error) => return Err(Breach::Tls(error)),
        };
        self.finish_handshake();
        if !heard.said.is_empty()
            && let Some(message) = self.frames.take_in(&heard.said)?
        {
            self.answer(&message, policy)?;
        }
        // A peer that sends its ends and hangs up at once is no client.
        let is_leaving = matches!(self.state, TlsAttachState::Leaving { .. });
        if heard.hung_up && !is_leaving { Err(Breach::HungUp) } else { Ok(()) }
    }

    /// Handles control messages of an attached client.
    fn hear_messages(
        &mut self,
        client: u64,
        bytes: &[u8],
        policy: &impl AdmissionPolicy,
    ) -> Result<(), Breach> {
        let heard = self.channel.take_in(bytes).map_err(Breach::Tls)?;
        self.frames.push(&heard.said);
        while let Some(message) = self.frames.next_frame()? {
            policy.heard(client, &message).map_err(Breach::Control)?;
        }
        if heard.hung_up { Err(Breach::HungUp) } else { Ok(()) }
    }

    /// Sends a control message to an attached client.
    ///
    /// # Errors
    /// The client does not read its pending bytes: it must be hung up on.
    pub fn say(&mut self, message: &[u8]) -> Result<(), Breach> {
        if !matches!(
            self.state,
            TlsAttachState::Welcomed { ways: Ways::OneShots, .. }
                | TlsAttachState::Attached { ways: Ways::OneShots, .. }
        ) {
            return Ok(());
        }
        self.channel.say(&framed(message));
        if self.channel.outgoing().len() > UNSENT_MAX { Err(Breach::Deaf) } else { Ok(()) }
    }

    /// Sends the reason to a peer that is not attached and whose connection ends. In the middle of a TLS handshake no
    /// reason can be sent.
    pub fn dismiss(&mut self, why: Dismissal) {
        if !matches!(self.state, TlsAttachState::Hello | TlsAttachState::Ends(_)) {
            return;
        }
        let last = match why {
            Dismissal::TooLate => NodeSays::TooLate,
            Dismissal::Displaced | Dismissal::Stopping => NodeSays::Refused(why.to_string()),
        };
        self.channel.say(&framed(&last.encode()));
        self.channel.say_goodbye();
        self.state = TlsAttachState::Leaving { told: false };
    }

    /// Returns the reason for the refusal if the peer was refused. Returns it only once.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    /// Returns the bytes to be sent now.
    pub fn outgoing(&self) -> &[u8] {
        self.channel.outgoing()
    }

    /// Notes that `bytes` bytes have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.channel.sent(bytes);
        if let TlsAttachState::Welcomed { client, ways } = self.state
            && self.channel.outgoing().is_empty()
        {
            if ways == Ways::QueuePairs {
                self.channel.fall_silent();
            }
            self.frames = Frames::default();
            self.state = TlsAttachState::Attached { client, ways };
        }
    }

    /// Whether to close this end's half of the connection now. `true` only once.
    pub fn take_half_close(&mut self) -> bool {
        match &mut self.state {
            TlsAttachState::Leaving { told } if !*told && self.channel.outgoing().is_empty() => {
                *told = true;
                true
            }
            _ => false,
        }
    }

    fn finish_handshake(&mut self) {
        if !matches!(self.state, TlsAttachState::Handshake) || self.channel.is_handshaking() {
            return;
        }
        self.state = TlsAttachState::Hello;
        match self.channel.peer_certificate().map(tenant_of) {
            Some(Ok(tenant)) => self.peer.tenant = Some(tenant),
            Some(Err(reason)) => self.refuse(&reason),
            None => self.refuse("a client needs a certificate"),
        }
    }

    fn answer(&mut self, message: &[u8], policy: &impl AdmissionPolicy) -> Result<(), Breach> {
        let said = match self.state {
            // The peer's certificate names no tenant.
            TlsAttachState::Leaving { .. } => return Ok(()),
            _ => ClientSays::parse(message).ok_or(Breach::Message)?,
        };
        let answer = match (&self.state, said) {
            (TlsAttachState::Hello, ClientSays::Hello { version: VERSION }) => self.offer(policy),
            (TlsAttachState::Hello, ClientSays::Hello { version }) => Err(format!(
                "this node speaks version {VERSION} of the protocol, not {version}: use a client of the node's version"
            )
            .into()),
            (&TlsAttachState::Ends(terms), ClientSays::Ends(ends)) => self.let_in(&terms, ends, policy),
            _ => return Err(Breach::Message),
        };
        match answer {
            Ok(answer) => self.channel.say(&framed(&answer.encode())),
            Err(reason) => self.refuse(&reason.to_string()),
        }
        Ok(())
    }

    fn offer(&mut self, policy: &impl AdmissionPolicy) -> Result<NodeSays, Reason> {
        let offer = policy.offer(&self.peer)?;
        let is_sound = match offer {
            Offer::QueuePairs(terms) => terms.is_sound(),
            Offer::OneShots(terms) => terms.is_sound(),
        };
        if !is_sound {
            tracing::error!(?offer, "the node's terms exceed their bounds: no client can attach");
            return Err("the node's terms are invalid".into());
        }
        match offer {
            Offer::QueuePairs(terms) => {
                self.state = TlsAttachState::Ends(terms);
                Ok(NodeSays::Terms(terms))
            }
            Offer::OneShots(terms) => {
                let client = policy.admit_without_queue_pairs(&self.peer)?;
                self.state = TlsAttachState::Welcomed { client, ways: Ways::OneShots };
                Ok(NodeSays::OneShots { client, terms })
            }
        }
    }

    fn let_in(
        &mut self,
        terms: &Terms,
        ends: Ends,
        policy: &impl AdmissionPolicy,
    ) -> Result<NodeSays, Reason> {
        ends.check(terms)?;
        let Admitted { client, ends } = policy.admit(&self.peer, ends)?;
        if let Err(reason) = ends.check(terms) {
            tracing::error!(%reason, "the node's own queue pairs do not fit its terms");
            policy.depart(client);
            return Err("the node's queue pairs do not fit its terms".into());
        }
        // From here on the client ends when the connection ends.
        self.state = TlsAttachState::Welcomed { client, ways: Ways::QueuePairs };
        Ok(NodeSays::Welcome { client, ends })
    }

    fn refuse(&mut self, reason: &str) {
        self.refusal = Some(reason.to_owned());
        self.channel.say(&framed(&NodeSays::Refused(reason.to_owned()).encode()));
        self.channel.say_goodbye();
        self.state = TlsAttachState::Leaving { told: false };
    }
}

/// Whether the peer keeps the rules of TLS, and only its certificate or version is refused. Such a peer is sent the
/// reason.
fn is_about_papers(error: &rustls::Error) -> bool {
    use rustls::Error as E;
    matches!(error, E::InvalidCertificate(_) | E::NoCertificatesPresented | E::PeerIncompatible(_))
}

#[cfg(test)]
mod tests;
