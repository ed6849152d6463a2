//! The node's side of one connection, from the first byte to the last, as the [acceptor](crate::Acceptor) drives it.
//!
//! A handshake is a state machine without a socket. Bytes from the peer go in, bytes to be sent come out, and the
//! caller passes the time. The acceptor owns sockets, clock and limits, and does not interpret the messages.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::SocketAddrAny;
use std::error::Error;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Instant;

/// Reason for which a peer is refused. The peer is sent the error's `Display`.
pub type Reason = Box<dyn Error + Send + Sync>;

/// A slow operation that must be complete before a handshake goes on.
pub type Errand = Box<dyn FnOnce() -> Result<(), Reason> + Send>;

/// Reason for which the acceptor ends the connection of a peer that is not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dismissal {
    /// The peer's time is up.
    TooLate,
    /// Other peers attach at the same time, and there is no room for all of them.
    Displaced,
    /// The node ends.
    Stopping,
}

impl Display for Dismissal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TooLate => "the attach took longer than the node waits for a client: try again",
            Self::Displaced => {
                "the node has no room for more clients that attach at the same time: try again"
            }
            Self::Stopping => "the node is stopping",
        })
    }
}

/// Report to the operator about a peer whose connection the acceptor has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedPeer {
    /// Description of the peer, as far as it is known: its address, or its user and process.
    pub peer: String,
    /// Reason for the refusal.
    pub reason: String,
    /// Number of further peers refused since the last report: beyond a limit a second they are only counted.
    pub further: u64,
}

/// The bytes and descriptors to be sent now.
#[derive(Debug, Default)]
pub struct Outgoing<'a> {
    /// The bytes to send. If empty, nothing is to be sent.
    pub bytes: &'a [u8],
    /// Descriptors that are sent with the first byte, at most four.
    pub descriptors: Vec<BorrowedFd<'a>>,
}

/// Whether the acceptor has room for one more client of a holder.
pub type HasRoom<'a, H> = &'a dyn Fn(&<H as Handshake>::Holder) -> bool;

/// The party whose connections are counted together.
pub trait Holder: Clone + Debug + Eq + Hash + Send + 'static {
    /// Whether the identity of the holder is proven.
    fn is_proven(&self) -> bool;
}

/// A new connection.
#[derive(Debug)]
pub struct Accepted<'a> {
    /// The connection. It is non-blocking.
    pub socket: &'a OwnedFd,
    /// The peer's address, as the kernel gives it.
    pub address: Option<SocketAddrAny>,
    /// The number of the listener that accepted it.
    pub listener: usize,
    /// Time at which it was accepted.
    pub now: Instant,
}

/// The node's side of one connection.
pub trait Handshake: Sized + Send + 'static {
    /// The socket that peers connect to.
    type Listener: AsFd + Send + 'static;
    /// Decides which peers are admitted. Called on the acceptor's thread: while a call waits, all attaches wait.
    type Policy: Send + 'static;
    /// The party whose connections are counted together.
    type Holder: Holder;
    /// Reason for which the acceptor hangs up on a peer at once.
    type Breach: Display;

    /// Whether the holder is proven from the beginning. If so, each connection counts among the holder's from its
    /// beginning. Otherwise a connection counts when it is attached, and until then the crowd's rule limits it.
    const IS_CERTAIN_AT_ONCE: bool;
    /// Whether a peer can make receiving from its connection, or closing it, slow: the thread that receives passed
    /// descriptors also closes them, which may take as long as the peer likes. If so, a thread of the holder does both.
    const IS_SLOW: bool;
    /// Bytes received from a connection before other connections have their turn.
    const HEARD_BYTES: usize;

    /// Begins a handshake with a peer. Returns `None` if the peer has left or no handshake with it is possible.
    fn begin(listener: &Self::Listener, accepted: Accepted<'_>, limits: &crate::Limits) -> Option<Self>;

    /// Sends a refusal for lack of room to a peer from which nothing was received yet, if that is possible at once.
    fn excuse(listener: &Self::Listener, socket: &OwnedFd, reason: &str);

    /// Whether closing may be slow even if nothing was received.
    fn is_slow_to_refuse(_listener: &Self::Listener) -> bool {
        false
    }

    /// Closes a listener. Closing the returned descriptor may be slow.
    fn retire(listener: Self::Listener) -> Option<OwnedFd> {
        drop(listener);
        None
    }

    /// The holder of the connection, as far as it is known.
    fn holder(&self) -> Self::Holder;

    /// Name of the peer in reports to the operator.
    fn peer_name(&self) -> String {
        format!("{:?}", self.holder())
    }

    /// Returns the reason for the refusal if it was sent to the peer and only the peer's hang-up is outstanding.
    /// Returns it only once.
    fn take_refusal(&mut self) -> Option<String> {
        None
    }

    /// Whether the breach is the way in which an attached client leaves.
    fn is_departure(_breach: &Self::Breach) -> bool {
        false
    }

    /// Reports to the operator that a peer's connection was ended. Does not wait.
    fn report(_policy: &Self::Policy, _refused: RefusedPeer) {}

    /// Handles bytes received from the peer.
    ///
    /// # Errors
    /// The peer must be hung up on at once. Pending bytes are sent before that, if there is room.
    fn hear(
        &mut self,
        bytes: &[u8],
        policy: &Self::Policy,
        has_room: HasRoom<'_, Self>,
        now: Instant,
    ) -> Result<(), Self::Breach>;

    /// Sends a control message to the client that the peer has become, if control messages travel over the connection.
    ///
    /// # Errors
    /// The errors of [`Handshake::hear`].
    fn say(&mut self, _message: &[u8]) -> Result<(), Self::Breach> {
        Ok(())
    }

    /// Returns the pending errand, if any. Used only if [`Handshake::IS_SLOW`].
    fn take_errand(&mut self) -> Option<Errand> {
        None
    }

    /// Handles the outcome of the errand.
    ///
    /// # Errors
    /// The errors of [`Handshake::hear`].
    fn errand_done(
        &mut self,
        _outcome: Result<(), Reason>,
        _policy: &Self::Policy,
    ) -> Result<(), Self::Breach> {
        Ok(())
    }

    /// Returns the bytes and descriptors to be sent now.
    fn outgoing(&self) -> Outgoing<'_>;

    /// Notes that `bytes` bytes have been sent.
    fn sent(&mut self, bytes: usize);

    /// Whether to close this end's half of the connection now. `true` only once.
    fn take_half_close(&mut self) -> bool {
        false
    }

    /// Time at which the peer is too late. `None` if the node is not waiting for the peer, or the peer is attached.
    fn deadline(&self) -> Option<Instant>;

    /// The client that the peer has become, if it has.
    fn client(&self) -> Option<u64>;

    /// Whether the client has been sent its welcome. From then on only control messages are sent, if these travel over
    /// the connection.
    fn is_attached(&self) -> bool;

    /// Queues a message with the reason for which the peer's connection ends, if one can be sent in this state. The
    /// acceptor sends as much as there is room for at once, and then closes the connection. Called before the peer is a
    /// client.
    fn dismiss(&mut self, why: Dismissal);

    /// Releases at once the resources of a departed client for which that is possible. The rest is dropped with the
    /// handshake, on the holder's thread if [`Handshake::IS_SLOW`].
    fn depart(policy: &Self::Policy, client: u64);

    /// Notes that the connection is over.
    fn give_up(&mut self) {}
}
