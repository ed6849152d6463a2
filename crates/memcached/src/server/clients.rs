//! The connections of one thread: what they have sent is taken into rounds, and the answers go out.

use super::connection::{Connection, Waits};
use super::round::{Round, Taken};
use super::settings::Settings;
use super::wake::Wake;
use super::{Common, Options};
use crate::cache::HEADER_BYTES;
use crate::protocol::Limits;
use rustix::event::{Timespec, epoll};
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Connections that the operating system names at a time.
const EVENTS_MAX: usize = 256;
/// Keys and commands of one connection in a round, as memcached's `reqs_per_event`.
const COMMANDS_MAX: usize = 20;
/// Bytes that are read of a connection at a time.
const READ_BYTES: usize = 64 << 10;
/// The most bytes of a `get` with many keys.
const GET_BYTES_MAX: usize = 1 << 20;
/// How often connections that say nothing are looked for.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
/// The number of the wake among the connections' numbers.
const WAKE: u64 = u64::MAX;

/// How long to wait for clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Only those are heard that have sent something already.
    None,
    /// A second at the most.
    Second,
    /// Until there is something.
    Endless,
}

/// A connection, and whether a round has commands of it.
struct Place {
    connection: Connection,
    in_round: bool,
    /// It is among those that are heard next.
    is_next: bool,
    /// How many of its bytes are among those that the gateway counts as waiting.
    counted: usize,
}

pub struct Clients {
    common: Arc<Common>,
    epoll: OwnedFd,
    wake: Arc<Wake>,
    streams: Receiver<TcpStream>,
    places: Vec<Option<Place>>,
    free: Vec<usize>,
    /// Connections that are heard next, each once: they have commands that had to wait, or the last round was full.
    next: VecDeque<usize>,
    looked: Instant,
    scratch: Vec<u8>,
    events: Vec<epoll::Event>,
}

