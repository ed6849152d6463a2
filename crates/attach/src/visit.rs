//! The node's side of one attach, from the first byte to the last: a state machine without a socket. Bytes of the
//! peer go in by [`Visit::hear`], what is to be sent comes out of [`Visit::outgoing`], and the time is told.
//!
//! ```text
//! Handshake ──► Hello ──► Ends ──► Welcomed ──► Attached
//!     └───────────┴────────┴──► Leaving
//! ```
//!
//! Two ways out for those who are not let in. Whoever breaks the rules ([`Breach`]) is shown out at once, without a
//! word beyond what TLS itself says. Whoever keeps them and is refused is told why, and then its end is waited for
//! until its time is up: closing a socket on which something is still unread would take the reason back.

use crate::admission::{Admitted, Peer};
use crate::channel::Channel;
use crate::frames::{FrameError, Frames, framed};
use crate::identity::tenant_of;
use crate::messages::{ClientSays, NodeSays, VERSION};
use crate::terms::{Ends, Terms};
use std::time::Instant;

/// The most bytes of a whole attach, TLS and chains of certificates included. An honest one has three thousand.
pub(crate) const HEARD_MAX: usize = 32 << 10;

/// Decides who gets in, within the server: [`Admission`](crate::Admission) and the server's own limits.
pub(crate) trait Gate {
    fn terms(&self, peer: &Peer) -> Result<Terms, String>;
    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, String>;
    fn depart(&self, client: u64);
}

/// Why a peer is shown out at once.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Breach {
    #[error("broke the rules of TLS: {0}")]
    Tls(rustls::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("sent what is no message, or not one whose turn it is")]
    Message,
    #[error("sent more than {HEARD_MAX} bytes")]
    Volume,
    #[error("sent something after the attach was over")]
    AfterTheEnd,
    #[error("hung up before it was attached")]
    HungUp,
}

#[derive(Debug)]
enum Stage {
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
pub(crate) struct Visit {
    peer: Peer,
    channel: Channel,
    frames: Frames,
    stage: Stage,
    heard: usize,
    deadline: Instant,
}

impl Visit {
    /// A peer has come, and has until `deadline` to be attached.
    pub fn new(peer: Peer, channel: Channel, deadline: Instant) -> Self {
        let stage = if channel.is_handshaking() { Stage::Handshake } else { Stage::Hello };
        Self { peer, channel, frames: Frames::default(), stage, heard: 0, deadline }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The client that it has become, if it has.
    pub fn client(&self) -> Option<u64> {
        match self.stage {
            Stage::Welcomed { client } | Stage::Attached { client } => Some(client),
            _ => None,
        }
    }

    pub fn is_attached(&self) -> bool {
        matches!(self.stage, Stage::Attached { .. })
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
        match self.stage {
            Stage::Welcomed { .. } | Stage::Attached { .. } => return Err(Breach::AfterTheEnd),
            _ if self.heard > HEARD_MAX => return Err(Breach::Volume),
            Stage::Leaving { .. } => return Ok(()),
            _ => {}
        }
        let heard = match self.channel.take_in(bytes) {
            Ok(heard) => heard,
            Err(error) if is_about_papers(&error) => {
                tracing::debug!(peer = %self.peer.address, %error, "refused");
                self.stage = Stage::Leaving { told: false };
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
        let is_leaving = matches!(self.stage, Stage::Leaving { .. });
        if heard.hung_up && !is_leaving { Err(Breach::HungUp) } else { Ok(()) }
    }

    /// What is to be sent now.
    pub fn outgoing(&self) -> &[u8] {
        self.channel.outgoing()
    }

    /// So many bytes of it have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.channel.sent(bytes);
        if let Stage::Welcomed { client } = self.stage
            && self.channel.outgoing().is_empty()
        {
            self.channel.fall_silent();
            self.frames = Frames::default();
            self.stage = Stage::Attached { client };
        }
    }

    /// Whether this is the moment to close the own half of the connection. Says so once.
    pub fn take_farewell(&mut self) -> bool {
        match &mut self.stage {
            Stage::Leaving { told } if !*told && self.channel.outgoing().is_empty() => {
                *told = true;
                true
            }
            _ => false,
        }
    }

    fn finish_handshake(&mut self) {
        if !matches!(self.stage, Stage::Handshake) || self.channel.is_handshaking() {
            return;
        }
        self.stage = Stage::Hello;
        match self.channel.peer_certificate().map(tenant_of) {
            Some(Ok(tenant)) => self.peer.tenant = Some(tenant),
            Some(Err(reason)) => self.refuse(&reason),
            None => self.refuse("a client needs a certificate"),
        }
    }

    fn answer(&mut self, message: &[u8], gate: &impl Gate) -> Result<(), Breach> {
        let said = match self.stage {
            // What came together with a certificate that names no tenant: nobody's.
            Stage::Leaving { .. } => return Ok(()),
            _ => ClientSays::parse(message).ok_or(Breach::Message)?,
        };
        let answer = match (&self.stage, said) {
            (Stage::Hello, ClientSays::Hello { version: VERSION }) => self.offer(gate),
            (Stage::Hello, ClientSays::Hello { version }) => Err(format!(
                "this node speaks version {VERSION} of the protocol, not {version}: use a client of the node's version"
            )),
            (&Stage::Ends(terms), ClientSays::Ends(ends)) => self.let_in(&terms, ends, gate),
            _ => return Err(Breach::Message),
        };
        match answer {
            Ok(answer) => self.channel.say(&framed(&answer.encode())),
            Err(reason) => self.refuse(&reason),
        }
        Ok(())
    }

    fn offer(&mut self, gate: &impl Gate) -> Result<NodeSays, String> {
        let terms = gate.terms(&self.peer)?;
        if !terms.is_sound() {
            tracing::error!(?terms, "the node's terms are beyond their bounds: nobody can attach");
            return Err("the node's terms make no sense".to_owned());
        }
        self.stage = Stage::Ends(terms);
        Ok(NodeSays::Terms(terms))
    }

    fn let_in(&mut self, terms: &Terms, ends: Ends, gate: &impl Gate) -> Result<NodeSays, String> {
        ends.check(terms)?;
        let Admitted { client, ends } = gate.admit(&self.peer, ends)?;
        if let Err(reason) = ends.check(terms) {
            tracing::error!(%reason, "the node's own queue pairs do not fit its terms");
            gate.depart(client);
            return Err("the node's queue pairs do not fit its terms".to_owned());
        }
        // From here on the end of the connection is the end of the client.
        self.stage = Stage::Welcomed { client };
        Ok(NodeSays::Welcome { client, ends })
    }

    fn refuse(&mut self, reason: &str) {
        tracing::debug!(peer = %self.peer.address, reason, "refused");
        self.channel.say(&framed(&NodeSays::Refused(reason.to_owned()).encode()));
        self.channel.say_goodbye();
        self.stage = Stage::Leaving { told: false };
    }
}

/// Whether the peer speaks TLS as it should and only its papers, or its version, will not do: it deserves to hear so.
fn is_about_papers(error: &rustls::Error) -> bool {
    use rustls::Error as E;
    matches!(error, E::InvalidCertificate(_) | E::NoCertificatesPresented | E::PeerIncompatible(_))
}

#[cfg(test)]
mod tests;
