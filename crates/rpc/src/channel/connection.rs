//! A client's end of a connection.

use super::lines::{Reader, Writer};
use super::messages::{Asked, TOLD_BYTES, Told};
use super::method::Copied;
use super::server::cancelling_word;
use super::{CLIENT_SLEEPS, DEPTH, REPLIES, REQUESTS, RING_BYTES, ReplyLine, RequestLine, Status, now};
use crate::heap::{Heap, HeapError, HeapPlace, Owner};
use crate::plain::Plain;
use crate::{Boxed, HeapFull, PointerError, Scope, ScopeRef, Text, View};
use portcullis_attach::unix::{MessageError, MessageSocket, Peer};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Doorbell, Idle, Mapping, MappingError, Memory, PrivateView};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest sleep before a client looks whether its server is still there.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Offers of a server that finds no place which is free here. More than any server makes.
const OFFERS_MAX: u32 = 32;
/// Copies of more bytes give their memory back.
const COPY_KEPT_MAX: u64 = 1 << 20;
/// Bytes of the longest text that says why a call failed.
const REASON_MAX: u64 = 64 << 10;

/// How a connection is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// Bytes of its heap. Zero: what the server gives.
    pub heap_bytes: u64,
    /// How long the server may take to let the client in.
    pub within: Duration,
    /// The most bytes of a result that [`Connection::look`] copies.
    pub results_max: u64,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self { heap_bytes: 0, within: Duration::from_secs(3), results_max: 16 << 20 }
    }
}

/// There is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Nobody serves there.
    #[error("no server at {path}: {source}")]
    NoServer {
        /// The path.
        path: PathBuf,
        /// What the machine said.
        source: rustix::io::Errno,
    },
    /// The server did not answer in time.
    #[error("the server at {path} did not answer within {within:?}")]
    Silent {
        /// The path.
        path: PathBuf,
        /// How long was waited.
        within: Duration,
    },
    /// The server does not let the client in.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// What listens there is no server of this version.
    #[error("what listens at {path} is no server of this version")]
    NotAServer {
        /// The path.
        path: PathBuf,
    },
    /// What the server gives is no heap.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The machine refuses memory.
    #[error(transparent)]
    Memory(#[from] MappingError),
    /// The machine refuses.
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
            Self::Heap(error) => error.code(),
            Self::Memory(error) => error.code(),
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// Why a call did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server has no such method.
    #[error("the server has no method {0}")]
    NoSuchMethod(u32),
    /// The server could not use the scope: it is larger than the method takes.
    #[error("the server does not take arguments of that size")]
    ArgumentsTooLong,
    /// The method found a pointer that leads nowhere among the arguments.
    #[error("the arguments are wrong: {0}")]
    WildPointer(String),
    /// The method's code has a mistake.
    #[error("the method panicked")]
    Panicked,
    /// The method says why.
    #[error("the method failed with {number}: {text}")]
    Failed {
        /// The method's own number for it.
        number: u32,
        /// What it says.
        text: String,
    },
    /// The deadline passed. The method may still run.
    #[error("the deadline has passed")]
    Late,
    /// The call was cancelled before the method began.
    #[error("the call was cancelled")]
    Cancelled,
    /// The connection's heap has no room for the result.
    #[error("no room for the result: {0}")]
    NoRoom(String),
    /// The result is longer than this client looks at.
    #[error("a result of {length} bytes, where {most} are looked at: see ConnectionOptions::results_max")]
    ResultTooLong {
        /// Its bytes, as the server says.
        length: u64,
        /// The most.
        most: u64,
    },
    /// The server is gone. The method may have run.
    #[error("the server is gone")]
    ServerGone,
    /// As many calls were begun and not waited for as can be.
    #[error("{DEPTH} calls were begun already: wait for one of them")]
    TooMany,
    /// The call is not under way: its answer was taken before.
    #[error("there is no such call under way")]
    NoSuchCall,
    /// The server's reply makes no sense.
    #[error("the server's reply makes no sense")]
    Nonsense,
}

impl Coded for CallError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoSuchMethod(_) => ErrorCode::NoSuchMethod,
            Self::ArgumentsTooLong => ErrorCode::ArgumentsTooLong,
            Self::WildPointer(_) => ErrorCode::WildPointer,
            Self::Panicked => ErrorCode::MethodPanicked,
            Self::Failed { .. } => ErrorCode::MethodFailed,
            Self::Late => ErrorCode::CallLate,
            Self::Cancelled => ErrorCode::CallCancelled,
            Self::NoRoom(_) => ErrorCode::HeapFull,
            Self::ResultTooLong { .. } => ErrorCode::ResultTooLong,
            Self::ServerGone => ErrorCode::ServerGone,
            Self::TooMany => ErrorCode::TooManyCalls,
            Self::NoSuchCall => ErrorCode::NoSuchCall,
            Self::Nonsense => ErrorCode::NonsenseReply,
        }
    }
}

