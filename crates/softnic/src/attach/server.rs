//! The node's side of attaches, from outside: who is let in is decided by an [`Admission`], and a thread does the rest.

use super::desk::{Desk, Inbox};
use super::listener::Listener;
use super::peer::Peer;
use portcullis_memory::{Mapping, Waker};
use portcullis_nic::EndpointSize;
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A client that got a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its number on the node.
    pub client: u64,
    /// The key of its arena.
    pub arena_key: u32,
}

/// Decides who gets a port.
pub trait Admission: Send + 'static {
    /// What is kept for a peer from the offer on, until nothing of its connection is left.
    type Place: Send;

    /// The port that a peer that asks for `arena_bytes` of arena would get.
    ///
    /// # Errors
    /// Why it gets none.
    fn offer(&self, peer: &Peer, arena_bytes: u64) -> Result<(EndpointSize, Self::Place), String>;

    /// Makes the port in `memory`, which the client has mapped.
    ///
    /// # Errors
    /// Why not. Nothing is left behind.
    fn admit(&self, peer: &Peer, memory: Mapping, size: EndpointSize) -> Result<Admitted, String>;

    /// The client is gone, or broke the rules of the socket.
    fn depart(&self, client: u64);
}

/// What the server puts up with.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// How long a peer may take to say hello, and to map what it is offered.
    pub hello_within: Duration,
    /// Sockets open at once, those that have said nothing yet included. One user gets half of them at the most.
    pub connections_max: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { hello_within: Duration::from_secs(1), connections_max: 4096 }
    }
}

/// Descriptors that each client takes: its connection, its port's file and what holds it together, its event.
const DESCRIPTORS_EACH: u64 = 4;
/// Descriptors that a process keeps for everything else.
const DESCRIPTORS_KEPT: u64 = 32;

impl ServerLimits {
    /// The same, with no more connections than this process has descriptors for.
    #[must_use]
    pub fn within_descriptors(self) -> Self {
        let Some(limit) = getrlimit(Resource::Nofile).current else { return self };
        let enough_for = limit.saturating_sub(DESCRIPTORS_KEPT) / DESCRIPTORS_EACH;
        let most = usize::try_from(enough_for).unwrap_or(usize::MAX);
        Self { connections_max: self.connections_max.min(most), ..self }
    }
}

/// The thread that takes clients in. It ends when this goes.
#[derive(Debug)]
pub struct Server {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts taking in clients from `listeners`.
    ///
    /// # Errors
    /// The machine refuses a thread or descriptors.
    pub fn start(
        listeners: Vec<Listener>,
        admission: impl Admission,
        waker: Waker,
        limits: ServerLimits,
    ) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::new()?);
        let desk = Desk::new(listeners, admission, waker, limits, Arc::clone(&inbox))?;
        let thread = std::thread::Builder::new().name("portcullis-attach".to_owned()).spawn(|| desk.run())?;
        Ok(Self { inbox, thread: Some(thread) })
    }

    /// Closes the connection of a client that the node does not serve any more. Does not wait for it.
    pub fn evict(&self, client: u64) {
        self.inbox.evict(client);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
