//! A thread that serves: it takes what all its connections ask for, carries it out at once, and answers.

use super::Common;
use super::connection::{Connection, Waits};
use super::keeper::{close, open};
use super::round::{Round, Taken};
use super::settings::{Settings, now};
use super::table::TableStore;
use super::wake::Wake;
use crate::GatewayError;
use crate::cache::{Cache, HEADER_BYTES};
use crate::protocol::Limits;
use rustix::event::{Timespec, epoll};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Connections that are heard in one round.
const EVENTS_MAX: usize = 256;
/// Bytes that are read of a connection at a time.
const READ_BYTES: usize = 64 << 10;
/// The most bytes of a `get` with many keys.
const GET_BYTES_MAX: usize = 1 << 20;
/// How often a thread tries to reach a node that is gone, and looks for connections that say nothing.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
/// The number of the wake among the connections' numbers.
const WAKE: u64 = u64::MAX;

/// What a worker says when it has begun, or cannot.
pub type Started = Result<Door, GatewayError>;

/// The way to a worker.
#[derive(Debug)]
pub struct Door {
    wake: Arc<Wake>,
    streams: Sender<TcpStream>,
}

impl Door {
    pub fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.wake)
    }

    /// Hands the worker a connection.
    pub fn hand(&self, stream: TcpStream) {
        if self.streams.send(stream).is_ok() {
            self.wake.ring();
        }
    }
}

pub struct Worker {
    common: Arc<Common>,
    /// `None`: the node is gone.
    cache: Option<Cache<TableStore>>,
    epoll: OwnedFd,
    wake: Arc<Wake>,
    streams: Receiver<TcpStream>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections with commands that had to wait.
    waiting: Vec<usize>,
    looked: Instant,
}

impl Worker {
    /// Opens the table, says what came of it, and serves until the gateway stops.
    pub fn start(common: Arc<Common>, started: &Sender<Started>) {
        let prepared = Self::prepare(common);
        match prepared {
            Err(error) => {
                let _ = started.send(Err(error));
            }
            Ok((mut worker, door)) => {
                let _ = started.send(Ok(door));
                worker.run();
            }
        }
    }

    fn prepare(common: Arc<Common>) -> Result<(Self, Door), GatewayError> {
        let cache = Some(open(&common)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let wake = Arc::new(Wake::new()?);
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)
            .map_err(io::Error::from)?;
        let (sender, streams) = channel();
        let door = Door { wake: Arc::clone(&wake), streams: sender };
        let (connections, free, waiting, looked) = (Vec::new(), Vec::new(), Vec::new(), Instant::now());
        Ok((Self { common, cache, epoll, wake, streams, connections, free, waiting, looked }, door))
    }

    fn run(&mut self) {
        let mut scratch = vec![0; READ_BYTES];
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut round = Round::default();
        while !self.common.is_stopping() {
            self.wait(&mut events);
            let mut ready = std::mem::take(&mut self.waiting);
            let now = Instant::now();
            for event in events.drain(..) {
                match event {
                    WAKE => self.welcome(now),
                    number => ready.extend(usize::try_from(number).ok()),
                }
            }
            ready.sort_unstable();
            ready.dedup();
            for &number in &ready {
                self.hear(number, &mut round, &mut scratch, now);
            }
            self.carry_out(&mut round);
            for number in ready {
                self.settle(number);
            }
            if now.duration_since(self.looked) >= LOOKED_EVERY {
                self.look_after(now);
            }
        }
        if let Some(cache) = self.cache.take() {
            close(cache);
        }
    }

    /// Waits for connections. Puts the numbers of those that can be served into `numbers`.
    fn wait(&self, numbers: &mut Vec<u64>) {
        let soon = Timespec { tv_sec: 1, tv_nsec: 0 };
        let timeout = match (self.waiting.is_empty(), &self.cache, self.common.options.idle_timeout) {
            (false, ..) => Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            (true, None, _) | (true, _, Some(_)) => Some(&soon),
            (true, Some(_), None) => None,
        };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        // An interrupted wait has seen nothing.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout);
        numbers.extend(events.iter().map(|event| event.data.u64()));
    }

