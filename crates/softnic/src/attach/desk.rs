//! The thread that takes clients in: it accepts, keeps the time, and moves each attach on.
//!
//! It never waits for a peer. What a peer could make slow is done by a thread of the peer's user.

use super::listener::Listener;
use super::messages::{AttachReply, AttachRequest};
use super::peer::Peer;
use super::server::{Admission, Admitted, ServerLimits};
use super::user_thread::{Done, Task, UserThread};
use crate::port::PortLayout;
use portcullis_memory::{Mapping, MappingError, Waker};
use portcullis_nic::EndpointSize;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Why there is no place for somebody.
const NO_ROOM: &str = "the node has no room for more connections: try again later";
/// The event of the inbox.
const INBOX: u64 = u64::MAX;
/// Connections taken in before what came on others is heard.
const ACCEPTS_MAX: u32 = 64;
/// Between two looks for peers that take too long.
const LATE_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What other threads tell the desk.
#[derive(Debug)]
pub(super) struct Inbox {
    event: OwnedFd,
    stop: AtomicBool,
    evicted: Mutex<Vec<u64>>,
    done: Mutex<Vec<Done>>,
}

impl Inbox {
    pub fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, stop: AtomicBool::new(false), evicted: Mutex::default(), done: Mutex::default() })
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring();
    }

    pub fn evict(&self, client: u64) {
        locked(&self.evicted).push(client);
        self.ring();
    }

    fn done(&self, done: Done) {
        locked(&self.done).push(done);
        self.ring();
    }

    fn ring(&self) {
        // A full counter has woken the desk already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A user at a listener: who comes to another listener acts for another tenant.
type User = (usize, Option<u32>);

/// What one user has.
struct UserState {
    /// Connections of which something is left.
    connections: usize,
    thread: UserThread,
}

pub(super) struct Desk<A: Admission> {
    listeners: Vec<Listener>,
    admission: A,
    waker: Waker,
    limits: ServerLimits,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection<A::Place>>,
    /// Connections that are being closed.
    closing: HashMap<u64, Closing<A::Place>>,
    /// Connections that have taken a place, those that are being closed included.
    taken: usize,
    users: HashMap<User, UserState>,
    /// Who was waited for since when, the longest first. Whoever has moved on since is passed over.
    awaited: VecDeque<(Instant, u64)>,
    /// Given up for a moment when there are no more.
    spare: Option<OwnedFd>,
    next: u64,
    inbox: Arc<Inbox>,
}

struct Connection<P> {
    socket: Arc<OwnedFd>,
    peer: Peer,
    stage: Stage,
    port: Option<OfferedPort<P>>,
}

/// What is left of a connection until its user's thread has closed it.
struct Closing<P> {
    user: User,
    /// There was no room for it.
    in_excess: bool,
    /// Kept for it until then.
    _place: Option<P>,
}

enum Stage {
    /// There is no room for it.
    InExcess,
    /// Nothing was heard yet.
    Waiting(Instant),
    /// The client has been offered a port, and is to map it.
    Offered(Instant),
    /// Its thread fills the port's memory.
    Preparing,
    /// It has a port.
    Attached(u64),
}

impl Stage {
    fn waits_since(&self) -> Option<Instant> {
        match self {
            Self::Waiting(since) | Self::Offered(since) => Some(*since),
            Self::InExcess | Self::Preparing | Self::Attached(_) => None,
        }
    }
}

/// A port that a client may get, or has.
struct OfferedPort<P> {
    size: EndpointSize,
    memory: Mapping,
    event: OwnedFd,
    place: P,
}

impl<P> Connection<P> {
    fn user(&self) -> User {
        (self.peer.listener, self.peer.user)
    }
}

impl<A: Admission> Desk<A> {
    pub fn new(
        listeners: Vec<Listener>,
        admission: A,
        waker: Waker,
        limits: ServerLimits,
        inbox: Arc<Inbox>,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &inbox.event, EventData::new_u64(INBOX), EventFlags::IN | EventFlags::ET)?;
        for (token, listener) in (0..).zip(&listeners) {
            epoll::add(&epoll, listener, EventData::new_u64(token), EventFlags::IN)?;
        }
        Ok(Self {
            next: listeners.len() as u64,
            listeners,
            admission,
            waker,
            limits,
            epoll,
            connections: HashMap::new(),
            closing: HashMap::new(),
            taken: 0,
            users: HashMap::new(),
            awaited: VecDeque::new(),
            spare: Some(eventfd(0, EventfdFlags::CLOEXEC)?),
            inbox,
        })
    }

    pub fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        while !self.inbox.stop.load(Ordering::Acquire) {
            let timeout = (!self.awaited.is_empty()).then_some(LATE_LOOK);
            events.clear();
            let waited =
                epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
            if waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
                break;
            }
            for event in &events {
                match event.data.u64() {
                    INBOX => self.read_inbox(),
                    token if token < self.listeners.len() as u64 => self.accept(token),
                    token => self.receive(token),
                }
            }
            self.close_late();
        }
        self.close_all();
    }

    fn read_inbox(&mut self) {
        let evicted = std::mem::take(&mut *locked(&self.inbox.evicted));
        if !evicted.is_empty() {
            self.close_where(|it| matches!(it.stage, Stage::Attached(client) if evicted.contains(&client)));
        }
        let done = std::mem::take(&mut *locked(&self.inbox.done));
        for done in done {
            match done {
                Done::Heard { token, bytes } => self.heard(token, &bytes),
                Done::Nothing { token } => self.await_message(token),
                Done::Prepared { token, prepared } => self.prepared(token, prepared),
                Done::Closed { token } => self.closed(token),
            }
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
            let Ok(peer) = Peer::of(&socket, listener) else { continue };
            self.take_in(socket, peer);
        }
    }

    fn take_in(&mut self, socket: OwnedFd, peer: Peer) {
        let (user, token, socket) = ((peer.listener, peer.user), self.next, Arc::new(socket));
        self.next += 1;
        let room = self.has_room_for(user);
        if !room && !self.listeners[peer.listener].takes_descriptors() {
            // Nothing has come with it that closing it could wait for: its descriptor is free again at once.
            return refuse(&socket, NO_ROOM);
        }
        let Ok(state) = self.user(user) else { return };
        state.connections += 1;
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        if !room {
            let connection = Connection { socket, peer, stage: Stage::InExcess, port: None };
            refuse(&connection.socket, NO_ROOM);
            return self.let_go(token, connection);
        }
        self.taken += 1;
        let watched = epoll::add(&self.epoll, &socket, EventData::new_u64(token), flags).is_ok();
        let now = Instant::now();
        let connection = Connection { socket, peer, stage: Stage::Waiting(now), port: None };
        if watched {
            self.connections.insert(token, connection);
            self.awaited.push_back((now, token));
        } else {
            self.let_go(token, connection);
        }
    }

    /// A user, with a thread of its own.
    fn user(&mut self, user: User) -> std::io::Result<&mut UserState> {
        Ok(match self.users.entry(user) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let inbox = Arc::clone(&self.inbox);
                let thread = UserThread::start(move |done| inbox.done(done))?;
                place.insert(UserState { connections: 0, thread })
            }
        })
    }

    /// Whether there is room for one more of this user. However many it has, as many places stay free for others.
    fn has_room_for(&self, user: User) -> bool {
        let free = self.limits.connections_max - self.taken;
        self.users.get(&user).map_or(free > 0, |state| state.connections < free)
    }

    /// No more descriptors: whoever waits hears so, by means of the one that is kept for this. Unheard it would stay
    /// in the queue, and this thread would spin over it.
    fn turn_away(&mut self, listener: usize) {
        self.spare = None;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(socket) = rustix::net::accept_with(&self.listeners[listener], flags) {
            refuse(&socket, "the node has no more descriptors: try again later");
        }
        self.spare = eventfd(0, EventfdFlags::CLOEXEC).ok();
    }

    fn give(&self, user: User, task: Task) {
        self.users.get(&user).expect("a user is known until its last connection is closed").thread.give(task);
    }

    /// Something came on a connection, or its end.
    fn receive(&mut self, token: u64) {
        if let Some(connection) = self.connections.get(&token) {
            let socket = Arc::clone(&connection.socket);
            self.give(connection.user(), Task::Hear { token, socket });
        }
    }

    /// Nothing was there to be heard after all: the next message is waited for.
    fn await_message(&self, token: u64) {
        if let Some(connection) = self.connections.get(&token) {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            let armed = epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(token), flags);
            armed.expect("a connection is watched until it is closed");
        }
    }

    /// What a connection said: the next step of its attach, or the end.
    fn heard(&mut self, token: u64, bytes: &[u8]) {
        let Some(connection) = self.connections.get(&token) else { return };
        let next = match (&connection.stage, AttachRequest::parse(bytes)) {
            _ if bytes.is_empty() => return self.close(token),
            (Stage::Waiting(_), Some(AttachRequest::Hello { arena_bytes })) => self.offer(token, arena_bytes),
            (Stage::Offered(_), Some(AttachRequest::Mapped)) => self.prepare(token),
            (Stage::Waiting(_) | Stage::Offered(_), _) => {
                Err("that was no attach of this version: use a client of the node's version".to_owned())
            }
            // There is nothing more to say.
            (Stage::InExcess | Stage::Preparing | Stage::Attached(_), _) => return self.close(token),
        };
        match next {
            Ok(()) => self.await_message(token),
            Err(reason) => self.refuse(token, &reason),
        }
    }

    fn offer(&mut self, token: u64, arena_bytes: u64) -> Result<(), String> {
        let connection = self.connections.get_mut(&token).expect("it was just heard");
        let (size, place) = self.admission.offer(&connection.peer, arena_bytes)?;
        let memory_bytes = PortLayout::new(size).bytes();
        let memory =
            Mapping::shareable("portcullis-port", memory_bytes).map_err(|error| error.to_string())?;
        let event = self.waker.new_event().map_err(|error| error.to_string())?;
        let offer = AttachReply::Offer { size, memory_bytes };
        say_with(&connection.socket, &offer, &memory, self.waker.page(), &event);
        let now = Instant::now();
        connection.stage = Stage::Offered(now);
        connection.port = Some(OfferedPort { size, memory, event, place });
        self.awaited.push_back((now, token));
        Ok(())
    }

    fn prepare(&mut self, token: u64) -> Result<(), String> {
        let connection = self.connections.get_mut(&token).expect("it was just heard");
        connection.stage = Stage::Preparing;
        let memory = connection.port.as_ref().expect("a port was offered").memory.clone();
        let user = connection.user();
        self.give(user, Task::Prepare { token, memory });
        Ok(())
    }

    fn prepared(&mut self, token: u64, prepared: Result<(), MappingError>) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let port = connection.port.as_ref().expect("a port was offered");
        let admitted = prepared
            .map_err(|error| error.to_string())
            .and_then(|()| self.admission.admit(&connection.peer, port.memory.clone(), port.size));
        match admitted {
            Ok(Admitted { client, arena_key }) => {
                // From here on the end of the connection is the end of the client.
                connection.stage = Stage::Attached(client);
                say(&connection.socket, &AttachReply::Welcome { client, arena_key });
            }
            Err(reason) => self.refuse(token, &reason),
        }
    }

    fn refuse(&mut self, token: u64, reason: &str) {
        if let Some(connection) = self.connections.get(&token) {
            refuse(&connection.socket, reason);
        }
        self.close(token);
    }

    fn close(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        if let Some(port) = &connection.port {
            self.waker.forget_event(&port.event);
        }
        if let Stage::Attached(client) = connection.stage {
            self.admission.depart(client);
        }
        self.let_go(token, connection);
    }

    /// Has the user's thread let go of what is left of a connection.
    fn let_go(&mut self, token: u64, connection: Connection<A::Place>) {
        let user = connection.user();
        let (memory, place) = connection.port.map(|port| (port.memory, port.place)).unzip();
        let in_excess = matches!(connection.stage, Stage::InExcess);
        self.closing.insert(token, Closing { user, in_excess, _place: place });
        self.give(user, Task::Close { token, socket: connection.socket, memory });
    }

    fn closed(&mut self, token: u64) {
        let Closing { user, in_excess, _place } = self.closing.remove(&token).expect("it is closed once");
        self.taken -= usize::from(!in_excess);
        let state = self.users.get_mut(&user).expect("a user is known until its last connection is closed");
        state.connections -= 1;
        if state.connections == 0 {
            self.users.remove(&user);
        }
    }

    fn close_where(&mut self, is_over: impl Fn(&Connection<A::Place>) -> bool) {
        let over: Vec<u64> =
            self.connections.iter().filter(|(_, it)| is_over(it)).map(|(&token, _)| token).collect();
        for token in over {
            self.close(token);
        }
    }

    fn close_late(&mut self) {
        while let Some(&(since, token)) = self.awaited.front()
            && since.elapsed() > self.limits.hello_within
        {
            self.awaited.pop_front();
            if self.connections.get(&token).is_some_and(|it| it.stage.waits_since() == Some(since)) {
                self.close(token);
            }
        }
    }

    /// The server ends. Users' threads close what is left, and nobody waits for them.
    fn close_all(mut self) {
        self.close_where(|_| true);
        for listener in self.listeners {
            // Who waits to be taken in is closed with it, and what they have passed.
            let Some(socket) = listener.retire() else { continue };
            let _ =
                std::thread::Builder::new().name("portcullis-close".to_owned()).spawn(move || drop(socket));
        }
    }
}

fn refuse(socket: &OwnedFd, reason: &str) {
    say(socket, &AttachReply::Refused(reason.to_owned()));
}

/// Says a message to a peer that may be gone or may not listen: it is never waited for.
fn say(socket: &OwnedFd, reply: &AttachReply) {
    let _ = rustix::net::send(socket, &reply.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn say_with(socket: &OwnedFd, reply: &AttachReply, memory: &Mapping, page: &Mapping, event: &OwnedFd) {
    let files = [memory.file(), page.file()].map(|file| file.expect("shareable memory has a file"));
    let descriptors = [files[0], files[1], event.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "three descriptors fit");
    let bytes = reply.encode();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // Whoever is gone is noticed by its hanging up.
    let _ = rustix::net::sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, flags);
}
