//! A server: threads that each serve their own connections.

use super::admission::{Carried, DESCRIPTORS_EACH, Entry, News, SERVER, Shared, SocketAdmission};
use super::carrier::ServerCarrier;
use super::ends::{Methods, ServerEnd, ShardHeap, Status};
use super::lending::Lending;
use super::method::{Copied, Failure, Method, Reply, Trusted};
use super::named::{DirectoryError, Given, HeapSource, Naming};
use super::one_shot::{OPEN_MAX, OneShot, OneShotLimits};
use super::sandboxed::Sandboxes;
use super::shards::{Seat, ServerShard, ServerShards, State};
use super::shared_heap::{Member, SharedHeap};
use super::{CLIENT_SLEEPS, now};
use crate::View;
use crate::heap::HEAP_BYTES_MAX;
use crate::plain::Plain;
use portcullis_attach::unix::{Listener, SocketAccess};
use portcullis_attach::{Acceptor, AcceptorList, Limits, Reason};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::sandbox::{SandboxError, SandboxOptions, WithheldStack};
use portcullis_memory::{Idle, Mapping, WakerError, WatchedEvent, pin};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of calls that one connection may have served before the other connections are served.
const CALLS_PER_TURN: u32 = 16;
/// The longest sleep: it bounds the cost of a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Bounds for an idle thread while clients of other machines have connections: it looks for requests again after this
/// part of the time that it has been idle, within this minimum and maximum.
const LOOK_PART: u32 = 8;
const LOOK_MIN: Duration = Duration::from_micros(50);
const LOOK_MAX: Duration = Duration::from_millis(1);

/// Sizes and limits of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerOptions {
    /// Bytes of a connection's heap, if its client does not request another size. They take memory only where they are
    /// used.
    pub heap_bytes: u64,
    /// The most bytes that a client may request for its heap.
    pub heap_bytes_max: u64,
    /// The most bytes of heaps that the connections of one user have together. An ended connection counts for as long
    /// as any process still has its heap. The server may have to provide memory for each page of these heaps.
    pub user_bytes: u64,
    /// The most bytes of arguments that are copied for a call.
    pub arguments_max: u64,
    /// Number of one-shot scopes that a connection may have.
    pub one_shot_scopes: u32,
    /// Bytes of a connection's one-shot scopes together. They are mapped at both ends until their sender drops them, or
    /// its connection ends.
    pub one_shot_bytes: u64,
    /// Number of threads that serve connections. A connection stays on one of them, so its calls are served in order,
    /// and a slow method delays the other connections of its thread. Each new connection is assigned to the thread with
    /// the fewest.
    pub threads: usize,
    /// The users that may connect: by default only the server's own.
    pub access: SocketAccess,
    /// Options for the sandboxes of methods that are added after these options were set.
    pub sandbox: SandboxOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            heap_bytes: 64 << 20,
            heap_bytes_max: 1 << 30,
            user_bytes: 64 << 30,
            arguments_max: 16 << 20,
            one_shot_scopes: 64,
            one_shot_bytes: 256 << 20,
            threads: 1,
            access: SocketAccess { mode: 0o600, group: None },
            sandbox: SandboxOptions::default(),
        }
    }
}

/// A server's methods, before it starts.
#[derive(Debug)]
pub struct Channel {
    path: PathBuf,
    pub(super) options: ServerOptions,
    methods: Methods,
    pub(super) sandboxes: Vec<Arc<Sandboxes>>,
    processors: Vec<usize>,
    /// Bytes of the heap that all clients have.
    pub(super) shared_bytes: Option<u64>,
    pub(super) naming: Option<Naming>,
    /// The nodes over which clients of other machines connect.
    #[cfg(feature = "across")]
    pub(super) nodes: Vec<super::across::ChannelAtNode>,
}

/// Returns a channel at a path: its methods are added one by one, and then it is started.
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
    let (options, methods) = (ServerOptions::default(), Methods::default());
    let (path, sandboxes, processors) = (path.as_ref().to_owned(), Vec::new(), Vec::new());
    Channel {
        path,
        options,
        methods,
        sandboxes,
        processors,
        shared_bytes: None,
        naming: None,
        #[cfg(feature = "across")]
        nodes: Vec::new(),
    }
}

impl Channel {
    /// Sets the sizes and limits of the server.
    #[must_use]
    pub fn with(self, options: ServerOptions) -> Self {
        Self { options, ..self }
    }

    /// Pins the server's threads to processors, if they may run there: each to one, in turn. Without processors they
    /// run anywhere.
    #[must_use]
    pub fn on_processors(self, processors: impl IntoIterator<Item = usize>) -> Self {
        Self { processors: processors.into_iter().collect(), ..self }
    }

