//! The client's side of an attach. It may block, so it runs its steps one after the other until its time is up.

use crate::Limits;
use crate::handshake::Reason;
use crate::tls::address::{HostPort, is_loopback};
use crate::tls::channel::Channel;
use crate::tls::connection::Connection;
use crate::tls::frames::{FRAME_BYTES_MAX, Frames, framed};
use crate::tls::identity::{ClientIdentity, in_words};
use crate::tls::messages::{ClientSays, NodeSays, VERSION};
use crate::tls::talk::Talk;
use crate::tls::tcp;
use crate::tls::terms::{Ends, OneShotTerms, Terms};
use portcullis_errors::{Coded, ErrorCode};
use rustix::net::RecvFlags;
use rustls::ClientConnection;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Method by which a client proves its tenant and recognises the node.
#[derive(Clone, Debug)]
pub enum ClientSecurity {
    /// Certificates, in both directions.
    Tls(ClientIdentity),
    /// No proof: for nodes that use no certificates.
    Plain {
        /// Whether other machines may be connected to as well. Machines on the path can then read the traffic, and can
        /// impersonate the node or the client.
        anywhere: bool,
    },
}

/// Reason for which an attach failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The text is not an address of a node.
    #[error("{0:?} is not the address of a node: write HOST:PORT, for example node1:7471 or [fd00::1]:7471")]
    Address(String),
    /// The address is another machine, and the client uses no certificates.
    #[error(
        "{0} is another machine, and without certificates an attacker on the network could impersonate the \
         node: give certificates (see `portcullis certificates --help`)"
    )]
    PlainBeyondLoopback(SocketAddr),
    /// No node listens at the address.
    #[error("no node listens at {address}: {source}")]
    NoNode {
        /// The node's address.
        address: String,
        /// The machine's error.
        source: std::io::Error,
    },
    /// The name has no address.
    #[error("the host in {address} cannot be found: {source}. Write its name as DNS or /etc/hosts has it")]
    NoHost {
        /// The node's address.
        address: String,
        /// The resolver's error.
        source: std::io::Error,
    },
    /// The node did not answer in time.
    #[error("the node at {address} did not answer within {within:?}")]
    Silent {
        /// The node's address.
        address: String,
        /// Time that the client waited.
        within: Duration,
    },
    /// The client's time for the attach was up before the attach was complete.
    #[error(
        "the attach took longer than the node at {address} waits for a client: this program, its machine or \
         the network stalled meanwhile. Try again"
    )]
    TooLate {
        /// The node's address.
        address: String,
    },
    /// The connection ended in the middle.
    #[error(
        "the node at {address} closed the connection without a reason: it may have no room for more clients, \
         or only one side uses certificates"
    )]
    HungUp {
        /// The node's address.
        address: String,
    },
    /// The node's certificate is not for the node that the client connected to.
    #[error("the peer at {address} cannot prove that it is that node: {reason}")]
    NotTheNode {
        /// The node's address.
        address: String,
        /// Reason for the failure.
        reason: String,
    },
    /// The node does not accept the client's certificate.
    #[error("the node at {address} does not accept this client's certificate: {reason}")]
    NotAccepted {
        /// The node's address.
        address: String,
        /// The node's reason.
        reason: String,
    },
    /// The peer at the address is not a node of this version.
    #[error("the peer at {address} is not a Portcullis node of this version: {reason}")]
    NotANode {
        /// The address.
        address: String,
        /// Description of the peer's behaviour.
        reason: String,
    },
    /// The node serves its clients over another fabric.
    #[error("the node at {address} accepts clients over {fabric}: connect to {fabric}:{address}")]
    OtherFabric {
        /// The node's address.
        address: String,
        /// The fabric.
        fabric: &'static str,
    },
    /// The node refuses.
    #[error("the node refuses: {0}")]
    Refused(String),
    /// The client could not meet the node's terms.
    #[error("cannot meet the node's terms: {0}")]
    Unable(#[source] Reason),
}

impl Coded for AttachError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Address(_) => ErrorCode::UnknownAddress,
            Self::PlainBeyondLoopback(_) => ErrorCode::PlainBeyondLoopback,
            Self::NoNode { .. } => ErrorCode::NoNode,
            Self::NoHost { .. } => ErrorCode::NoSuchHost,
            Self::Silent { .. } => ErrorCode::NodeSilent,
            Self::TooLate { .. } | Self::HungUp { .. } => ErrorCode::HungUp,
            Self::NotTheNode { .. } => ErrorCode::NotTheNode,
            Self::NotAccepted { .. } => ErrorCode::NotAccepted,
            Self::NotANode { .. } => ErrorCode::NotANode,
            Self::OtherFabric { .. } => ErrorCode::UnknownAddress,
            Self::Refused(_) => ErrorCode::AttachRefused,
            Self::Unable(_) => ErrorCode::UnfitOffer,
        }
    }
}

