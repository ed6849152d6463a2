//! Changes (writes, atomics, rekeys) in progress, from the solicitation to the last byte of their data, and the record
//! of the latest completed changes.
//!
//! All changes of a client are in one book, whichever responder receives its packets: a client's limit, a repeated
//! request and the outcome of a change hold over all responders of a node together.

use super::ResponderLimits;
use crate::arrivals::Arrivals;
use crate::cipher::Counter;
use crate::packet::{Header, lane_of};
use portcullis_planted::planted;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The changes of all clients of a node, in as many books as the node has responders.
#[derive(Debug)]
pub(super) struct ChangeBooks(Box<[Mutex<ChangeBook>]>);

/// The changes of some of a node's clients.
#[derive(Debug)]
pub(super) struct ChangeBook {
    pub changes: Changes,
    pub finished: Finished,
    /// The counters of the packets that solicit changes.
    pub salts: Counter,
}

impl ChangeBooks {
    /// Creates `count` books with these limits together. The counters of each are those of a sender of the node.
    pub fn new(count: usize, limits: &ResponderLimits, mut salts: impl FnMut(usize) -> Counter) -> Self {
        let of_a_client = limits.client_changes_max;
        // A client may have as many changes under way as it may have on a node with one lane.
        let changes = (limits.changes_max / count).max(of_a_client.min(limits.changes_max));
        let finished = limits.finished_max.div_ceil(count);
        let book = |number| ChangeBook {
            changes: Changes::new(changes, of_a_client),
            finished: Finished::new(finished),
            salts: salts(number),
        };
        Self((0..count).map(book).map(Mutex::new).collect())
    }

    /// Returns the book of a client, to the responder of number `lane`.
    pub fn of_client(&self, client: u64, lane: usize) -> MutexGuard<'_, ChangeBook> {
        let own = lane_of(client, self.0.len());
        self.book(if planted!(ChangesBelongToLanes) { lane } else { own })
    }

    /// Returns the book of this number.
    pub fn book(&self, number: usize) -> MutexGuard<'_, ChangeBook> {
        self.0[number].lock().expect("a node does not outlive the panic of a responder")
    }
}

/// A change whose bytes are in flight.
#[derive(Debug)]
pub(super) struct Change {
    from: SocketAddr,
    request: Header,
    /// The region's version at the time when the request was authenticated.
    pub version: u64,
    deadline: Duration,
    pub bytes: Vec<u8>,
    arrivals: Arrivals,
}

/// The result of a request for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// The change is in progress now.
    New,
    /// The change was in progress before: the request was repeated.
    Before,
    /// Too many changes are in progress.
    Full,
}

/// The changes in progress, by their salts.
#[derive(Debug)]
pub(super) struct Changes {
    most: usize,
    most_of_a_client: usize,
    by_salt: HashMap<u64, Change>,
    /// The salts of each client's changes, by operation.
    by_client: HashMap<u64, HashMap<u64, u64>>,
    /// Deadlines with their salts, in order, because all changes have the same time-out. Some changes end before
    /// theirs.
    deadlines: VecDeque<(Duration, u64)>,
}

impl Changes {
    pub fn new(most: usize, most_of_a_client: usize) -> Self {
        let (by_salt, by_client) = (HashMap::new(), HashMap::new());
        Self { most, most_of_a_client, by_salt, by_client, deadlines: VecDeque::new() }
    }

    /// Begins a change under a salt that no other change ever had.
    pub fn begin(
        &mut self,
        from: SocketAddr,
        request: Header,
        (salt, version): (u64, u64),
        deadline: Duration,
    ) -> Begun {
        let of_client = self.by_client.get(&request.client);
        if of_client.is_some_and(|changes| changes.contains_key(&request.operation)) {
            return Begun::Before;
        }
        let held = of_client.map_or(0, HashMap::len);
        if held >= self.most_of_a_client || self.by_salt.len() >= self.most && !self.make_room(held) {
            return Begun::Full;
        }
        self.by_client.entry(request.client).or_default().insert(request.operation, salt);
        let bytes = vec![0; request.length as usize];
        let change = Change { from, request, version, deadline, bytes, arrivals: Arrivals::default() };
        self.by_salt.insert(salt, change);
        self.deadlines.push_back((deadline, salt));
        Begun::New
    }

