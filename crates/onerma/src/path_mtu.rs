//! Repeated discovery of the size of datagrams on the path to a node, while a client uses the path (RFC 8899, Datagram
//! Packetization Layer Path MTU Discovery).
//!
//! A path changes: a tunnel is set up, a route moves, a link gets another MTU. Then datagrams that are too long are
//! lost in silence, or the system refuses them. [`PathMtu`] detects that (black hole detection), finds the size that
//! the path carries now (search), and tries larger sizes again later (raise timer).
//!
//! The state machine belongs to a client, one for its node. A probe is answered with as many bytes, so both directions
//! carry the size that is found. The node keeps no state for this: a request states the maximum size of its answers. So
//! the node sends no more bytes to any address than before, and one client's discovery changes no other client's
//! datagrams.
//!
//! This module has no I/O, clock or random numbers: times, and the first token, are arguments.

use crate::initiator::Completion;
use crate::keys::OperationType;
use crate::probe::{self, PROBE_ROUND};
use crate::status::Status;
use std::net::SocketAddr;
use std::time::Duration;

/// Rounds without an answer after which a size counts as not carried (`MAX_PROBES`).
const ROUNDS_MAX: u32 = 3;
/// The longest time between two rounds of an unanswered search.
const ROUND_MOST: Duration = Duration::from_secs(1);
/// The first period after which larger sizes are tried again. Each search without a larger size doubles the period.
const RAISE_FIRST: Duration = Duration::from_secs(2);
/// The longest such period (`PMTU_RAISE_TIMER`).
const RAISE_MOST: Duration = Duration::from_secs(600);

/// The direction of the datagrams that carry an operation's data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the client to the node: the data of changes.
    ToNode,
    /// From the node to the client: the data of reads.
    ToClient,
}

/// Probes that wait for answers.
#[derive(Debug)]
struct Search {
    token: u64,
    /// The largest size that was answered in this search.
    answered: Option<usize>,
    /// The smallest and the largest size that are probed.
    first: usize,
    last: usize,
    /// Rounds in which a size was answered, and a larger one was not (`PROBE_COUNT`).
    counted: u32,
    /// Whether a probe was answered since the last round began.
    is_answered: bool,
    /// Duration of the present round, and the time at which it ends (`PROBE_TIMER`).
    round: Duration,
    due: Duration,
    /// Sizes to send in the present round, the smallest last.
    unsent: Vec<usize>,
}

/// The size of datagrams on the path to one node. Sizes are indices into a table.
#[derive(Debug)]
pub struct PathMtu {
    to: SocketAddr,
    sizes: Vec<usize>,
    /// The size in use (`PLPMTU`).
    current: usize,
    /// Time at which an operation in datagrams of the size in use last succeeded, or a probe was answered, by
    /// direction.
    carried: [Duration; 2],
    search: Option<Search>,
    /// Time at which larger sizes are tried again, and the period that led there.
    raise: Option<Duration>,
    period: Duration,
    /// Time at which the size in use was last lowered.
    held_since: Duration,
    next_token: u64,
}

impl PathMtu {
    /// Creates the state for the path to a node at `to`, which carried datagrams of `found` bytes when it was last
    /// probed. Never tries a larger datagram than `most` bytes. `secret` is a random number: a party that does not see
    /// probes cannot forge their answers.
    #[must_use]
    pub fn new(to: SocketAddr, found: usize, most: usize, secret: u64) -> Self {
        let sizes = probe::sizes(most);
        let current = sizes.partition_point(|&size| size <= found).saturating_sub(1);
        let is_whole = current + 1 == sizes.len();
        Self {
            to,
            current,
            carried: [Duration::ZERO; 2],
            search: None,
            raise: (!is_whole).then_some(RAISE_FIRST),
            period: RAISE_FIRST,
            held_since: Duration::ZERO,
            next_token: secret,
            sizes,
        }
    }

    /// Returns the node's address.
    #[must_use]
    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// Returns the bytes of the largest datagram that operations may use now, in both directions (`PLPMTU`).
    #[must_use]
    pub fn datagram_max(&self) -> usize {
        self.sizes[self.current]
    }

    /// Returns the bytes of a datagram that every path carries (`BASE_PLPMTU`). Repeats of operations that were lost
    /// use this size.
    #[must_use]
    pub fn base(&self) -> usize {
        self.sizes[0]
    }

    /// Notes the outcome of an operation whose longest datagram had `bytes` bytes.
    pub(crate) fn ended(&mut self, of: OperationType, bytes: usize, end: &Completion, now: Duration) {
        let direction = if of.is_change() { Direction::ToNode } else { Direction::ToClient };
        match end.status {
            Status::Ok => self.carried(direction, bytes, now),
            Status::Timeout => {
                let sent = now.saturating_sub(end.total_delay.saturating_sub(end.issue_delay));
                self.lost(direction, bytes, sent, now);
            }
            Status::RemoteAuthenticationFailure | Status::Nack | Status::DispatchTimeout => {}
        }
    }

    /// Notes that an operation has succeeded whose longest datagram had `bytes` bytes.
    #[inline]
    pub fn carried(&mut self, direction: Direction, bytes: usize, now: Duration) {
        if self.current > 0 && bytes > self.sizes[self.current - 1] {
            self.carried[direction as usize] = now;
        }
    }