    /// Adds a method whose arguments are copied before it begins. A panic of its code fails only the call.
    #[must_use]
    pub fn copied<T, F>(self, number: u32, code: F) -> Self
    where
        T: Plain,
        F: Fn(Copied<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
    {
        Self { methods: self.methods.copied(number, self.options.arguments_max, code), ..self }
    }

    /// Adds a method that reads arguments where they were written. No process can change them any more: the callers
    /// have sealed them ([`Connection::seal`](super::Connection::seal)). A call with other arguments fails.
    #[must_use]
    pub fn one_shot<T, F>(self, number: u32, code: F) -> Self
    where
        T: Plain,
        F: Fn(OneShot<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
    {
        let code = move |view: View<'_>, root, word, reply: &mut Reply<'_>| {
            code(OneShot::<T>::new(view, root, word), reply)
        };
        self.with_method(number, Method::OneShot(Box::new(code)))
    }

    fn one_shots(&self) -> Option<OneShotLimits> {
        let ServerOptions { one_shot_scopes: scopes, one_shot_bytes, .. } = self.options;
        self.methods
            .read_one_shots()
            .then_some(OneShotLimits { scopes, bytes: one_shot_bytes.min(HEAP_BYTES_MAX) })
    }

    /// Adds a method that reads its arguments in the sender's memory.
    #[must_use]
    pub fn trusted<T, F>(self, number: u32, code: F) -> Self
    where
        T: Plain,
        F: Fn(Trusted<'_, T>, &mut Reply<'_>) -> Result<(), Failure> + Send + Sync + RefUnwindSafe + 'static,
    {
        Self { methods: self.methods.trusted(number, code), ..self }
    }

    pub(super) fn with_method(self, number: u32, method: Method) -> Self {
        Self { methods: self.methods.with(number, method), ..self }
    }

    /// Starts serving.
    ///
    /// # Errors
    /// Two methods have the same number, no socket can be made at the path, or the machine refuses a resource that a
    /// server needs.
    pub fn start(self) -> Result<Server, ServeError> {
        let one_shots = self.one_shots();
        #[cfg(feature = "across")]
        let nodes = self.nodes;
        let Self { path, options, methods, sandboxes, processors, shared_bytes, naming, .. } = self;
        methods.same_number().map_or(Ok(()), |number| Err(ServeError::SameNumber(number)))?;
        sandboxes.iter().try_for_each(|sandboxes| sandboxes.prepare())?;
        let heap_bytes_max = options.heap_bytes_max.min(HEAP_BYTES_MAX);
        let listener = Listener::bind(&path, options.access)
            .map_err(|source| ServeError::Socket { path: path.clone(), source })?;
        let source = naming.map(|naming| HeapSource::start(naming, &path)).transpose()?;
        let shards = ServerShards::new(options.threads)?;
        let heap_bytes = (options.heap_bytes.min(heap_bytes_max), heap_bytes_max);
        let (shared, mut view) = shared_bytes
            .map(|bytes| SharedHeap::create(bytes, source.as_deref()))
            .transpose()
            .map_err(ServeError::Heap)?
            .unzip();
        let each = DESCRIPTORS_EACH + one_shots.map_or(0, |_| u64::from(OPEN_MAX));
        let mut limits = Limits::UNIX.within_descriptors(each);
        // The waker that a thread sleeps on takes no more descriptors than a connection.
        limits.connections_max = limits.connections_max.saturating_sub(shards.len() - 1);
        // The loans of open connections, and as many of ended ones.
        let loans_max = 2 * limits.connections_max as u64;
        let lending = Lending::start(options.user_bytes, loans_max).map_err(ServeError::Machine)?;
        let withholds = !sandboxes.is_empty();
        if let Some(shared) = shared.as_ref().filter(|_| withholds) {
            shared.heap.memory().withhold().map_err(|error| ServeError::Heap(error.into()))?;
        }
        let admission = SocketAdmission {
            shards: shards.clone(),
            heap_bytes,
            one_shots,
            next: AtomicU64::new(1),
            shared: shared.clone(),
            lending,
            withholds,
            source,
        };
        let (acceptors, threads) = (AcceptorList::default(), Vec::new());
        let mut server = Server {
            acceptors,
            shards,
            threads,
            shared,
            #[cfg(feature = "across")]
            node_admissions: Vec::new(),
        };
        let methods = Arc::new(methods);
        let mut processors = processors.iter().cycle().copied();
        for shard in server.shards.iter() {
            let (methods, shard) = (Arc::clone(&methods), Arc::clone(shard));
            let shared = server.shared.as_ref().map(|it| ShardHeap::new(&it.heap, view.take())).transpose();
            let shared = shared.map_err(|error| ServeError::Heap(error.into()))?;
            let connections = HashMap::new();
            let service = Service { methods, shard, connections, shared, withholds, quiet_since: None };
            let thread = server.spawn(service, processors.next()).map_err(ServeError::Machine)?;
            server.threads.push(thread);
        }
        let started =
            Acceptor::start::<Entry>(vec![listener], admission, limits).map_err(ServeError::Machine)?;
        server.acceptors.put(started);
        #[cfg(feature = "across")]
        for node in nodes {
            let admission = super::across::NodeAdmission::start(node, server.shards.clone())
                .map_err(ServeError::Machine)?;
            server.node_admissions.push(admission);
        }
        if server.shards.iter().any(|shard| shard.is_stopped()) {
            // A thread has panicked before the acceptor existed, so it could not end the acceptor.
            server.acceptors.clear();
        }
        Ok(server)
    }
}

/// Error of starting a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Two methods have the same number, so that a caller could not choose between them.
    #[error("two methods have the number {0}")]
    SameNumber(u32),
    /// No socket can be made at the path.
    #[error("no socket at {path}: {source}")]
    Socket {
        /// The path.
        path: PathBuf,
        /// The error of the machine.
        source: std::io::Error,
    },
    /// The directory does not accept the channel's name, or cannot be reached.
    #[error("no name in the directory: {0}")]
    Directory(#[source] DirectoryError),
    /// The heap for all clients cannot be made.
    #[error("no heap for all clients: {0}")]
    Heap(#[source] Reason),
    /// The machine refuses a waker that a thread of the server sleeps on.
    #[error(transparent)]
    Waker(#[from] WakerError),
    /// The machine refuses a sandbox that a method needs.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The machine refuses a thread or descriptors.
    #[error("this machine refuses a server: {0}")]
    Machine(#[source] std::io::Error),
}

impl Coded for ServeError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::SameNumber(_) => ErrorCode::Configuration,
            Self::Socket { .. } => ErrorCode::Socket,
            Self::Directory(error) => error.code(),
            Self::Heap(_) => ErrorCode::HeapPlace,
            Self::Waker(error) => error.code(),
            Self::Sandbox(error) => error.code(),
            Self::Machine(_) => ErrorCode::Machine,
        }
    }
}

/// Counters of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerCounters {
    /// Number of connections at the moment.
    pub connections: u64,
    /// Number of calls that were answered, with any status.
    pub calls: u64,
    /// Number of answered calls that did not succeed.
    pub failed: u64,
}

/// A running server. Dropping it ends its connections.
#[derive(Debug)]
pub struct Server {
    acceptors: AcceptorList,
    pub(super) shards: ServerShards,
    threads: Vec<JoinHandle<()>>,
    pub(super) shared: Option<Arc<SharedHeap>>,
    /// Admissions to nodes. After their threads and those of the shards have ended, they give back their resources on
    /// the nodes.
    #[cfg(feature = "across")]
    node_admissions: Vec<super::across::NodeAdmission>,
}

impl Server {
    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        self.shards.iter().fold(ServerCounters::default(), |sum, shard| {
            let State { connections, calls, failed } = &shard.state;
            let [connections, calls, failed] =
                [connections, calls, failed].map(|it| it.load(Ordering::Relaxed));
            ServerCounters {
                connections: sum.connections + connections,
                calls: sum.calls + calls,
                failed: sum.failed + failed,
            }
        })
    }

