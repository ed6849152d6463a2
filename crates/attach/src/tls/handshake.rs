//! The node's side of one attach over TCP, with TLS or without, from the first byte to the last: a state machine without
//! a socket.
//!
//! ```text
//! Handshake ──► Hello ──► Ends ──► Welcomed ──► Attached
//!     └───────────┴────────┴──► Leaving
//! ```
//!
//! Two ways out for those who are not let in. Whoever breaks the rules ([`Breach`]) is shown out at once, without a
//! word beyond what TLS itself says. Whoever keeps them and is refused is told why, and then its end is waited for
//! until its time is up: closing a socket on which something is still unread would take the reason back.

use crate::handshake::Reason;
use crate::tls::channel::Channel;
use crate::tls::frames::{FrameError, Frames, framed};
use crate::tls::messages::{ClientSays, NodeSays, VERSION};
use crate::tls::policy::{Admitted, Peer};
use crate::tls::subject::tenant_of;
use crate::tls::terms::{Ends, Terms};
use std::time::Instant;

/// The most bytes of a whole attach, TLS and chains of certificates included. An honest one has three thousand.
pub(crate) const HEARD_MAX: usize = 32 << 10;

/// Decides who gets in: the [`AdmissionPolicy`], and before it the acceptor's own limits.
pub(crate) trait Gate {
    fn terms(&self, peer: &Peer) -> Result<Terms, Reason>;
    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, Reason>;
    fn depart(&self, client: u64);
}

/// Why a peer is shown out at once.
#[derive(Debug, thiserror::Error)]
pub enum Breach {
    /// TLS.
    #[error("broke the rules of TLS: {0}")]
    Tls(rustls::Error),
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What came is no message that is expected.
    #[error("sent what is no message, or not one whose turn it is")]
    Message,
    /// Too much came.
    #[error("sent more than {HEARD_MAX} bytes")]
    Volume,
    /// Nothing is said after the welcome.
    #[error("sent something after the attach was over")]
    AfterTheEnd,
    /// The peer has ended the attach.
    #[error("hung up before it was attached")]
    HungUp,
}

#[derive(Debug)]
enum Step {
    /// TLS finds out who it is.
    Handshake,
    /// It has to say hello.
    Hello,
    /// It has to bring its ends.
    Ends(Terms),
    /// It was let in, and is being told.
    Welcomed { client: u64 },
    /// It was told. Nothing is said from here on.
    Attached { client: u64 },
    /// It was refused, is told why, and then only its hang-up is waited for.
    Leaving { told: bool },
}

/// One peer and its connection.
#[derive(Debug)]
pub(crate) struct ServerSide {
    peer: Peer,
    channel: Channel,
    frames: Frames,
    step: Step,
    heard: usize,
    deadline: Instant,
}

