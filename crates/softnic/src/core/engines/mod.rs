//! Data engines: threads that carry out the one-sided requests of busy clients, so that operations grow with processors.
//!
//! The NIC's thread serves all queue pairs, and lends those of a busy client to an engine: the client's ends of its data
//! queue pairs, with their completion queue. An engine runs the same code over the same keys. It reads the keys without a
//! lock, and never changes one: what is more than a READ, a WRITE or an atomic sends the client home, to the NIC's thread,
//! and so does a request that fails, or one that copy units move. A client that does nothing for a while goes home too, so an
//! engine without work has no clients, and sleeps. All go home while the machine has no processors for engines (`crowding`).
//!
//! The NIC's thread is the only one that gives and takes. It takes a client home before it changes the state of one of its
//! queue pairs, at either end. An operation that ends accesses takes effect at once, and completes when each engine has left
//! the turn in which it may have checked a key before ([`presence`]).
//!
//! Reads and writes of two engines are not ordered: a read that overlaps a write may return some of the old bytes and some
//! of the new. Words do not tear, and atomics are the processor's.

mod crowding;
pub mod presence;
mod seat;

pub use seat::{Seat, SeatTurn};

pub(super) use seat::OnEngine;

use super::objects::{CompletionQueue, Core};
use super::queue_pair::QueuePair;
use super::runner::ThreadRunner;
use crowding::Crowding;
use portcullis_memory::Bytes;
use portcullis_nic::{Event, QpId, QpState};
use portcullis_planted::planted;
use presence::Generation;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Visits with work at home after which a client counts as busy. The number doubles each time that the client goes home, since
/// the NIC's thread waits for the engine then, up to a maximum. It is the first one again when an engine's checks in a row
/// have found the client at work ([`STEADY_AFTER_CHECKS`]).
pub(super) const BUSY_AFTER_VISITS: u32 = 64;
/// Number of such checks.
const STEADY_AFTER_CHECKS: u32 = 8;
/// The most such visits.
const BUSY_AFTER_VISITS_MAX: u32 = 1 << 16;

/// Turns of the NIC between two looks at its engines: whether they run, and the numbers of their clients.
const BALANCE_TURNS: u64 = 1 << 12;
/// Turns between two looks for a crowd while engines serve clients. The NIC's thread naps between its turns then, if it has
/// nothing to do itself.
const CROWD_TURNS: u64 = 1 << 10;

/// The NIC's side of its engines.
#[derive(Debug)]
pub(super) struct Engines<M> {
    seats: Vec<Arc<Seat<M>>>,
    runner: Arc<dyn ThreadRunner>,
    generation: Arc<Generation>,
    /// The clients that engines serve, by their completion queue.
    lent: BTreeMap<u32, LentClient>,
    /// The client of each lent queue pair, by either end's number. A client is named by its completion queue.
    client_of: BTreeMap<QpId, u32>,
    crowding: Crowding,
}

/// A client that an engine serves.
#[derive(Debug)]
struct LentClient {
    engine: usize,
    /// The client's end of each queue pair, and the node's.
    queue_pairs: Vec<(QpId, QpId)>,
}

/// The work of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Number of clients that the engine serves now.
    pub clients: usize,
    /// Number of requests that have ended on this engine.
    pub requests: u64,
}

impl<M> Clone for Engines<M> {
    /// # Panics
    /// Engines are threads of the owner, and exist once.
    fn clone(&self) -> Self {
        panic!("a NIC with engines has no clones")
    }
}

impl<M: Bytes> Engines<M> {
    /// Begins a generation of keys, and returns its number. `None`: each engine is in no turn, or has begun its turn after
    /// the latest change of a key.
    pub fn mark(&self) -> Option<u64> {
        let next = self.generation.begin_next();
        (!self.has_passed(next)).then_some(next)
    }

    pub fn generation(&self) -> u64 {
        self.generation.present()
    }

    pub fn has_passed(&self, generation: u64) -> bool {
        planted!(EngineNotAwaited) || self.seats.iter().all(|seat| seat.has_left(generation))
    }

    pub fn wait(&self) {
        self.runner.wait();
    }

