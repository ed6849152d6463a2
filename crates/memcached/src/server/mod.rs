//! The threads of a gateway: one accepts connections, one keeps the table in order, and the others serve.

mod acceptor;
mod clients;
mod connection;
mod dump;
mod grants;
mod job;
mod keeper;
mod listener;
mod place;
mod round;
mod serving;
mod settings;
mod sizes;
mod stream;
mod table;
mod turns;
mod wake;
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

/// Opens a session with the node: once for each thread, and again when the node was gone.
pub type Connector = Arc<dyn Fn() -> Result<Session, ConnectError> + Send + Sync>;

/// What a gateway is like.
#[derive(Clone)]
pub struct Options {
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// How many threads serve.
    pub threads: usize,
    /// How many connections there may be.
    pub connections_max: u64,
    /// The most bytes of an item, counted as memcached does: with its key and a header of about 60 bytes.
    pub item_bytes_max: u64,
    /// Bytes of answers that clients have not taken, beyond which one command of each client is carried out at a time.
    pub answer_bytes_max: u64,
    /// Bytes of commands that come in many pieces: half of them for long lines of keys, half for large values. A client for whose
    /// command there are none left waits, and is not read meanwhile. A command that needs more than that is carried out alone.
    pub request_bytes_max: u64,
    /// A connection that takes nothing of its answers for this long, while there are more than those, is ended. So is one that is
    /// slow to send a long command for which it has memory, while others wait for that memory.
    pub stalled_timeout: Duration,
    /// A connection that says nothing for this long is ended.
    pub idle_timeout: Option<Duration>,
    /// The table's name in the tenant of the gateway.
    pub table: DirectoryName,
    /// For how long the table stays when the tenant's last client has gone.
    pub keep: Keep,
    /// How to reach the node.
    pub connect: Connector,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, threads, table, .. } = self;
        f.debug_struct("Options")
            .field("listen", listen)
            .field("threads", threads)
            .field("table", table)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Memcached's usual limits. `connect` reaches the node.
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

/// What all threads of a gateway have in common.
#[derive(Debug)]
struct Common {
    options: Options,
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
    /// Reaches the node, opens or makes the table, and serves.
    ///
    /// # Errors
    /// There is no node, it refuses the table, or an address cannot be listened at.
    pub fn start(options: Options) -> Result<Self, GatewayError> {
        let mut random = [0; 8];
        // Gateways that share a number differ in when they store what.
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

    fn start_worker(&mut self, number: usize) -> Result<worker::Door, GatewayError> {
        let common = Arc::clone(&self.common);
        let (started, starts) = channel::<Started>();
        self.spawn(format!("worker-{number}"), move || Worker::start(common, &started))?;
        let door = starts.recv().map_err(|_| lost())??;
        self.wakes.push(door.wake());
        Ok(door)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), GatewayError> {
        let thread = std::thread::Builder::new().name(format!("memcached-{name}")).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The addresses of TCP at which it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What `stats` shows.
    #[must_use]
    pub fn statistics(&self) -> Vec<(Cow<'static, str>, String)> {
        Settings(&self.common).statistics()
    }

    /// Ends all connections and all threads. What was begun is carried out, and what clients did not take is lost.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.common.stopping.store(true, Ordering::Release);
        self.wakes.iter().for_each(|wake| wake.ring());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

/// A thread has ended before it said why.
fn lost() -> GatewayError {
    GatewayError::Machine(std::io::Error::other("a thread of the gateway has ended"))
}
