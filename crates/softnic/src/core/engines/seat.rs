//! An engine's side: the clients that it serves, and its turns.

use super::presence::{Generation, Presence};
use crate::core::objects::Core;
use crate::core::queue_pair::Current;
use portcullis_memory::Bytes;
use portcullis_protocol::Moment;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of turns between two checks for clients without work.
const LOOK_TURNS: u32 = 1 << 14;

/// The outcome of an engine's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeatTurn {
    /// Requests were executed.
    Worked,
    /// There was nothing to do.
    Idle,
    /// The NIC's thread wants to give the engine a client, or to take one back: no turn was begun.
    GaveWay,
}

/// The clients that an engine serves.
#[derive(Debug)]
pub struct Seat<M> {
    clients: Mutex<Clients<M>>,
    presence: Presence,
    generation: Arc<Generation>,
    /// Whether the NIC's thread waits for the clients.
    is_wanted: AtomicBool,
    /// Number of clients.
    count: AtomicUsize,
    /// Whether the NIC's thread is to take clients home.
    has_leaving: Arc<AtomicBool>,
}

/// The clients of an engine, with the part of the NIC that serves them.
#[derive(Debug)]
pub(super) struct Clients<M> {
    /// The queue pairs and completion queues of the clients, and a view of the NIC's keys.
    pub core: Core<M>,
    seen: Vec<Seen>,
    /// Number of requests that clients had carried out here when they left.
    requests_of_departed: u64,
    turns: u32,
}

/// A client, as the engine last looked at it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The client's completion queue.
    cq: u32,
    /// Its visits with work.
    visits: u32,
    /// The number of its requests that had ended when it came.
    requests_before: u64,
    /// Number of the engine's checks in a row that have found the client at work. `None`: there was none yet.
    checks: Option<u32>,
}

impl<M: Bytes> Seat<M> {
    pub(super) fn new(core: Core<M>, generation: Arc<Generation>) -> Self {
        let on_engine = core.on_engine.as_ref().expect("the core of an engine");
        let has_leaving = Arc::clone(&on_engine.has_leaving);
        Self {
            clients: Mutex::new(Clients { core, seen: Vec::new(), requests_of_departed: 0, turns: 0 }),
            presence: Presence::default(),
            generation,
            is_wanted: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            has_leaving,
        }
    }

    /// Serves each client once. Only the engine's thread calls this.
    pub fn turn(&self) -> SeatTurn {
        if self.is_wanted.load(Ordering::Acquire) {
            return SeatTurn::GaveWay;
        }
        let mut clients = self.lock();
        self.presence.enter(&self.generation);
        // Time decides only about messages, which an engine does not carry.
        let worked = clients.core.turn(Moment::default());
        self.presence.leave();
        clients.core.wake_sleepers();
        clients.look_for_idle();
        if worked { SeatTurn::Worked } else { SeatTurn::Idle }
    }

    /// Number of clients. An engine without clients sleeps until it gets one.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether the engine is in no turn that began before this generation.
    pub(super) fn has_left(&self, generation: u64) -> bool {
        self.presence.has_left(generation)
    }

