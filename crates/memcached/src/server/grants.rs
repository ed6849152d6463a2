//! Memory for commands that arrive in many pieces: long lines of keys, and large values. All clients of a thread
//! together get a limited amount. A client that finds none waits, and is not read meanwhile. Clients that have memory
//! can always continue.

use crate::protocol::Need;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Size in bytes up to which a command needs no grant: each connection has this much anyway, to read into.
const FREE_BYTES: usize = 128 << 10;
/// Minimum rate in bytes per second. A client that sends its command more slowly, while it has a grant, blocks others.
const PACE: u64 = 64 << 10;

/// Kind of a grant. Each kind has memory of its own: long lines take their time, and values do not wait for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Line,
    Value,
}

/// Memory that a connection may use.
#[derive(Debug)]
pub struct Grant {
    kind: Kind,
    bytes: u64,
    since: Instant,
}

impl Grant {
    /// Bytes of the grant.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a client sends too slowly. `got`: bytes of its command that have arrived.
    pub fn is_late(&self, got: u64, grace: Duration, now: Instant) -> bool {
        let time = now.duration_since(self.since);
        time >= grace && got < PACE.saturating_mul(time.as_secs())
    }
}

/// The memory of one kind.
struct Pool {
    most: u64,
    granted: u64,
    /// The waiting connections and the bytes that each needs. The first one has waited longest.
    waiting: VecDeque<(usize, u64)>,
}

/// See the module's documentation.
pub struct Grants {
    lines: Pool,
    values: Pool,
}

impl Pool {
    /// Whether the memory is enough. A command larger than the whole memory is admitted if no other has any.
    fn has(&self, bytes: u64) -> bool {
        self.granted == 0 || self.granted + bytes <= self.most
    }
}

impl Grants {
    /// Divides `bytes` between both kinds.
    pub fn new(bytes: u64) -> Self {
        let pool = || Pool { most: bytes / 2, granted: 0, waiting: VecDeque::new() };
        Self { lines: pool(), values: pool() }
    }

    fn pool(&mut self, kind: Kind) -> &mut Pool {
        match kind {
            Kind::Line => &mut self.lines,
            Kind::Value => &mut self.values,
        }
    }

    /// Grants a connection the memory that its command needs. Otherwise the connection waits, and the caller calls this
    /// again once [`next`](Self::next) names it.
    ///
    /// Returns whether the connection has the memory that it needs.
    pub fn ask(&mut self, connection: usize, grant: &mut Option<Grant>, need: Need, now: Instant) -> bool {
        let (kind, bytes) = match need {
            Need::Line(bytes) if bytes > FREE_BYTES => (Kind::Line, bytes as u64),
            Need::Value(bytes) if bytes > FREE_BYTES => (Kind::Value, bytes as u64),
            _ => return true,
        };
        if grant.as_ref().is_some_and(|grant| grant.kind == kind && grant.bytes >= bytes) {
            return true;
        }
        // The grant was for a former command: a client that keeps it and waits would wait for itself.
        if let Some(before) = grant.take() {
            self.take_back(before);
        }
        let pool = self.pool(kind);
        let is_next = pool.waiting.front().is_none_or(|(first, _)| *first == connection);
        if !is_next || !pool.has(bytes) {
            if pool.waiting.iter().all(|(other, _)| *other != connection) {
                pool.waiting.push_back((connection, bytes));
            }
            return false;
        }
        pool.waiting.pop_front();
        pool.granted += bytes;
        *grant = Some(Grant { kind, bytes, since: now });
        true
    }

    /// Takes back a grant that its command no longer needs.
    pub fn take_back(&mut self, grant: Grant) {
        self.pool(grant.kind).granted -= grant.bytes;
    }

    /// Removes a waiting connection that has ended.
    pub fn remove(&mut self, connection: usize) {
        for pool in [&mut self.lines, &mut self.values] {
            pool.waiting.retain(|(other, _)| *other != connection);
        }
    }

    /// Returns the connections that wait and would find memory now.
    pub fn next(&self) -> impl Iterator<Item = usize> {
        let first = |pool: &Pool| pool.waiting.front().copied().filter(|(_, bytes)| pool.has(*bytes));
        [first(&self.lines), first(&self.values)].into_iter().flatten().map(|(connection, _)| connection)
    }

    /// Whether a connection waits for memory of the grant's kind.
    pub fn is_wanted(&self, grant: &Grant) -> bool {
        match grant.kind {
            Kind::Line => !self.lines.waiting.is_empty(),
            Kind::Value => !self.values.waiting.is_empty(),
        }
    }

    /// Whether a connection waits.
    pub fn is_any_wanted(&self) -> bool {
        !self.lines.waiting.is_empty() || !self.values.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn small_commands_need_no_grant_and_large_ones_wait_in_their_order() {
        let mut grants = Grants::new(8 << 20);
        let now = Instant::now();
        let mut held: Vec<Option<Grant>> = (0..6).map(|_| None).collect();
        for (connection, grant) in held.iter_mut().enumerate() {
            assert!(grants.ask(connection, grant, Need::Value(FREE_BYTES), now) && grant.is_none());
            assert_eq!(grants.ask(connection, grant, Need::Value(MIB), now), connection < 4);
        }
        assert!(grants.ask(7, &mut None, Need::Line(MIB), now), "lines have memory of their own");
        grants.take_back(held[0].take().expect("a grant"));
        assert_eq!(grants.next().collect::<Vec<_>>(), [4]);
        assert!(!grants.ask(5, &mut held[5], Need::Value(MIB), now), "another one waits longer");
        assert!(grants.ask(4, &mut held[4], Need::Value(MIB), now));
        grants.remove(5);
        assert!(!grants.is_any_wanted());
    }

    #[test]
    fn a_command_larger_than_all_memory_is_alone_with_it() {
        let mut grants = Grants::new(4 << 20);
        let now = Instant::now();
        let (mut large, mut small) = (None, None);
        assert!(grants.ask(0, &mut small, Need::Value(MIB), now));
        assert!(!grants.ask(1, &mut large, Need::Value(128 * MIB), now));
        grants.take_back(small.take().expect("a grant"));
        assert!(grants.ask(1, &mut large, Need::Value(128 * MIB), now));
        assert!(!grants.ask(0, &mut small, Need::Value(MIB), now));
    }

    #[test]
    fn what_a_command_before_was_granted_is_there_for_a_larger_one() {
        let mut grants = Grants::new(8 << 20);
        let (now, mut grant) = (Instant::now(), None);
        for quarters in 1..=16 {
            assert!(
                grants.ask(0, &mut grant, Need::Value(quarters * MIB / 4), now),
                "{quarters} quarters of a MiB"
            );
            assert!(!grants.is_any_wanted());
        }
        assert!(grants.ask(0, &mut grant, Need::Line(MIB), now));
        assert!(grants.ask(1, &mut None, Need::Value(4 * MIB), now), "none of it is lost");
    }

    #[test]
    fn who_sends_at_a_pace_keeps_its_grant() {
        let begun = Instant::now();
        let grant = Grant { kind: Kind::Value, bytes: 1, since: begun };
        let grace = Duration::from_secs(10);
        let later = |seconds| begun + Duration::from_secs(seconds);
        assert!(!grant.is_late(0, grace, later(9)));
        assert!(grant.is_late(100, grace, later(10)));
        assert!(!grant.is_late(100 * PACE, grace, later(100)));
    }
}
