//! A server: one thread that serves all its connections.

use super::admission::{DESCRIPTORS_EACH, Door, Entry, News, SERVER, Shared};
use super::lines::{Reader, Writer, last_word};
use super::method::{Copied, Failure, Method, Reply, Trusted};
use super::{CLIENT_SLEEPS, DEPTH, REPLIES, REQUESTS, ReplyLine, RequestLine, Status, now};
use crate::heap::{HEAP_BYTES_MAX, Heap};
use crate::plain::Plain;
use crate::{ScopeRef, View};
use portcullis_attach::unix::{Listener, SocketAccess};
use portcullis_attach::{Acceptor, AcceptorPlace, Limits};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Idle, Mapping, PrivateView, Waker, WakerError, WatchedEvent, pin};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls that one connection has served before the others have their turn.
const CALLS_PER_TURN: u32 = 16;
/// The longest sleep: it bounds the cost of a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Copies of more bytes give their memory back when the method has ended.
const COPY_KEPT_MAX: u64 = 1 << 20;

/// The sizes of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerOptions {
    /// Bytes of a connection's heap, if its client does not ask for others. They take memory only where they are used.
    pub heap_bytes: u64,
    /// The most bytes that a client may ask for.
    pub heap_bytes_max: u64,
    /// The most bytes of arguments that are copied for a call.
    pub arguments_max: u64,
    /// Who may connect: nobody but this user, unless something else is said.
    pub access: SocketAccess,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            heap_bytes: 64 << 20,
            heap_bytes_max: 1 << 30,
            arguments_max: 16 << 20,
            access: SocketAccess { mode: 0o600, group: None },
        }
    }
}

/// A server's methods, before it starts.
#[derive(Debug)]
pub struct Channel {
    path: PathBuf,
    options: ServerOptions,
    methods: BTreeMap<u32, Method>,
    processor: Option<usize>,
}

/// A channel at a path: its methods are added one by one, and then it is started.
///
/// ```
/// use portcullis_rpc::channel::{Connection, Copied, serve};
/// use portcullis_rpc::{Boxed, Text};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("greetings.sock");
/// let server = serve(&path)
///     .copied(1, |name: Copied<'_, Text>, reply| {
///         reply.set_word(name.get()?.get(name.view())?.len() as u64);
///         Ok(())
///     })
///     .start()?;
/// let mut connection = Connection::open(&path)?;
/// let scope = connection.scope(4096)?;
/// let name = Boxed::new(&scope, Text::new(&scope, "Ada")?)?;
/// assert_eq!(connection.call(1, &scope, name)?.word(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn serve(path: impl AsRef<Path>) -> Channel {
    let (options, methods) = (ServerOptions::default(), BTreeMap::new());
    Channel { path: path.as_ref().to_owned(), options, methods, processor: None }
}

impl Channel {
    /// With other sizes.
    #[must_use]
    pub fn with(self, options: ServerOptions) -> Self {
        Self { options, ..self }
    }

    /// Keeps the server's thread on a processor, if it may run there. `None`: it runs anywhere.
    #[must_use]
    pub fn on_processor(self, processor: Option<usize>) -> Self {
        Self { processor, ..self }
    }

    /// A method whose arguments are copied before it begins. A panic of its code fails the call, and nothing else.
    #[must_use]
    pub fn copied<T, F>(mut self, number: u32, code: F) -> Self
    where
        T: Plain,
        F: Fn(Copied<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
    {
        let code = move |view: View<'_>, root, word, reply: &mut Reply<'_>| {
            code(Copied::<T>::new(view, root, word), reply)
        };
        let most = self.options.arguments_max;
        self.methods.insert(number, Method::Copied { most, code: Box::new(code) });
        self
    }

    /// A method that reads its arguments where the sender has them.
    #[must_use]
    pub fn trusted<T, F>(mut self, number: u32, code: F) -> Self
    where
        T: Plain,
        F: Fn(Trusted<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
    {
        let code = move |heap: &Heap, root, scope, word, reply: &mut Reply<'_>| {
            code(Trusted::<T>::new(heap, root, scope, word), reply)
        };
        self.methods.insert(number, Method::Trusted(Box::new(code)));
        self
    }

    /// Starts serving.
    ///
    /// # Errors
    /// The path is no place for a socket, or the machine refuses what a server needs.
    pub fn start(self) -> Result<Server, ServeError> {
        let Self { path, options, methods, processor } = self;
        let heap_bytes_max = options.heap_bytes_max.min(HEAP_BYTES_MAX);
        let listener = Listener::bind(&path, options.access)
            .map_err(|source| ServeError::Socket { path: path.clone(), source })?;
        let waker = Waker::new()?;
        let news = Arc::new(Mutex::new(Vec::new()));
        let door = Door {
            waker: waker.clone(),
            heap_bytes: (options.heap_bytes.min(heap_bytes_max), heap_bytes_max),
            news: Arc::clone(&news),
            next: AtomicU64::new(1),
        };
        let state = Arc::new(State::default());
        let service = Service {
            methods,
            waker: waker.clone(),
            news,
            connections: HashMap::new(),
            state: state.clone(),
        };
        let acceptors = AcceptorPlace::default();
        let orphaned = acceptors.clone();
        let thread = std::thread::Builder::new().name("portcullis-calls".to_owned());
        let run = move || {
            processor.into_iter().for_each(pin);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| service.run())) {
                // Its clients would wait for a server that is not there.
                orphaned.clear();
                resume_unwind(panic);
            }
        };
        let thread = thread.spawn(run).map_err(ServeError::Machine)?;
        let limits = Limits::UNIX.within_descriptors(DESCRIPTORS_EACH);
        let server = Server { acceptors, state, waker, thread: Some(thread) };
        let started = Acceptor::start::<Entry>(vec![listener], door, limits).map_err(ServeError::Machine)?;
        server.acceptors.put(started);
        Ok(server)
    }
}