    fn spawn(&self, service: Service, processor: Option<usize>) -> std::io::Result<JoinHandle<()>> {
        let (acceptors, shards) = (self.acceptors.clone(), self.shards.clone());
        let run = move || {
            processor.into_iter().for_each(pin);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| service.run())) {
                // Panics of methods are caught earlier, so this one is a mistake of the server itself. The whole server
                // ends, so that all its clients detect that, those of the other threads too: a server of which one
                // thread has ended looks healthy from outside.
                shards.stop();
                acceptors.clear();
                resume_unwind(panic);
            }
        };
        std::thread::Builder::new().name("portcullis-calls".to_owned()).spawn(run)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The clients' connections are closed first, so that each client detects the end.
        self.acceptors.clear();
        #[cfg(feature = "across")]
        self.node_admissions.iter_mut().for_each(super::across::NodeAdmission::close);
        self.shards.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One of the server's threads.
#[derive(Debug)]
struct Service {
    methods: Arc<Methods>,
    shard: Arc<ServerShard>,
    connections: HashMap<u64, Served>,
    shared: Option<ShardHeap>,
    /// Whether the thread's stack is withheld from trapped code.
    withholds: bool,
    /// Time since which the thread has been idle.
    quiet_since: Option<Instant>,
}

impl Service {
    fn run(mut self) {
        // Only trapped code cannot access the stack: the methods' own code is as fast as before.
        let withheld = self.withholds.then(WithheldStack::new).transpose();
        let _withheld =
            withheld.expect("a machine that has given a key to a sandbox's pages gives it to a stack's");
        let (mut idle, began) = (Idle::default(), Instant::now());
        while !self.shard.is_stopped() {
            if self.turn() {
                idle.reset();
                self.quiet_since = None;
            } else if idle.spin_or_yield(|| began.elapsed()) {
                let most = self.sleep_most();
                self.sleep(most);
                if most == SLEEP_MAX {
                    idle.reset();
                }
            }
        }
    }