/// A call that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId(pub(super) u64);

/// Where a client looks at results: at the heap's own addresses. `None`: something else is there. A server in this very process has
/// its own copies there, and then they lie elsewhere.
fn view_for(place: HeapPlace, socket: &MessageSocket) -> Result<Option<PrivateView>, MappingError> {
    let server = Peer::of(socket, 0).ok().and_then(|peer| peer.process);
    if server == Some(std::process::id()) {
        return PrivateView::anywhere(place.length).map(Some);
    }
    Ok(PrivateView::at(place.address, place.length).ok())
}

/// What a call has brought. Dropping it frees the result's scope.
pub struct Answer {
    heap: Heap,
    word: u64,
    root: u64,
    scope: ScopeRef,
}

impl Answer {
    /// The word that the method answered with.
    #[must_use]
    pub fn word(&self) -> u64 {
        self.word
    }

    /// The pointer that the method answered with.
    #[must_use]
    pub fn root<T>(&self) -> Boxed<T> {
        Boxed::at(self.root)
    }

    /// A copy of the value that the method answered with.
    ///
    /// # Errors
    /// The pointer leads out of the heap.
    pub fn read<T: Plain>(&self) -> Result<T, PointerError> {
        self.root().read(&self.heap)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, root, scope, .. } = self;
        write!(f, "Answer {{ word: {word}, root: {root:#x}, scope: {scope:x?} }}")
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.scope.address != 0 {
            // The server may have named what is none.
            let _ = self.heap.free(self.scope.address);
        }
    }
}

/// A call that was begun and not waited for yet.
#[derive(Clone, Copy, Debug)]
struct Begun {
    call: u64,
    method: u32,
    until: Option<Instant>,
    /// Where its request is.
    place: u64,
    progress: Progress,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    UnderWay,
    /// It has no answer yet, and nobody waits for that any more.
    Abandoned,
    Ended(ReplyLine),
}

/// A call's number has its slot in its lowest bits, so that it is found without a search.
const SLOT_BITS: u32 = DEPTH.trailing_zeros();

fn slot_of(call: u64) -> usize {
    usize::try_from(call & (u64::from(DEPTH) - 1)).unwrap_or(0)
}

/// A connection to a server. Calls of several threads go over several connections.
#[derive(Debug)]
pub struct Connection {
    heap: Heap,
    view: PrivateView,
    ring: Mapping,
    requests: Writer,
    replies: Reader,
    doorbell: Doorbell,
    /// It is open for as long as the server serves this client.
    socket: OwnedFd,
    /// How many calls were begun.
    begun: u64,
    /// By slot.
    calls: [Option<Begun>; DEPTH as usize],
    free: Vec<u32>,
    is_gone: bool,
    results_max: u64,
    /// Where the copy of the last result is, if it was a large one: the next look gives its memory back.
    looked_at: Option<(u64, u64)>,
}

