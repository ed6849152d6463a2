//! The acceptor's thread: the handling of each event.

use super::connection_quota::ConnectionQuota;
use super::crowd::Crowd;
use super::peer_thread::{Done, PeerThread, Task, hear};
use super::refusals::Refusals;
use super::{Inbox, Limits, locked};
use crate::handshake::{Accepted, Dismissal, Handshake};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, acceptfrom_with,
};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Reasons for which a connection gets no place.
const NO_ROOM: &str = "the node has no room for more connections: try again later";
const NO_DESCRIPTORS: &str = "the node has no more descriptors: try again later";
const NO_THREAD: &str = "the node has no more threads: try again later";
const INBOX: u64 = u64::MAX;
/// Connections accepted before existing ones are served. The limit is far below the number of places, so that no
/// connection is closed unserved.
const ACCEPTS_MAX: u32 = 8;
const ACCEPTED: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const NOT_WAITING: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

pub(super) struct Service<H: Handshake> {
    listeners: Vec<H::Listener>,
    policy: H::Policy,
    limits: Limits,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection<H>>,
    /// Connections that a holder's thread is closing.
    closing: HashMap<u64, Closing<H>>,
    crowd: Crowd<H::Holder>,
    /// Connections by deadline.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Connections by client.
    clients: HashMap<u64, u64>,
    quota: ConnectionQuota<H::Holder>,
    threads: HashMap<H::Holder, HolderThread<H>>,
    refusals: Refusals,
    /// Spare descriptor, closed for a moment when the process has no free descriptor.
    spare: Option<OwnedFd>,
    next: u64,
    inbox: Arc<Inbox>,
}

struct Connection<H> {
    socket: Arc<OwnedFd>,
    handshake: H,
    /// The same deadline as in `deadlines`.
    deadline: Option<Instant>,
    /// Whether epoll reports when there is room to send.
    is_congested: bool,
    has_place: bool,
    /// Whether the refusal has been reported to the operator.
    is_refused: bool,
}

/// Data about a connection that its holder's thread has not closed yet.
struct Closing<H: Handshake> {
    holder: H::Holder,
    has_place: bool,
}

struct HolderThread<H> {
    thread: PeerThread<H>,
    /// Connections that are not closed entirely.
    connections: usize,
}