    pub fn has_clients(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Returns the engine that serves the fewest clients.
    fn least_loaded(&self) -> usize {
        let fewest = (0..self.seats.len()).min_by_key(|&engine| self.seats[engine].clients());
        fewest.expect("a NIC without engines has no `Engines`")
    }
}

impl<M: Bytes> Core<M> {
    /// Gives the NIC `count` engines. `runner` gets their seats, and returns the handle to their threads: the owner lets each
    /// engine call [`Seat::turn`] on a thread of its own.
    ///
    /// # Panics
    /// The NIC has engines already, or `count` is zero, or the NIC has a network.
    pub fn set_engines(
        &mut self,
        count: usize,
        runner: impl FnOnce(&[Arc<Seat<M>>]) -> Arc<dyn ThreadRunner>,
    ) {
        assert!(self.engines.is_none() && count > 0, "a NIC gets its engines once");
        assert!(!self.is_networked(), "the queue pairs of a client and its node are on one NIC");
        let generation = Arc::<Generation>::default();
        let seats = (0..count).map(|_| Arc::new(Seat::new(self.for_engine(), Arc::clone(&generation))));
        let seats: Vec<_> = seats.collect();
        let runner = runner(&seats);
        let (lent, client_of) = (BTreeMap::new(), BTreeMap::new());
        let crowding = Crowding::default();
        self.engines = Some(Engines { seats, runner, generation, lent, client_of, crowding });
        self.has_threads = true;
    }

    /// Returns the part of a NIC that an engine needs: a view of the keys, and the memories.
    fn for_engine(&mut self) -> Self {
        let mut engine = Self::new();
        (engine.keys, engine.has_threads) = (self.keys.view(), true);
        engine.on_engine = Some(OnEngine::new(self.long_transfer()));
        self.memories.iter().for_each(|(number, memory)| engine.memories.adopt(number, memory.clone()));
        engine
    }

    /// Whether engines serve clients. The owner then must not announce that it sleeps: each of their requests would ring its
    /// bell. Nor may it sleep for long: an engine does not wake it when a client is to go home.
    #[must_use]
    pub fn has_lent_clients(&self) -> bool {
        self.engines.as_ref().is_some_and(Engines::has_clients)
    }

    /// The work of each engine, in the order of their numbers. Waits for the end of each one's turn.
    #[must_use]
    pub fn engine_loads(&self) -> Vec<EngineLoad> {
        let Some(engines) = &self.engines else { return Vec::new() };
        let load = |seat: &Arc<Seat<M>>| {
            let clients = seat.take();
            EngineLoad { clients: seat.clients(), requests: clients.requests_ended() }
        };
        engines.seats.iter().map(load).collect()
    }

    /// Takes home the clients that are to leave their engines, and lends those that have become busy.
    pub(super) fn move_clients(&mut self) {
        if self.engines.is_none() {
            return;
        }
        self.take_home_leaving();
        let turns = self.schedule.turns();
        let crowd_turns = if self.has_lent_clients() { CROWD_TURNS } else { BALANCE_TURNS };
        if turns.is_multiple_of(crowd_turns) {
            self.look_for_crowd();
        }
        if turns.is_multiple_of(BALANCE_TURNS) {
            self.balance();
        }
        while let Some(cq) = self.busy.pop() {
            self.lend(cq);
        }
    }

    /// Takes home the clients that are to leave their engines. Waits for the turns of these engines.
    pub(super) fn take_home_leaving(&mut self) {
        let seats = self.engines.iter().flat_map(|engines| &engines.seats);
        if seats.clone().any(|seat| seat.has_leaving()) {
            let leaving = seats.filter(|seat| seat.take_leaving());
            let leaving: Vec<u32> = leaving.flat_map(|seat| seat.take().leaving().take_all()).collect();
            leaving.into_iter().for_each(|cq| self.take_home(cq));
        }
    }

    /// Takes all clients home while the machine has no processors for engines.
    fn look_for_crowd(&mut self) {
        let Some(engines) = &mut self.engines else { return };
        // While they serve no clients the engines sleep, and do not count among the threads that want to run.
        let asleep = if engines.crowding.is_crowded() { engines.seats.len() } else { 0 };
        engines.crowding.note(engines.runner.is_crowded(asleep));
        if engines.crowding.is_crowded() {
            let lent: Vec<u32> = engines.lent.keys().copied().collect();
            lent.into_iter().for_each(|cq| self.take_home_unasked(cq));
        }
    }

