//! The verbs objects of a NIC, and the references between them.

use super::copy_units::CopyUnits;
use super::engines::{BUSY_AFTER_VISITS, Engines, OnEngine};
use super::keys::{KEYS_MAX, KeyTable, Target};
use super::queue_pair::{Current, QueuePair};
use super::quiescence::Awaiting;
use super::rings::{CompletionPoster, ReceiveTaker, Ring, SendTaker};
use super::schedule::{Polling, Schedule};
use super::wire::Network;
use portcullis_memory::Bytes;
use portcullis_nic::{
    Access, ChainRole, ChainVerb, CqId, Event, Lkey, Operation, PdId, QpAddress, QpChange, QpId, QpState,
    Region, RegionId, RemoteAddress, Status, VerbsError, Window, WindowId, WindowKind,
};
use portcullis_planted::planted;
use portcullis_slots::{Reuse, Slots};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The most queue pairs of a NIC.
pub const QUEUE_PAIRS_MAX: u32 = 1 << 16;
/// The most completion queues of a NIC.
pub const COMPLETION_QUEUES_MAX: u32 = 1 << 15;
/// The most protection domains of a NIC.
pub const DOMAINS_MAX: u32 = 1 << 14;
/// Reuse of the numbers of domains, completion queues and memories: freed numbers wait as long as there are unused
/// ones.
const RESTING: Reuse = Reuse::OldestFirst { resting: 16 };
const QUEUE_PAIRS_RESTING: Reuse = Reuse::OldestFirst { resting: 64 };
/// Distance between the first connections of two queue pairs: after so many connections a queue pair could be taken for
/// the one made next.
const CONNECTIONS_APART: u32 = 1 << 10;
/// The most events kept for an owner that does not poll them.
const EVENTS_MAX: usize = 1 << 16;

/// A software NIC over memory `M`. A clone is the NIC at that moment, over the same memory. Clones are for exhaustive
/// exploration of the orders of its steps, which restores the memory's contents itself.
#[derive(Clone, Debug)]
pub struct Core<M> {
    pub(super) keys: KeyTable,
    /// The memories, one for each region.
    pub(super) memories: Slots<u32, M>,
    domains: Slots<u32, Domain>,
    pub(super) cqs: Slots<u32, CompletionQueue<M>>,
    /// The queue pairs. A queue pair is taken out while it is served, so that its peer can be reached.
    pub(super) qps: Slots<u32, Box<QueuePair<M>>>,
    pub(super) schedule: Schedule,
    pub(super) events: VecDeque<Event>,
    /// Completion queues that got completions since the owner last polled this list.
    pub(super) touched: Vec<u32>,
    pub(super) network: Option<Network>,
    /// The units that copy long transfers, if the owner has provided some.
    pub(super) copy_units: Option<CopyUnits<M>>,
    /// The engines that serve busy clients, if the owner has provided some.
    pub(super) engines: Option<Engines<M>>,
    /// Whether steps have to look at other threads: these work for the NIC, or this is an engine's part of it.
    pub(super) has_threads: bool,
    /// If this is an engine's part of a NIC: which requests it carries out, and which clients are to leave it.
    pub(super) on_engine: Option<OnEngine>,
    /// Queue pairs that are rung when other threads have passed a moment.
    pub(super) awaiting: Awaiting,
    /// The completion queues of clients that have become busy.
    pub(super) busy: Vec<u32>,
    /// The first connection number of the next queue pair.
    connections: u32,
}

/// The numbers of objects of each kind on a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Protection domains.
    pub domains: usize,
    /// Regions and windows.
    pub keys: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
}

#[derive(Clone, Debug, Default)]
struct Domain {
    users: u32,
}