/// An attached client.
#[derive(Debug)]
pub struct Attached<T> {
    /// The client's number on the node.
    pub client: u64,
    /// The node's queue pairs, connected to the client's.
    pub node: Ends,
    /// The value that `make` returned for the terms.
    pub made: T,
    /// The node serves the client as long as this lives.
    pub connection: Connection,
}

/// Attaches to the node at `HOST:PORT`. `make` is passed the node's terms, and creates queue pairs that meet them.
///
/// The attach takes at most `within`, plus the time for a DNS lookup and for `make`.
///
/// # Errors
/// No node listens, the wrong node listens, the node refuses, or it does not answer in time. The value that `make`
/// returned is dropped.
pub fn attach<T>(
    address: &str,
    security: &ClientSecurity,
    within: Duration,
    make: impl FnOnce(&Terms) -> Result<(Ends, T), Reason>,
) -> Result<Attached<T>, AttachError> {
    let mut call = dial(address, security, within)?;
    let terms = match call.ask(&ClientSays::Hello { version: VERSION })? {
        NodeSays::Terms(terms) => terms,
        NodeSays::OneShots { .. } => {
            return Err(AttachError::OtherFabric { address: address.to_owned(), fabric: "udp" });
        }
        other => return Err(call.unexpected(other)),
    };
    let (ends, made) = make(&terms).map_err(AttachError::Unable)?;
    ends.check(&terms).map_err(|unfit| AttachError::Unable(unfit.into()))?;
    let (client, node) = match call.ask(&ClientSays::Ends(ends))? {
        NodeSays::Welcome { client, ends } => (client, ends),
        other => return Err(call.unexpected(other)),
    };
    node.check(&terms).map_err(|reason| call.not_a_node(&reason))?;
    let connection = Connection::new(call.stream).map_err(|source| no_node(address, source))?;
    Ok(Attached { client, node, made, connection })
}

/// An attached client without queue pairs.
#[derive(Debug)]
pub struct AttachedWithoutQueuePairs {
    /// The client's number on the node.
    pub client: u64,
    /// The node's terms.
    pub terms: OneShotTerms,
    /// The node's address for operations.
    pub node: SocketAddr,
    /// The address that this client's packets must come from.
    pub local: IpAddr,
    /// The connection for control messages. The node serves the client as long as this lives.
    pub talk: Talk,
}

/// Attaches without queue pairs to the node at `HOST:PORT`.
///
/// The attach takes at most `within`, plus the time for a DNS lookup.
///
/// # Errors
/// The errors of [`attach`].
pub fn attach_without_queue_pairs(
    address: &str,
    security: &ClientSecurity,
    within: Duration,
) -> Result<AttachedWithoutQueuePairs, AttachError> {
    let mut call = dial(address, security, within)?;
    let (client, terms) = match call.ask(&ClientSays::Hello { version: VERSION })? {
        NodeSays::OneShots { client, terms } => (client, terms),
        NodeSays::Terms(_) => {
            return Err(AttachError::OtherFabric { address: address.to_owned(), fabric: "rdma" });
        }
        other => return Err(call.unexpected(other)),
    };
    let Call { stream, channel, .. } = call;
    let failed = |source| no_node(address, source);
    let mut node = stream.peer_addr().map_err(failed)?;
    node.set_port(terms.port);
    let local = stream.local_addr().map_err(failed)?.ip();
    let talk = Talk::new(stream, channel).map_err(failed)?;
    Ok(AttachedWithoutQueuePairs { client, terms, node, local, talk })
}

fn no_node(address: &str, source: std::io::Error) -> AttachError {
    AttachError::NoNode { address: address.to_owned(), source }
}

/// Connects to the listener at `HOST:PORT`.
fn dial<'a>(address: &'a str, security: &ClientSecurity, within: Duration) -> Result<Call<'a>, AttachError> {
    let place = HostPort::parse(address).ok_or_else(|| AttachError::Address(address.to_owned()))?;
    let failed = |source| no_node(address, source);
    let no_host = |source| AttachError::NoHost { address: address.to_owned(), source };
    let addresses = place.addresses().map_err(no_host)?;
    if matches!(security, ClientSecurity::Plain { anywhere: false })
        && let Some(outside) = addresses.iter().find(|address| !is_loopback(address))
    {
        return Err(AttachError::PlainBeyondLoopback(*outside));
    }
    let channel = match security {
        ClientSecurity::Plain { .. } => Channel::plain(),
        ClientSecurity::Tls(identity) => {
            let name = place.server_name().ok_or_else(|| AttachError::Address(address.to_owned()))?;
            let connection = ClientConnection::new(Arc::clone(&identity.config), name);
            Channel::secured(connection.map_err(|error| failed(std::io::Error::other(error)))?)
        }
    };
    let begun = Instant::now();
    let stream = connect(&addresses, begun + within).map_err(failed)?;
    Ok(Call {
        stream,
        channel,
        frames: Frames::default(),
        address,
        within,
        begun,
        late_reads: LATE_READS_MAX,
    })
}

