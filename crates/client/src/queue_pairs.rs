//! Work requests on the data queue pairs: posting, completion, and the switch to a spare (Patronus §5.5).
//!
//! One queue pair is active at a time, so requests reach the node in the order in which they were begun. When the
//! active queue pair breaks, the guilty request gets its error. The requests before it have succeeded. The requests
//! behind it were not executed: they go to the front of the backlog and from there, in order, to the next queue pair.
//! A request that is linked to the one before it goes only if that one goes or was carried out.
//!
//! A queue pair that breaks for lack of an answer is different: its requests may still be on their way, and the node's
//! end may still execute them. Until the node has answered the request for the rebuild, the client posts no other
//! request and reports no end of the writes and atomics in doubt. The node stops its end before it answers.

use crate::access::Action;
use crate::carrier::{Carrier, LINKS_NOTHING, Link, Outgoing, Posting};
use crate::operations::{Operations, slot_of};
use crate::{ClientConfig, Error};
use portcullis_nic::{
    Completion, DataQueuePairs, EndpointSize, LocalSpan, Memory, Operation as Verb, QpId, RemoteSpan, Status,
    VerbsEndpoint, WorkRequest,
};
use portcullis_planted::planted;
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, Credential, GROUP_QUEUE_PAIRS_MAX, Moment, Rkey};
use std::collections::VecDeque;

/// The least number of signalled requests in a full queue, so that room is freed in time.
const SIGNALS_PER_DEPTH: usize = 4;

/// The keys of an operation, one for each queue pair.
type QueuePairKeys = [Rkey; GROUP_QUEUE_PAIRS_MAX];

/// Counters of broken queue pairs and of the cost of the breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Number of times that another queue pair took over.
    pub switches: u64,
    /// Requests that were flushed and posted again.
    pub replayed: u64,
    /// Rebuilds that the client requested from the node.
    pub rebuilds_asked: u64,
    /// Queue pairs that the node rebuilt.
    pub recoveries: u64,
}

impl Counters {
    /// Adds two sets of counters.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            switches: self.switches + other.switches,
            replayed: self.replayed + other.replayed,
            rebuilds_asked: self.rebuilds_asked + other.rebuilds_asked,
            recoveries: self.recoveries + other.recoveries,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum QueuePairState {
    /// Idle or active.
    Ready,
    /// In error; this many flush completions have not arrived yet.
    Draining(usize),
    /// Empty after an error; the client may request a rebuild from this moment on.
    Drained(Moment),
    /// Empty; the client has requested the rebuild.
    Rebuilding,
    /// The node will not rebuild it.
    Lost,
}

struct DataQueuePair {
    state: QueuePairState,
    /// Requests that are posted and not known to have ended, in order.
    flights: VecDeque<WorkRequest>,
    /// Requests posted since the last signalled one.
    unsignalled: usize,
}

/// The end, or the further way, of a request whose queue pair has broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It was not executed, and is posted again.
    Again,
    /// It was not carried out, and has ended with this error.
    Ended(Error),
    /// It may have been executed.
    InDoubt,
}

/// Writes and atomics without an answer. The node may execute them until it has stopped its end of their queue pair.
struct Doubt {
    queue_pair: u32,
    operations: Vec<u64>,
}

/// The data queue pairs of a client and the requests that wait for them.
pub(crate) struct QueuePairs {
    /// The endpoint's number of the first queue pair. Elsewhere here the queue pairs are numbered from zero.
    first: u32,
    /// The keys of the operation in each slot, one key for each queue pair. Empty until an operation has keys that work
    /// on one queue pair only.
    keys: Vec<QueuePairKeys>,
    pairs: Vec<DataQueuePair>,
    active: Option<u32>,
    /// The queue pair that was active last.
    previous: Option<u32>,
    backlog: VecDeque<WorkRequest>,
    /// Requests of a batch that is being collected.
    staged: Vec<WorkRequest>,
    doubt: Option<Doubt>,
    depth: usize,
    signal_every: usize,
    config: ClientConfig,
    counters: Counters,
}

impl QueuePairs {
    /// Makes the carrier on the data queue pairs, if the endpoint has some.
    pub(crate) fn data(endpoint: &mut impl VerbsEndpoint, config: ClientConfig) -> Option<Self> {
        let count = endpoint.size().data_queue_pairs;
        Self::new(endpoint, (0, count), config)
    }