    /// Takes a client of the engine with the most clients home, to be lent again, if another engine has at least two fewer.
    fn balance(&mut self) {
        let Some(engines) = &self.engines else { return };
        engines.runner.check();
        let clients = |engine: usize| engines.seats[engine].clients();
        let most = (0..engines.seats.len()).max_by_key(|&engine| clients(engine)).expect("there are engines");
        if clients(most) < clients(engines.least_loaded()) + 2 {
            return;
        }
        let moved = engines.lent.iter().find(|(_, lent)| lent.engine == most).map(|(&cq, _)| cq);
        if let Some(cq) = moved {
            self.take_home_unasked(cq);
            self.busy.push(cq);
        }
    }

    /// Takes a client home that has given no cause for it. It is lent again as soon as before.
    fn take_home_unasked(&mut self, cq: u32) {
        self.take_home(cq);
        let queue = self.cqs.get_mut(cq).expect("the client's completion queue");
        queue.busy_after = (queue.busy_after / 2).max(BUSY_AFTER_VISITS);
    }

    /// Lends a client to an engine, if all of its queue pairs are sound and an engine can serve them.
    fn lend(&mut self, cq: u32) {
        let Some(queue_pairs) = self.lendable(cq) else { return };
        let Some(engines) = self.engines.as_mut().filter(|it| !it.crowding.is_crowded()) else { return };
        self.schedule.remove_all(|qp| queue_pairs.iter().any(|&(client, _)| client == qp));
        let engine = engines.least_loaded();
        let seat = Arc::clone(&engines.seats[engine]);
        for &(client, node) in &queue_pairs {
            engines.client_of.extend([(client, cq), (node, cq)]);
        }
        {
            let mut clients = seat.take();
            for &(client, node) in &queue_pairs {
                let stand_in = self.qps[node.0].stand_in();
                clients.core.qps.adopt(node.0, Box::new(stand_in));
                let pair = self.qps.lend(client.0).expect("a queue pair of the client");
                clients.core.settle_in(client, pair);
            }
            let queue = self.cqs.lend(cq).expect("the client's completion queue");
            clients.core.cqs.adopt(cq, queue);
            clients.note_arrival(cq);
            seat.note_clients(&clients);
        }
        engines.lent.insert(cq, LentClient { engine, queue_pairs });
        engines.runner.wake(engine);
    }

    /// Returns both ends of a client's queue pairs, if an engine can serve the client now.
    fn lendable(&self, cq: u32) -> Option<Vec<(QpId, QpId)>> {
        let queue = self.cqs.get(cq)?;
        // A completion that was not reported yet is reported here.
        if queue.touched || !queue.is_only_for_data() {
            return None;
        }
        let ends = |&client: &QpId| {
            let pair = self.qps.get(client.0)?;
            let peer = pair.peer?;
            let node = self.qps.get(peer.0)?;
            let is_sound = |pair: &QueuePair<M>| pair.state == QpState::ReadyToSend;
            let is_at_rest = pair.moving == 0 && pair.held.is_empty() && !pair.scheduled && node.moving == 0;
            let is_served =
                pair.current.as_ref().is_none_or(|current| current.is_for_engines(self.long_transfer()));
            let is_lendable = is_sound(pair) && is_sound(node) && is_at_rest && is_served;
            (is_lendable && node.peer == Some(client)).then_some((client, peer))
        };
        queue.members.iter().map(ends).collect()
    }

    /// Takes a client home to the NIC's thread. Waits for the end of its engine's turn.
    fn take_home(&mut self, cq: u32) {
        let Some(engines) = &mut self.engines else { return };
        let Some(LentClient { engine, queue_pairs }) = engines.lent.remove(&cq) else { return };
        let seat = Arc::clone(&engines.seats[engine]);
        let mut clients = seat.take();
        clients.note_departure(cq);
        clients.leaving().remove(cq);
        clients.core.schedule.remove_all(|qp| queue_pairs.iter().any(|&(client, _)| client == qp));
        seat.note_clients(&clients);
        let of_client = |event: &Event| queue_pairs.iter().any(|&(_, node)| event.queue_pair() == node);
        let (refusals, others) = clients.core.events.drain(..).partition(of_client);
        clients.core.events = others;
        if !planted!(RefusalKeptOnEngine) {
            VecDeque::into_iter(refusals).for_each(|event| self.raise(event));
        }
        let mut queue = clients.core.cqs.lend(cq).expect("the client's completion queue");
        queue.visits_at_home = 0;
        queue.busy_after = (2 * queue.busy_after).min(BUSY_AFTER_VISITS_MAX);
        self.cqs.give_back(cq, queue);
        for (client, node) in queue_pairs {
            for end in [client, node] {
                self.engines.as_mut().and_then(|engines| engines.client_of.remove(&end));
            }
            let pair = clients.core.move_out(client);
            let stand_in = clients.core.qps.lend(node.0).expect("each of them has one");
            self.qps.give_back(client.0, pair);
            self.schedule.add_hot(client);
            if stand_in.state == QpState::Error
                && let Some(node_end) = self.qps.get_mut(node.0)
            {
                node_end.state = QpState::Error;
                self.ring(node);
            }
        }
    }

