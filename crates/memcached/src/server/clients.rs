//! The connections of one thread: their commands are collected into rounds, and the answers are sent.

use super::connection::Waits;
use super::grants::{Grant, Grants};
use super::round::{Round, Taken};
use super::settings::Settings;
use super::sizes::Sizes;
use super::stream::Stream;
use super::turns::Turns;
use super::wake::Wake;
use super::watched_connection::WatchedConnection;
use super::{Common, GatewayOptions};
use crate::cache::HEADER_BYTES;
use crate::protocol::{Limits, Need};
use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Maximum number of connections that the operating system reports at a time.
const EVENTS_MAX: usize = 256;
/// Maximum number of keys and commands of one connection in a round, like memcached's `reqs_per_event`.
pub const COMMANDS_MAX: usize = 20;
/// Maximum number of bytes that are read from a connection at a time.
const READ_BYTES: usize = 64 << 10;
/// Maximum length in bytes of a `get` with many keys.
const GET_BYTES_MAX: usize = 1 << 20;
/// Bytes that cost a connection as much as a key: they are read, parsed and copied.
const BYTES_PER_KEY: usize = 4 << 10;
/// Interval between two searches for silent connections.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
/// The number of the wake-up descriptor among the connections' numbers.
const WAKE: u64 = u64::MAX;

/// Time to wait for clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// No wait: only clients that have sent something already are served.
    None,
    /// At most a second.
    Second,
    /// Until a client sends something.
    Endless,
}

pub struct Clients {
    common: Arc<Common>,
    epoll: OwnedFd,
    wake: Arc<Wake>,
    streams: Receiver<Stream>,
    connections: Vec<Option<WatchedConnection>>,
    free: Vec<usize>,
    /// Connections with input: bytes, or commands that had to wait.
    turns: Turns,
    /// Memory for long commands.
    grants: Grants,
    looked: Instant,
    scratch: Vec<u8>,
    events: Vec<epoll::Event>,
}