    /// Makes the carrier on the queue pairs for accesses to chunks, if the endpoint has some.
    pub(crate) fn chunks(endpoint: &mut impl VerbsEndpoint, config: ClientConfig) -> Option<Self> {
        let EndpointSize { data_queue_pairs, chunk_queue_pairs, .. } = endpoint.size();
        // A chunk has no windows for more queue pairs.
        let count = chunk_queue_pairs.min(u32::try_from(CHUNK_QUEUE_PAIRS).unwrap_or(u32::MAX));
        Self::new(endpoint, (data_queue_pairs, count), config)
    }

    fn new(
        endpoint: &mut impl VerbsEndpoint,
        (first, count): (u32, u32),
        config: ClientConfig,
    ) -> Option<Self> {
        if count == 0 || endpoint.data_queue_pairs().is_none() {
            return None;
        }
        let depth = usize::try_from(endpoint.size().send_depth).unwrap_or(usize::MAX);
        let pair = |_| DataQueuePair {
            state: QueuePairState::Ready,
            flights: VecDeque::with_capacity(depth.min(1 << 16)),
            unsignalled: 0,
        };
        let mut flights = Self {
            first,
            keys: Vec::new(),
            pairs: (0..count).map(pair).collect(),
            active: None,
            previous: None,
            backlog: VecDeque::with_capacity(config.backlog_max.min(1 << 16)),
            staged: Vec::new(),
            doubt: None,
            depth,
            signal_every: (depth / SIGNALS_PER_DEPTH).max(1),
            config,
            counters: Counters::default(),
        };
        flights.promote();
        Some(flights)
    }

    /// Returns whether the queue pair belongs to this carrier.
    #[inline]
    pub(crate) fn has(&self, queue_pair: QpId) -> bool {
        self.place_of(queue_pair) < self.pairs.len()
    }

    #[inline]
    fn place_of(&self, queue_pair: QpId) -> usize {
        queue_pair.0.wrapping_sub(self.first) as usize
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns how many more requests can be taken in now.
    fn room(&self) -> usize {
        let pair = if self.backlog.is_empty() { self.room_of_active() } else { 0 };
        self.room_of_backlog().saturating_add(pair)
    }

    fn room_of_backlog(&self) -> usize {
        self.config.backlog_max.saturating_sub(self.backlog.len())
    }

    /// Returns whether there is room for one more staged request.
    #[inline]
    fn has_room(&self) -> bool {
        self.staged.len() < self.room_of_backlog() || self.staged.len() < self.room()
    }

    fn room_of_active(&self) -> usize {
        self.active.map_or(0, |active| self.depth.saturating_sub(self.pairs[active as usize].flights.len()))
    }

    /// Posts one signalled request, or puts it into the backlog.
    #[inline]
    fn submit(&mut self, endpoint: &mut impl VerbsEndpoint, request: WorkRequest) -> Result<(), Error> {
        if self.backlog.is_empty()
            && let Some(active) = self.active
        {
            let pair = &mut self.pairs[active as usize];
            if pair.flights.len() < self.depth
                && data_queue_pairs(endpoint).post(self.first + active, std::slice::from_ref(&request)) == 1
            {
                pair.unsignalled = 0;
                pair.flights.push_back(request);
                return Ok(());
            }
        }
        if self.backlog.len() >= self.config.backlog_max {
            return Err(self.config.backlog_full());
        }
        self.backlog.push_back(request);
        Ok(())
    }

    /// Posts requests with one doorbell as far as there is room; the rest waits in the backlog. The caller has checked
    /// [`QueuePairs::room`].
    fn submit_all(&mut self, endpoint: &mut impl VerbsEndpoint, requests: &mut [WorkRequest]) {
        let mut posted = 0;
        if self.backlog.is_empty()
            && let Some(active) = self.active
        {
            let most = self.room_of_active().min(requests.len());
            if let Some(last) = requests[..most].last_mut() {
                // The requests that wait behind the last one may expire, and would then report no completion.
                last.signalled = true;
            }
            rekey(&self.keys, active, &mut requests[..most]);
            let pair = &mut self.pairs[active as usize];
            posted = pair.post(endpoint, self.first + active, &mut requests[..most], self.signal_every);
            pair.flights.extend(&requests[..posted]);
        }
        self.backlog.extend(&requests[posted..]);
    }

    /// Handles a completion of a data queue pair if it reports that a request, and so all requests before it, was
    /// carried out. Returns whether it does. Earlier completions must have been handled.
    #[inline]
    pub(crate) fn succeeded<M: Memory>(
        &mut self,
        operations: &mut Operations<M>,
        completion: &Completion,
    ) -> bool {
        if completion.status != Status::Success {
            return false;
        }
        let place = self.place_of(completion.queue_pair);
        let Some(pair) = self.pairs.get_mut(place) else { return true };
        if pair.state != QueuePairState::Ready {
            return false;
        }
        pair.succeed_through(operations, completion.request);
        true
    }

    /// Handles any completion of a data queue pair.
    pub(crate) fn completed<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        now: Moment,
        completion: &Completion,
    ) {
        if self.succeeded(&mut link.operations, completion) {
            return;
        }
        let place = self.place_of(completion.queue_pair);
        let Some(pair) = self.pairs.get_mut(place) else { return };
        match pair.state {
            QueuePairState::Ready => {
                if pair.succeed_before(&mut link.operations, completion.request) {
                    self.broke(link, now, completion);
                }
            }
            QueuePairState::Draining(left) => {
                pair.state =
                    if left <= 1 { QueuePairState::Drained(now) } else { QueuePairState::Draining(left - 1) };
            }
            QueuePairState::Drained(_) | QueuePairState::Rebuilding | QueuePairState::Lost => {}
        }
    }