impl Clients {
    pub fn new(common: Arc<Common>, wake: Arc<Wake>, streams: Receiver<TcpStream>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(Self {
            common,
            epoll,
            wake,
            streams,
            places: Vec::new(),
            free: Vec::new(),
            next: VecDeque::new(),
            looked: Instant::now(),
            scratch: vec![0; READ_BYTES],
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    /// Takes what clients ask for into a round. It may be nothing. Those who wait longest come first.
    pub fn gather(&mut self, round: &mut Round, patience: Patience) {
        self.wait(patience);
        let now = Instant::now();
        for at in 0..self.events.len() {
            match self.events[at].data.u64() {
                WAKE => self.welcome(now),
                number => self.hear_next(usize::try_from(number).unwrap_or(usize::MAX)),
            }
        }
        self.events.clear();
        while !round.is_full()
            && let Some(number) = self.next.pop_front()
        {
            if let Some(Some(place)) = self.places.get_mut(number) {
                place.is_next = false;
            }
            self.hear(number, round, now);
        }
        self.end_silent(now);
    }

    /// Has a connection heard after those that wait already, unless it is among them or a round has it.
    fn hear_next(&mut self, number: usize) {
        if let Some(Some(place)) = self.places.get_mut(number)
            && !place.in_round
            && !std::mem::replace(&mut place.is_next, true)
        {
            self.next.push_back(number);
        }
    }

    fn wait(&mut self, patience: Patience) {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let timeout = match patience {
            _ if !self.next.is_empty() => Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            Patience::None => Some(&Timespec { tv_sec: 0, tv_nsec: 0 }),
            Patience::Endless if self.common.options.idle_timeout.is_none() && !self.is_much() => None,
            Patience::Second | Patience::Endless => Some(&second),
        };
        // An interrupted wait has seen nothing.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout);
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
                self.places.push(None);
                self.places.len() - 1
            });
            let data = epoll::EventData::new_u64(number as u64);
            if epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN).is_err() {
                self.free.push(number);
                self.common.shared.counters.connections.subtract();
                continue;
            }
            let connection = Connection::new(stream, limits, now);
            self.places[number] = Some(Place { connection, in_round: false, is_next: false, counted: 0 });
        }
    }

    /// Reads from a connection, and takes its commands. One of which a round has commands is heard when they are answered.
    fn hear(&mut self, number: usize, round: &mut Round, now: Instant) {
        let is_much = self.is_much();
        let Some(Some(place)) = self.places.get_mut(number) else { return };
        if place.in_round {
            return;
        }
        let counters = &self.common.shared.counters;
        if place.connection.waits() == Waits::ToWrite && !place.write(&self.common, now) {
            self.end(number);
            return;
        }
        let Place { connection, in_round, .. } = place;
        match connection.read(&mut self.scratch, now) {
            Ok(bytes) => counters.bytes_read.add_many(bytes as u64),
            Err(_) => {
                self.end(number);
                return;
            }
        }
        let settings = Settings(&self.common);
        *in_round = true;
        let most = if is_much { 1 } else { COMMANDS_MAX };
        if round.take(number, connection, most, |command| settings.answer(command)) == Taken::Enough
            && connection.has_work()
        {
            counters.yields.add();
        }
    }

    /// Sends the answers of a round, which begins anew.
    pub fn answer(&mut self, round: &mut Round) {
        let connections = round.connections().to_vec();
        round.end(|number, reply, has_failed| {
            let Some(Place { connection, .. }) = self.places[number].as_mut() else { return };
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

    /// Sends a connection's answers, and finds out what it waits for.
    fn settle(&mut self, number: usize, now: Instant) {
        let Some(place) = self.places[number].as_mut() else { return };
        place.in_round = false;
        if !place.write(&self.common, now) || place.connection.is_over() {
            self.end(number);
            return;
        }
        let connection = &mut place.connection;
        let waits = connection.waits();
        let goes_on = connection.has_work() && waits == Waits::ToRead;
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
        if goes_on {
            self.hear_next(number);
        }
    }

    /// Whether more answers wait than may.
    fn is_much(&self) -> bool {
        self.common.shared.counters.answer_bytes.get() > self.common.options.answer_bytes_max
    }

    /// Ends connections that say nothing, and those that take nothing while too much waits.
    fn end_silent(&mut self, now: Instant) {
        if now.duration_since(self.looked) < LOOKED_EVERY {
            return;
        }
        self.looked = now;
        let Options { idle_timeout, stalled_timeout, .. } = self.common.options;
        let common = Arc::clone(&self.common);
        let counters = &common.shared.counters;
        for number in 0..self.places.len() {
            let is_much = self.is_much();
            let Some(Place { connection, in_round: false, is_next: false, .. }) = &self.places[number] else {
                continue;
            };
            let silent = idle_timeout.is_some_and(|time| now.duration_since(connection.heard) >= time);
            let waits_for_client = connection.waits() == Waits::ToWrite || !connection.has_work();
            let stalled = connection.waits() == Waits::ToWrite
                && now.duration_since(connection.took) >= stalled_timeout;
            if silent && waits_for_client {
                counters.idle_kicks.add();
            } else if is_much && stalled {
                counters.stalled_kicks.add();
            } else {
                continue;
            }
            self.end(number);
        }
    }

    fn end(&mut self, number: usize) {
        if let Some(place) = self.places[number].take() {
            // Its descriptor is closed, so the operating system watches it no more.
            self.common.shared.counters.connections.subtract();
            self.common.shared.counters.answer_bytes.subtract_many(place.counted as u64);
            self.free.push(number);
        }
    }
}

impl Place {
    /// Sends what the client takes. Returns whether the connection still works.
    fn write(&mut self, common: &Common, now: Instant) -> bool {
        let written = self.connection.write(now);
        let counters = &common.shared.counters;
        let kept = self.connection.kept();
        if kept != self.counted {
            // More or less than before: counters go round.
            counters.answer_bytes.add_many((kept as u64).wrapping_sub(self.counted as u64));
            self.counted = kept;
        }
        counters.bytes_written.add_many(*written.as_ref().unwrap_or(&0) as u64);
        written.is_ok()
    }
}