impl Clients {
    pub fn new(common: Arc<Common>, wake: Arc<Wake>, streams: Receiver<Stream>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let threads = common.options.threads.max(1) as u64;
        let grants = Grants::new(common.options.request_bytes_max / threads);
        Ok(Self {
            common,
            epoll,
            wake,
            streams,
            connections: Vec::new(),
            free: Vec::new(),
            turns: Turns::new(),
            grants,
            looked: Instant::now(),
            scratch: vec![0; READ_BYTES],
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    /// Collects the commands of clients into a round, which may stay empty. The clients that were given least come
    /// first.
    pub fn gather(&mut self, round: &mut Round, patience: Patience) {
        self.wait(patience);
        let now = Instant::now();
        for at in 0..self.events.len() {
            let epoll::Event { flags, data } = self.events[at];
            match data.u64() {
                WAKE => self.welcome(now),
                number => self.notice(usize::try_from(number).unwrap_or(usize::MAX), flags),
            }
        }
        self.events.clear();
        while !round.is_full()
            && let Some((peer, number)) = self.turns.next()
        {
            let cost = self.hear(number, round, now);
            self.turns.charge(peer, number, cost as u64);
        }
        self.end_silent(now);
    }

    /// Handles an event that the operating system reports of a connection.
    fn notice(&mut self, number: usize, flags: epoll::EventFlags) {
        let Some(Some(watched)) = self.connections.get_mut(number) else { return };
        watched.notice(&self.epoll, flags);
        // An event that was reported must not be reported again.
        let is_watched = watched.watch(&self.epoll, number).is_ok();
        if watched.in_round {
            return;
        }
        if watched.is_over() || !is_watched {
            self.end(number);
        } else {
            self.hear_next(number);
        }
    }

    /// Queues a connection for its turn. Connections with commands in the current round are skipped until it completes.
    fn hear_next(&mut self, number: usize) {
        if let Some(Some(watched)) = self.connections.get(number)
            && !watched.in_round
            && !watched.waits_for_grant
        {
            self.turns.enter(watched.peer(), number);
        }
    }

    fn wait(&mut self, patience: Patience) {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let nobody_is_watched =
            self.common.options.idle_timeout.is_none() && !self.is_much() && !self.grants.is_any_wanted();
        let timeout = match patience {
            _ if !self.turns.is_empty() => Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            Patience::None => Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            Patience::Endless if nobody_is_watched => None,
            Patience::Second | Patience::Endless => Some(&second),
        };
        // An interrupted wait returns no events.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout);
    }

    /// Adds the connections that were accepted.
    fn welcome(&mut self, now: Instant) {
        self.wake.clear();
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
            let mut watched = WatchedConnection::new(stream, limits, now);
            if watched.watch(&self.epoll, number).is_ok() {
                self.connections[number] = Some(watched);
            } else {
                self.free.push(number);
                self.common.shared.counters.connections.subtract();
            }
        }
    }

    /// Reads from a connection, and takes its commands. Returns the cost of that, in keys.
    fn hear(&mut self, number: usize, round: &mut Round, now: Instant) -> usize {
        let most = if self.is_much() { 1 } else { COMMANDS_MAX };
        if !self.has_memory(number, now) {
            return 0;
        }
        let Some(Some(watched)) = self.connections.get_mut(number) else { return 0 };
        let counters = &self.common.shared.counters;
        if watched.connection.waits() == Waits::ToWrite && !watched.write(&self.common, now) {
            self.end(number);
            return 1;
        }
        let WatchedConnection { connection, in_round, .. } = watched;
        let Ok(bytes) = connection.read(&mut self.scratch, now) else {
            self.end(number);
            return 1;
        };
        counters.bytes_read.add_many(bytes as u64);
        let settings = Settings(&self.common);
        let sizes = Sizes::new(&self.common.shared.age, self.common.options.item_bytes_max);
        *in_round = true;
        let (taken, keys) =
            round.take((number, connection), most, &sizes, |command| settings.answer(command));
        if taken == Taken::Enough && connection.has_work() {
            counters.yields.add();
        }
        // A turn always has a cost, whatever its result is.
        keys.max(1) + bytes / BYTES_PER_KEY
    }

    /// Whether a connection has the memory that its command needs. Otherwise the connection waits for memory, and is
    /// not read.
    fn has_memory(&mut self, number: usize, now: Instant) -> bool {
        let Some(Some(watched)) = self.connections.get_mut(number) else { return false };
        let counter = &self.common.shared.counters.request_bytes;
        let before = watched.grant.as_ref().map_or(0, Grant::bytes);
        let has = self.grants.ask(number, &mut watched.grant, watched.connection.need(), now);
        counter.add_many(watched.grant.as_ref().map_or(0, Grant::bytes).wrapping_sub(before));
        watched.waits_for_grant = !has;
        if has {
            return true;
        }
        if watched.watch(&self.epoll, number).is_err() {
            self.end(number);
        }
        // The connection's memory for a former command may be enough for another connection.
        self.wake_waiting();
        false
    }

    /// Sends the answers of a round, and starts it anew.
    pub fn answer(&mut self, round: &mut Round) {
        let connections = round.connections().to_vec();
        round.end(|number, reply, has_failed| {
            let Some(WatchedConnection { connection, .. }) = self.connections[number].as_mut() else {
                return;
            };
            connection.answer(reply);
            if has_failed {
                connection.drop_rest_of_get();
            }
        });
        let now = Instant::now();
        for number in connections {
            self.settle(number, now);
        }
    }

    /// Sends a connection's answers, and determines what it waits for.
    fn settle(&mut self, number: usize, now: Instant) {
        let Some(watched) = self.connections[number].as_mut() else { return };
        watched.in_round = false;
        if !watched.write(&self.common, now)
            || watched.is_over()
            || watched.watch(&self.epoll, number).is_err()
        {
            self.end(number);
            return;
        }
        if watched.connection.need() == Need::Little
            && let Some(grant) = watched.grant.take()
        {
            self.take_back(grant);
        }
        if self.connections[number].as_ref().is_some_and(WatchedConnection::goes_on) {
            self.hear_next(number);
        }
    }

    /// Takes memory back from a command that no longer needs it, and wakes connections that find enough memory now.
    fn take_back(&mut self, grant: Grant) {
        self.common.shared.counters.request_bytes.subtract_many(grant.bytes());
        self.grants.take_back(grant);
        self.wake_waiting();
    }

    fn wake_waiting(&mut self) {
        let next: Vec<usize> = self.grants.next().collect();
        for number in next {
            if let Some(Some(watched)) = self.connections.get_mut(number) {
                watched.waits_for_grant = false;
            }
            self.hear_next(number);
        }
    }

    /// Whether the answers that wait exceed their limit.
    fn is_much(&self) -> bool {
        self.common.shared.counters.answer_bytes.get() > self.common.options.answer_bytes_max
    }

    /// Ends silent connections, and those that block others: connections that read no answers while too many wait, or
    /// that send nothing of a long command while others wait for its memory.
    fn end_silent(&mut self, now: Instant) {
        if now.duration_since(self.looked) < LOOKED_EVERY {
            return;
        }
        self.looked = now;
        let GatewayOptions { idle_timeout, stalled_timeout, .. } = self.common.options;
        let common = Arc::clone(&self.common);
        let counters = &common.shared.counters;
        for number in 0..self.connections.len() {
            let is_much = self.is_much();
            let Some(watched) = &self.connections[number] else { continue };
            let connection = &watched.connection;
            if watched.in_round || self.turns.has(watched.peer(), number) {
                continue;
            }
            let silent = idle_timeout.is_some_and(|time| now.duration_since(connection.heard) >= time);
            let waits_for_client = connection.waits() == Waits::ToWrite || !connection.has_work();
            let stalled = connection.waits() == Waits::ToWrite
                && now.duration_since(connection.took) >= stalled_timeout;
            let is_late = |grant: &Grant| {
                self.grants.is_wanted(grant) && grant.is_late(connection.taken(), stalled_timeout, now)
            };
            if silent && waits_for_client && !watched.waits_for_grant {
                counters.idle_kicks.add();
            } else if is_much && stalled || waits_for_client && watched.grant.as_ref().is_some_and(is_late) {
                counters.stalled_kicks.add();
            } else {
                continue;
            }
            self.end(number);
        }
    }

    fn end(&mut self, number: usize) {
        let Some(mut watched) = self.connections[number].take() else { return };
        // Its descriptor is closed, so the operating system no longer watches it.
        self.common.shared.counters.connections.subtract();
        watched.leave(&self.common);
        self.turns.remove(watched.peer(), number);
        self.grants.remove(number);
        self.free.push(number);
        match watched.grant.take() {
            Some(grant) => self.take_back(grant),
            None => self.wake_waiting(),
        }
    }
}