    /// Handles the failure of the request at the head of the active queue pair.
    fn broke<E: VerbsEndpoint>(&mut self, link: &mut Link<E>, now: Moment, completion: &Completion) {
        let place = self.place_of(completion.queue_pair);
        let pair = &mut self.pairs[place];
        let flushes = pair.flights.len() - 1;
        let uncertain = completion.status == Status::RetryExceededError;
        let flights: Vec<_> = pair.flights.drain(..).collect();
        pair.unsignalled = 0;
        pair.state =
            if flushes == 0 { QueuePairState::Drained(now) } else { QueuePairState::Draining(flushes) };
        let (mut in_doubt, mut again) = (Vec::new(), Vec::new());
        let mut fate = Fate::Again;
        for (place, flight) in flights.into_iter().enumerate() {
            let is_guilty = place == 0 && completion.status != Status::FlushError;
            fate = if !is_guilty {
                fate_behind(&mut link.operations, &flight, (fate, uncertain), now)
            } else if uncertain && !is_read(&flight) {
                Fate::InDoubt
            } else {
                Fate::Ended(link.operations.fail(flight.id, now, completion.status))
            };
            match fate {
                Fate::Again => again.push(flight),
                Fate::Ended(_) => {}
                Fate::InDoubt => in_doubt.push(flight.id),
            }
        }
        match fate {
            Fate::Again => {}
            Fate::Ended(error) => self.end_linked(&mut link.operations, error),
            Fate::InDoubt => {
                // Whether they may be carried out is not known either, and they have not been posted.
                let is_linked = |next: &mut WorkRequest| link.operations.is_linked(next.id);
                in_doubt.extend(std::iter::from_fn(|| Some(self.backlog.pop_front_if(is_linked)?.id)));
            }
        }
        self.counters.replayed += again.len() as u64;
        for mut flight in again.into_iter().rev() {
            // The signalled request that would have reported for this one is gone with the old queue pair.
            flight.signalled |= self.backlog.is_empty();
            self.backlog.push_front(flight);
        }
        if !in_doubt.is_empty() {
            self.doubt = Some(Doubt { queue_pair: completion.queue_pair.0, operations: in_doubt });
        }
        if planted!(DoubtNotAwaited) {
            self.end_doubt(&mut link.operations);
        }
        self.promote();
        self.pump(link, now);
    }

    /// Ends the requests in doubt: they will get no answer, and the node executes no more of them.
    fn end_doubt<M: Memory>(&mut self, operations: &mut Operations<M>) {
        for id in self.doubt.take().into_iter().flat_map(|doubt| doubt.operations) {
            operations.finish(id, Err(Error::Interrupted));
        }
    }

    /// Makes a ready queue pair the active one, if there is one and no request is in doubt. Otherwise a request in
    /// doubt could be executed after a request that is posted now.
    fn promote(&mut self) {
        let ready =
            self.pairs[..self.candidates()].iter().position(|pair| pair.state == QueuePairState::Ready);
        let ready = ready.filter(|_| self.doubt.is_none());
        let next = ready.and_then(|index| u32::try_from(index).ok());
        if let Some(next) = next {
            let switched = self.previous.is_some_and(|previous| previous != next);
            self.counters.switches += u64::from(switched);
            self.previous = Some(next);
        }
        self.active = next;
    }

