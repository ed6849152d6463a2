//! The thread that takes clients in: sockets, the clock, and who is told what. What is said on a connection is
//! [`Visit`]'s business, who has to go when there are too many is [`Crowd`]'s.

use crate::admission::{Admission, Admitted, Holder, Peer};
use crate::channel::Channel;
use crate::crowd::Crowd;
use crate::frames::framed;
use crate::listener::{Listener, NodeSecurity};
use crate::messages::NodeSays;
use crate::tcp;
use crate::terms::{Ends, Terms};
use crate::visit::{Gate, Visit};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustls::ServerConnection;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the server puts up with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerLimits {
    /// How long a peer may take from its connection to the end of its attach.
    pub attach_within: Duration,
    /// Connections at once, those that are not attached yet included. However many one tenant has (or, without
    /// certificates, one address), as many places stay free for others.
    pub connections_max: usize,
    /// Connections that are not attached yet. One address gets half of them at the most, and so does one tenant;
    /// when there are more, the newest stays and an older one goes.
    pub unattached_max: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { attach_within: Duration::from_secs(3), connections_max: 4096, unattached_max: 64 }
    }
}

/// The thread that takes clients in. It ends when this is dropped: all connections are closed then, and all clients
/// have departed.
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
    evicted: Mutex<Vec<u64>>,
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
        limits: ServerLimits,
    ) -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let orders = Orders { event, stop: AtomicBool::new(false), evicted: Mutex::new(Vec::new()) };
        let orders = Arc::new(orders);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &orders.event, EventData::new_u64(ORDERS), EventFlags::IN | EventFlags::ET)?;
        for (token, listener) in (0..).zip(&listeners) {
            epoll::add(&epoll, &listener.socket, EventData::new_u64(token), EventFlags::IN)?;
        }
        let desk = Desk {
            next: listeners.len() as u64,
            listeners,
            admission,
            limits,
            epoll,
            guests: HashMap::new(),
            crowd: Crowd::new(limits.unattached_max),
            holdings: HashMap::new(),
            spare: Some(eventfd(0, EventfdFlags::CLOEXEC)?),
            orders: Arc::clone(&orders),
        };
        let thread = std::thread::Builder::new().name("portcullis-tcp".to_owned()).spawn(|| desk.run())?;
        Ok(Self { orders, thread: Some(thread) })
    }

    /// Closes the connection of a client that the node does not serve any more. Does not wait for it.
    pub fn evict(&self, client: u64) {
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
/// Connections taken in before those are heard that are there: far fewer than there are places for, so that nobody
/// is displaced unheard.
const ACCEPTS_MAX: u32 = 8;
/// Bytes taken from one connection before others have their turn.
const READ_BYTES: usize = 16 << 10;

struct Desk<A> {
    listeners: Vec<Listener>,
    admission: A,
    limits: ServerLimits,
    epoll: OwnedFd,
    guests: HashMap<u64, Guest>,
    crowd: Crowd,
    /// Clients that are attached, by whose they are.
    holdings: HashMap<Holder, usize>,
    /// Given up for a moment when there are no more descriptors.
    spare: Option<OwnedFd>,
    next: u64,
    orders: Arc<Orders>,
}

struct Guest {
    socket: TcpStream,
    visit: Visit,
    /// Whether epoll tells when there is room to send.
    is_congested: bool,
}

/// The admission, and the server's own limit before it.
struct Door<'a, A> {
    admission: &'a A,
    holdings: &'a HashMap<Holder, usize>,
    free: usize,
}

impl<A> Door<'_, A> {
    fn check_room(&self, peer: &Peer) -> Result<(), String> {
        let its = self.holdings.get(&Holder::of(peer)).copied().unwrap_or(0);
        if its < self.free { Ok(()) } else { Err("the node has no room for more of your clients".to_owned()) }
    }
}

