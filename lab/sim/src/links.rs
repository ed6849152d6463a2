//! Links and the switch between them: the path of a datagram, and the time that it takes.
//!
//! Each host has one link to the one switch. At both ends of a link there is a port with a queue of bounded bytes: a
//! datagram that does not fit is dropped. A port keeps one number, the time at which it will be idle, so nothing is
//! ever searched.

use crate::clock::Nanos;
use crate::dice::Dice;

/// A link and the queue of the port that feeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTerms {
    /// Rate of the link.
    pub bits_per_second: u64,
    /// Time from one end of the link to the other, in ns.
    pub propagation: Nanos,
    /// Bytes that may wait in the queue, without the datagram that is being sent.
    pub queue: u64,
}

impl LinkTerms {
    /// Returns how long a port sends this many bytes, in ps.
    pub(crate) fn sending_ps(&self, bytes: u64) -> u64 {
        bytes * 8 * 1_000_000 / (self.bits_per_second / 1_000_000).max(1)
    }
}

/// One direction of a link.
#[derive(Clone, Debug)]
struct Port {
    terms: LinkTerms,
    /// Time at which the port will be idle, in ps: at 100 Gb/s a ns is more than ten bytes.
    idle_ps: u64,
    dropped: u64,
}

impl Port {
    fn new(terms: LinkTerms) -> Self {
        Self { terms, idle_ps: 0, dropped: 0 }
    }

    /// Takes a datagram of this many bytes on the wire. Returns the time at which its last bit is at the other end,
    /// or `None` if the queue is full.
    fn take(&mut self, now: Nanos, bytes: u64) -> Option<Nanos> {
        let waits_ps = self.idle_ps.saturating_sub(now * 1000);
        if waits_ps > self.terms.sending_ps(self.terms.queue) {
            self.dropped += 1;
            return None;
        }
        self.idle_ps = self.idle_ps.max(now * 1000) + self.terms.sending_ps(bytes);
        Some(self.idle_ps.div_ceil(1000) + self.terms.propagation)
    }
}

/// The faults of a datagram's path besides congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkFaults {
    /// Number of datagrams in a thousand that are lost.
    pub lost: u64,
    /// Number of datagrams in a thousand that arrive twice.
    pub repeated: u64,
    /// The longest delay of a datagram, in ns. Each datagram draws its own delay, so datagrams overtake each other.
    pub jitter: Nanos,
}

/// The links of hosts to one switch, which store and forward datagrams.
#[derive(Clone, Debug)]
pub struct Links {
    up: Vec<Port>,
    down: Vec<Port>,
    faults: LinkFaults,
    dice: Dice,
}

/// Methods that send datagrams. Hosts are named by number, from zero, and times are in ns of virtual time.
impl Links {
    /// Creates idle links for this many hosts. The faults are drawn from the seed.
    #[must_use]
    pub fn new(hosts: usize, terms: LinkTerms, faults: LinkFaults, seed: u64) -> Self {
        let ports = || vec![Port::new(terms); hosts];
        Self { up: ports(), down: ports(), faults, dice: Dice::new(seed, 0x1_4a) }
    }

    /// Sends a datagram from a host. Returns the times at which its copies are at the switch: two if it
    /// is repeated, none if it is lost or the port's queue is full.
    pub fn leave(&mut self, from: usize, now: Nanos, bytes: u64) -> [Option<Nanos>; 2] {
        let Some(arrival) = self.up[from].take(now, bytes) else { return [None; 2] };
        if self.faults == LinkFaults::default() {
            return [Some(arrival), None];
        }
        let LinkFaults { lost, repeated, jitter } = self.faults;
        let first = (!self.dice.per_mille(lost)).then(|| arrival + self.dice.of(0..jitter + 1));
        let second = self.dice.per_mille(repeated).then(|| arrival + self.dice.of(0..jitter + 1));
        [first, second]
    }

    /// Forwards a datagram that is at the switch. Returns the time at which it is at the host, or `None` if the
    /// port's queue is full.
    pub fn forward(&mut self, to: usize, now: Nanos, bytes: u64) -> Option<Nanos> {
        self.down[to].take(now, bytes)
    }

    /// Returns the last ns in which a host's port still has something to send, or an earlier one.
    #[must_use]
    pub fn idle_at(&self, host: usize) -> Nanos {
        self.up[host].idle_ps / 1000
    }

    /// Returns the number of datagrams that found a full queue.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.up.iter().chain(&self.down).map(|port| port.dropped).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: LinkTerms = LinkTerms { bits_per_second: 100_000_000_000, propagation: 500, queue: 10_000 };

    #[test]
    fn a_port_sends_at_its_rate_and_drops_what_its_queue_cannot_hold() {
        let mut port = Port::new(TERMS);
        let arrivals: Vec<_> = (0..12).map(|_| port.take(0, 1250)).collect();
        // One is being sent and eight wait; the ninth finds room because what it waits for is not more than the queue.
        let expected: Vec<_> = (1..=12).map(|count| (count <= 9).then_some(count * 100 + 500)).collect();
        assert_eq!((arrivals, port.dropped), (expected, 3));
        assert_eq!(port.take(10_000, 1250), Some(10_600), "an idle port owes nobody anything");
    }

    #[test]
    fn a_port_loses_no_time_to_rounding() {
        let mut port = Port::new(LinkTerms { queue: u64::MAX >> 32, ..TERMS });
        let last = (0..100_000).map(|_| port.take(0, 1001)).last();
        assert_eq!(last.flatten(), Some(100_000 * 8008 / 100 + 500));
    }

    #[test]
    fn without_faults_datagrams_arrive_once_and_in_their_order() {
        let mut links = Links::new(2, TERMS, LinkFaults::default(), 1);
        let times: Vec<_> = (0..100).map(|at| links.leave(0, at * 1000, 100)).collect();
        assert!(times.iter().all(|copies| copies[0].is_some() && copies[1].is_none()));
        assert!(times.is_sorted());
    }

    #[test]
    fn faults_lose_repeat_and_reorder_as_often_as_they_say_and_as_the_seed_says() {
        let faults = LinkFaults { lost: 100, repeated: 50, jitter: 5_000 };
        let run = |seed| {
            let mut links = Links::new(2, TERMS, faults, seed);
            (0..10_000).map(|at| links.leave(0, at * 1000, 100)).collect::<Vec<_>>()
        };
        let copies = run(1);
        assert!(copies == run(1) && copies != run(2));
        let lost = copies.iter().filter(|it| it[0].is_none()).count();
        let repeated = copies.iter().filter(|it| it[1].is_some()).count();
        assert!((800..1200).contains(&lost) && (350..650).contains(&repeated), "{lost} {repeated}");
        let firsts: Vec<Nanos> = copies.iter().filter_map(|it| it[0]).collect();
        assert!(!firsts.is_sorted(), "none was overtaken");
    }
}