    fn candidates(&self) -> usize {
        if self.config.use_spares { self.pairs.len() } else { self.pairs.len().min(1) }
    }
}

impl QueuePairs {
    /// Returns the key for an access on the active queue pair. Keeps the keys for the other queue pairs, for a replay.
    #[inline(always)]
    fn key_for(&mut self, Outgoing { operation, access, .. }: Outgoing<'_>) -> Rkey {
        match *access.credential {
            Credential::Keys { buffer, .. } if self.keys.is_empty() => buffer,
            Credential::Keys { buffer, .. } => self.keep_keys(operation, &[buffer; GROUP_QUEUE_PAIRS_MAX]),
            Credential::Group(ref group) => self.keep_keys(operation, group.keys()),
            Credential::Chunk(keys) => {
                let mut all = [Rkey(0); GROUP_QUEUE_PAIRS_MAX];
                all[..CHUNK_QUEUE_PAIRS].copy_from_slice(&keys);
                self.keep_keys(operation, &all)
            }
            Credential::RegionKey { .. } | Credential::Node => {
                unreachable!("accesses without keys go another way")
            }
        }
    }
}

impl QueuePairs {
    /// Keeps an operation's keys, and returns the one for the active queue pair.
    #[inline]
    fn keep_keys(&mut self, operation: u64, keys: &QueuePairKeys) -> Rkey {
        if self.keys.is_empty() {
            let places = self.config.operations_max as usize;
            self.keys = vec![[Rkey(0); GROUP_QUEUE_PAIRS_MAX]; places];
        }
        self.keys[slot_of(operation)] = *keys;
        key_on(keys, self.active.unwrap_or(0))
    }
}

/// Rebuilds, by which broken queue pairs become spares again.
impl QueuePairs {
    /// Returns a queue pair whose rebuild the client is to request now.
    pub(crate) fn to_rebuild(&self, now: Moment) -> Option<u32> {
        let due = |pair: &DataQueuePair| matches!(pair.state, QueuePairState::Drained(from) if from <= now);
        self.pairs.iter().position(due).and_then(|index| u32::try_from(index).ok()).map(|it| it + self.first)
    }

    /// Returns the moment of the next request for a rebuild, if any is due.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        let from = |pair: &DataQueuePair| match pair.state {
            QueuePairState::Drained(from) => Some(from),
            _ => None,
        };
        self.pairs.iter().filter_map(from).min()
    }

    fn pair_mut(&mut self, queue_pair: u32) -> &mut DataQueuePair {
        let place = self.place_of(QpId(queue_pair));
        &mut self.pairs[place]
    }

    /// Notes that the client has requested the rebuild.
    pub(crate) fn rebuilding(&mut self, index: u32) {
        self.counters.rebuilds_asked += 1;
        self.pair_mut(index).state = QueuePairState::Rebuilding;
    }

    /// Notes that the node has answered the request for a rebuild, whatever the answer: its end of the queue pair has
    /// stopped.
    pub(crate) fn stopped<E: VerbsEndpoint>(&mut self, link: &mut Link<E>, index: u32, now: Moment) {
        if self.doubt.as_ref().is_some_and(|doubt| doubt.queue_pair == index) {
            self.end_doubt(&mut link.operations);
            self.promote();
            self.pump(link, now);
        }
    }

    /// Notes that the node will rebuild the queue pair, but not before `from`.
    pub(crate) fn ask_again(&mut self, index: u32, from: Moment) {
        self.pair_mut(index).state = QueuePairState::Drained(from);
    }

    /// Notes that the node has rebuilt a queue pair. The queue pair is a spare again, or becomes active if no other is.
    pub(crate) fn rebuilt<E: VerbsEndpoint>(&mut self, link: &mut Link<E>, index: u32, now: Moment) {
        data_queue_pairs(&mut link.endpoint).rebuilt(index);
        self.pair_mut(index).state = QueuePairState::Ready;
        self.counters.recoveries += 1;
        if self.active.is_none() {
            self.promote();
            self.pump(link, now);
        }
    }

    /// Notes that the node will never rebuild a queue pair. Returns whether no queue pair is left that could ever carry
    /// requests.
    pub(crate) fn lost(&mut self, index: u32) -> bool {
        self.pair_mut(index).state = QueuePairState::Lost;
        self.pairs[..self.candidates()].iter().all(|pair| pair.state == QueuePairState::Lost)
    }
}

