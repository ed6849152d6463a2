//! One connection's conversation, from the first byte to the last, as the [acceptor](crate::Acceptor) leads it.
//!
//! A handshake is a state machine without a socket. What came from the peer goes in, what is to be sent comes out, and
//! the time is told. The acceptor owns sockets, clock and limits, and does not know what is said.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::SocketAddrAny;
use std::error::Error;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Instant;

/// Why a peer does not get in: the peer is told, in the words of the error's `Display`.
pub type Reason = Box<dyn Error + Send + Sync>;

/// Something slow that has to be done before a handshake goes on.
pub type Errand = Box<dyn FnOnce() -> Result<(), Reason> + Send>;

/// What is to be sent now.
#[derive(Debug, Default)]
pub struct Outgoing<'a> {
    /// The bytes. None: nothing is to be sent.
    pub bytes: &'a [u8],
    /// Descriptors that go with the first of them, three at the most.
    pub descriptors: Vec<BorrowedFd<'a>>,
}

/// Whether the acceptor has room for one more client of a holder.
pub type HasRoom<'a, H> = &'a dyn Fn(&<H as Handshake>::Holder) -> bool;

/// Whose connections are counted together.
pub trait Holder: Clone + Debug + Eq + Hash + Send + 'static {
    /// Whether it is proven who that is.
    fn is_proven(&self) -> bool;
}

/// Who has just been accepted.
#[derive(Debug)]
pub struct Accepted<'a> {
    /// The connection. It does not wait.
    pub socket: &'a OwnedFd,
    /// Where it comes from, as the kernel says.
    pub address: Option<SocketAddrAny>,
    /// The number of the listener that it came to.
    pub listener: usize,
    /// When.
    pub now: Instant,
}

/// The node's side of one connection.
pub trait Handshake: Sized + Send + 'static {
    /// What peers come to.
    type Listener: AsFd + Send + 'static;
    /// Decides who gets in. Called on the acceptor's thread: while a call waits, so do all who attach.
    type Policy: Send + 'static;
    /// Whose connections are counted together.
    type Holder: Holder;
    /// Why a peer is hung up on at once.
    type Breach: Display;

    /// Whether the holder is certain from the first moment. Then each connection counts among the holder's from its
    /// beginning. Otherwise a connection counts when it is attached, and until then the crowd's rule limits it.
    const IS_CERTAIN_AT_ONCE: bool;
    /// Whether a peer can make it slow to hear or close a connection: descriptors that a peer passes are closed by the
    /// thread that hears them, and closing one may take as long as the peer likes. Then a thread of the holder does both.
    const IS_SLOW: bool;
    /// Bytes taken from a connection before others have their turn.
    const HEARD_BYTES: usize;

    /// Begins with a peer. Nothing: the peer has gone again, or cannot be spoken with.
    fn begin(listener: &Self::Listener, accepted: Accepted<'_>, limits: &crate::Limits) -> Option<Self>;

    /// Tells a peer that there is no room, before anything was heard, if that can be done at once.
    fn excuse(listener: &Self::Listener, socket: &OwnedFd, reason: &str);

    /// Whether closing a connection to which nothing was said may be slow as well.
    fn is_slow_to_refuse(_listener: &Self::Listener) -> bool {
        false
    }

    /// Lets a listener go. What is returned may be slow to close.
    fn retire(listener: Self::Listener) -> Option<OwnedFd> {
        drop(listener);
        None
    }

    /// Whose connection it is, as far as that is certain.
    fn holder(&self) -> Self::Holder;

    /// Bytes came.
    ///
    /// # Errors
    /// The peer has to go at once. What is to be sent is sent before, if there is room for it.
    fn hear(
        &mut self,
        bytes: &[u8],
        policy: &Self::Policy,
        has_room: HasRoom<'_, Self>,
        now: Instant,
    ) -> Result<(), Self::Breach>;

    /// An errand, if there is one to be done. Only where [`Handshake::IS_SLOW`].
    fn take_errand(&mut self) -> Option<Errand> {
        None
    }

    /// The errand is done, or has failed for this reason.
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

    /// So many bytes of it have been sent.
    fn sent(&mut self, bytes: usize);

    /// Whether this is the moment to close the own half of the connection. Says so once.
    fn take_farewell(&mut self) -> bool {
        false
    }

    /// When the peer's time is up. Nothing: the peer is not waited for, or is attached.
    fn deadline(&self) -> Option<Instant>;

    /// The client that the peer has become.
    fn client(&self) -> Option<u64>;

    /// Whether the client has been told all. Nothing is said from here on.
    fn is_attached(&self) -> bool;

    /// The client has departed: gives up what can be given up at once. The rest goes with the handshake, where
    /// [`Handshake::IS_SLOW`] on the holder's thread.
    fn depart(policy: &Self::Policy, client: u64);

    /// The connection is over.
    fn give_up(&mut self) {}
}
