//! The thread that accepts clients. It accepts connections, enforces deadlines and limits, and advances each
//! [handshake](crate::Handshake). It never waits for a peer.
//!
//! | limit | which connection is closed |
//! | --- | --- |
//! | connections in all, and by holder | the newest: it is sent a refusal for lack of room |
//! | connections that are not attached yet | an older one of the holder that has the most of them: see [`crowd`] |
//! | time | one whose time is up |
//!
//! The acceptor sends the reason to a peer whose connection it closes before the attach is complete, except in the
//! middle of a TLS handshake, when no reason can be sent.

mod connection_quota;
pub(crate) mod crowd;
mod list;
mod peer_thread;
mod refusals;
mod service;

pub use list::AcceptorList;

use crate::handshake::Handshake;
use peer_thread::Done;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};
use service::Service;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The limits of an acceptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Time that a peer may take. Over TCP it is from the connection to the end of the attach; over a Unix socket it is
    /// for each of the peer's two messages.
    pub attach_within: Duration,
    /// Connections at once, including those that are not attached yet. However many connections one holder has (a user,
    /// a tenant or, without certificates, an address), as many places stay free for others.
    pub connections_max: usize,
    /// Connections that are not attached yet. One holder gets at most half of them. When there are more, the newest
    /// stays and an older one is closed.
    pub unattached_max: usize,
}

impl Limits {
    /// Limits for peers whose holder is proven in the course of the attach.
    pub const TCP: Self =
        Self { attach_within: Duration::from_secs(3), connections_max: 4096, unattached_max: 64 };
    /// Limits for peers whose user the kernel gives: the limit on each holder's connections is enough.
    pub const UNIX: Self =
        Self { attach_within: Duration::from_secs(1), connections_max: 4096, unattached_max: usize::MAX };

    /// Returns these limits with no more connections than this process has descriptors for, at `each` descriptors a
    /// client.
    #[must_use]
    pub fn within_descriptors(self, each: u64) -> Self {
        let Some(limit) = getrlimit(Resource::Nofile).current else { return self };
        let enough_for = limit.saturating_sub(DESCRIPTORS_KEPT) / each.max(1);
        let most = usize::try_from(enough_for).unwrap_or(usize::MAX);
        Self { connections_max: self.connections_max.min(most), ..self }
    }
}

/// Descriptors that a process keeps for everything else.
const DESCRIPTORS_KEPT: u64 = 32;

/// The thread that accepts clients. Dropping this ends the thread: it closes all connections, and all clients have
/// departed.
#[derive(Debug)]
pub struct Acceptor {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts accepting clients from `listeners`.
    ///
    /// # Errors
    /// The machine refuses a thread or descriptors.
    pub fn start<H: Handshake>(
        listeners: Vec<H::Listener>,
        policy: H::Policy,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::new()?);
        let service = Service::<H>::new(listeners, policy, limits, Arc::clone(&inbox))?;
        let thread = std::thread::Builder::new().name("portcullis-attach".to_owned());
        let thread = thread.spawn(|| service.run())?;
        Ok(Self { inbox, thread: Some(thread) })
    }

    /// Sends control messages to clients, each with the client's number, if their control messages travel over the
    /// connection. Does not wait. Messages for other clients, or for clients that have left, are dropped.
    pub fn say(&self, messages: impl IntoIterator<Item = (u64, Vec<u8>)>) {
        locked(&self.inbox.said).extend(messages);
        self.inbox.ring();
    }

    /// Closes the connection of a client that the node no longer serves. Does not wait until it is closed.
    pub fn evict(&self, client: u64) {
        self.inbox.evict(client);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.inbox.stop.store(true, Ordering::Release);
        self.inbox.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Requests from other threads to the acceptor's thread.
struct Inbox {
    event: OwnedFd,
    stop: AtomicBool,
    evicted: Mutex<Vec<u64>>,
    said: Mutex<Vec<(u64, Vec<u8>)>>,
    done: Mutex<Vec<Done>>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("stop", &self.stop).finish_non_exhaustive()
    }
}

impl Inbox {
    fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = AtomicBool::new(false);
        Ok(Self { event, stop, evicted: Mutex::default(), said: Mutex::default(), done: Mutex::default() })
    }

    fn evict(&self, client: u64) {
        locked(&self.evicted).push(client);
        self.ring();
    }

    fn done(&self, done: Done) {
        locked(&self.done).push(done);
        self.ring();
    }

    fn ring(&self) {
        // A full counter has woken the acceptor already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