impl Connection {
    /// Connects to the server at a path.
    ///
    /// # Errors
    /// There is none, or it does not let the client in.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ConnectionError> {
        Self::open_with(path, ConnectionOptions::default())
    }

    /// Connects with other sizes.
    ///
    /// # Errors
    /// There is no server, or it does not let the client in.
    pub fn open_with(path: impl AsRef<Path>, options: ConnectionOptions) -> Result<Self, ConnectionError> {
        let (path, within) = (path.as_ref(), options.within);
        let told = |error| match error {
            MessageError::NoPeer(source) => ConnectionError::NoServer { path: path.to_owned(), source },
            MessageError::Silent => ConnectionError::Silent { path: path.to_owned(), within },
            MessageError::Machine(source) => ConnectionError::Machine(source),
        };
        let not_a_server = || ConnectionError::NotAServer { path: path.to_owned() };
        let socket = MessageSocket::connect(path, Instant::now() + within).map_err(told)?;
        socket.say(&Asked::Hello { heap_bytes: options.heap_bytes }.encode()).map_err(told)?;
        for _ in 0..OFFERS_MAX {
            let (bytes, descriptors) = socket.hear(TOLD_BYTES).map_err(told)?;
            let (place, owner) = match Told::parse(&bytes).ok_or_else(not_a_server)? {
                Told::Offer { address, length, owner } => (HeapPlace::new(address, length)?, Owner(owner)),
                Told::Refused(reason) => return Err(ConnectionError::Refused(reason)),
                Told::Welcome => return Err(not_a_server()),
            };
            let [ring, heap, page, event]: [OwnedFd; 4] =
                descriptors.try_into().map_err(|_| not_a_server())?;
            let Some(view) = view_for(place, &socket)? else {
                socket.say(&Asked::Taken.encode()).map_err(told)?;
                continue;
            };
            let heap = Heap::open(heap, place, owner)?;
            let ring = Mapping::of_peer(ring, RING_BYTES, true)?;
            let doorbell = Doorbell::new(Mapping::of_peer(page, 4096, false)?, event);
            socket.say(&Asked::Mapped.encode()).map_err(told)?;
            let (bytes, _) = socket.hear(TOLD_BYTES).map_err(told)?;
            return match Told::parse(&bytes) {
                Some(Told::Welcome) => {
                    let most = options.results_max;
                    Ok(Self::new((heap, view, most), ring, doorbell, socket.into_socket()))
                }
                Some(Told::Refused(reason)) => Err(ConnectionError::Refused(reason)),
                _ => Err(not_a_server()),
            };
        }
        Err(ConnectionError::Refused("all places that were offered are taken here".to_owned()))
    }

    fn new(
        (heap, view, results_max): (Heap, PrivateView, u64),
        ring: Mapping,
        doorbell: Doorbell,
        socket: OwnedFd,
    ) -> Self {
        let requests = Writer::new(ring.clone(), REQUESTS, DEPTH);
        let replies = Reader::new(ring.clone(), REPLIES, DEPTH);
        let (calls, free) = ([None; DEPTH as usize], (0..DEPTH).rev().collect());
        let (begun, is_gone, looked_at) = (0, false, None);
        Self {
            heap,
            view,
            ring,
            requests,
            replies,
            doorbell,
            socket,
            begun,
            calls,
            free,
            is_gone,
            results_max,
            looked_at,
        }
    }

    /// The connection's heap.
    #[must_use]
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// A scope for arguments (RPCool §5.1).
    ///
    /// # Errors
    /// The heap has no room.
    pub fn scope(&self, bytes: u64) -> Result<Scope, HeapFull> {
        self.heap.scope(bytes)
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

    /// Begins a call, without waiting. The scope must not be freed before the call has ended.
    ///
    /// # Errors
    /// [`CallError::TooMany`], or [`CallError::ServerGone`].
    pub fn begin<T>(
        &mut self,
        method: u32,
        scope: ScopeRef,
        root: Boxed<T>,
        word: u64,
        within: Option<Duration>,
    ) -> Result<CallId, CallError> {
        if self.is_gone {
            return Err(CallError::ServerGone);
        }
        if self.free.is_empty() {
            // What nobody waits for any more may have been answered.
            self.take_replies();
        }
        let slot = self.free.pop().ok_or(CallError::TooMany)?;
        self.begun += 1;
        let call = self.begun << SLOT_BITS | u64::from(slot);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let deadline = within.map_or(0, |within| now().saturating_add(nanoseconds(within)).max(1));
        let request = RequestLine { method, call, root: root.address(), scope, deadline, word };
        let place = self.requests.write(method, request.words());
        self.doorbell.ring();
        let until = within.and_then(|within| Instant::now().checked_add(within));
        let begun = Begun { call, method, until, place, progress: Progress::UnderWay };
        self.calls[slot_of(call)] = Some(begun);
        Ok(CallId(call))
    }

    /// The slot of a call that was begun and not waited for.
    fn slot(&mut self, call: u64) -> Option<&mut Option<Begun>> {
        let slot = &mut self.calls[slot_of(call)];
        slot.as_ref().is_some_and(|it| it.call == call).then_some(slot)
    }

    fn let_go(&mut self, call: u64) {
        if let Some(slot) = self.slot(call) {
            *slot = None;
            self.free.push(u32::try_from(slot_of(call)).unwrap_or(0));
        }
    }

    /// Asks the server not to begin a call. Whether it came in time, the call's answer says.
    pub fn cancel(&mut self, call: CallId) {
        if let Some(&mut Some(Begun { place, progress: Progress::UnderWay, .. })) = self.slot(call.0) {
            self.ring.store(cancelling_word(place), call.0);
        }
    }

    /// Whether a call has ended, so that [`wait`](Self::wait) does not wait.
    pub fn has_ended(&mut self, call: CallId) -> bool {
        self.take_replies();
        !matches!(self.slot(call.0), Some(Some(Begun { progress: Progress::UnderWay, .. })))
    }

    /// Waits for the answer of a call.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(&mut self, call: CallId) -> Result<Answer, CallError> {
        let (mut idle, mut began) = (Idle::default(), None);
        loop {
            self.take_replies();
            let Some(&mut Some(ref mut it)) = self.slot(call.0) else { return Err(CallError::NoSuchCall) };
            let (method, until) = (it.method, it.until);
            match it.progress {
                Progress::Ended(reply) => {
                    self.let_go(call.0);
                    return self.understand(method, &reply);
                }
                Progress::Abandoned => return Err(CallError::NoSuchCall),
                Progress::UnderWay if !idle.is_spinning() && until.is_some_and(|it| Instant::now() >= it) => {
                    it.progress = Progress::Abandoned;
                    return Err(CallError::Late);
                }
                Progress::UnderWay => {}
            }
            if self.is_gone {
                return Err(CallError::ServerGone);
            }
            if idle.spin_or_yield(|| began.get_or_insert_with(Instant::now).elapsed()) {
                self.sleep(until);
                idle.reset();
            }
        }
    }

    /// Sleeps until a reply has come. Looks whether the server is there.
    fn sleep(&mut self, until: Option<Instant>) {
        let left = until.map_or(SLEEP_MAX, |until| until.saturating_duration_since(Instant::now()));
        self.ring.sleep(CLIENT_SLEEPS, left.min(SLEEP_MAX), || self.replies.has_line());
        let mut ends = [PollFd::new(&self.socket, PollFlags::IN)];
        // Nothing comes over the socket: what can be read is its end.
        let has_ended = rustix::event::poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if has_ended.is_ok_and(|count| count > 0) {
            self.take_replies();
            self.is_gone = true;
        }
    }

    /// Takes in the replies that have come.
    fn take_replies(&mut self) {
        // No server has more replies to this client. One that writes without an end is not listened to without one.
        for _ in 0..DEPTH {
            let Some((status, words, _)) = self.replies.read() else { return };
            let reply = ReplyLine::read(status, words);
            // A server may say anything: what nobody has asked is nobody's answer.
            let Some(Some(it)) = self.slot(reply.call) else { continue };
            match it.progress {
                Progress::UnderWay => it.progress = Progress::Ended(reply),
                Progress::Abandoned => {
                    self.let_go(reply.call);
                    drop(self.answer(&reply));
                }
                Progress::Ended(_) => {}
            }
        }
    }

    fn answer(&self, reply: &ReplyLine) -> Answer {
        let ReplyLine { word, root, scope, .. } = *reply;
        Answer { heap: self.heap.clone(), word, root, scope }
    }

    fn understand(&mut self, method: u32, reply: &ReplyLine) -> Result<Answer, CallError> {
        let answer = self.answer(reply);
        let Some(status) = Status::read(reply.status) else { return Err(CallError::Nonsense) };
        let reason = || {
            let text = answer.read::<Text>().ok().filter(|text| text.len() <= REASON_MAX);
            text.and_then(|text| text.read(&answer.heap).ok()).unwrap_or_default()
        };
        Err(match status {
            Status::Done => return Ok(answer),
            Status::NoSuchMethod => CallError::NoSuchMethod(method),
            Status::NoArguments => CallError::ArgumentsTooLong,
            Status::WildPointer => CallError::WildPointer(reason()),
            Status::Panicked => CallError::Panicked,
            Status::Failed => {
                CallError::Failed { number: u32::try_from(answer.word).unwrap_or(u32::MAX), text: reason() }
            }
            Status::Late => CallError::Late,
            Status::Cancelled => CallError::Cancelled,
            Status::NoRoom => CallError::NoRoom(reason()),
        })
    }

    /// Looks at an answer's result in a copy of its scope, which the server cannot change any more.
    ///
    /// # Errors
    /// The server named a scope that is none of the heap's, or more bytes than this client looks at
    /// ([`ConnectionOptions::results_max`]).
    pub fn look<T: Plain>(&mut self, answer: &Answer) -> Result<Copied<'_, T>, CallError> {
        let ScopeRef { address, length } = answer.scope;
        let offset = self.heap.place().offset(address, length).ok_or(CallError::Nonsense)?;
        if length > self.results_max {
            return Err(CallError::ResultTooLong { length, most: self.results_max });
        }
        if let Some((offset, length)) = self.looked_at.take() {
            self.view.give_back(offset, length);
        }
        self.looked_at = (length > COPY_KEPT_MAX).then_some((offset, length));
        let bytes = self.view.take(self.heap.memory(), offset, length);
        Ok(Copied::new(View::new(address, bytes, length), answer.root, answer.word))
    }
}