/// A server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There can be no socket at the path.
    #[error("no socket at {path}: {source}")]
    Socket {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The machine refuses what a server sleeps on.
    #[error(transparent)]
    Waker(#[from] WakerError),
    /// The machine refuses a thread or descriptors.
    #[error("this machine refuses a server: {0}")]
    Machine(#[source] std::io::Error),
}

impl Coded for ServeError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Socket { .. } => ErrorCode::Socket,
            Self::Waker(error) => error.code(),
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// What a server has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerCounters {
    /// Connections that there are.
    pub connections: u64,
    /// Calls that were answered, with whatever status.
    pub calls: u64,
    /// Those of them whose method did not do what it was to do.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct State {
    stop: AtomicBool,
    connections: AtomicU64,
    calls: AtomicU64,
    failed: AtomicU64,
}

/// A running server. Dropping it ends its connections.
#[derive(Debug)]
pub struct Server {
    acceptors: AcceptorPlace,
    state: Arc<State>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        let State { connections, calls, failed, .. } = &*self.state;
        let [connections, calls, failed] = [connections, calls, failed].map(|it| it.load(Ordering::Relaxed));
        ServerCounters { connections, calls, failed }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // First the clients' connections, so that each client learns of it.
        self.acceptors.clear();
        self.state.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The server's thread.
#[derive(Debug)]
struct Service {
    methods: BTreeMap<u32, Method>,
    waker: Waker,
    news: Arc<Mutex<Vec<News>>>,
    connections: HashMap<u64, Served>,
    state: Arc<State>,
}

impl Service {
    fn run(mut self) {
        let (mut idle, began) = (Idle::default(), Instant::now());
        while !self.state.stop.load(Ordering::Acquire) {
            if self.turn() {
                idle.reset();
            } else if idle.spin_or_yield(|| began.elapsed()) {
                self.sleep();
                idle.reset();
            }
        }
    }

    fn sleep(&mut self) {
        self.waker.announce();
        let is_called = self.connections.values().any(|it| it.requests.has_line());
        if !is_called && !self.has_news() && !self.state.stop.load(Ordering::Acquire) {
            self.waker.sleep(SLEEP_MAX);
        }
        self.waker.awake();
    }

    fn has_news(&self) -> bool {
        !self.news.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn turn(&mut self) -> bool {
        let mut worked = self.hear_news();
        for connection in self.connections.values_mut() {
            let served = connection.serve(&self.methods, &self.state);
            worked |= served > 0;
        }
        worked
    }

    fn hear_news(&mut self) -> bool {
        let news = match self.news.try_lock() {
            Ok(mut news) if !news.is_empty() => std::mem::take(&mut *news),
            _ => return false,
        };
        for news in news {
            match news {
                News::Came(client, shared) => {
                    self.connections.insert(client, Served::new(*shared));
                }
                News::Left(client) => {
                    self.connections.remove(&client);
                }
            }
        }
        self.state.connections.store(self.connections.len() as u64, Ordering::Relaxed);
        true
    }
}

/// A connection, at the server.
#[derive(Debug)]
struct Served {
    heap: Heap,
    view: PrivateView,
    ring: Mapping,
    requests: Reader,
    replies: Writer,
    /// What the client wakes this thread with.
    _event: WatchedEvent,
}

impl Served {
    fn new(Shared { heap, view, ring, event }: Shared) -> Self {
        debug_assert_eq!(heap.owner(), SERVER);
        let requests = Reader::new(ring.clone(), REQUESTS, DEPTH);
        let replies = Writer::new(ring.clone(), REPLIES, DEPTH);
        Self { heap, view, ring, requests, replies, _event: event }
    }

    /// Serves some calls. Returns how many.
    fn serve(&mut self, methods: &BTreeMap<u32, Method>, state: &State) -> u32 {
        let mut served = 0;
        while served < CALLS_PER_TURN {
            let Some((method, words, cancelled)) = self.requests.read() else { break };
            let request = RequestLine::read(method, words);
            let reply = self.answer(methods, &request, cancelled);
            self.replies.write(reply.status, reply.words());
            served += 1;
            if reply.status != Status::Done as u32 {
                state.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if served > 0 {
            state.calls.fetch_add(served.into(), Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.ring.wake_sleeper(CLIENT_SLEEPS, None);
        }
        served
    }

    fn answer(
        &mut self,
        methods: &BTreeMap<u32, Method>,
        request: &RequestLine,
        cancelled: u64,
    ) -> ReplyLine {
        let until = match deadline(request) {
            Ok(until) => until,
            Err(status) => return Self::short(request, status),
        };
        if cancelled == request.call {
            return Self::short(request, Status::Cancelled);
        }
        let Some(method) = methods.get(&request.method) else {
            return Self::short(request, Status::NoSuchMethod);
        };
        let mut reply = Reply::new(&self.heap, until);
        let called = catch_unwind(AssertUnwindSafe(|| match method {
            Method::Copied { most, code } => {
                let Some(view) = copy(&self.heap, &mut self.view, request.scope, *most) else {
                    return Ok(Status::NoArguments);
                };
                code(view, request.root, request.word, &mut reply).map(|()| Status::Done)
            }
            Method::Trusted(code) => {
                let code = code(&self.heap, request.root, request.scope, request.word, &mut reply);
                code.map(|()| Status::Done)
            }
        }));
        let status = match called {
            Ok(Ok(status)) => status,
            Ok(Err(failure)) => failure.tell(&mut reply),
            Err(_) => {
                reply = Reply::new(&self.heap, until);
                Status::Panicked
            }
        };
        let Reply { word, root, scope, .. } = reply;
        let scope = scope.map_or(ScopeRef::default(), crate::Scope::pass_on);
        if request.scope.length > COPY_KEPT_MAX && matches!(method, Method::Copied { .. }) {
            let offset = self.heap.place().offset(request.scope.address, request.scope.length);
            offset.into_iter().for_each(|offset| self.view.give_back(offset, request.scope.length));
        }
        ReplyLine { status: status as u32, call: request.call, root, scope, word }
    }

    fn short(request: &RequestLine, status: Status) -> ReplyLine {
        let scope = ScopeRef::default();
        ReplyLine { status: status as u32, call: request.call, root: 0, scope, word: 0 }
    }
}

/// Until when a call's caller waits.
fn deadline(request: &RequestLine) -> Result<Option<Instant>, Status> {
    if request.deadline == 0 {
        return Ok(None);
    }
    let left = request.deadline.checked_sub(now()).ok_or(Status::Late)?;
    Ok(Instant::now().checked_add(Duration::from_nanos(left)))
}

/// Copies a scope to the place where it has its own addresses. `None`: it is no scope of the heap, or too large.
fn copy<'a>(heap: &Heap, view: &'a mut PrivateView, scope: ScopeRef, most: u64) -> Option<View<'a>> {
    let ScopeRef { address, length } = scope;
    if length == 0 {
        return Some(View::new(address, &[], 0));
    }
    let offset = heap.place().offset(address, length).filter(|_| length <= most)?;
    // Whoever goes over every byte of it once takes no more steps.
    Some(View::new(address, view.take(heap.memory(), offset, length), length))
}

/// Where the last word of a request is, by which it is cancelled.
pub(super) fn cancelling_word(place: u64) -> u64 {
    debug_assert!(place + 64 <= REPLIES && last_word(place) < REPLIES);
    last_word(place)
}

const _: () = assert!(REQUESTS + 64 * DEPTH as u64 <= REPLIES);

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_memory::Memory;

    #[test]
    fn a_scope_that_is_none_of_the_heaps_is_not_copied() {
        let place = crate::HeapPlace::new(crate::heap::HEAP_ADDRESSES.start + (7 << 40), 1 << 20).unwrap();
        let heap = Heap::create(place, SERVER).unwrap();
        let mut view = PrivateView::at(place.address, place.length).unwrap();
        let start = place.start();
        let mut copied =
            |address, length| copy(&heap, &mut view, ScopeRef { address, length }, 4096).is_some();
        assert!(copied(start, 4096) && copied(start + (1 << 20) - 8, 8) && copied(0, 0));
        let wrong =
            [(start, 4097), (start - 1, 8), (start + (1 << 20) - 7, 8), (u64::MAX, 8), (start, u64::MAX)];
        assert!(wrong.into_iter().all(|(address, length)| !copied(address, length)));
        assert!(heap.memory().length() == 1 << 20);
    }
}