#[derive(Clone, Debug)]
pub(super) struct CompletionQueue<M> {
    pub kind: CqKind<M>,
    /// Number of times that queue pairs use this queue.
    pub users: u32,
    /// The queue pairs without receives whose poster is a client and whose requests complete here.
    pub members: Vec<QpId>,
    /// The client that waits for completions of this queue.
    pub sleeper: Option<Arc<dyn Sleeper>>,
    /// Number of visits to the client's queue pairs in which requests were executed, modulo 2^32.
    pub visits: u32,
    /// Number of such visits on the NIC's thread since the client last came from an engine.
    pub visits_at_home: u32,
    /// Number of visits at home after which the client counts as busy.
    pub busy_after: u32,
    /// Whether completions were posted since the owner last polled the list of such queues.
    pub touched: bool,
    /// The bytes that this queue's client may still move in `round`, the round in which it was last served.
    pub work_left: u32,
    pub round: u64,
    /// Number of pieces of this queue's client that copy units have not moved yet.
    pub moving: u32,
    /// The turn in which this queue's client last had pieces for copy units.
    pub handed_over_in: u64,
}

/// A client that sleeps until it gets a completion.
pub trait Sleeper: Debug + Send + Sync {
    /// Wakes the client if it sleeps.
    fn wake_client(&self);
}

/// The two kinds of completion queue.
#[derive(Clone, Debug)]
pub(super) enum CqKind<M> {
    /// The queue holds completions for a poller.
    Entries(CompletionPoster<M>),
    /// The queue counts successful completions.
    Counting(Counter),
}

impl<M: Bytes> CompletionQueue<M> {
    #[inline]
    pub fn has_room(&mut self) -> bool {
        match &mut self.kind {
            CqKind::Entries(poster) => poster.has_room(1),
            CqKind::Counting(_) => true,
        }
    }
}

/// The count of a counting completion queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Counter {
    count: u32,
    /// Queue pairs that may wait for a count, by the count. Some may not wait any more: ringing those is harmless.
    pub waiters: BTreeSet<(u32, u32)>,
}

impl Counter {
    /// Whether the count has reached `threshold`. Counts wrap, so half of all numbers count as reached at any time.
    pub fn has_reached(&self, threshold: u32) -> bool {
        self.count.wrapping_sub(threshold) < 1 << 31
    }

    /// Counts a completion. Returns the queue pairs that waited for this count.
    pub fn add_one(&mut self) -> Vec<QpId> {
        self.count = self.count.wrapping_add(1);
        let reached = (self.count, 0)..=(self.count, u32::MAX);
        let reached: Vec<_> = self.waiters.extract_if(reached, |_| true).collect();
        reached.into_iter().map(|(_, waiter)| QpId(waiter)).collect()
    }
}

/// The rings of a queue pair, and its completion queues.
#[derive(Debug)]
pub struct QpRings<M> {
    /// The ring of its send queue.
    pub send: Ring<M>,
    /// The ring of its receive queue, if it has one.
    pub receive: Option<Ring<M>>,
    /// The completion queue of its send queue.
    pub send_cq: u32,
    /// The completion queue of its receive queue.
    pub receive_cq: u32,
    /// The number that its completions carry. `None`: the queue pair's own number.
    pub label: Option<QpId>,
    /// Whether the NIC has to check the queue pair without a doorbell: its poster is another process.
    pub polled: bool,
    /// The features of the queue pair beyond verbs.
    pub role: ChainRole,
}

/// The ring of a completion queue, and the counter of the polling end.
#[derive(Debug)]
pub struct CqRing<M> {
    /// The ring.
    pub ring: Ring<M>,
    /// The offset in that memory at which the polling end writes the number of completions that it has polled.
    pub cell: u64,
}

impl<M: Bytes> Default for Core<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Bytes> Core<M> {
    /// Makes a NIC without objects.
    #[must_use]
    pub fn new() -> Self {
        Self {
            keys: KeyTable::default(),
            memories: Slots::new(RESTING, KEYS_MAX),
            domains: Slots::new(RESTING, DOMAINS_MAX),
            cqs: Slots::new(RESTING, COMPLETION_QUEUES_MAX),
            qps: Slots::new(QUEUE_PAIRS_RESTING, QUEUE_PAIRS_MAX),
            schedule: Schedule::default(),
            events: VecDeque::new(),
            touched: Vec::new(),
            network: None,
            copy_units: None,
            engines: None,
            has_threads: false,
            on_engine: None,
            awaiting: Awaiting::default(),
            busy: Vec::new(),
            connections: 0,
        }
    }