    /// Locks the engine's clients for the NIC's thread, after the end of the engine's turn.
    pub(super) fn take(&self) -> MutexGuard<'_, Clients<M>> {
        self.is_wanted.store(true, Ordering::Release);
        let clients = self.lock();
        self.is_wanted.store(false, Ordering::Release);
        clients
    }

    /// Whether clients are to be taken home. The NIC's next turn then waits for the end of the engine's.
    #[inline]
    #[must_use]
    pub fn has_leaving(&self) -> bool {
        self.has_leaving.load(Ordering::Acquire)
    }

    /// Returns whether clients are to be taken home, once for each time that the engine has found some.
    pub(super) fn take_leaving(&self) -> bool {
        self.has_leaving.swap(false, Ordering::Acquire)
    }

    /// Sends clients home that have done nothing since the last check, since the engine has nothing to do. Only the engine's
    /// thread calls this.
    pub fn rest(&self) {
        if !self.is_wanted.load(Ordering::Acquire) {
            self.lock().send_idle_home();
        }
    }

    pub(super) fn note_clients(&self, clients: &Clients<M>) {
        self.count.store(clients.seen.len(), Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Clients<M>> {
        // A thread that has panicked has left queue pairs half served. The owner ends the NIC.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rules of an engine, and the clients that are to leave it.
#[derive(Clone, Debug)]
pub(in crate::core) struct OnEngine {
    /// The length from which the NIC's copy units move a transfer.
    long_transfer: u32,
    /// Whether the NIC's thread is to take clients home.
    has_leaving: Arc<AtomicBool>,
    /// The completion queues of these clients.
    leaving: Vec<u32>,
}

impl OnEngine {
    pub fn new(long_transfer: u32) -> Self {
        Self { long_transfer, has_leaving: Arc::default(), leaving: Vec::new() }
    }

    /// Whether the engine carries out this request itself.
    pub fn serves(&self, current: &Current) -> bool {
        current.is_for_engines(self.long_transfer)
    }

    pub fn add_leaving(&mut self, cq: u32) {
        if !self.leaving.contains(&cq) {
            self.leaving.push(cq);
            // A client learns of a refusal only afterwards: the NIC's thread sees this before it reads what the client then
            // sends.
            self.has_leaving.store(true, Ordering::SeqCst);
        }
    }

    pub fn take_all(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.leaving)
    }

    pub fn remove(&mut self, cq: u32) {
        self.leaving.retain(|&other| other != cq);
    }
}

impl<M: Bytes> Clients<M> {
    /// Returns the clients that are to leave the engine.
    pub fn leaving(&mut self) -> &mut OnEngine {
        self.core.on_engine.as_mut().expect("the core of an engine")
    }

    /// Notes that a client is served here from now on.
    pub fn note_arrival(&mut self, cq: u32) {
        let (visits, requests_before) = (self.core.visits_with_work(cq), self.core.requests_ended(cq));
        self.seen.push(Seen { cq, visits, requests_before, checks: None });
    }

    /// Notes that a client is about to leave.
    pub fn note_departure(&mut self, cq: u32) {
        let place = self.seen.iter().position(|seen| seen.cq == cq).expect("it has arrived");
        let seen = self.seen.swap_remove(place);
        self.requests_of_departed += self.requests_here(&seen);
    }

    /// Number of requests that have ended here.
    pub fn requests_ended(&self) -> u64 {
        self.requests_of_departed + self.seen.iter().map(|seen| self.requests_here(seen)).sum::<u64>()
    }

    fn requests_here(&self, seen: &Seen) -> u64 {
        self.core.requests_ended(seen.cq) - seen.requests_before
    }

    /// Sends clients home that have done nothing since the last check. An engine with clients polls and never sleeps; at home
    /// an idle client costs nothing, and rings the NIC's thread.
    fn look_for_idle(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK_TURNS) {
            self.send_idle_home();
        }
    }

    fn send_idle_home(&mut self) {
        for seen in &mut self.seen {
            let before = std::mem::replace(&mut seen.visits, self.core.visits_with_work(seen.cq));
            // The first check is not held against a client that has just come.
            let is_at_work = before != seen.visits || seen.checks.is_none();
            let checks =
                if is_at_work { seen.checks.map_or(1, |checks| checks.saturating_add(1)) } else { 0 };
            seen.checks = Some(checks);
            self.core.note_work(seen.cq, checks);
        }
    }
}

impl<M: Bytes> Core<M> {
    /// Number of requests of a client's queue pairs that have ended.
    fn requests_ended(&self, cq: u32) -> u64 {
        let members = self.cqs.get(cq).into_iter().flat_map(|queue| &queue.members);
        members.filter_map(|&id| self.qps.get(id.0)).map(|pair| pair.send.taken()).sum()
    }

    fn visits_with_work(&self, cq: u32) -> u32 {
        self.cqs.get(cq).map_or(0, |queue| queue.visits)
    }
}
