//! The node's side of attaches: a thread that takes them in, one after the other.

use super::listener::Listener;
use super::messages::{HELLO_BYTES, Hello, Welcome};
use crate::engine::Waker;
use crate::port::PortLayout;
use crate::shared::Mapping;
use portcullis_nic::EndpointSize;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Who attaches, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process.
    pub process: u32,
    /// The user it runs as.
    pub user: u32,
    /// Which of the listeners it came to.
    pub listener: usize,
}

/// A client that got a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its number on the node.
    pub client: u32,
    /// The key of its arena.
    pub arena_key: u32,
}

/// Decides who gets a port.
pub trait Admission: Send + 'static {
    /// The port that a peer that asks for `arena_bytes` of arena would get.
    ///
    /// # Errors
    /// Why it gets none.
    fn size(&self, peer: &Peer, arena_bytes: u64) -> Result<EndpointSize, String>;

    /// Makes the port in `memory`.
    ///
    /// # Errors
    /// Why not. Nothing is left behind.
    fn admit(&self, peer: &Peer, memory: Mapping, size: EndpointSize) -> Result<Admitted, String>;

    /// The client is gone, or broke the rules of the socket.
    fn depart(&self, client: u32);
}

/// What the server puts up with.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// How long a peer may take to say hello.
    pub hello_within: Duration,
    /// Sockets open at once, those that have said nothing yet included. One user gets half of them at the most.
    pub connections_max: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { hello_within: Duration::from_secs(1), connections_max: 4096 }
    }
}

/// The thread that takes clients in. It ends when this goes.
#[derive(Debug)]
pub struct Server {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told from outside.
#[derive(Debug)]
struct Orders {
    event: OwnedFd,
    stop: AtomicBool,
    evicted: Mutex<Vec<u32>>,
}

impl Orders {
    fn give(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
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
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let orders = Orders { event, stop: AtomicBool::new(false), evicted: Mutex::new(Vec::new()) };
        let orders = Arc::new(orders);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &orders.event, EventData::new_u64(ORDERS), flags)?;
        for (token, listener) in (0..).zip(&listeners) {
            epoll::add(&epoll, listener, EventData::new_u64(token), EventFlags::IN)?;
        }
        let first = listeners.len() as u64;
        let desk = Desk {
            listeners,
            admission,
            waker,
            limits,
            epoll,
            connections: HashMap::new(),
            by_user: HashMap::new(),
            waiting: 0,
            spare: Some(eventfd(0, EventfdFlags::CLOEXEC)?),
            next: first,
            orders: Arc::clone(&orders),
        };
        let thread = std::thread::Builder::new().name("portcullis-attach".to_owned()).spawn(|| desk.run())?;
        Ok(Self { orders, thread: Some(thread) })
    }

    /// Closes the connection of a client that the node does not serve any more. Does not wait for it.
    pub fn evict(&self, client: u32) {
        self.orders.evicted.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        self.orders.give();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.orders.stop.store(true, Ordering::Release);
        self.orders.give();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const ORDERS: u64 = u64::MAX;
/// Connections taken in before what came on others is heard.
const ACCEPTS_MAX: u32 = 64;

struct Desk<A> {
    listeners: Vec<Listener>,
    admission: A,
    waker: Waker,
    limits: ServerLimits,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    /// Connections of each user, by the listener that they came to.
    by_user: HashMap<(usize, u32), usize>,
    waiting: usize,
    /// Given up for a moment when there are no more.
    spare: Option<OwnedFd>,
    next: u64,
    orders: Arc<Orders>,
}

struct Connection {
    socket: OwnedFd,
    peer: Peer,
    stage: Stage,
}

enum Stage {
    /// It has said nothing yet.
    Waiting(Instant),
    /// It has a port.
    Attached { client: u32, event: OwnedFd },
}

impl<A: Admission> Desk<A> {
    fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        loop {
            let timeout = (self.waiting > 0).then_some(Timespec { tv_sec: 0, tv_nsec: 100_000_000 });
            events.clear();
            let waited =
                epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
            if waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
                return;
            }
            for event in &events {
                match event.data.u64() {
                    ORDERS if self.orders.stop.load(Ordering::Acquire) => return,
                    ORDERS => self.close_evicted(),
                    token if token < self.listeners.len() as u64 => self.accept(token),
                    token => self.hear(token),
                }
            }
            self.drop_silent();
        }
    }