impl<A: Admission> Gate for Door<'_, A> {
    fn terms(&self, peer: &Peer) -> Result<Terms, String> {
        self.check_room(peer)?;
        self.admission.terms(peer)
    }

    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, String> {
        self.check_room(peer)?;
        self.admission.admit(peer, ends)
    }

    fn depart(&self, client: u64) {
        self.admission.depart(client);
    }
}

impl<A: Admission> Desk<A> {
    fn run(mut self) {
        self.serve();
        let tokens: Vec<u64> = self.guests.keys().copied().collect();
        for token in tokens {
            self.close(token);
        }
    }

    fn serve(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        loop {
            let timeout = self.until_next_deadline();
            events.clear();
            let waited =
                epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
            if let Err(error) = waited
                && error != Errno::INTR
            {
                tracing::error!(%error, "no more clients can be taken in");
                return;
            }
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    ORDERS if self.orders.stop.load(Ordering::Acquire) => return,
                    ORDERS => self.close_evicted(),
                    token if token < self.listeners.len() as u64 => self.accept(token),
                    token if flags.intersects(!EventFlags::OUT) => self.hear(token),
                    token => self.go_on(token),
                }
            }
            self.close_late(Instant::now());
        }
    }

    fn until_next_deadline(&self) -> Option<Timespec> {
        let deadlines =
            self.crowd.tokens().filter_map(|token| Some(self.guests.get(&token)?.visit.deadline()));
        let left = deadlines.min()?.saturating_duration_since(Instant::now());
        // A millisecond more, so that the time is really up then.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    fn accept(&mut self, token: u64) {
        let listener = usize::try_from(token).unwrap_or(0);
        for _ in 0..ACCEPTS_MAX {
            match self.listeners[listener].socket.accept() {
                Ok((socket, address)) => self.welcome(socket, address, listener),
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR | Errno::CONNABORTED) => {}
                    Some(Errno::MFILE | Errno::NFILE) => return self.turn_away(listener),
                    _ => return,
                },
            }
        }
    }

    fn welcome(&mut self, socket: TcpStream, address: SocketAddr, listener: usize) {
        let security = &self.listeners[listener].security;
        if self.guests.len() >= self.limits.connections_max {
            return excuse(&socket, security, "the node has no room for more connections: try again later");
        }
        if socket.set_nonblocking(true).is_err() || tcp::keep_watch(&socket).is_err() {
            return;
        }
        let channel = match security {
            NodeSecurity::Plain => Channel::plain(),
            NodeSecurity::Tls(credentials) => match ServerConnection::new(Arc::clone(&credentials.config)) {
                Ok(connection) => Channel::secured(connection),
                Err(error) => return tracing::error!(%error, "TLS cannot begin"),
            },
        };
        let token = self.next;
        self.next += 1;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(token), EventFlags::IN).is_err() {
            return;
        }
        let peer = Peer { tenant: None, address, listener };
        self.crowd.come(token, Holder::of(&peer));
        let visit = Visit::new(peer, channel, Instant::now() + self.limits.attach_within);
        self.guests.insert(token, Guest { socket, visit, is_congested: false });
        self.make_room(token);
    }

    /// No more descriptors: whoever waits is let go, by means of the one that is kept for this. Otherwise it would
    /// stay in the queue, and this thread would spin over it.
    fn turn_away(&mut self, listener: usize) {
        self.spare = None;
        let Listener { socket, security, .. } = &self.listeners[listener];
        if let Ok((socket, _)) = socket.accept() {
            excuse(&socket, security, "the node has no more descriptors: try again later");
        }
        self.spare = eventfd(0, EventfdFlags::CLOEXEC).ok();
    }

    /// Something came on a connection: what is due, the end, or what should not come.
    fn hear(&mut self, token: u64) {
        let free = self.limits.connections_max.saturating_sub(self.holdings.values().sum());
        let Some(guest) = self.guests.get_mut(&token) else { return };
        let mut bytes = [0; READ_BYTES];
        let heard = match rustix::net::recv(&guest.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, heard)) => heard,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        if heard == 0 {
            return self.close(token);
        }
        let door = Door { admission: &self.admission, holdings: &self.holdings, free };
        let (client_was, tenant_was) = (guest.visit.client(), guest.visit.peer().tenant.clone());
        let outcome = guest.visit.hear(&bytes[..heard], &door);
        if client_was.is_none() && guest.visit.client().is_some() {
            *self.holdings.entry(Holder::of(guest.visit.peer())).or_default() += 1;
        }
        let proven = tenant_was.is_none() && guest.visit.peer().tenant.is_some();
        if proven {
            self.crowd.prove(token, Holder::of(guest.visit.peer()));
        }
        if let Err(breach) = outcome {
            tracing::debug!(peer = %guest.visit.peer().address, %breach, "shown out");
            // What TLS has to say about it, if there is room for it at once.
            let _ = rustix::net::send(&guest.socket, guest.visit.outgoing(), NOT_WAITING);
            return self.close(token);
        }
        self.go_on(token);
        if proven {
            self.make_room(token);
        }
    }

    /// Has somebody else go, if this one is one too many.
    fn make_room(&mut self, newest: u64) {
        if let Some(surplus) = self.crowd.surplus(newest) {
            self.close(surplus);
        }
    }

    /// Sends what there is to be sent, and sees what that changes.
    fn go_on(&mut self, token: u64) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        while !guest.visit.outgoing().is_empty() {
            match rustix::net::send(&guest.socket, guest.visit.outgoing(), NOT_WAITING) {
                Ok(sent) => guest.visit.sent(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return self.close(token),
            }
        }
        if guest.visit.take_farewell() {
            let _ = rustix::net::shutdown(&guest.socket, Shutdown::Write);
        }
        if guest.visit.is_attached() {
            self.crowd.leave(token);
        }
        let is_congested = !guest.visit.outgoing().is_empty();
        if is_congested != guest.is_congested {
            guest.is_congested = is_congested;
            let flags = if is_congested { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            if epoll::modify(&self.epoll, &guest.socket, EventData::new_u64(token), flags).is_err() {
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: u64) {
        let Some(guest) = self.guests.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &guest.socket);
        self.crowd.leave(token);
        let Some(client) = guest.visit.client() else { return };
        let holder = Holder::of(guest.visit.peer());
        if let Some(its) = self.holdings.get_mut(&holder) {
            *its -= 1;
            if *its == 0 {
                self.holdings.remove(&holder);
            }
        }
        self.admission.depart(client);
    }

    fn close_evicted(&mut self) {
        let evicted =
            std::mem::take(&mut *self.orders.evicted.lock().unwrap_or_else(PoisonError::into_inner));
        self.close_all(|visit| visit.client().is_some_and(|client| evicted.contains(&client)));
    }

    fn close_late(&mut self, now: Instant) {
        let late: Vec<u64> = self
            .crowd
            .tokens()
            .filter(|token| self.guests.get(token).is_some_and(|guest| guest.visit.is_late(now)))
            .collect();
        for token in late {
            self.close(token);
        }
    }

    fn close_all(&mut self, which: impl Fn(&Visit) -> bool) {
        let tokens: Vec<u64> =
            self.guests.iter().filter(|(_, guest)| which(&guest.visit)).map(|(&token, _)| token).collect();
        for token in tokens {
            self.close(token);
        }
    }
}

const NOT_WAITING: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// Says why somebody is not even heard, where that needs no handshake.
fn excuse(socket: &TcpStream, security: &NodeSecurity, reason: &str) {
    if matches!(security, NodeSecurity::Plain) {
        let refusal = framed(&NodeSays::Refused(reason.to_owned()).encode());
        let _ = rustix::net::send(socket, &refusal, NOT_WAITING);
    }
}
