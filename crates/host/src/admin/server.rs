//! The node's end of the operator's socket: one thread, which never blocks on a single connection.
//!
//! Each connection sends one order and receives one answer, within a deadline. The file's mode, and a check of the user
//! that the kernel reports, admit only root and the node's own user. If there are too many connections, the oldest is
//! closed, so that silent connections keep no operator out.

use super::orders::{Order, Told};
use super::socket::PIECE_BYTES;
use super::{Admin, AdminError};
use crate::{HostError, machine};
use portcullis_attach::unix::{Listener, Peer, SocketAccess};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest order, in bytes.
const ORDER_BYTES_MAX: usize = 4096;
/// The most connections at once.
const CONNECTIONS_MAX: usize = 16;
/// The longest duration of a connection.
const CONNECTION_WITHIN: Duration = Duration::from_secs(5);
/// Time in which no connection is accepted after the machine had no descriptor for one.
const NO_DESCRIPTORS_FOR: Duration = Duration::from_millis(100);

/// The thread that serves operators. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct AdminServer {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A bound socket at which operators are not served yet.
#[derive(Debug)]
pub(crate) struct Closed(Listener);

impl AdminServer {
    /// Binds the socket at `path`.
    pub fn bind(path: &Path) -> Result<Closed, HostError> {
        let bound = Listener::bind(path, SocketAccess { mode: 0o600, group: None });
        let failed = |source| HostError::Socket { path: path.to_owned(), source };
        Ok(Closed(bound.map_err(failed)?))
    }

    /// Starts to serve operators at the socket.
    pub fn start(Closed(listener): Closed, admin: Admin) -> Result<Self, HostError> {
        let failed = || machine("cannot serve operators".to_owned());
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|error| failed()(error.into()))?);
        let service = Service {
            listener,
            admin,
            stop: Arc::clone(&stop),
            connections: VecDeque::new(),
            closed_until: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("portcullis-admin".to_owned());
        let thread = thread.spawn(move || service.run()).map_err(failed())?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        // If the counter is full, the thread has been notified already.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, that was printed already.
            let _ = thread.join();
        }
    }
}

struct Service {
    listener: Listener,
    admin: Admin,
    stop: Arc<OwnedFd>,
    /// The open connections, oldest first.
    connections: VecDeque<Connection>,
    closed_until: Instant,
}

struct Connection {
    socket: OwnedFd,
    /// Whether the connection's user, as the kernel reports it, is root or the node's own.
    is_operator: bool,
    until: Instant,
    /// The answer, once an order has arrived, and how many of its bytes are sent.
    answer: Option<(Vec<u8>, usize)>,
}

impl Service {
    fn run(mut self) {
        loop {
            let Some(ready) = self.wait() else { return };
            let now = Instant::now();
            let mut ready = ready.into_iter();
            let somebody_comes = ready.next() == Some(true);
            let admin = &self.admin;
            self.connections.retain_mut(|connection| {
                let goes_on = ready.next() != Some(true) || connection.go_on(admin);
                goes_on && now < connection.until
            });
            if somebody_comes {
                self.take_in(now);
            }
        }
    }

    /// Waits for something to do. Returns first whether a new connection is waiting, then for each open connection
    /// whether it can make progress. `None`: the thread is to stop.
    fn wait(&self) -> Option<Vec<bool>> {
        let now = Instant::now();
        let open = now >= self.closed_until;
        let mut places = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(&self.listener, if open { PollFlags::IN } else { PollFlags::empty() }),
        ];
        places.extend(self.connections.iter().map(|connection| {
            let wanted = if connection.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&connection.socket, wanted)
        }));
        let reopened = (!open).then_some(self.closed_until);
        let next = self.connections.iter().map(|connection| connection.until).chain(reopened).min();
        let at_most = next.map(|next| next.saturating_duration_since(now));
        let at_most = at_most.map(|time| Timespec::try_from(time).unwrap_or_default());
        // If the call was interrupted, nothing is ready, and the next call waits again.
        let _ = poll(&mut places, at_most.as_ref());
        let mut ready = places.iter().map(|place| !place.revents().is_empty());
        if ready.next() == Some(true) { None } else { Some(ready.collect()) }
    }

    fn take_in(&mut self, now: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&self.listener, flags) {
            Ok(socket) => {
                if self.connections.len() >= CONNECTIONS_MAX {
                    self.connections.pop_front();
                }
                let until = now + CONNECTION_WITHIN;
                let is_operator = is_operator(&socket);
                self.connections.push_back(Connection { socket, is_operator, until, answer: None });
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                self.closed_until = now + NO_DESCRIPTORS_FOR;
            }
            // The peer has closed the connection already.
            Err(_) => {}
        }
    }
}

fn is_operator(socket: &OwnedFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    Peer::of(socket, 0).is_ok_and(|peer| peer.user.is_some_and(|user| user == 0 || user == own))
}

fn refusal(reason: &str) -> (Vec<u8>, usize) {
    (text(&Told::Refused(reason.to_owned())), 0)
}

fn text(told: &Told) -> Vec<u8> {
    serde_json::to_vec(told).unwrap_or_default()
}

impl Connection {
    /// Receives the order, or sends more of the answer. Returns whether the connection stays open.
    fn go_on(&mut self, admin: &Admin) -> bool {
        match &mut self.answer {
            None => match self.hear() {
                Heard::Order(order) => {
                    self.answer = Some(answer(admin, order));
                    true
                }
                Heard::Wrong(reason) => {
                    self.answer = Some(refusal(&reason));
                    true
                }
                Heard::Nothing => true,
                Heard::End => false,
            },
            Some((answer, told)) => {
                let piece = &answer[*told..answer.len().min(*told + PIECE_BYTES)];
                match send(self.socket.as_fd(), piece, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                    Ok(bytes) => *told += bytes,
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => return false,
                }
                *told < answer.len()
            }
        }
    }

    fn hear(&self) -> Heard {
        let mut bytes = [0; ORDER_BYTES_MAX + 1];
        match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Heard::End,
            // The refusal waits for the peer's first packet: closing a socket with unread bytes would discard the
            // reason.
            Ok(_) if !self.is_operator => {
                Heard::Wrong("only root and the node's own user may use it".to_owned())
            }
            Ok((_, length)) if length > ORDER_BYTES_MAX => {
                Heard::Wrong(format!("an order has at most {ORDER_BYTES_MAX} bytes"))
            }
            Ok((_, length)) => match serde_json::from_slice(&bytes[..length]) {
                Ok(order) => Heard::Order(order),
                Err(error) => Heard::Wrong(format!("this node does not know the order: {error}")),
            },
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }
}

enum Heard {
    Order(Order),
    Wrong(String),
    Nothing,
    End,
}

fn answer(admin: &Admin, order: Order) -> (Vec<u8>, usize) {
    let told = admin.order(order).unwrap_or_else(|error: AdminError| Told::Refused(error.to_string()));
    (text(&told), 0)
}
