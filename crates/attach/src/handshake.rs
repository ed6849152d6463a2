//! One connection's conversation, from the first byte to the last, as the [acceptor](crate::Acceptor) leads it.
//!
//! A handshake is a state machine without a socket. Bytes from the peer go in, bytes to be sent come out, and the
//! caller passes the time. The acceptor owns sockets, clock and limits, and does not know what is said.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::SocketAddrAny;
use std::error::Error;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Instant;

/// Why a peer is refused. The peer is told the error's `Display`.
pub type Reason = Box<dyn Error + Send + Sync>;

/// Something slow that has to be done before a handshake goes on.
pub type Errand = Box<dyn FnOnce() -> Result<(), Reason> + Send>;

/// Why the acceptor ends the connection of a peer that is not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dismissal {
    /// The peer's time is up.
    TooLate,
    /// Others attach at the same time, and there is no room for all of them.
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

/// A peer whose connection the acceptor has ended, for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedPeer {
    /// What is known of the peer: its address, or its user and process.
    pub peer: String,
    /// Why.
    pub reason: String,
    /// How many further peers were refused since the last one that was reported: too many of a second are only counted.
    pub further: u64,
}

/// What is to be sent now.
#[derive(Debug, Default)]
pub struct Outgoing<'a> {
    /// The bytes. Empty: nothing is to be sent.
    pub bytes: &'a [u8],
    /// Descriptors that go with the first byte, at most four.
    pub descriptors: Vec<BorrowedFd<'a>>,
}

/// Whether the acceptor has room for one more client of a holder.
pub type HasRoom<'a, H> = &'a dyn Fn(&<H as Handshake>::Holder) -> bool;

/// The party whose connections are counted together.
pub trait Holder: Clone + Debug + Eq + Hash + Send + 'static {
    /// Whether that is proven.
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
    /// When it came.
    pub now: Instant,
}

/// The node's side of one connection.
pub trait Handshake: Sized + Send + 'static {
    /// What peers connect to.
    type Listener: AsFd + Send + 'static;
    /// Decides which peers are admitted. Called on the acceptor's thread: while a call waits, all attaches wait.
    type Policy: Send + 'static;
    /// The party whose connections are counted together.
    type Holder: Holder;
    /// Why a peer is hung up on at once.
    type Breach: Display;

    /// Whether the holder is proven from the beginning. Then each connection counts among the holder's from its
    /// beginning. Otherwise a connection counts when it is attached, and until then the crowd's rule limits it.
    const IS_CERTAIN_AT_ONCE: bool;
    /// Whether a peer can make receiving from its connection, or closing it, slow: descriptors that it passes are
    /// closed by the thread that receives them, which may take as long as the peer likes. A thread of the holder's then
    /// does both.
    const IS_SLOW: bool;
    /// Bytes taken from a connection before others have their turn.
    const HEARD_BYTES: usize;

    /// Starts with a peer. `None`: the peer has gone, or cannot be talked to.
    fn begin(listener: &Self::Listener, accepted: Accepted<'_>, limits: &crate::Limits) -> Option<Self>;

    /// Tells a peer, before anything was received from it, that there is no room, if that can be done at once.
    fn excuse(listener: &Self::Listener, socket: &OwnedFd, reason: &str);

    /// Whether closing may be slow even if nothing was received.
    fn is_slow_to_refuse(_listener: &Self::Listener) -> bool {
        false
    }

    /// Closes a listener. Closing what is returned may be slow.
    fn retire(listener: Self::Listener) -> Option<OwnedFd> {
        drop(listener);
        None
    }

    /// The holder of the connection, as far as it is known.
    fn holder(&self) -> Self::Holder;

    /// How the peer is named to the operator.
    fn peer_name(&self) -> String {
        format!("{:?}", self.holder())
    }

    /// Why the peer was refused, where it was told so and only its hang-up is waited for. Only once.
    fn take_refusal(&mut self) -> Option<String> {
        None
    }

    /// Whether this is how an attached client leaves.
    fn is_departure(_breach: &Self::Breach) -> bool {
        false
    }

    /// Reports to the operator that a peer's connection was ended. Does not wait.
    fn report(_policy: &Self::Policy, _refused: RefusedPeer) {}

    /// Takes in bytes of the peer.
    ///
    /// # Errors
    /// The peer must be hung up on at once. What is to be sent is sent before, if there is room.
    fn hear(
        &mut self,
        bytes: &[u8],
        policy: &Self::Policy,
        has_room: HasRoom<'_, Self>,
        now: Instant,
    ) -> Result<(), Self::Breach>;

    /// Sends a control message to the client that the peer has become, where these travel over the connection.
    ///
    /// # Errors
    /// As [`Handshake::hear`].
    fn say(&mut self, _message: &[u8]) -> Result<(), Self::Breach> {
        Ok(())
    }

    /// An errand, if one is to be done. Only where [`Handshake::IS_SLOW`].
    fn take_errand(&mut self) -> Option<Errand> {
        None
    }

    /// Takes in that the errand is done, or why it failed.
    ///
    /// # Errors
    /// As [`Handshake::hear`].
    fn errand_done(
        &mut self,
        _outcome: Result<(), Reason>,
        _policy: &Self::Policy,
    ) -> Result<(), Self::Breach> {
        Ok(())
    }

    /// What is to be sent now.
    fn outgoing(&self) -> Outgoing<'_>;

    /// So many bytes have been sent.
    fn sent(&mut self, bytes: usize);

    /// Whether to close this end's half of the connection now. `true` only once.
    fn take_half_close(&mut self) -> bool {
        false
    }

    /// When the peer's time is up. `None`: the peer is not waited for, or is attached.
    fn deadline(&self) -> Option<Instant>;

    /// The client that the peer has become.
    fn client(&self) -> Option<u64>;

    /// Whether the client has been told everything. From here on nothing is said but control messages, where these travel over
    /// the connection.
    fn is_attached(&self) -> bool;

    /// Adds a message that says why the connection of a peer ends, where that can be said, to what is to be sent. The acceptor
    /// sends as much as there is room for at once, and then closes the connection. Called before the peer is a client.
    fn dismiss(&mut self, why: Dismissal);

    /// The client has departed: gives up what can be given up at once. The rest is dropped with the handshake, on the
    /// holder's thread where [`Handshake::IS_SLOW`].
    fn depart(policy: &Self::Policy, client: u64);

    /// The connection is over.
    fn give_up(&mut self) {}
}