impl<H: Handshake> Service<H> {
    pub fn new(
        listeners: Vec<H::Listener>,
        policy: H::Policy,
        limits: Limits,
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
            policy,
            limits,
            epoll,
            connections: HashMap::new(),
            closing: HashMap::new(),
            crowd: Crowd::new(limits.unattached_max),
            deadlines: BTreeSet::new(),
            clients: HashMap::new(),
            quota: ConnectionQuota::new(limits.connections_max),
            threads: HashMap::new(),
            refusals: Refusals::default(),
            spare: Some(eventfd(0, EventfdFlags::CLOEXEC)?),
            inbox,
        })
    }

    pub fn run(mut self) {
        self.serve();
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            self.dismiss(token, Dismissal::Stopping);
        }
        for listener in self.listeners {
            // Connections not accepted yet are closed with the socket, as are the descriptors that they passed.
            let Some(socket) = H::retire(listener) else { continue };
            let _ =
                std::thread::Builder::new().name("portcullis-close".to_owned()).spawn(move || drop(socket));
        }
    }

    fn serve(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        while !self.inbox.stop.load(Ordering::Acquire) {
            let timeout = self.until_next_deadline();
            events.clear();
            let waited =
                epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
            if let Err(error) = waited
                && error != Errno::INTR
            {
                tracing::error!(%error, "cannot accept more clients");
                return;
            }
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    INBOX => self.read_inbox(),
                    token if token < self.listeners.len() as u64 => self.accept(token),
                    token if flags.intersects(!EventFlags::OUT) => self.receive(token),
                    token => self.go_on(token),
                }
            }
            self.close_late(Instant::now());
        }
    }

    fn until_next_deadline(&self) -> Option<Timespec> {
        let (next, _) = self.deadlines.first()?;
        let left = next.saturating_duration_since(Instant::now());
        // A millisecond more, so that the deadline has really passed then.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    fn read_inbox(&mut self) {
        let said = std::mem::take(&mut *locked(&self.inbox.said));
        for (client, message) in said {
            if let Some(&token) = self.clients.get(&client) {
                self.advance(token, |handshake, _, _| handshake.say(&message));
            }
        }
        let evicted = std::mem::take(&mut *locked(&self.inbox.evicted));
        for client in evicted {
            // A client that is not found has hung up by itself.
            if let Some(&token) = self.clients.get(&client) {
                self.close(token);
            }
        }
        let done = std::mem::take(&mut *locked(&self.inbox.done));
        for done in done {
            match done {
                Done::Heard { token, bytes } => self.heard(token, &bytes),
                Done::Nothing { token } => self.watch(token),
                Done::Ran { token, outcome } => {
                    self.advance(token, |handshake, policy, _| handshake.errand_done(outcome, policy))
                }
                Done::Closed { token } => self.closed(token),
            }
        }
    }

    /// Accepts at most [`ACCEPTS_MAX`] connections, so that existing ones are served even if new ones keep arriving.
    fn accept(&mut self, token: u64) {
        let listener = usize::try_from(token).unwrap_or(0);
        for _ in 0..ACCEPTS_MAX {
            match acceptfrom_with(&self.listeners[listener], ACCEPTED) {
                Ok((socket, address)) => {
                    let accepted = Accepted { socket: &socket, address, listener, now: Instant::now() };
                    // A connection without a handshake is closed here.
                    if let Some(handshake) = H::begin(&self.listeners[listener], accepted, &self.limits) {
                        self.take_in(socket, handshake, listener);
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) => return self.turn_away(listener),
                Err(_) => return,
            }
        }
    }

    /// Refuses one connection when the process has no free descriptor, by means of the spare one. Otherwise the
    /// connection would stay in the queue, and this thread would spin over it.
    fn turn_away(&mut self, listener: usize) {
        self.spare = None;
        if let Ok((socket, _)) = acceptfrom_with(&self.listeners[listener], ACCEPTED) {
            H::excuse(&self.listeners[listener], &socket, NO_DESCRIPTORS);
            self.report("a peer".to_owned(), NO_DESCRIPTORS.to_owned());
        }
        self.spare = eventfd(0, EventfdFlags::CLOEXEC).ok();
    }

    fn take_in(&mut self, socket: OwnedFd, handshake: H, listener: usize) {
        let holder = handshake.holder();
        let has_room = if H::IS_CERTAIN_AT_ONCE {
            self.quota.has_room_for(&holder)
        } else {
            self.connections.len() < self.limits.connections_max
        };
        if !has_room {
            H::excuse(&self.listeners[listener], &socket, NO_ROOM);
            self.report(handshake.peer_name(), NO_ROOM.to_owned());
            if !H::is_slow_to_refuse(&self.listeners[listener]) {
                // No descriptors arrived with the connection that would make closing slow: its own descriptor is free
                // at once.
                return;
            }
        }
        if H::IS_SLOW && !self.count_for_thread(&holder) {
            H::excuse(&self.listeners[listener], &socket, NO_THREAD);
            return self.report(handshake.peer_name(), NO_THREAD.to_owned());
        }
        let token = self.next;
        self.next += 1;
        let has_place = has_room && H::IS_CERTAIN_AT_ONCE;
        let connection = Connection {
            socket: Arc::new(socket),
            handshake,
            deadline: None,
            is_congested: false,
            has_place,
            is_refused: false,
        };
        if has_place {
            self.quota.take(&holder);
        }
        let (data, flags) = (EventData::new_u64(token), connection.events());
        if !has_room || epoll::add(&self.epoll, &connection.socket, data, flags).is_err() {
            return self.let_go(token, connection);
        }
        self.connections.insert(token, connection);
        self.crowd.come(token, holder);
        self.note_deadline(token);
        self.make_room(token);
    }

    /// Counts a connection for its holder's thread, and starts the thread if necessary. Returns whether the holder has
    /// a thread.
    fn count_for_thread(&mut self, holder: &H::Holder) -> bool {
        match self.threads.entry(holder.clone()) {
            Entry::Occupied(mut known) => known.get_mut().connections += 1,
            Entry::Vacant(place) => {
                let inbox = Arc::clone(&self.inbox);
                let Ok(thread) = PeerThread::start(move |done| inbox.done(done)) else { return false };
                place.insert(HolderThread { thread, connections: 1 });
            }
        }
        true
    }

    fn give(&self, holder: &H::Holder, task: Task<H>) {
        self.threads
            .get(holder)
            .expect("a holder has a thread until its last connection is closed")
            .thread
            .give(task);
    }

    /// Receives bytes, or has the holder's thread do so. The peer has sent bytes or hung up.
    fn receive(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        if H::IS_SLOW {
            let (holder, socket) = (connection.handshake.holder(), Arc::clone(&connection.socket));
            return self.give(&holder, Task::Hear { token, socket, most: H::HEARD_BYTES });
        }
        if let Some(bytes) = hear(&connection.socket, H::HEARD_BYTES) {
            self.heard(token, &bytes);
        }
    }

    /// Handles the bytes received from a connection. If there are none, the peer has hung up.
    fn heard(&mut self, token: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return self.close(token);
        }
        let now = Instant::now();
        self.advance(token, |handshake, policy, quota| {
            handshake.hear(bytes, policy, &|holder| quota.has_room_for(holder), now)
        });
        if H::IS_SLOW {
            self.watch(token);
        }
    }

    /// Advances a handshake by `step`, and acts on the resulting changes.
    fn advance(
        &mut self,
        token: u64,
        step: impl FnOnce(&mut H, &H::Policy, &ConnectionQuota<H::Holder>) -> Result<(), H::Breach>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let handshake = &mut connection.handshake;
        let (holder_was, client_was) = (handshake.holder(), handshake.client());
        let outcome = step(handshake, &self.policy, &self.quota);
        let holder = handshake.holder();
        if let (None, Some(client)) = (client_was, handshake.client()) {
            self.clients.insert(client, token);
            if !connection.has_place {
                connection.has_place = true;
                self.quota.take(&holder);
            }
        }
        let is_proven = holder != holder_was;
        if is_proven {
            self.crowd.prove(token, holder.clone());
        }
        let errand = handshake.take_errand();
        let refusal = handshake.take_refusal().map(|reason| (handshake.peer_name(), reason));
        connection.is_refused |= refusal.is_some();
        if let Err(breach) = outcome {
            let handshake = &connection.handshake;
            let is_departure = handshake.client().is_some() && H::is_departure(&breach);
            let refusal = (!is_departure).then(|| (handshake.peer_name(), breach.to_string()));
            // Sends the reason to the peer, if there is room for it at once.
            let _ = send(connection);
            self.close(token);
            return refusal.into_iter().for_each(|(peer, reason)| self.report(peer, reason));
        }
        if let Some((peer, reason)) = refusal {
            self.report(peer, reason);
        }
        if let Some(errand) = errand {
            self.give(&holder, Task::Run { token, errand });
        }
        self.go_on(token);
        if is_proven {
            self.make_room(token);
        }
    }

    /// Closes the connection that exceeds the limits now, if any.
    fn make_room(&mut self, newest: u64) {
        if let Some(surplus) = self.crowd.surplus(newest) {
            self.dismiss(surplus, Dismissal::Displaced);
        }
    }

    /// Sends the pending bytes, and acts on the resulting changes.
    fn go_on(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        while !connection.handshake.outgoing().bytes.is_empty() {
            match send(connection) {
                Ok(sent) => connection.handshake.sent(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return self.close(token),
            }
        }
        if connection.handshake.take_half_close() {
            let _ = rustix::net::shutdown(&connection.socket, Shutdown::Write);
        }
        if connection.handshake.is_attached() {
            self.crowd.leave(token);
        }
        let is_congested = !connection.handshake.outgoing().bytes.is_empty();
        let changed = std::mem::replace(&mut connection.is_congested, is_congested) != is_congested;
        self.note_deadline(token);
        if changed {
            self.watch(token);
        }
    }

    /// Makes epoll report the next events of a connection.
    fn watch(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        let data = EventData::new_u64(token);
        let watched = epoll::modify(&self.epoll, &connection.socket, data, connection.events());
        watched.expect("a connection is watched until it is closed");
    }

    fn note_deadline(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let deadline = connection.handshake.deadline();
        let noted = std::mem::replace(&mut connection.deadline, deadline);
        if noted != deadline {
            noted.map(|noted| self.deadlines.remove(&(noted, token)));
            self.deadlines.extend(deadline.map(|deadline| (deadline, token)));
        }
    }

    fn close_late(&mut self, now: Instant) {
        while let Some(&(deadline, token)) = self.deadlines.first()
            && deadline <= now
        {
            self.dismiss(token, Dismissal::TooLate);
        }
    }

    /// Closes a connection. Sends the reason to a peer that is not attached, if there is room for it at once.
    fn dismiss(&mut self, token: u64, why: Dismissal) {
        if let Some(connection) = self.connections.get_mut(&token)
            && connection.handshake.client().is_none()
        {
            connection.handshake.dismiss(why);
            if !connection.handshake.outgoing().bytes.is_empty() {
                let _ = send(connection);
            }
            if why != Dismissal::Stopping && !connection.is_refused {
                let peer = connection.handshake.peer_name();
                self.report(peer, why.to_string());
            }
        }
        self.close(token);
    }

    /// Reports a refused peer, unless too many were refused within this second.
    fn report(&mut self, peer: String, reason: String) {
        if let Some(refused) = self.refusals.note(peer, reason, Instant::now()) {
            H::report(&self.policy, refused);
        }
    }

    fn close(&mut self, token: u64) {
        let Some(mut connection) = self.connections.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.crowd.leave(token);
        connection.deadline.map(|deadline| self.deadlines.remove(&(deadline, token)));
        connection.handshake.give_up();
        if let Some(client) = connection.handshake.client() {
            self.clients.remove(&client);
            H::depart(&self.policy, client);
        }
        self.let_go(token, connection);
    }

    /// Closes a connection, or has its holder's thread close it.
    fn let_go(&mut self, token: u64, connection: Connection<H>) {
        let Connection { socket, handshake, has_place, .. } = connection;
        let holder = handshake.holder();
        if H::IS_SLOW {
            self.closing.insert(token, Closing { holder: holder.clone(), has_place });
            self.give(&holder, Task::Close { token, socket, handshake });
        } else if has_place {
            self.quota.give_back(&holder);
        }
    }

    fn closed(&mut self, token: u64) {
        let Closing { holder, has_place } = self.closing.remove(&token).expect("it is closed once");
        if has_place {
            self.quota.give_back(&holder);
        }
        let thread =
            self.threads.get_mut(&holder).expect("a holder has a thread until its last connection is closed");
        thread.connections -= 1;
        if thread.connections == 0 {
            self.threads.remove(&holder);
        }
    }
}

impl<H: Handshake> Connection<H> {
    fn events(&self) -> EventFlags {
        let mut events = EventFlags::IN;
        // Not reported again until the holder's thread has read the bytes.
        events.set(EventFlags::ONESHOT, H::IS_SLOW);
        events.set(EventFlags::OUT, self.is_congested);
        events
    }
}

fn send<H: Handshake>(connection: &Connection<H>) -> Result<usize, Errno> {
    let outgoing = connection.handshake.outgoing();
    if outgoing.descriptors.is_empty() {
        return rustix::net::send(&connection.socket, outgoing.bytes, NOT_WAITING);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = SendAncillaryMessage::ScmRights(&outgoing.descriptors);
    assert!(control.push(rights), "four descriptors fit");
    let parts = [std::io::IoSlice::new(outgoing.bytes)];
    rustix::net::sendmsg(&connection.socket, &parts, &mut control, NOT_WAITING)
}
