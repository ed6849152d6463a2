//! Whose turn it is, by what each was given before: start-time fair queuing, among peers and then among the connections of a peer.
//!
//! Every turn costs what was done in it. Whoever begins to wait gets a start: the present time of the queue, or the end of what it
//! was given before, whichever is later. The earliest start is next. So a client that asks for little is heard next, however many
//! others ask without a pause, and a peer gets no more by opening more connections.

use super::stream::Peer;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

/// What one waiter was given.
#[derive(Default)]
struct Account {
    /// The start of its last turn.
    start: u64,
    /// The end of what it was given.
    end: u64,
    /// Which of the entries in the queue is its own. `None`: it does not wait.
    entry: Option<u64>,
}

/// A queue of waiters that are told apart by `K`.
struct Queue<K> {
    accounts: HashMap<K, Account>,
    /// Starts of those that wait. An entry that is nobody's own any more is passed over.
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

    /// Has one wait, unless it does already.
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

    /// Takes the next one out.
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

    /// Charges one for its last turn.
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

    /// Has a connection wait for its turn, unless it does already.
    pub fn enter(&mut self, peer: Peer, connection: usize) {
        self.connections.entry(peer).or_insert_with(Queue::new).enter(connection);
        self.peers.enter(peer);
    }

    /// The connection whose turn it is. It is to be charged before the next one is asked for.
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

    /// Gives so many turns, after each of which whoever had it waits again. Returns who had them.
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