    /// Takes in the connections that were accepted.
    fn welcome(&mut self, now: Instant) {
        self.wake.hush();
        while let Ok(stream) = self.streams.try_recv() {
            let limits = Limits {
                item_bytes: self.common.options.item_bytes_max,
                get_bytes: GET_BYTES_MAX,
                headroom: HEADER_BYTES,
            };
            let number = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let data = epoll::EventData::new_u64(number as u64);
            if epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN).is_err() {
                self.free.push(number);
                self.common.shared.counters.connections.subtract();
                continue;
            }
            self.connections[number] = Some(Connection::new(stream, limits, now));
        }
    }

    /// Reads from a connection, and takes its commands.
    fn hear(&mut self, number: usize, round: &mut Round, scratch: &mut [u8], now: Instant) {
        let Some(connection) = self.connections[number].as_mut() else { return };
        let counters = &self.common.shared.counters;
        if connection.waits() == Waits::ToWrite && !write(connection, &self.common) {
            self.end(number);
            return;
        }
        match connection.read(scratch, now) {
            Ok(bytes) => counters.bytes_read.add_many(bytes as u64),
            Err(_) => {
                self.end(number);
                return;
            }
        }
        let settings = Settings(&self.common);
        if round.take(number, connection, |command| settings.answer(command)) == Taken::Enough
            && connection.has_work()
        {
            counters.yields.add();
        }
    }

    /// Carries the round out, and hands the answers to the connections.
    fn carry_out(&mut self, round: &mut Round) {
        if round.is_empty() {
            return;
        }
        let failures = round.carry_out(self.cache.as_ref(), now());
        self.common.shared.counters.node_failures.add_many(failures);
        round.end(|number, reply, has_failed| {
            let Some(connection) = self.connections[number].as_mut() else { return };
            connection.answer(reply);
            if has_failed {
                connection.drop_rest_of_get();
            }
        });
        if failures > 0 && self.cache.as_ref().is_some_and(|cache| cache.store().pipeline.is_over()) {
            tracing::warn!("the node is gone");
            self.cache = None;
            self.looked = Instant::now();
        }
    }

    /// Sends a connection's answers, and finds out what it waits for.
    fn settle(&mut self, number: usize) {
        let Some(connection) = self.connections[number].as_mut() else { return };
        if !write(connection, &self.common) || connection.is_over() {
            self.end(number);
            return;
        }
        let waits = connection.waits();
        if connection.has_work() && waits == Waits::ToRead {
            self.waiting.push(number);
        }
        if waits != connection.watched {
            let flags = match waits {
                Waits::ToRead => epoll::EventFlags::IN,
                Waits::ToWrite => epoll::EventFlags::OUT,
            };
            let data = epoll::EventData::new_u64(number as u64);
            connection.watched = waits;
            if epoll::modify(&self.epoll, connection.stream(), data, flags).is_err() {
                self.end(number);
            }
        }
    }

    /// Ends connections that say nothing, and tries to reach a node that was gone.
    fn look_after(&mut self, now: Instant) {
        self.looked = now;
        if let Some(timeout) = self.common.options.idle_timeout {
            for number in 0..self.connections.len() {
                let heard = self.connections[number].as_ref().map(|connection| connection.heard);
                if heard.is_some_and(|heard| now.duration_since(heard) >= timeout) {
                    self.common.shared.counters.idle_kicks.add();
                    self.end(number);
                }
            }
        }
        if self.cache.is_none() {
            self.cache = open(&self.common).ok();
        }
    }

    fn end(&mut self, number: usize) {
        if self.connections[number].take().is_some() {
            // Its descriptor is closed, so the operating system watches it no more.
            self.common.shared.counters.connections.subtract();
            self.free.push(number);
        }
    }
}

/// Sends what a client takes. Returns whether the connection still works.
fn write(connection: &mut Connection, common: &Common) -> bool {
    match connection.write() {
        Ok(bytes) => {
            common.shared.counters.bytes_written.add_many(bytes as u64);
            true
        }
        Err(_) => false,
    }
}