impl ServerSide {
    /// A peer has come, and has until `deadline` to be attached.
    pub fn new(peer: Peer, channel: Channel, deadline: Instant) -> Self {
        let step = if channel.is_handshaking() { Step::Handshake } else { Step::Hello };
        Self { peer, channel, frames: Frames::default(), step, heard: 0, deadline }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The client that it has become, if it has.
    pub fn client(&self) -> Option<u64> {
        match self.step {
            Step::Welcomed { client } | Step::Attached { client } => Some(client),
            _ => None,
        }
    }

    pub fn is_attached(&self) -> bool {
        matches!(self.step, Step::Attached { .. })
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether its time is up.
    pub fn is_late(&self, now: Instant) -> bool {
        !self.is_attached() && now >= self.deadline
    }

    /// Bytes came from the peer.
    ///
    /// # Errors
    /// It has to go at once.
    pub fn hear(&mut self, bytes: &[u8], gate: &impl Gate) -> Result<(), Breach> {
        self.heard = self.heard.saturating_add(bytes.len());
        match self.step {
            Step::Welcomed { .. } | Step::Attached { .. } => return Err(Breach::AfterTheEnd),
            _ if self.heard > HEARD_MAX => return Err(Breach::Volume),
            Step::Leaving { .. } => return Ok(()),
            _ => {}
        }
        let heard = match self.channel.take_in(bytes) {
            Ok(heard) => heard,
            Err(error) if is_about_papers(&error) => {
                tracing::debug!(peer = %self.peer.address, %error, "refused");
                self.step = Step::Leaving { told: false };
                return Ok(());
            }
            Err(error) => return Err(Breach::Tls(error)),
        };
        self.finish_handshake();
        if !heard.said.is_empty()
            && let Some(message) = self.frames.take_in(&heard.said)?
        {
            self.answer(&message, gate)?;
        }
        // Whoever hangs up in the breath in which it brings its ends is no client either.
        let is_leaving = matches!(self.step, Step::Leaving { .. });
        if heard.hung_up && !is_leaving { Err(Breach::HungUp) } else { Ok(()) }
    }

    /// What is to be sent now.
    pub fn outgoing(&self) -> &[u8] {
        self.channel.outgoing()
    }

    /// So many bytes of it have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.channel.sent(bytes);
        if let Step::Welcomed { client } = self.step
            && self.channel.outgoing().is_empty()
        {
            self.channel.fall_silent();
            self.frames = Frames::default();
            self.step = Step::Attached { client };
        }
    }

    /// Whether this is the moment to close the own half of the connection. Says so once.
    pub fn take_farewell(&mut self) -> bool {
        match &mut self.step {
            Step::Leaving { told } if !*told && self.channel.outgoing().is_empty() => {
                *told = true;
                true
            }
            _ => false,
        }
    }

    fn finish_handshake(&mut self) {
        if !matches!(self.step, Step::Handshake) || self.channel.is_handshaking() {
            return;
        }
        self.step = Step::Hello;
        match self.channel.peer_certificate().map(tenant_of) {
            Some(Ok(tenant)) => self.peer.tenant = Some(tenant),
            Some(Err(reason)) => self.refuse(&reason),
            None => self.refuse("a client needs a certificate"),
        }
    }

    fn answer(&mut self, message: &[u8], gate: &impl Gate) -> Result<(), Breach> {
        let said = match self.step {
            // What came together with a certificate that names no tenant: nobody's.
            Step::Leaving { .. } => return Ok(()),
            _ => ClientSays::parse(message).ok_or(Breach::Message)?,
        };
        let answer = match (&self.step, said) {
            (Step::Hello, ClientSays::Hello { version: VERSION }) => self.offer(gate),
            (Step::Hello, ClientSays::Hello { version }) => Err(format!(
                "this node speaks version {VERSION} of the protocol, not {version}: use a client of the node's version"
            )
            .into()),
            (&Step::Ends(terms), ClientSays::Ends(ends)) => self.let_in(&terms, ends, gate),
            _ => return Err(Breach::Message),
        };
        match answer {
            Ok(answer) => self.channel.say(&framed(&answer.encode())),
            Err(reason) => self.refuse(&reason.to_string()),
        }
        Ok(())
    }

    fn offer(&mut self, gate: &impl Gate) -> Result<NodeSays, Reason> {
        let terms = gate.terms(&self.peer)?;
        if !terms.is_sound() {
            tracing::error!(?terms, "the node's terms are beyond their bounds: nobody can attach");
            return Err("the node's terms make no sense".into());
        }
        self.step = Step::Ends(terms);
        Ok(NodeSays::Terms(terms))
    }

    fn let_in(&mut self, terms: &Terms, ends: Ends, gate: &impl Gate) -> Result<NodeSays, Reason> {
        ends.check(terms)?;
        let Admitted { client, ends } = gate.admit(&self.peer, ends)?;
        if let Err(reason) = ends.check(terms) {
            tracing::error!(%reason, "the node's own queue pairs do not fit its terms");
            gate.depart(client);
            return Err("the node's queue pairs do not fit its terms".into());
        }
        // From here on the end of the connection is the end of the client.
        self.step = Step::Welcomed { client };
        Ok(NodeSays::Welcome { client, ends })
    }

    fn refuse(&mut self, reason: &str) {
        tracing::debug!(peer = %self.peer.address, reason, "refused");
        self.channel.say(&framed(&NodeSays::Refused(reason.to_owned()).encode()));
        self.channel.say_goodbye();
        self.step = Step::Leaving { told: false };
    }
}

/// Whether the peer speaks TLS as it should and only its papers, or its version, will not do: it deserves to hear so.
fn is_about_papers(error: &rustls::Error) -> bool {
    use rustls::Error as E;
    matches!(error, E::InvalidCertificate(_) | E::NoCertificatesPresented | E::PeerIncompatible(_))
}

#[cfg(test)]
mod tests;