    /// Takes in some of those who wait: whoever keeps coming does not keep the others from being heard.
    fn accept(&mut self, token: u64) {
        let listener = usize::try_from(token).unwrap_or(0);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS_MAX {
            let socket = match rustix::net::accept_with(&self.listeners[listener], flags) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => return self.turn_away(listener),
                Err(_) => return,
            };
            let Ok(credentials) = rustix::net::sockopt::socket_peercred(&socket) else { continue };
            let peer = Peer {
                process: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
                user: credentials.uid.as_raw(),
                listener,
            };
            if !self.has_room_for(&peer) {
                say(&socket, &Welcome::refusal("the node has no room for more connections: try again later"));
                continue;
            }
            let token = self.next;
            self.next += 1;
            if epoll::add(&self.epoll, &socket, EventData::new_u64(token), EventFlags::IN).is_err() {
                continue;
            }
            self.waiting += 1;
            *self.by_user.entry((listener, peer.user)).or_default() += 1;
            self.connections
                .insert(token, Connection { socket, peer, stage: Stage::Waiting(Instant::now()) });
        }
    }

    /// No more descriptors: whoever waits hears so, by means of the one that is kept for this. Unheard it would stay
    /// in the queue, and this thread would spin over it.
    fn turn_away(&mut self, listener: usize) {
        self.spare = None;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(socket) = rustix::net::accept_with(&self.listeners[listener], flags) {
            say(&socket, &Welcome::refusal("the node has no more descriptors: try again later"));
        }
        self.spare = eventfd(0, EventfdFlags::CLOEXEC).ok();
    }

    /// Whether there is room for one more of this user. However many it has, as many places stay free for others.
    fn has_room_for(&self, peer: &Peer) -> bool {
        let free = self.limits.connections_max.saturating_sub(self.connections.len());
        self.by_user.get(&(peer.listener, peer.user)).map_or(free > 0, |&its| its < free)
    }

    /// Something came on a connection: a hello, the end, or what should not come.
    fn hear(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        let mut bytes = [0; HELLO_BYTES + 1];
        let heard = rustix::net::recv(&connection.socket, &mut bytes[..], RecvFlags::DONTWAIT);
        let length = match heard {
            Ok((_, length)) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => 0,
        };
        if length == 0 || matches!(connection.stage, Stage::Attached { .. }) {
            return self.close(token);
        }
        let answer = match Hello::parse(&bytes[..length.min(bytes.len())]) {
            Some(arena_bytes) => self.admit(token, arena_bytes),
            None => Err("that was no hello of this version: use a client of the node's version".to_owned()),
        };
        if let Err(reason) = answer {
            if let Some(connection) = self.connections.get(&token) {
                say(&connection.socket, &Welcome::refusal(&reason));
            }
            self.close(token);
        }
    }

    fn admit(&mut self, token: u64, arena_bytes: u64) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let size = self.admission.size(&connection.peer, arena_bytes)?;
        let bytes = PortLayout::new(size).bytes();
        let memory = Mapping::shareable("portcullis-port", bytes).map_err(|error| error.to_string())?;
        let event = self.waker.new_event().map_err(|error| error.to_string())?;
        let admitted = match self.admission.admit(&connection.peer, memory.clone(), size) {
            Ok(admitted) => admitted,
            Err(reason) => {
                self.waker.forget_event(&event);
                return Err(reason);
            }
        };
        let welcome = Welcome::port(admitted.client, admitted.arena_key, size, bytes);
        let sent = say_with(&connection.socket, &welcome, &memory, self.waker.page(), &event);
        // From here on the end of the connection is the end of the client.
        connection.stage = Stage::Attached { client: admitted.client, event };
        self.waiting -= 1;
        if !sent {
            self.close(token);
        }
        Ok(())
    }

    fn close(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        let user = (connection.peer.listener, connection.peer.user);
        if let Some(its) = self.by_user.get_mut(&user) {
            *its -= 1;
            if *its == 0 {
                self.by_user.remove(&user);
            }
        }
        match connection.stage {
            Stage::Waiting(_) => self.waiting -= 1,
            Stage::Attached { client, event } => {
                self.waker.forget_event(&event);
                self.admission.depart(client);
            }
        }
    }

    fn close_evicted(&mut self) {
        let evicted =
            std::mem::take(&mut *self.orders.evicted.lock().unwrap_or_else(PoisonError::into_inner));
        let is_evicted =
            |stage: &Stage| matches!(stage, Stage::Attached { client, .. } if evicted.contains(client));
        let tokens: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_evicted(&connection.stage))
            .map(|(&token, _)| token)
            .collect();
        for token in tokens {
            self.close(token);
        }
    }

    fn drop_silent(&mut self) {
        if self.waiting == 0 {
            return;
        }
        let late = |stage: &Stage| matches!(stage, Stage::Waiting(since) if since.elapsed() > self.limits.hello_within);
        let silent: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| late(&connection.stage))
            .map(|(&token, _)| token)
            .collect();
        for token in silent {
            self.close(token);
        }
    }
}

/// Says a message to a peer that may be gone or may not listen: it is never waited for.
fn say(socket: &OwnedFd, welcome: &Welcome) {
    let _ = rustix::net::send(socket, welcome.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn say_with(socket: &OwnedFd, welcome: &Welcome, memory: &Mapping, page: &Mapping, event: &OwnedFd) -> bool {
    let (Some(memory), Some(page)) = (memory.file(), page.file()) else { return false };
    let descriptors = [memory, page, event.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return false;
    }
    let parts = [std::io::IoSlice::new(welcome.as_bytes())];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &parts, &mut control, flags).is_ok()
}