    /// Takes a client home before the state of one of its queue pairs changes, at either end.
    #[inline]
    pub(super) fn take_home_client_of(&mut self, queue_pair: QpId) {
        if let Some(cq) = self.client_lent_with(queue_pair) {
            self.take_home(cq);
        }
    }

    /// Returns the state of a client's end of a queue pair that an engine serves. If a client is to go home, this function waits
    /// for the end of the engine's turn.
    #[cold]
    pub(super) fn state_on_engine(&self, queue_pair: QpId) -> Option<QpState> {
        let engines = self.engines.as_ref()?;
        let client = engines.lent.get(&self.client_lent_with(queue_pair)?)?;
        let seat = &engines.seats[client.engine];
        // An engine has only sound queue pairs, but for those of clients that it has just sent home.
        if !seat.has_leaving() {
            return Some(QpState::ReadyToSend);
        }
        seat.take().core.qps.get(queue_pair.0).map(|pair| pair.state)
    }

    /// Returns the client that an engine serves to which this end of a queue pair belongs.
    #[inline]
    pub(super) fn client_lent_with(&self, queue_pair: QpId) -> Option<u32> {
        self.engines.as_ref()?.client_of.get(&queue_pair).copied()
    }

    /// Lets the engines use the memory of a new region.
    pub(super) fn share_memory(&self, number: u32) {
        for seat in self.engines.iter().flat_map(|engines| &engines.seats) {
            seat.take().core.memories.adopt(number, self.memories[number].clone());
        }
    }

    /// Makes the engines release a memory. No engine reads it any more: [`Core::settle`] was called, or no key has named it.
    pub(super) fn unshare_memory(&self, number: u32) {
        for seat in self.engines.iter().flat_map(|engines| &engines.seats) {
            drop(seat.take().core.memories.lend(number));
        }
    }
}

/// The steps on an engine's own part of the NIC.
impl<M: Bytes> Core<M> {
    /// Begins to serve a queue pair of a client.
    fn settle_in(&mut self, id: QpId, mut pair: Box<QueuePair<M>>) {
        pair.blocked = 0;
        self.qps.adopt(id.0, pair);
        self.schedule.add_hot(id);
    }

    /// Ends to serve a queue pair, and returns it.
    fn move_out(&mut self, id: QpId) -> Box<QueuePair<M>> {
        let mut pair = self.qps.lend(id.0).expect("a queue pair of the client");
        pair.come_home();
        pair
    }

    /// Sends a client home that the engine cannot serve now: the NIC's thread takes the client when it sees this.
    pub(super) fn send_home(&mut self, cq: u32) {
        self.on_engine.as_mut().expect("only an engine sends clients home").add_leaving(cq);
    }

    /// Notes that `checks` of an engine in a row have found a client at work. With none the client goes home.
    fn note_work(&mut self, cq: u32, checks: u32) {
        if checks == 0 {
            self.send_home(cq);
        } else if checks >= STEADY_AFTER_CHECKS {
            self.cqs.get_mut(cq).expect("it is here").busy_after = BUSY_AFTER_VISITS;
        }
    }
}

impl<M> CompletionQueue<M> {
    /// Whether all queue pairs with this completion queue are a client's ends of data queue pairs.
    fn is_only_for_data(&self) -> bool {
        // Each queue pair uses the completion queue twice: for sends and for receives.
        !self.members.is_empty() && self.users as usize == 2 * self.members.len()
    }
}