    /// Returns the numbers of objects on this NIC.
    #[must_use]
    pub fn objects(&self) -> ObjectCounts {
        ObjectCounts {
            domains: self.domains.len(),
            keys: self.keys.len(),
            completion_queues: self.cqs.len(),
            queue_pairs: self.qps.len(),
        }
    }

    /// Creates a protection domain: see [`portcullis_nic::Nic::allocate_pd`].
    ///
    /// # Errors
    /// There are no more domains.
    pub fn allocate_pd(&mut self) -> Result<PdId, VerbsError> {
        let domain = self.domains.try_insert(Domain::default());
        domain.map(PdId).map_err(|_| exhausted("protection domains", DOMAINS_MAX))
    }

    /// Destroys a protection domain: see [`portcullis_nic::Nic::deallocate_pd`].
    ///
    /// # Errors
    /// The domain is unknown or in use.
    pub fn deallocate_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        if self.domain(pd)?.users > 0 {
            return Err(VerbsError::Busy {
                what: "protection domain",
                by: "memory region, memory window or queue pair",
            });
        }
        self.domains.remove(pd.0);
        Ok(())
    }

    fn domain(&mut self, pd: PdId) -> Result<&mut Domain, VerbsError> {
        self.domains.get_mut(pd.0).ok_or(VerbsError::NoSuch { what: "protection domain" })
    }

    fn leave_domain(&mut self, pd: PdId) {
        if let Ok(domain) = self.domain(pd) {
            domain.users -= 1;
        }
    }

    /// Registers a region: see [`portcullis_nic::Nic::register_region`].
    ///
    /// # Errors
    /// The span or the access flags make no sense, or a limit is reached.
    pub fn register_region(
        &mut self,
        pd: PdId,
        memory: &M,
        span: Range<u64>,
        base: RemoteAddress,
        access: Access,
    ) -> Result<Region, VerbsError> {
        self.domain(pd)?;
        if span.is_empty() || span.end > memory.length() {
            return Err(VerbsError::Invalid("a region is a span of bytes inside its memory"));
        }
        let length = span.end - span.start;
        if base.checked_add(length).is_none() {
            return Err(VerbsError::Invalid("a region's addresses do not wrap"));
        }
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(VerbsError::Invalid("remote write and atomic rights need local write"));
        }
        let number = self.memories.try_insert(memory.clone());
        let number = number.map_err(|_| exhausted("registered memories", KEYS_MAX))?;
        // The engines have the memory before a client can show them the key, which it may have guessed.
        self.share_memory(number);
        let target = Target { memory: number, offset: span.start };
        let rkey = match self.keys.register(pd, target, base, length, access) {
            Ok(rkey) => rkey,
            Err(error) => {
                self.unshare_memory(number);
                self.memories.remove(number);
                return Err(error);
            }
        };
        self.domain(pd)?.users += 1;
        Ok(Region { id: RegionId(rkey.index()), lkey: Lkey(rkey.0), rkey })
    }

    /// Deregisters a region: see [`portcullis_nic::Nic::deregister_region`].
    ///
    /// # Errors
    /// The region is unknown, or windows are bound over it.
    pub fn deregister_region(&mut self, region: RegionId) -> Result<(), VerbsError> {
        let (memory, pd) = self.keys.deregister(region)?;
        self.settle();
        self.release_piece_memories();
        self.unshare_memory(memory);
        self.memories.remove(memory);
        self.leave_domain(pd);
        Ok(())
    }

    /// Allocates a window: see [`portcullis_nic::Nic::allocate_window`].
    ///
    /// # Errors
    /// The domain is unknown, or there are no more windows.
    pub fn allocate_window(&mut self, pd: PdId, kind: WindowKind) -> Result<Window, VerbsError> {
        self.domain(pd)?;
        let rkey = self.keys.allocate(pd, kind)?;
        self.domain(pd)?.users += 1;
        Ok(Window { id: WindowId(rkey.index()), rkey })
    }

    /// Deallocates a window: see [`portcullis_nic::Nic::deallocate_window`].
    ///
    /// # Errors
    /// The window is unknown.
    pub fn deallocate_window(&mut self, window: WindowId) -> Result<(), VerbsError> {
        let pd = self.keys.deallocate(window)?;
        // The invalidation of a window that is not bound may still be held.
        self.settle();
        self.leave_domain(pd);
        Ok(())
    }

    /// Creates a completion queue in memory that its poller shares.
    ///
    /// # Errors
    /// There are no more completion queues.
    pub fn create_cq(&mut self, ring: CqRing<M>) -> Result<u32, VerbsError> {
        self.add_cq(CqKind::Entries(CompletionPoster::new(ring.ring, ring.cell)))
    }

    /// Sets the client that waits for completions of a queue.
    ///
    /// # Panics
    /// The completion queue is unknown, or an engine serves its client.
    pub fn set_sleeper(&mut self, cq: u32, sleeper: Arc<dyn Sleeper>) {
        self.cqs.get_mut(cq).expect("a completion queue of the NIC's thread").sleeper = Some(sleeper);
    }

    /// Creates a counting completion queue: see [`portcullis_nic::ChainNic::create_counting_cq`].
    ///
    /// # Errors
    /// There are no more completion queues.
    pub fn create_counting_cq(&mut self) -> Result<u32, VerbsError> {
        self.add_cq(CqKind::Counting(Counter::default()))
    }

    fn add_cq(&mut self, kind: CqKind<M>) -> Result<u32, VerbsError> {
        let queue = CompletionQueue {
            kind,
            users: 0,
            members: Vec::new(),
            sleeper: None,
            visits: 0,
            visits_at_home: 0,
            busy_after: BUSY_AFTER_VISITS,
            touched: false,
            work_left: 0,
            round: 0,
            moving: 0,
            handed_over_in: 0,
        };
        self.cqs.try_insert(queue).map_err(|_| exhausted("completion queues", COMPLETION_QUEUES_MAX))
    }

    pub(super) fn counter_mut(&mut self, cq: u32) -> Option<&mut Counter> {
        match &mut self.cqs.get_mut(cq)?.kind {
            CqKind::Counting(counter) => Some(counter),
            CqKind::Entries(_) => None,
        }
    }

    /// Returns the count of a counting completion queue: see [`portcullis_nic::ChainNic::completions_counted`].
    ///
    /// # Errors
    /// The completion queue is unknown, or is not a counting one.
    pub fn completions_counted(&self, cq: u32) -> Result<u32, VerbsError> {
        match self.cqs.get(cq).map(|queue| &queue.kind) {
            Some(CqKind::Counting(counter)) => Ok(counter.count),
            _ => Err(VerbsError::NoSuch { what: "counting completion queue" }),
        }
    }

    /// Destroys a completion queue: see [`portcullis_nic::Nic::destroy_cq`].
    ///
    /// # Errors
    /// The completion queue is unknown or in use.
    pub fn destroy_cq(&mut self, cq: u32) -> Result<(), VerbsError> {
        let queue = self.cqs.get(cq).ok_or(VerbsError::NoSuch { what: "completion queue" })?;
        if queue.users > 0 {
            return Err(VerbsError::Busy { what: "completion queue", by: "queue pair" });
        }
        if let Some(CqKind::Counting(counter)) = self.cqs.remove(cq).map(|queue| queue.kind) {
            counter.waiters.into_iter().for_each(|(_, waiter)| self.fail_wait(QpId(waiter), CqId(cq)));
        }
        Ok(())
    }

    /// Fails the request of `waiter`, if it still waits for the completion queue `gone`, which was destroyed.
    fn fail_wait(&mut self, waiter: QpId, gone: CqId) {
        let Some(mut pair) = self.qps.lend(waiter.0) else { return };
        let waits = |current: &Current| matches!(current.operation(), Some(Operation::Chain(ChainVerb::Wait { cq, .. })) if cq == gone);
        // Behind requests whose completions are held the request waits for its turn, and fails then.
        if pair.state == QpState::ReadyToSend
            && pair.held.is_empty()
            && let Some(current) = pair.current.take_if(|current| waits(current))
        {
            pair.send.advance();
            let taken = pair.send.taken();
            self.fail(waiter, &mut pair, &current, Status::LocalQpOperationError, taken);
        }
        self.qps.give_back(waiter.0, pair);
    }

    /// Creates a queue pair whose rings are shared with its poster, in RESET.
    ///
    /// # Errors
    /// The domain or a completion queue is unknown, or there are no more queue pairs.
    pub fn create_qp(&mut self, pd: PdId, rings: QpRings<M>) -> Result<QpId, VerbsError> {
        self.domain(pd)?;
        for cq in [rings.send_cq, rings.receive_cq] {
            self.cqs.get(cq).ok_or(VerbsError::NoSuch { what: "completion queue" })?;
        }
        let id = self.qps.next_key().map(QpId);
        let id = id.ok_or_else(|| exhausted("queue pairs", QUEUE_PAIRS_MAX))?;
        for cq in [rings.send_cq, rings.receive_cq] {
            if let Some(queue) = self.cqs.get_mut(cq) {
                queue.users += 1;
            }
        }
        self.domain(pd)?.users += 1;
        if rings.polled
            && rings.receive.is_none()
            && let Some(queue) = self.cqs.get_mut(rings.send_cq)
        {
            queue.members.push(id);
        }
        let connections = self.next_connection();
        self.qps.insert(Box::new(QueuePair {
            pd,
            state: QpState::Reset,
            access: Access::empty(),
            peer: None,
            connection: None,
            connections,
            rnr_retries: 0,
            send_cq: rings.send_cq,
            receive_cq: rings.receive_cq,
            send: if rings.role.managed_send {
                SendTaker::managed(rings.send)
            } else {
                SendTaker::new(rings.send)
            },
            receive: rings.receive.map(if rings.role.managed_receive {
                ReceiveTaker::managed
            } else {
                ReceiveTaker::new
            }),
            role: rings.role,
            current: None,
            moving: 0,
            held: VecDeque::new(),
            label: rings.label.unwrap_or(id),
            scheduled: false,
            polled: rings.polled.then_some(Polling::Watched),
            blocked: 0,
            stands_in: false,
        }));
        if rings.polled {
            self.schedule.add_polled(id);
        }
        Ok(id)
    }

    /// Returns the first connection number of a new queue pair: apart from those of the last queue pair with its
    /// number.
    fn next_connection(&mut self) -> u32 {
        let first = self.connections;
        self.connections = first.wrapping_add(CONNECTIONS_APART);
        first
    }

    /// Destroys a queue pair: see [`portcullis_nic::Nic::destroy_qp`].
    ///
    /// # Errors
    /// The queue pair is unknown, or a type-2 window is bound to it.
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.take_home_client_of(qp);
        self.qp(qp)?;
        if self.keys.bound_to(qp) {
            return Err(VerbsError::Busy { what: "queue pair", by: "type-2 memory window" });
        }
        if self.qp(qp)?.state != QpState::Reset {
            self.settle();
        }
        let Some(gone) = self.qps.remove(qp.0) else { return Ok(()) };
        for cq in [gone.send_cq, gone.receive_cq] {
            if let Some(queue) = self.cqs.get_mut(cq) {
                queue.users -= 1;
                queue.members.retain(|&member| member != qp);
            }
        }
        self.leave_domain(gone.pd);
        self.schedule.remove(qp);
        // Another queue pair may soon have the number, and must not get these events.
        self.events.retain(|event| event.queue_pair() != qp);
        Ok(())
    }

    pub(super) fn qp(&self, qp: QpId) -> Result<&QueuePair<M>, VerbsError> {
        self.qps.get(qp.0).map(Box::as_ref).ok_or(VerbsError::NoSuch { what: "queue pair" })
    }

    fn qp_mut(&mut self, qp: QpId) -> Result<&mut QueuePair<M>, VerbsError> {
        self.qps.get_mut(qp.0).map(Box::as_mut).ok_or(VerbsError::NoSuch { what: "queue pair" })
    }

    /// Returns a queue pair's address: see [`portcullis_nic::Nic::qp_address`].
    ///
    /// # Errors
    /// The queue pair is unknown.
    pub fn qp_address(&self, qp: QpId) -> Result<QpAddress, VerbsError> {
        Ok(self.address_of(qp, self.qp(qp)?))
    }

    /// Returns the address at which peers reach a queue pair. If all ends are on one NIC, the number is enough.
    pub(super) fn address_of(&self, id: QpId, pair: &QueuePair<M>) -> QpAddress {
        let (port, first) =
            self.network.as_ref().map_or(([0; 16], 0), |it| (it.port.address, it.port.first_packet));
        QpAddress { number: id.0, port, lid: 0, first_packet: first.wrapping_add(pair.connections) }
    }

    /// Returns a queue pair's state: see [`portcullis_nic::Nic::qp_state`].
    ///
    /// # Errors
    /// The queue pair is unknown.
    pub fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        let here = self.qp(qp).map(|pair| pair.state);
        here.or_else(|error| self.state_on_engine(qp).ok_or(error))
    }

    /// Changes a queue pair's state: see [`portcullis_nic::Nic::modify_qp`].
    ///
    /// # Errors
    /// The queue pair is unknown, or its state does not allow the step.
    pub fn modify_qp(&mut self, qp: QpId, change: QpChange) -> Result<(), VerbsError> {
        let is_kept = matches!(change, QpChange::Access { .. }) && planted!(RightsKeptOnEngine);
        if !is_kept {
            self.take_home_client_of(qp);
        }
        let networked = self.network.is_some();
        let pair = self.qp_mut(qp)?;
        if let QpChange::ReadyToReceive { peer } = change
            && pair.role.privileged
            && peer.number != qp.0
        {
            return Err(VerbsError::Invalid("a queue pair that is privileged for chains is its own peer"));
        }
        let ends_accesses = match change {
            QpChange::Reset => pair.state != QpState::Reset,
            QpChange::Error => true,
            QpChange::Access { access } => !access.contains(pair.access),
            _ => false,
        };
        // A queue pair that is its own peer needs no network.
        pair.modify(change, networked && !pair.role.privileged)?;
        if ends_accesses {
            self.settle();
        }
        if matches!(change, QpChange::Error | QpChange::ReadyToSend { .. }) {
            self.ring(qp);
        }
        Ok(())
    }

    /// Rings the doorbell of a queue pair that is not polled, since the queue pair has something to do.
    pub fn ring(&mut self, qp: QpId) {
        let Ok(pair) = self.qp_mut(qp) else { return };
        if pair.stands_in {
            return;
        }
        let is_scheduled = std::mem::replace(&mut pair.scheduled, true);
        let blocked = std::mem::take(&mut pair.blocked);
        let role = pair.role;
        if !is_scheduled {
            self.schedule.push(qp, role);
        } else if blocked > 0 {
            self.schedule.rouse(qp);
        }
    }

    /// Whether [`Core::poll_event`] has an event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event, if one happened: also on an engine, before the client of its queue pair can have sent a message
    /// that this NIC has delivered.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() && self.engines.is_some() {
            self.take_home_leaving();
        }
        self.events.pop_front()
    }

    /// Wakes the clients that got completions. Returns whether a queue that the owner polls got some.
    pub fn wake_sleepers(&mut self) -> bool {
        if self.touched.is_empty() {
            return false;
        }
        // Completions are visible before it is read whether a client sleeps.
        fence(Ordering::SeqCst);
        let mut has_news = false;
        while let Some(cq) = self.touched.pop() {
            let Some(queue) = self.cqs.get_mut(cq) else { continue };
            queue.touched = false;
            match &queue.sleeper {
                Some(client) => client.wake_client(),
                None => has_news = true,
            }
        }
        has_news
    }

    pub(super) fn raise(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }
}

pub(super) fn exhausted(what: &'static str, limit: u32) -> VerbsError {
    VerbsError::Exhausted { what, limit: limit.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_memory::Mapping;

    #[test]
    fn events_that_nobody_takes_are_kept_up_to_a_bound() {
        let mut core = Core::<Mapping>::new();
        for _ in 0..EVENTS_MAX + 2 {
            core.raise(Event::AccessError(QpId(1), None));
        }
        assert_eq!(std::iter::from_fn(|| core.poll_event()).count(), EVENTS_MAX);
    }

    #[test]
    fn queue_pairs_begin_their_connections_a_thousand_apart() {
        let mut core = Core::<Mapping>::new();
        let firsts = [core.next_connection(), core.next_connection(), core.next_connection()];
        assert!(firsts.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) >= 1000), "{firsts:?}");
    }
}
