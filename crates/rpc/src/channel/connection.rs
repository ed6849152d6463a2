//! A client's end of a connection.

use super::carrier::ClientCarrier;
use super::ends::{Answer, Call, CallError, CallId, ClientEnd, RING_BYTES};
use super::messages::{Asked, TOLD_BYTES, Told};
use super::method::Copied;
use super::one_shot::Reserve;
use super::shared_heap::ToAll;
use super::{CLIENT_SLEEPS, now};
use crate::heap::{Heap, HeapError, HeapPlace, Owner};
use crate::plain::Plain;
use crate::{Boxed, HeapFull, Scope, ScopeRef};
use portcullis_attach::unix::{MessageError, MessageSocket, Peer};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Doorbell, Idle, Mapping, MappingError, PrivateView};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest sleep before a client checks whether its server still serves it.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Number of offers that a client rejects because their addresses are in use here. It is more than any server makes.
const OFFERS_MAX: u32 = 32;

/// Options for making a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// Bytes of the connection's heap. Zero: the server's default. If the server is on another machine, half of them
    /// are for arguments, and half for results.
    pub heap_bytes: u64,
    /// The time within which the server must let the client in.
    pub within: Duration,
    /// The deadline of a call for which no time is given. A server that is alive but does not answer, because it is
    /// stopped or a method waits for ever, delays no caller for longer. [`Duration::MAX`]: no deadline.
    pub call_within: Duration,
    /// The most bytes of a result that [`Connection::look`] copies.
    pub results_max: u64,
    /// Whether this process is prevented from writing a scope while a call is under way with it: a thread that writes
    /// ends the process by a signal at that line of the program. After [`explain_faults`](super::explain_faults) the
    /// process also reports the call and the scope.
    ///
    /// This finds mistakes of an honest sender. It is no seal, and the server does not learn of it. Each call costs two
    /// changes of its pages' rights. Each change may have to wait for the process's other threads.
    pub guarded: bool,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            heap_bytes: 0,
            within: Duration::from_secs(3),
            call_within: Duration::from_secs(5),
            results_max: 16 << 20,
            guarded: false,
        }
    }
}

