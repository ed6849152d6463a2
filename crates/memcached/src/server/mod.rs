//! The threads of a gateway: one accepts connections, one keeps the table in order, and the others serve.

mod acceptor;
mod clients;
mod connection;
mod dump;
mod grants;
mod job;
mod keeper;
mod listener;
mod round;
mod serving;
mod settings;
mod sizes;
mod stream;
mod table;
mod turns;
mod wake;
mod watched_connection;
mod worker;

use crate::GatewayError;
use crate::age::Age;
use crate::cache::{Flush, Shared, Stamps};
use crate::classes::Classes;
use crate::counters::Counters;
use acceptor::Acceptor;
use keeper::Keeper;
pub use listener::Listen;
use portcullis::{ConnectError, DirectoryName, Keep, Session};
use settings::Settings;
use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use wake::Wake;
use worker::{Started, Worker};

/// Opens a session with the node: once for each thread, and again after the node was lost.
pub type Connector = Arc<dyn Fn() -> Result<Session, ConnectError> + Send + Sync>;

/// Options of a gateway.
#[derive(Clone)]
pub struct GatewayOptions {
    /// Addresses at which the gateway listens.
    pub listen: Vec<Listen>,
    /// Number of threads that serve.
    pub threads: usize,
    /// Maximum number of connections.
    pub connections_max: u64,
    /// Maximum size of an item in bytes, counted as memcached does: with its key and a header of about 60 bytes.
    pub item_bytes_max: u64,
    /// Number of unsent bytes of answers above which only one command of each client is carried out at a time.
    pub answer_bytes_max: u64,
    /// Memory in bytes for commands that arrive in many pieces: half of it for long lines of keys, half for large
    /// values. If none is left for a client's command, the client waits, and is not read meanwhile. A command that
    /// needs more than its half is carried out alone.
    pub request_bytes_max: u64,
    /// Time after which a connection is ended that reads none of its answers, while unsent answers exceed their limit.
    /// A connection that is slow to send a long command for which it has memory is also ended, while others wait for
    /// that memory.
    pub stalled_timeout: Duration,
    /// Time after which a silent connection is ended.
    pub idle_timeout: Option<Duration>,
    /// The table's name in the tenant of the gateway.
    pub table: DirectoryName,
    /// Time for which the table stays after the tenant's last client has left.
    pub keep: Keep,
    /// Function that connects to the node.
    pub connect: Connector,
}

impl fmt::Debug for GatewayOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, threads, table, .. } = self;
        f.debug_struct("GatewayOptions")
            .field("listen", listen)
            .field("threads", threads)
            .field("table", table)
            .finish_non_exhaustive()
    }
}

impl GatewayOptions {
    /// Creates options with memcached's usual limits. `connect` connects to the node.
    #[must_use]
    pub fn new(table: DirectoryName, connect: Connector) -> Self {
        Self {
            listen: vec![Listen::Tcp("127.0.0.1:11211".to_owned())],
            threads: 2,
            connections_max: 1024,
            item_bytes_max: 1 << 20,
            answer_bytes_max: 64 << 20,
            request_bytes_max: 64 << 20,
            stalled_timeout: Duration::from_secs(10),
            idle_timeout: None,
            table,
            keep: Keep::Attached,
            connect,
        }
    }
}

/// State that all threads of a gateway share.
#[derive(Debug)]
struct Common {
    options: GatewayOptions,
    shared: Arc<Shared>,
    stopping: AtomicBool,
}

impl Common {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// A gateway that serves until it is stopped or dropped.
#[derive(Debug)]
pub struct Gateway {
    common: Arc<Common>,
    addresses: Vec<SocketAddr>,
    wakes: Vec<Arc<Wake>>,
    threads: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// Connects to the node, opens or makes the table, and serves.
    ///
    /// # Errors
    /// There is no node, the node refuses the table, or the gateway cannot listen at an address.
    pub fn start(options: GatewayOptions) -> Result<Self, GatewayError> {
        let mut random = [0; 8];
        // Gateways with the same number still differ in the times at which they store items.
        let _ = getrandom::fill(&mut random);
        let shared = Shared {
            age: Age::default(),
            counters: Counters::default(),
            classes: Classes::default(),
            limit_bytes: 0.into(),
            dumps: false.into(),
            stamps: Stamps::new(u64::from_le_bytes(random)),
            flush: Flush::default(),
            wants_to_learn: false.into(),
        };
        let common = Arc::new(Common { options, shared: Arc::new(shared), stopping: AtomicBool::new(false) });
        let acceptor = Acceptor::bind(&common)?;
        let mut gateway = Self {
            common: Arc::clone(&common),
            addresses: acceptor.addresses()?,
            wakes: vec![],
            threads: vec![],
        };
        // The keeper comes first: it makes the table.
        gateway.start_keeper()?;
        let mut workers = Vec::new();
        for number in 0..common.options.threads.max(1) {
            workers.push(gateway.start_worker(number)?);
        }
        gateway.wakes.push(acceptor.wake());
        gateway.spawn("accept".to_owned(), move || acceptor.run(&workers))?;
        Ok(gateway)
    }

    fn start_keeper(&mut self) -> Result<(), GatewayError> {
        let common = Arc::clone(&self.common);
        let wake = Arc::new(Wake::new()?);
        self.wakes.push(Arc::clone(&wake));
        let (started, starts) = channel();
        self.spawn("keeper".to_owned(), move || Keeper::start(common, wake, &started))?;
        starts.recv().map_err(|_| lost())?
    }

    fn start_worker(&mut self, number: usize) -> Result<worker::WorkerHandle, GatewayError> {
        let common = Arc::clone(&self.common);
        let (started, starts) = channel::<Started>();
        self.spawn(format!("worker-{number}"), move || Worker::start(common, &started))?;
        let worker_handle = starts.recv().map_err(|_| lost())??;
        self.wakes.push(worker_handle.wake());
        Ok(worker_handle)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), GatewayError> {
        let thread = std::thread::Builder::new().name(format!("memcached-{name}")).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the TCP addresses at which the gateway listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the rows of `stats`.
    #[must_use]
    pub fn statistics(&self) -> Vec<(Cow<'static, str>, String)> {
        Settings(&self.common).statistics()
    }

    /// Ends all connections and all threads. Commands that were begun are carried out, and answers that clients did not
    /// read are lost.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.common.stopping.store(true, Ordering::Release);
        self.wakes.iter().for_each(|wake| wake.ring());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

/// Error: a thread has ended before it reported a reason.
fn lost() -> GatewayError {
    GatewayError::Machine(std::io::Error::other("a thread of the gateway has ended"))
}