    /// Drops the oldest change of the client with the most changes, if it has more of them than the requesting client
    /// would have, which is `held + 1`. So clients that begin many changes and end none cannot prevent other clients
    /// from changes.
    fn make_room(&mut self, held: usize) -> bool {
        let greediest = self.by_client.values().max_by_key(|changes| changes.len());
        let oldest = greediest.filter(|changes| changes.len() > held + 1).and_then(|it| it.values().min());
        oldest.copied().is_some_and(|salt| self.remove(salt).is_some())
    }

    /// Whether a packet claims to belong to a change in progress.
    pub fn wants(&self, header: &Header, from: SocketAddr, now: Duration) -> bool {
        self.by_salt.get(&self.salt_of(header)).is_some_and(|change| {
            let Header { of, length, client, region, operation, address, .. } = change.request;
            change.from.ip() == from.ip()
                && now < change.deadline
                && (of, length, client, region, operation, address)
                    == (
                        header.of,
                        header.length,
                        header.client,
                        header.region,
                        header.operation,
                        header.address,
                    )
        })
    }

    /// Adds a part of a change, after [`wants`](Self::wants) has accepted it. Returns the change if that was the last
    /// part.
    pub fn add(&mut self, header: &Header, body: &[u8]) -> Option<Change> {
        let salt = self.salt_of(header);
        let change = self.by_salt.get_mut(&salt)?;
        let start = header.offset as usize;
        change.bytes[start..start + body.len()].copy_from_slice(body);
        let end = header.offset + u32::try_from(body.len()).expect("a body is shorter than an operation");
        change.arrivals.add(header.offset, end);
        if !change.arrivals.is_all(header.length) {
            return None;
        }
        if planted!(ChangeCarriedOutAgain) {
            let bytes = change.bytes.clone();
            return Some(Change { bytes, arrivals: Arrivals::default(), ..*change });
        }
        self.remove(salt)
    }

    /// Returns the salt of the change that a part belongs to.
    fn salt_of(&self, header: &Header) -> u64 {
        let of_client = self.by_client.get(&header.client).filter(|_| planted!(SaltNotCompared));
        of_client.and_then(|it| it.get(&header.operation)).copied().unwrap_or(header.salt)
    }

    /// Drops a client's change that is in progress: the change never happens. Leaves changes of other clients alone.
    /// Returns whether there was such a change.
    pub fn cancel(&mut self, header: &Header) -> bool {
        let is_theirs = |change: &Change| {
            (change.request.client, change.request.operation) == (header.client, header.operation)
        };
        self.by_salt.get(&header.salt).is_some_and(is_theirs) && self.remove(header.salt).is_some()
    }

    fn remove(&mut self, salt: u64) -> Option<Change> {
        let change = self.by_salt.remove(&salt)?;
        let of_client = self.by_client.get_mut(&change.request.client).expect("each change is its client's");
        of_client.remove(&change.request.operation);
        if of_client.is_empty() {
            self.by_client.remove(&change.request.client);
        }
        Some(change)
    }

    /// Returns the next deadline.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.front().map(|&(deadline, _)| deadline)
    }

    /// Drops changes that have timed out. Returns their number.
    pub fn expire(&mut self, now: Duration) -> u64 {
        let mut expired = 0;
        while let Some((_, salt)) = self.deadlines.pop_front_if(|&mut (deadline, _)| deadline <= now) {
            expired += u64::from(self.remove(salt).is_some());
        }
        expired
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// The change has happened, and this is the former word.
    Done(u64),
    /// The change has not happened.
    NotDone,
    /// The change may have happened: it is too long ago.
    Forgotten,
}

/// The latest changes that have happened.
#[derive(Debug)]
pub(super) struct Finished {
    most: usize,
    /// Client, operation and former word, by salt.
    by_salt: HashMap<u64, (u64, u64, u64)>,
    /// The salts, the oldest first.
    order: VecDeque<u64>,
    /// The largest salt that was dropped.
    forgotten: u64,
}

impl Finished {
    pub fn new(most: usize) -> Self {
        Self { most, by_salt: HashMap::new(), order: VecDeque::new(), forgotten: 0 }
    }