impl<E: VerbsEndpoint> Carrier<E> for QueuePairs {
    #[inline]
    fn take_in(&mut self, link: &mut Link<E>, begun: Outgoing<'_>, posting: Posting) -> Result<(), Error> {
        // The last staged request is marked as signalled when they are posted.
        let request = work_request(begun, self.key_for(begun), posting == Posting::AtOnce);
        match posting {
            Posting::AtOnce => self.submit(&mut link.endpoint, request),
            Posting::Staged if !self.has_room() => Err(self.config.backlog_full()),
            Posting::Staged => {
                self.staged.push(request);
                Ok(())
            }
            Posting::Linked(before) => self.stage_linked(link, request, before),
        }
    }

    fn send_staged(&mut self, link: &mut Link<E>) {
        let mut staged = std::mem::take(&mut self.staged);
        if let Some(last) = staged.last_mut() {
            last.signalled = true;
            self.submit_all(&mut link.endpoint, &mut staged);
            staged.clear();
        }
        self.staged = staged;
    }

    fn cancel_staged(&mut self, link: &mut Link<E>) {
        for request in self.staged.drain(..) {
            link.operations.cancel(request.id);
        }
    }

    fn is_backed_up(&self) -> bool {
        !self.backlog.is_empty() && self.room_of_active() > 0
    }

    fn pump(&mut self, link: &mut Link<E>, now: Moment) {
        while let Some(active) = self.active {
            let room = self.room_of_active();
            if room == 0 {
                return;
            }
            while let Some(waiting) = self.backlog.front()
                && link.operations.has_expired(waiting.id, now)
            {
                link.operations.finish(waiting.id, Err(Error::Expired));
                self.backlog.pop_front();
                self.end_linked(&mut link.operations, Error::Expired);
            }
            let (first, _) = self.backlog.as_mut_slices();
            let live =
                first.iter().take(room).take_while(|waiting| !link.operations.has_expired(waiting.id, now));
            let most = live.count();
            if most == 0 {
                return;
            }
            // The signalled request behind these may have expired.
            first[most - 1].signalled = true;
            rekey(&self.keys, active, &mut first[..most]);
            let pair = &mut self.pairs[active as usize];
            let posted =
                pair.post(&mut link.endpoint, self.first + active, &mut first[..most], self.signal_every);
            pair.flights.extend(self.backlog.drain(..posted));
            if posted < most {
                return;
            }
        }
    }

    fn clear(&mut self) {
        self.staged.clear();
        self.backlog.clear();
        self.doubt = None;
        self.active = None;
        for pair in &mut self.pairs {
            pair.flights.clear();
            pair.state = QueuePairState::Lost;
        }
    }
}

impl QueuePairs {
    /// Stages a request that is carried out only if the one that was staged directly before it, `before`, is.
    fn stage_linked<E: VerbsEndpoint>(
        &mut self,
        link: &mut Link<E>,
        request: WorkRequest,
        before: u64,
    ) -> Result<(), Error> {
        if self.staged.last().is_none_or(|last| last.id != before) {
            return Err(LINKS_NOTHING);
        }
        if !self.has_room() {
            return Err(self.config.backlog_full());
        }
        link.operations.link(request.id);
        self.staged.push(request);
        Ok(())
    }

    /// Ends the requests at the front of the backlog that are linked to one that was not carried out.
    fn end_linked<M: Memory>(&mut self, operations: &mut Operations<M>, error: Error) {
        while let Some(next) = self.backlog.pop_front_if(|next| operations.is_linked(next.id)) {
            operations.finish(next.id, Err(error));
        }
    }
}

impl DataQueuePair {
    /// Ends all requests before `id` as carried out. Returns whether `id` is under way: requests are known by their ids
    /// alone, and an unknown id completes nothing.
    #[inline]
    fn succeed_before<M: Memory>(&mut self, operations: &mut Operations<M>, id: u64) -> bool {
        let Some(before) = self.flights.iter().position(|flight| flight.id == id) else { return false };
        for _ in 0..before {
            let flight = self.flights.pop_front().expect("as many were counted");
            operations.succeed(flight.id);
        }
        true
    }