/// The error of a connection that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// No server listens at the path.
    #[error("no server at {path}: {source}")]
    NoServer {
        /// The path.
        path: PathBuf,
        /// The error of the machine.
        source: rustix::io::Errno,
    },
    /// The server did not answer in time.
    #[error("the server at {path} did not answer within {within:?}")]
    Silent {
        /// The path.
        path: PathBuf,
        /// The time that the client waited.
        within: Duration,
    },
    /// The server does not admit the client.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The process that listens at the path is no server of this version.
    #[error("the peer at {path} is not a server of this version")]
    NotAServer {
        /// The path.
        path: PathBuf,
    },
    /// Other memory lies at the addresses of the heap that all clients of the channel have. That heap can have no other
    /// addresses: start the program anew, or connect before those addresses are used.
    #[error(
        "the addresses from {address:#x} on are taken here, where all clients of the channel have a heap"
    )]
    SharedHeapTaken {
        /// The heap's first address.
        address: u64,
    },
    /// The text is no address of a channel at a node.
    #[cfg(feature = "across")]
    #[error(transparent)]
    Address(#[from] super::NoChannelAddress),
    /// There is no session with the node of the channel.
    #[cfg(feature = "across")]
    #[error(transparent)]
    Session(#[from] portcullis::ConnectError),
    /// The node of the channel refuses a request, or has ended.
    #[cfg(feature = "across")]
    #[error("at the node of the channel: {0}")]
    AtNode(#[from] portcullis::Error),
    /// The memory from the server is no heap.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The machine refuses to map memory.
    #[error(transparent)]
    Memory(#[from] MappingError),
    /// The machine refuses an operation that the connection needs.
    #[error("this machine refuses a connection: {0}")]
    Machine(rustix::io::Errno),
}

impl Coded for ConnectionError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoServer { .. } => ErrorCode::NoServer,
            Self::Silent { .. } => ErrorCode::NodeSilent,
            Self::Refused(_) => ErrorCode::AttachRefused,
            Self::NotAServer { .. } => ErrorCode::NotANode,
            Self::SharedHeapTaken { .. } => ErrorCode::HeapPlace,
            #[cfg(feature = "across")]
            Self::Address(error) => error.code(),
            #[cfg(feature = "across")]
            Self::Session(error) => error.code(),
            #[cfg(feature = "across")]
            Self::AtNode(error) => error.code(),
            Self::Heap(error) => error.code(),
            Self::Memory(error) => error.code(),
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// Maps a client's places at the addresses of a connection: one for copies of results, and its one-shot scopes. `None`:
/// other memory is there.
fn places_for(
    place: HeapPlace,
    one_shot_bytes: u64,
    server: Option<u32>,
) -> Result<Option<(PrivateView, Option<Reserve>)>, MappingError> {
    let has_reserve = one_shot_bytes > 0;
    let Some(results) = view_for(place, server)? else { return Ok(None) };
    if server == Some(std::process::id()) {
        let reserve = has_reserve.then(|| Reserve::in_place_of(place, one_shot_bytes)).transpose()?;
        return Ok(Some((results, reserve)));
    }
    let reserve = has_reserve.then(|| Reserve::behind(place, one_shot_bytes)).transpose();
    Ok(reserve.ok().map(|reserve| (results, reserve)))
}

/// Maps the place where a client reads copies of a heap: at the heap's own addresses. `None`: other memory is there. If
/// the server is this very process (`server` is its process number), the server's own copies are there, and the
/// client's lie elsewhere.
pub(super) fn view_for(place: HeapPlace, server: Option<u32>) -> Result<Option<PrivateView>, MappingError> {
    if server == Some(std::process::id()) {
        return PrivateView::anywhere(place.length).map(Some);
    }
    Ok(PrivateView::at(place.address, place.length).ok())
}

/// Transport of requests to a server, and of its replies.
#[derive(Debug)]
pub(super) enum Link {
    /// Memory that both ends have mapped.
    Shared {
        doorbell: Doorbell,
        /// The socket stays open for as long as the server serves this client.
        socket: Arc<MessageSocket>,
    },
    #[cfg_attr(not(feature = "across"), expect(dead_code, reason = "all servers are on this machine"))]
    Carried(Box<dyn ClientCarrier>),
}

/// A connection to a server. Several threads that call at once need a connection each.
#[derive(Debug)]
pub struct Connection {
    pub(super) end: ClientEnd,
    pub(super) link: Link,
    /// The time within which the server must answer over the socket.
    pub(super) within: Duration,
    call_within: Duration,
    /// The addresses of one-shot scopes. `None`: no method of the server reads them.
    pub(super) one_shots: Option<Reserve>,
    idle: Idle,
    pub(super) results_max: u64,
    pub(super) to_all: Option<ToAll>,
}

impl Connection {
    /// Connects to the server at a path, or to the channel at a memory node, given as an address such as
    /// `udp:node1:7472#greetings` ([`ChannelAddress`](super::ChannelAddress)).
    ///
    /// # Errors
    /// There is no server, or it does not admit the client.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ConnectionError> {
        Self::open_with(path, ConnectionOptions::default())
    }

    /// Connects with other options than the default ones.
    ///
    /// # Errors
    /// There is no server, or it does not admit the client.
    pub fn open_with(path: impl AsRef<Path>, options: ConnectionOptions) -> Result<Self, ConnectionError> {
        let (path, within) = (path.as_ref(), options.within);
        #[cfg(feature = "across")]
        if let Some(text) = path.to_str().filter(|text| super::across::is_at_node(text)) {
            return Self::open_at(&text.parse()?, &portcullis::SessionOptions::default(), options);
        }
        let told = |error| match error {
            MessageError::NoPeer(source) => ConnectionError::NoServer { path: path.to_owned(), source },
            MessageError::Silent => ConnectionError::Silent { path: path.to_owned(), within },
            MessageError::Machine(source) => ConnectionError::Machine(source),
        };
        let not_a_server = || ConnectionError::NotAServer { path: path.to_owned() };
        let socket = MessageSocket::connect(path, Instant::now() + within).map_err(told)?;
        let server = Peer::of(&socket, 0).ok().and_then(|peer| peer.process);
        socket.say(&Asked::Hello { heap_bytes: options.heap_bytes }.encode()).map_err(told)?;
        for _ in 0..OFFERS_MAX {
            let (bytes, descriptors) = socket.hear(TOLD_BYTES).map_err(told)?;
            let (place, owner, bytes) = match Told::parse(&bytes).ok_or_else(not_a_server)? {
                Told::Offer { address, length, owner, one_shot_bytes } => {
                    (HeapPlace::new(address, length)?, Owner(owner), one_shot_bytes)
                }
                Told::Refused(reason) => return Err(ConnectionError::Refused(reason)),
                _ => return Err(not_a_server()),
            };
            let [ring, heap, page, event]: [OwnedFd; 4] =
                descriptors.try_into().map_err(|_| not_a_server())?;
            let Some((results, one_shots)) = places_for(place, bytes, server)? else {
                socket.say(&Asked::Taken.encode()).map_err(told)?;
                continue;
            };
            let heap = Heap::open(heap, place, owner)?;
            let ring = Mapping::of_peer(ring, RING_BYTES, true)?;
            let doorbell = Doorbell::new(Mapping::of_peer(page, 4096, false)?, event);
            socket.say(&Asked::Mapped.encode()).map_err(told)?;
            let (bytes, mut descriptors) = socket.hear(TOLD_BYTES).map_err(told)?;
            let to_all = match Told::parse(&bytes) {
                Some(Told::Welcome) => None,
                Some(Told::WelcomeToAll { address, length, owner }) => {
                    let file = descriptors.pop().ok_or_else(not_a_server)?;
                    Some(ToAll::open(file, HeapPlace::new(address, length)?, Owner(owner), server)?)
                }
                Some(Told::Refused(reason)) => return Err(ConnectionError::Refused(reason)),
                _ => return Err(not_a_server()),
            };
            let end = ClientEnd::new(heap, results, ring);
            let link = Link::Shared { doorbell, socket: Arc::new(socket) };
            return Ok(Self { to_all, one_shots, ..Self::new(end, link, options) });
        }
        Err(ConnectionError::Refused("all places that were offered are taken here".to_owned()))
    }

    /// Makes a connection over a carrier to a server on another machine.
    #[cfg(feature = "across")]
    pub(super) fn carried(
        end: ClientEnd,
        carrier: Box<dyn ClientCarrier>,
        options: ConnectionOptions,
    ) -> Self {
        Self::new(end, Link::Carried(carrier), options)
    }

    fn new(end: ClientEnd, link: Link, options: ConnectionOptions) -> Self {
        let ConnectionOptions { within, call_within, results_max, guarded, .. } = options;
        Self {
            end: if guarded { end.guarded() } else { end },
            link,
            within,
            call_within,
            one_shots: None,
            idle: Idle::default(),
            results_max,
            to_all: None,
        }
    }

    /// The connection's heap.
    #[must_use]
    pub fn heap(&self) -> &Heap {
        self.end.heap()
    }

    /// Takes a scope for arguments (RPCool §5.1).
    ///
    /// # Errors
    /// The heap has no room.
    pub fn scope(&self, bytes: u64) -> Result<Scope, HeapFull> {
        self.end.heap().scope(bytes)
    }

    /// Calls a method with a scope and a pointer into it, and waits for the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call<T>(&mut self, method: u32, scope: &Scope, root: Boxed<T>) -> Result<Answer, CallError> {
        let call = self.begin(method, scope.reference(), root, 0, None)?;
        self.wait(call)
    }

    /// Calls a method with a word alone, and waits for the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_with_word(&mut self, method: u32, word: u64) -> Result<Answer, CallError> {
        let call = self.begin(method, ScopeRef::default(), Boxed::<u64>::NULL, word, None)?;
        self.wait(call)
    }

    /// Begins a call, without waiting. The scope must not be freed before the call has ended. `within`: the call's
    /// deadline, counted from now; `None`: [`ConnectionOptions::call_within`]. A server begins no call whose deadline
    /// has passed.
    ///
    /// # Errors
    /// [`CallError::TooMany`], [`CallError::ServerGone`], or [`CallError::NotGuarded`].
    pub fn begin<T>(
        &mut self,
        method: u32,
        scope: ScopeRef,
        root: Boxed<T>,
        word: u64,
        within: Option<Duration>,
    ) -> Result<CallId, CallError> {
        let within = within.unwrap_or(self.call_within);
        let deadline = (within != Duration::MAX).then(|| {
            let nanoseconds = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
            now().saturating_add(nanoseconds)
        });
        let begun = self.end.begin(Call { method, scope, root: root.address(), word, deadline })?;
        match &mut self.link {
            Link::Shared { doorbell, .. } => doorbell.ring(),
            Link::Carried(carrier) => {
                let place = self.end.line(begun).expect("it has just begun");
                carrier.send(place, scope);
            }
        }
        Ok(begun)
    }

    /// Requests the server not to begin a call. The call's answer shows whether the request arrived in time.
    pub fn cancel(&mut self, call: CallId) {
        let (line, word) = (self.end.line(call), self.end.cancel(call));
        if let (Link::Carried(carrier), Some(place), Some(_)) = (&mut self.link, line, word) {
            carrier.send_cancelled(place, call.number());
        }
    }

    /// Whether a call has ended, so that [`wait`](Self::wait) does not wait.
    pub fn has_ended(&mut self, call: CallId) -> bool {
        self.bring();
        self.end.has_ended(call)
    }

    /// If the connection has a carrier, makes it copy received replies into the ring. If no more replies can follow,
    /// ends all calls.
    #[inline]
    fn bring(&mut self) {
        if let Link::Carried(carrier) = &mut self.link
            && !carrier.bring()
            && !self.end.is_gone()
        {
            self.end.give_up();
        }
    }

    /// Checks that the result of a call has been received as a whole.
    fn check(&self, ended: Result<Answer, CallError>) -> Result<Answer, CallError> {
        match (&self.link, ended) {
            (Link::Carried(carrier), Ok(answer)) => carrier.check_result(answer.length()).map(|()| answer),
            (_, ended) => ended,
        }
    }

    /// Waits for the answer of a call.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(&mut self, call: CallId) -> Result<Answer, CallError> {
        let mut began = None;
        self.idle.reset();
        loop {
            self.bring();
            // A carrier does its own waiting: each of its polls goes over a network.
            let is_carried = matches!(self.link, Link::Carried(_));
            let is_spinning = !is_carried && self.idle.is_spinning();
            // While spinning, the clock is not read: that takes longer than a look at the ring.
            if let Some(ended) = self.end.poll(call, || if is_spinning { 0 } else { now() }) {
                return self.check(ended);
            }
            if is_carried || self.idle.spin_or_yield(|| began.get_or_insert_with(Instant::now).elapsed()) {
                self.sleep(self.end.deadline(call));
            }
        }
    }

    /// Sleeps until a reply has been received, for a limited time. Then checks whether the server still serves this
    /// client.
    fn sleep(&mut self, deadline: Option<u64>) {
        let left = deadline.map_or(SLEEP_MAX, |deadline| {
            Duration::from_nanos(deadline.saturating_sub(now())).min(SLEEP_MAX)
        });
        let socket = match &mut self.link {
            Link::Shared { socket, .. } => socket,
            Link::Carried(carrier) => return carrier.wait(left),
        };
        self.idle.reset();
        self.end.ring().sleep(CLIENT_SLEEPS, left, || self.end.has_reply());
        let mut ends = [PollFd::new(&**socket, PollFlags::IN)];
        // The server sends nothing over the socket without a request, and each request waits for its answer: if the
        // socket can be read, the server has closed it.
        let has_ended = rustix::event::poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if has_ended.is_ok_and(|count| count > 0) {
            self.end.give_up();
        }
    }

    /// Copies the scope of an answer's result, so that the server cannot change it any more. Returns the copy.
    ///
    /// # Errors
    /// The server named a scope that is not in the heap, or more bytes than this client copies
    /// ([`ConnectionOptions::results_max`]).
    pub fn look<T: Plain>(&mut self, answer: &Answer) -> Result<Copied<'_, T>, CallError> {
        self.end.look(answer, self.results_max)
    }
}
