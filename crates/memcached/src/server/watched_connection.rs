//! A connection among those of its thread, with its share of the counters and the events that the operating system
//! watches for.

use super::Common;
use super::connection::{Connection, Waits};
use super::grants::Grant;
use super::stream::Peer;
use crate::protocol::Limits;
use rustix::event::epoll::{self, EventFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// See the module's documentation.
pub struct WatchedConnection {
    pub connection: Connection,
    /// A round has commands of the connection.
    pub in_round: bool,
    /// Memory for the connection's present command, if that is a long one.
    pub grant: Option<Grant>,
    /// The connection waits for such memory, and is not read meanwhile.
    pub waits_for_grant: bool,
    /// The connection is broken: it ends as soon as no round has commands of it.
    is_broken: bool,
    /// Events that the operating system watches for. `None`: none any more.
    watched: Option<EventFlags>,
    /// Number of the connection's bytes in the gateway's counter of unsent answers.
    counted: usize,
}

impl WatchedConnection {
    pub fn new(stream: super::stream::Stream, limits: Limits, now: Instant) -> Self {
        Self {
            connection: Connection::new(stream, limits, now),
            in_round: false,
            grant: None,
            waits_for_grant: false,
            is_broken: false,
            watched: None,
            counted: 0,
        }
    }

    pub fn peer(&self) -> Peer {
        self.connection.stream().peer()
    }

    /// Handles the state of the client's end that the operating system reports. It is checked before and after every
    /// piece of work, so work does not outlive its owner.
    pub fn notice(&mut self, epoll: &OwnedFd, flags: EventFlags) {
        if flags.contains(EventFlags::ERR) {
            self.is_broken = true;
            self.connection.leaves();
        }
        if flags.contains(EventFlags::HUP) {
            self.connection.leaves();
        }
        if flags.contains(EventFlags::RDHUP) {
            self.connection.falls_silent();
        }
        if self.connection.is_client_gone() && self.watched.take().is_some() {
            // The operating system would report it again and again. The bytes that the client has sent can still be
            // read.
            let _ = epoll::delete(epoll, self.connection.stream());
        }
    }

    /// Makes the operating system watch for the events that the connection waits for.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn watch(&mut self, epoll: &OwnedFd, number: usize) -> io::Result<()> {
        if self.connection.is_client_gone() {
            return Ok(());
        }
        let mut flags = match self.connection.waits() {
            _ if self.waits_for_grant => EventFlags::empty(),
            Waits::ToRead => EventFlags::IN,
            Waits::ToWrite => EventFlags::OUT,
        };
        if self.connection.is_client_present() {
            flags |= EventFlags::RDHUP;
        }
        let data = epoll::EventData::new_u64(number as u64);
        match self.watched.replace(flags) {
            None => epoll::add(epoll, self.connection.stream(), data, flags)?,
            Some(watched) if watched != flags => {
                epoll::modify(epoll, self.connection.stream(), data, flags)?;
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Whether the connection has no further commands or answers.
    pub fn is_over(&self) -> bool {
        self.is_broken || self.connection.is_over()
    }

    /// Whether the connection has work without an event.
    pub fn goes_on(&self) -> bool {
        let has_work = self.connection.has_work() && self.connection.waits() == Waits::ToRead;
        has_work || self.connection.is_client_gone()
    }

    /// Sends as many bytes as the client accepts. Returns whether the connection still works.
    pub fn write(&mut self, common: &Common, now: Instant) -> bool {
        let written = self.connection.write(now);
        let counters = &common.shared.counters;
        let kept = self.connection.kept();
        if kept != self.counted {
            // The difference may be negative: counters wrap around.
            counters.answer_bytes.add_many((kept as u64).wrapping_sub(self.counted as u64));
            self.counted = kept;
        }
        counters.bytes_written.add_many(*written.as_ref().unwrap_or(&0) as u64);
        written.is_ok()
    }

    /// Removes the connection's bytes from the counter of unsent answers, because it ends.
    pub fn leave(&self, common: &Common) {
        common.shared.counters.answer_bytes.subtract_many(self.counted as u64);
    }
}
