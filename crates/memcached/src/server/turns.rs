//! Order of turns by the service that each waiter was given before: start-time fair queuing, among peers and then among
//! the connections of a peer.
//!
//! Every turn costs the work that was done in it. A waiter that enters the queue gets a start: the present time of the
//! queue, or the end of its former service, whichever is later. The earliest start is next. So a client with few
//! requests is served next, however many others send requests without a pause, and a peer gets no more service by
//! opening more connections.

use super::stream::Peer;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

/// Service that one waiter was given.
#[derive(Default)]
struct Account {
    /// The start of the waiter's last turn.
    start: u64,
    /// The end of the waiter's service.
    end: u64,
    /// Number of the waiter's entry in the queue. `None`: it does not wait.
    entry: Option<u64>,
}

/// A queue of waiters, which are identified by `K`.
struct Queue<K> {
    accounts: HashMap<K, Account>,
    /// Starts of the waiters. An entry that belongs to no waiter any more is skipped.
    entries: BinaryHeap<Reverse<(u64, u64, K)>>,
    entries_made: u64,
    waiting: usize,
    /// The start of the latest turn.
    now: u64,
}

impl<K: Copy + Ord + Hash> Queue<K> {
    fn new() -> Self {
        let (accounts, entries) = Default::default();
        Self { accounts, entries, entries_made: 0, waiting: 0, now: 0 }
    }

    /// Adds a waiter, unless it waits already.
    fn enter(&mut self, key: K) {
        let account = self.accounts.entry(key).or_default();
        if account.entry.is_some() {
            return;
        }
        self.entries_made += 1;
        self.waiting += 1;
        account.entry = Some(self.entries_made);
        account.start = account.end.max(self.now);
        self.entries.push(Reverse((account.start, self.entries_made, key)));
    }

    /// Takes the next waiter out.
    fn next(&mut self) -> Option<K> {
        while let Some(Reverse((start, entry, key))) = self.entries.pop() {
            if let Some(account) = self.accounts.get_mut(&key)
                && account.entry == Some(entry)
            {
                account.entry = None;
                self.waiting -= 1;
                self.now = self.now.max(start);
                return Some(key);
            }
        }
        None
    }

    /// Charges a waiter for its last turn.
    fn charge(&mut self, key: K, cost: u64) {
        if let Some(account) = self.accounts.get_mut(&key) {
            account.end = account.start + cost;
        }
    }

    fn remove(&mut self, key: K) {
        if self.accounts.remove(&key).is_some_and(|account| account.entry.is_some()) {
            self.waiting -= 1;
        }
    }
}

/// The turns of the connections of a thread.
pub struct Turns {
    peers: Queue<Peer>,
    connections: HashMap<Peer, Queue<usize>>,
}

impl Turns {
    pub fn new() -> Self {
        Self { peers: Queue::new(), connections: HashMap::new() }
    }

    /// Queues a connection for its turn, unless it waits already.
    pub fn enter(&mut self, peer: Peer, connection: usize) {
        self.connections.entry(peer).or_insert_with(Queue::new).enter(connection);
        self.peers.enter(peer);
    }

    /// Returns the connection whose turn it is. The caller must charge it before it requests the next one.
    pub fn next(&mut self) -> Option<(Peer, usize)> {
        while let Some(peer) = self.peers.next() {
            if let Some(connection) = self.connections.get_mut(&peer).and_then(Queue::next) {
                return Some((peer, connection));
            }
        }
        None
    }

    /// Charges a connection, and its peer, for the turn that it had.
    pub fn charge(&mut self, peer: Peer, connection: usize, cost: u64) {
        self.peers.charge(peer, cost);
        if let Some(connections) = self.connections.get_mut(&peer) {
            connections.charge(connection, cost);
            if connections.waiting > 0 {
                self.peers.enter(peer);
            }
        }
    }

    /// Forgets a connection that has ended.
    pub fn remove(&mut self, peer: Peer, connection: usize) {
        if let Some(connections) = self.connections.get_mut(&peer) {
            connections.remove(connection);
            if connections.accounts.is_empty() {
                self.connections.remove(&peer);
                self.peers.remove(peer);
            }
        }
    }

    /// Whether no connection waits.
    pub fn is_empty(&self) -> bool {
        self.peers.waiting == 0
    }

    /// Whether a connection waits.
    pub fn has(&self, peer: Peer, connection: usize) -> bool {
        let account = self.connections.get(&peer).and_then(|queue| queue.accounts.get(&connection));
        account.is_some_and(|account| account.entry.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Peer = Peer::User(1);
    const THERE: Peer = Peer::User(2);

    /// Gives `count` turns. After each turn its connection waits again. Returns the connections in the order of their
    /// turns.
    fn turns(turns: &mut Turns, count: usize, cost: impl Fn(Peer, usize) -> u64) -> Vec<(Peer, usize)> {
        (0..count)
            .map(|_| {
                let (peer, connection) = turns.next().expect("somebody waits");
                turns.charge(peer, connection, cost(peer, connection));
                turns.enter(peer, connection);
                (peer, connection)
            })
            .collect()
    }

    #[test]
    fn a_connection_that_asks_for_little_has_a_turn_whenever_it_has_used_less_than_the_others() {
        let mut queue = Turns::new();
        (0..50).for_each(|flood| queue.enter(HERE, flood));
        turns(&mut queue, 500, |_, _| 20);
        queue.enter(HERE, 50);
        let after = turns(&mut queue, 200, |_, connection| if connection == 50 { 1 } else { 20 });
        let first = after.iter().position(|turn| turn.1 == 50).expect("it has a turn");
        assert!(first < 50, "it waits for less than a turn of each flood: {first}");
        let own = after.iter().filter(|turn| turn.1 == 50).count();
        assert!(own >= 40, "it has used as much as each flood after twenty turns: {own} of 200 turns");
    }

    #[test]
    fn a_peer_gets_its_share_however_many_connections_another_one_has() {
        let mut queue = Turns::new();
        (0..50).for_each(|flood| queue.enter(HERE, flood));
        queue.enter(THERE, 50);
        let all = turns(&mut queue, 400, |_, _| 20);
        let there = all.iter().filter(|turn| turn.0 == THERE).count();
        assert!((190..=210).contains(&there), "{there} of 400 turns");
    }

    #[test]
    fn what_a_turn_has_cost_is_waited_for() {
        let mut queue = Turns::new();
        queue.enter(HERE, 0);
        queue.enter(HERE, 1);
        let all = turns(&mut queue, 200, |_, connection| if connection == 0 { 1000 } else { 10 });
        assert_eq!(all.iter().filter(|turn| turn.1 == 0).count(), 2);
    }

    #[test]
    fn a_connection_that_has_ended_has_no_turn() {
        let mut queue = Turns::new();
        queue.enter(HERE, 0);
        queue.enter(THERE, 1);
        queue.remove(HERE, 0);
        assert!(!queue.has(HERE, 0) && queue.has(THERE, 1));
        assert_eq!(queue.next(), Some((THERE, 1)));
        assert!(queue.is_empty() && queue.next().is_none());
        queue.charge(THERE, 1, 5);
        queue.remove(THERE, 1);
        assert!(queue.connections.is_empty() && queue.peers.accounts.is_empty());
    }

    #[test]
    fn waiting_twice_is_waiting_once() {
        let mut queue = Turns::new();
        queue.enter(HERE, 7);
        queue.enter(HERE, 7);
        assert_eq!(queue.next(), Some((HERE, 7)));
        queue.charge(HERE, 7, 1);
        assert!(queue.next().is_none());
    }
}