    /// The longest sleep at the moment. Clients of other machines do not wake this thread: the longer they have sent no
    /// request, the longer it sleeps.
    fn sleep_most(&mut self) -> Duration {
        if !self.connections.values().any(Served::is_carried) {
            return SLEEP_MAX;
        }
        let quiet = self.quiet_since.get_or_insert_with(Instant::now).elapsed();
        (quiet / LOOK_PART).clamp(LOOK_MIN, LOOK_MAX)
    }

    fn sleep(&mut self, most: Duration) {
        let ServerShard { waker, .. } = &*self.shard;
        waker.announce();
        let is_called = self.connections.values().any(Served::has_request);
        if !is_called && !self.shard.has_news() && !self.shard.is_stopped() {
            waker.sleep(most);
        }
        waker.awake();
    }

    fn turn(&mut self) -> bool {
        let mut worked = self.hear_news();
        for connection in self.connections.values_mut() {
            let served = connection.serve(&self.methods, &self.shard.state, &mut self.shared);
            worked |= served > 0;
        }
        worked
    }

    fn hear_news(&mut self) -> bool {
        let news = self.shard.take_news();
        if news.is_empty() {
            return false;
        }
        for news in news {
            match news {
                News::Came(client, shared) => {
                    self.connections.insert(client, Served::new(*shared));
                }
                News::CameFromAfar(client, carried) => {
                    self.connections.insert(client, Served::carried(*carried));
                }
                News::Left(client) => {
                    self.connections.remove(&client);
                }
            }
        }
        self.shard.state.connections.store(self.connections.len() as u64, Ordering::Relaxed);
        true
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // However the thread has ended, it has no connections any more.
        self.shard.state.connections.store(0, Ordering::Relaxed);
    }
}

/// The server's end of a connection, with the resources that it keeps.
#[derive(Debug)]
struct Served {
    end: ServerEnd,
    way: Way,
    _seat: Seat,
    _member: Option<Member>,
    /// The addresses, given back when nothing lies there any more.
    _given: Option<Given>,
}

/// Transport of a connection's calls.
#[derive(Debug)]
enum Way {
    /// The client has mapped the same memory. It wakes this thread with an event.
    Shared {
        ring: Mapping,
        _event: WatchedEvent,
    },
    Carried(Box<dyn ServerCarrier>),
}

impl Served {
    fn new(Shared { heap, view, ring, event, one_shot_table, seat, member, given }: Shared) -> Self {
        debug_assert_eq!(heap.owner(), SERVER);
        let end = ServerEnd::new(heap, view, ring.clone()).with_one_shot_table(one_shot_table);
        let way = Way::Shared { ring, _event: event };
        Self { end, way, _seat: seat, _member: member, _given: given }
    }

    fn carried(Carried { arguments, view, ring, carrier, seat }: Carried) -> Self {
        let end = ServerEnd::new(arguments, view, ring).with_results(carrier.results().clone());
        Self { end, way: Way::Carried(carrier), _seat: seat, _member: None, _given: None }
    }

    fn is_carried(&self) -> bool {
        matches!(self.way, Way::Carried(_))
    }

    fn has_request(&self) -> bool {
        match &self.way {
            Way::Shared { .. } => self.end.has_request(),
            Way::Carried(carrier) => carrier.has_request(),
        }
    }

    /// Serves some calls. Returns how many.
    fn serve(&mut self, methods: &Methods, state: &State, shared: &mut Option<ShardHeap>) -> u32 {
        let mut served = 0;
        while served < CALLS_PER_TURN {
            if let Way::Carried(carrier) = &mut self.way {
                carrier.bring();
            }
            let Some(request) = self.end.take() else { break };
            let reply = self.end.answer(methods, &request, shared.as_mut(), &now);
            match &mut self.way {
                Way::Shared { .. } => drop(self.end.reply(&reply)),
                Way::Carried(carrier) => carrier.take_away(&reply),
            }
            served += 1;
            if reply.status != Status::Done as u32 {
                state.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if served > 0 {
            state.calls.fetch_add(served.into(), Ordering::Relaxed);
            if let Way::Shared { ring, .. } = &self.way {
                fence(Ordering::SeqCst);
                ring.wake_sleeper(CLIENT_SLEEPS, None);
            }
        }
        served
    }
}