    /// Notes that an operation sent at `sent` got no answer, and had a datagram of `bytes` bytes. If no datagram of
    /// that size was carried since in that direction, the path may be a black hole for the size: it is probed, and
    /// meanwhile the smallest size is used.
    pub fn lost(&mut self, direction: Direction, bytes: usize, sent: Duration, now: Duration) {
        let is_in_use = bytes > self.base() && bytes <= self.datagram_max();
        if !is_in_use || self.carried[direction as usize] > sent {
            return;
        }
        let last = self.lower(0, now);
        self.begin_search((0, last), now);
    }

    /// Notes that the system refuses datagrams of `bytes` bytes to the node. From now on datagrams are shorter.
    pub fn too_long(&mut self, bytes: usize, now: Duration) {
        let fitting = self.sizes.partition_point(|&size| size < bytes).saturating_sub(1);
        if fitting < self.current {
            self.lower(fitting, now);
        }
        if let Some(search) = &mut self.search {
            search.last = search.last.min(fitting);
            search.unsent.retain(|&size| size <= fitting);
        }
        self.end_search_if_over(now);
        self.plan_raise(now);
    }

    /// Appends the next probe to `packet`, and returns its destination.
    pub fn poll_probe(&mut self, packet: &mut Vec<u8>) -> Option<SocketAddr> {
        let search = self.search.as_mut()?;
        let size = search.unsent.pop()?;
        probe::append(packet, self.sizes[size], search.token);
        Some(self.to)
    }

    /// Handles the answer to a probe. Returns whether the packet is one: otherwise it belongs to another receiver.
    pub fn handle_answer(&mut self, from: SocketAddr, packet: &[u8], now: Duration) -> bool {
        let Some(token) = probe::token_of_answer(packet) else { return false };
        let Some(search) = self.search.as_mut().filter(|search| search.token == token && from == self.to)
        else {
            return true;
        };
        let Ok(size) = self.sizes.binary_search(&packet.len()) else { return true };
        search.is_answered = true;
        search.answered = search.answered.max(Some(size));
        if size > self.current && size <= search.last {
            self.current = size;
        }
        if size >= self.current {
            self.carried = [now; 2];
        }
        self.end_search_if_over(now);
        true
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has work to do next. That is worth a wake-up
    /// only while operations are in progress.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.search.as_ref().map(|search| search.due).or(self.raise)
    }

    /// Begins the next round of probes, ends a search, or begins one for larger sizes, if it is time.
    pub fn handle_timeout(&mut self, now: Duration) {
        let Some(search) = &mut self.search else {
            if self.raise.is_some_and(|due| due <= now) {
                self.begin_search((self.current, self.sizes.len() - 1), now);
            }
            return;
        };
        if search.due > now {
            return;
        }
        // If no answer at all arrives, the node is stopped or the path is cut: that is no evidence about sizes.
        search.counted += u32::from(search.is_answered);
        if search.counted >= ROUNDS_MAX {
            self.search = None;
            self.plan_raise(now);
            return;
        }
        search.round = if search.is_answered { PROBE_ROUND } else { (search.round * 2).min(ROUND_MOST) };
        search.begin_round(now);
    }

    /// Uses a smaller size. Returns the former size.
    fn lower(&mut self, to: usize, now: Duration) -> usize {
        // The period is reset only after a size has held for long: otherwise larger sizes are not tried sooner the next
        // time.
        if now.saturating_sub(self.held_since) > 2 * self.period {
            self.period = RAISE_FIRST;
        }
        self.held_since = now;
        std::mem::replace(&mut self.current, to)
    }

    fn begin_search(&mut self, (first, last): (usize, usize), now: Duration) {
        // Answers to earlier searches show the path as it was then.
        let token = self.next_token;
        self.next_token = self.next_token.wrapping_add(1);
        self.raise = None;
        let mut search = Search {
            token,
            answered: None,
            first,
            last,
            counted: 0,
            is_answered: false,
            round: PROBE_ROUND,
            due: now,
            unsent: Vec::new(),
        };
        search.begin_round(now);
        self.search = Some(search);
    }

    fn end_search_if_over(&mut self, now: Duration) {
        if self.search.as_ref().is_some_and(|search| search.answered >= Some(search.last)) {
            self.search = None;
            self.plan_raise(now);
        }
    }

    /// Schedules the next try of larger sizes, if there are any and no search is in progress.
    fn plan_raise(&mut self, now: Duration) {
        let has_larger = self.current + 1 < self.sizes.len();
        if self.search.is_none() && has_larger && self.raise.is_none() {
            self.raise = Some(now + self.period);
            self.period = (self.period * 2).min(RAISE_MOST);
        }
    }
}

impl Search {
    /// Probes the largest size that was answered, which distinguishes a silent node from a lost size, and all larger
    /// sizes.
    fn begin_round(&mut self, now: Duration) {
        let first = self.answered.unwrap_or(self.first);
        self.unsent = (first..=self.last).rev().collect();
        self.is_answered = false;
        self.due = now + self.round;
    }
}

#[cfg(test)]
mod tests;