    /// Ends request `id` and all requests before it as carried out.
    #[inline]
    fn succeed_through<M: Memory>(&mut self, operations: &mut Operations<M>, id: u64) {
        if self.succeed_before(operations, id) {
            self.flights.pop_front();
            operations.succeed(id);
        }
    }

    /// Posts requests with one doorbell, and signals enough of them that room is freed in time.
    fn post<E: VerbsEndpoint>(
        &mut self,
        endpoint: &mut E,
        index: u32,
        requests: &mut [WorkRequest],
        signal_every: usize,
    ) -> usize {
        for request in &mut *requests {
            self.unsignalled += 1;
            request.signalled |= self.unsignalled >= signal_every;
            if request.signalled {
                self.unsignalled = 0;
            }
        }
        let posted = data_queue_pairs(endpoint).post(index, requests);
        if posted < requests.len() {
            // Requests that were left behind are counted again when they are posted.
            let behind = requests[..posted].iter().rev().take_while(|request| !request.signalled);
            self.unsignalled = behind.count();
        }
        posted
    }
}

/// The queue pairs of the endpoint on which this carrier was made.
#[inline]
fn data_queue_pairs(endpoint: &mut impl VerbsEndpoint) -> impl DataQueuePairs {
    endpoint.data_queue_pairs().expect("the endpoint of this carrier has them")
}

/// Returns what happens to a request behind the one at which its queue pair broke, and ends it if it is not to be carried
/// out. `before` is the fate of the request directly before it; `uncertain`: the node may have executed more requests than
/// the client knows.
fn fate_behind<M: Memory>(
    operations: &mut Operations<M>,
    flight: &WorkRequest,
    (before, uncertain): (Fate, bool),
    now: Moment,
) -> Fate {
    // A read can be repeated. A write must not be: if it was carried out and another client's write has followed, the
    // repetition would overwrite that.
    if uncertain && !is_read(flight) && !planted!(ExecutedReplayed) {
        return Fate::InDoubt;
    }
    let error = match before {
        Fate::InDoubt if operations.is_linked(flight.id) => return Fate::InDoubt,
        Fate::Ended(error) if operations.is_linked(flight.id) => error,
        // The node would refuse the replay, which would break the next queue pair. With many short leases under way,
        // one late access would then break all queue pairs, one after another.
        _ if operations.has_expired(flight.id, now) => Error::Expired,
        _ => return Fate::Again,
    };
    operations.finish(flight.id, Err(error));
    Fate::Ended(error)
}

/// The work request for an access.
#[inline]
fn work_request(outgoing: Outgoing<'_>, rkey: Rkey, signalled: bool) -> WorkRequest {
    let Outgoing { operation: id, local, access } = outgoing;
    let remote = RemoteSpan { address: access.address(), rkey };
    WorkRequest { id, signalled, operation: verb(access.action, local, remote) }
}

#[inline]
fn verb(action: Action, local: LocalSpan, remote: RemoteSpan) -> Verb {
    match action {
        Action::Read => Verb::Read { local, remote },
        Action::Write => Verb::Write { local, remote },
        Action::CompareAndSwap { compare, swap } => Verb::CompareAndSwap { local, remote, compare, swap },
        Action::FetchAndAdd { add } => Verb::FetchAndAdd { local, remote, add },
    }
}

/// Returns the key for one queue pair. The node makes no window groups for clients with more queue pairs than keys.
#[inline]
fn key_on(keys: &QueuePairKeys, pair: u32) -> Rkey {
    keys.get(pair as usize).copied().unwrap_or(Rkey(0))
}

/// Replaces the keys of requests by those for the active queue pair.
fn rekey(keys: &[QueuePairKeys], active: u32, requests: &mut [WorkRequest]) {
    if keys.is_empty() {
        return;
    }
    for request in requests {
        let key = key_on(&keys[slot_of(request.id)], active);
        match &mut request.operation {
            Verb::Read { remote, .. }
            | Verb::Write { remote, .. }
            | Verb::CompareAndSwap { remote, .. }
            | Verb::FetchAndAdd { remote, .. } => remote.rkey = key,
            other => unreachable!("{other:?} is no access"),
        }
    }
}

fn is_read(request: &WorkRequest) -> bool {
    matches!(request.operation, Verb::Read { .. })
}