    /// Adds a change that has happened. `before` is the former word, for an atomic.
    pub fn add(&mut self, header: &Header, before: u64) {
        if planted!(FinishedForgotten) {
            return;
        }
        self.by_salt.insert(header.salt, (header.client, header.operation, before));
        self.order.push_back(header.salt);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_salt.remove(&oldest);
            self.forgotten = self.forgotten.max(oldest);
        }
    }

    /// Returns the outcome of a change that is not in progress.
    pub fn fate(&self, header: &Header) -> Fate {
        match self.by_salt.get(&header.salt) {
            Some(&(client, operation, before))
                if (client, operation) == (header.client, header.operation) =>
            {
                Fate::Done(before)
            }
            // Salts increase. A change with a salt larger than all that were dropped is still recorded if it has
            // happened.
            _ if header.salt > self.forgotten => Fate::NotDone,
            _ => Fate::Forgotten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::OperationType;
    use crate::packet::{AnswerSize, Kind};
    use crate::regions::RegionId;

    fn header(client: u64, operation: u64, salt: u64) -> Header {
        let region = RegionId { index: 0, generation: 0 };
        let (kind, of) = (Kind::Ask, OperationType::Atomic);
        let (length, address, offset, counter, slot) = (24, 0, 0, 1, 0);
        let answers = AnswerSize::of(0);
        Header { kind, of, length, client, region, operation, slot, counter, salt, address, offset, answers }
    }

    /// A hostile client requests the outcome with another client's salt, and with its own name for the operation or the
    /// other's.
    #[test]
    fn asking_for_what_another_client_does_neither_ends_it_nor_tells_of_it() {
        let mut changes = Changes::new(4, 4);
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        let begun = changes.begin(from, header(1, 50, 0), (7, 1), Duration::from_secs(1));
        assert_eq!(begun, Begun::New);
        for operation in [50, 51] {
            assert!(!changes.cancel(&header(2, operation, 7)));
        }
        assert!(changes.wants(&header(1, 50, 7), from, Duration::ZERO), "the other's is still under way");
        assert!(changes.cancel(&header(1, 50, 7)));
        assert!(!changes.wants(&header(1, 50, 7), from, Duration::ZERO));
        let mut finished = Finished::new(2);
        finished.add(&header(1, 50, 7), 42);
        assert_eq!(finished.fate(&header(1, 50, 7)), Fate::Done(42));
        assert_eq!(finished.fate(&header(2, 50, 7)), Fate::NotDone);
        assert_eq!(finished.fate(&header(1, 51, 7)), Fate::NotDone);
    }

    #[test]
    fn clients_that_hold_all_places_make_room_for_one_that_holds_less() {
        let mut changes = Changes::new(8, 4);
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        let mut salt = 0;
        let mut begin = |changes: &mut Changes, client| {
            salt += 1;
            let header = Header { kind: Kind::Request, ..header(client, salt, 0) };
            changes.begin(from, header, (salt, 1), Duration::from_secs(1))
        };
        for client in [1, 1, 1, 1, 2, 2, 2, 2] {
            assert_eq!(begin(&mut changes, client), Begun::New);
        }
        assert_eq!((begin(&mut changes, 1), begin(&mut changes, 2)), (Begun::Full, Begun::Full), "its share");
        for client in [3, 3, 4, 4] {
            assert_eq!(begin(&mut changes, client), Begun::New);
        }
        assert_eq!(begin(&mut changes, 3), Begun::Full, "others hold no more than it would");
        assert_eq!((changes.by_salt.len(), changes.by_client.len()), (8, 4));
        assert!(!changes.wants(&header(1, 1, 1), from, Duration::ZERO), "the oldest has gone");
        assert!(changes.wants(&header(1, 4, 4), from, Duration::ZERO), "the latest is still under way");
    }

    /// Atomics end in another order than that of their salts.
    #[test]
    fn what_may_have_been_forgotten_is_never_said_not_to_have_happened() {
        let mut finished = Finished::new(2);
        for salt in [9, 3, 5, 4] {
            finished.add(&header(1, salt, salt), salt);
        }
        let fate = |salt| finished.fate(&header(1, salt, salt));
        assert_eq!((fate(9), fate(3)), (Fate::Forgotten, Fate::Forgotten));
        assert_eq!((fate(5), fate(4)), (Fate::Done(5), Fate::Done(4)));
        assert_eq!((fate(8), fate(10)), (Fate::Forgotten, Fate::NotDone));
    }
}