/// Connects to the first address that answers.
fn connect(addresses: &[SocketAddr], deadline: Instant) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::from(ErrorKind::TimedOut);
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, left) {
            Ok(stream) => {
                tcp::keep_watch(&stream)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Number of reads with which a client that is late itself looks for bytes that have arrived: far more than a node's
/// last message needs.
const LATE_READS_MAX: u32 = 16;

/// A connection on which the client sends requests and the node replies.
struct Call<'a> {
    stream: TcpStream,
    channel: Channel,
    frames: Frames,
    address: &'a str,
    within: Duration,
    begun: Instant,
    late_reads: u32,
}

impl Call<'_> {
    fn ask(&mut self, question: &ClientSays) -> Result<NodeSays, AttachError> {
        self.channel.say(&framed(&question.encode()));
        let mut bytes = [0; FRAME_BYTES_MAX];
        loop {
            self.send()?;
            let there = self.receive(&mut bytes)?;
            if there == 0 {
                return Err(self.hung_up());
            }
            let heard = match self.channel.take_in(&bytes[..there]) {
                Ok(heard) => heard,
                Err(error) => {
                    // The node may log the client's reason for leaving; nothing depends on it.
                    let _ = self.send();
                    return Err(self.distrust(&error));
                }
            };
            if !heard.said.is_empty() {
                let message = self.frames.take_in(&heard.said);
                if let Some(message) = message.map_err(|error| self.not_a_node(&error))? {
                    let answer = NodeSays::parse(&message);
                    return answer.ok_or_else(|| self.not_a_node(&"its answer is malformed"));
                }
            }
            if heard.hung_up {
                return Err(self.hung_up());
            }
        }
    }

    fn send(&mut self) -> Result<(), AttachError> {
        while !self.channel.outgoing().is_empty() {
            let Some(left) = self.left() else {
                // The node has closed the connection, or does not answer: only its last message is of use.
                self.channel.sent(usize::MAX);
                return Ok(());
            };
            let sent = self.stream.set_write_timeout(Some(left));
            match sent.and_then(|()| self.stream.write(self.channel.outgoing())) {
                Ok(bytes) => self.channel.sent(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(self.silent()),
                // The node has hung up already. Its last message may contain the reason, and is still to be read.
                Err(_) => self.channel.sent(usize::MAX),
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, AttachError> {
        loop {
            let received = match self.left() {
                Some(left) => self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(bytes)),
                // If the client itself was stopped for a while, an answer or a notice that it is too late may have
                // arrived.
                None if self.late_reads > 0 => {
                    self.late_reads -= 1;
                    let received = rustix::net::recv(&self.stream, &mut *bytes, RecvFlags::DONTWAIT);
                    received.map(|(_, there)| there).map_err(std::io::Error::from)
                }
                None => return Err(self.silent()),
            };
            match received {
                Ok(there) => return Ok(there),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(self.silent()),
                // A reset, an unreachable peer and a vanished peer make no difference in the middle of an attach.
                Err(_) => return Ok(0),
            }
        }
    }

    /// Returns the remaining time, if any.
    fn left(&self) -> Option<Duration> {
        let left = self.within.saturating_sub(self.begun.elapsed());
        (!left.is_zero()).then_some(left)
    }

    /// Returns the error for a connection that ended without a message. In the middle of a TLS handshake a node cannot
    /// send the notice that a client is too late; the client measures how long it took.
    fn hung_up(&self) -> AttachError {
        let address = self.address.to_owned();
        if self.begun.elapsed() < Limits::TCP.attach_within {
            AttachError::HungUp { address }
        } else {
            AttachError::TooLate { address }
        }
    }

    fn silent(&self) -> AttachError {
        AttachError::Silent { address: self.address.to_owned(), within: self.within }
    }

    fn not_a_node(&self, reason: &impl ToString) -> AttachError {
        AttachError::NotANode { address: self.address.to_owned(), reason: reason.to_string() }
    }

    fn unexpected(&self, answer: NodeSays) -> AttachError {
        match answer {
            NodeSays::Refused(reason) => AttachError::Refused(reason),
            NodeSays::TooLate => AttachError::TooLate { address: self.address.to_owned() },
            _ => self.not_a_node(&"it sent an unexpected answer"),
        }
    }

    fn distrust(&self, error: &rustls::Error) -> AttachError {
        let address = self.address.to_owned();
        match error {
            rustls::Error::InvalidCertificate(_) => {
                AttachError::NotTheNode { address, reason: in_words(error) }
            }
            rustls::Error::AlertReceived(alert) => {
                AttachError::NotAccepted { address, reason: format!("{alert:?}") }
            }
            other => AttachError::NotANode { address, reason: other.to_string() },
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
