//! The node itself: its parts, and the order of its work in a turn.

use crate::audit::{AuditEvent, AuditRecord};
use crate::books::{Bar, Books, Broken, ClientReport, Effect, Left, RequestOrigin};
use crate::chunks::OffloadedChunks;
use crate::config::{ConfigError, NodeConfig};
use crate::counters::Counters;
use crate::ends::{Ends, Rebuilt};
use crate::enforcement::{Enforcement, EnforcementOutcome, node_copy};
use crate::mailbox::{Mailbox, Received};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::{Completion, Event, Memory, Nic, QpChange, QpId, RefusedAccess, VerbsError};
use portcullis_protocol::{
    Acquire, ChunkTerms, ClientId, GrantRequest, Incarnation, Lifetime, Mechanism, Moment, QueuePairRequest,
    Refusal, Reply, ReplyBody, RequestBody, TenantId,
};

/// Number of requests that the node receives before it checks whether the turn has steps left.
const REQUESTS_AT_ONCE: usize = 8;
/// The most refused accesses that one turn charges. Requests wait until none are left.
const EVENTS_PER_TURN: u32 = 16;
/// Number of records of chunks that one turn reads.
const CHUNKS_PER_TURN: u32 = 64;
/// Time in which another thread carries out an operation of a client without queue pairs, if nothing interrupts it.
const OPERATION_TIME: Lifetime = Lifetime::micros(20);
/// Delay until the node checks again a tenant whose last windows wait for the NIC.
const LOOK_AGAIN: Lifetime = Lifetime::millis(2);

/// Reason that a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The NIC refuses.
    #[error("the NIC refuses: {0}")]
    Nic(#[from] VerbsError),
}

impl Coded for StartError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Config(error) => error.code(),
            Self::Nic(error) => error.code(),
        }
    }
}

/// A memory node: the manager of Patronus §5, over any NIC.
///
/// The node does nothing by itself: its owner calls [`Node::turn`] with the time, and lets the NIC run.
pub struct Node<N: Nic> {
    config: NodeConfig,
    incarnation: Incarnation,
    pub(crate) books: Books<N::Memory>,
    pub(crate) enforcement: Enforcement<N>,
    pub(crate) mailbox: Mailbox<N::Memory>,
    pub(crate) ends: Ends,
    /// Number of turns so far.
    turns: u64,
    /// Whether new messages had the request that is left over when a share of a turn is halved. Then the next one is of a
    /// message that waits.
    new_had_more: bool,
    /// The chunks that the NIC hands out without the CPU.
    pub(crate) chunks: Option<OffloadedChunks<N::Memory>>,
    memory: N::Memory,
    /// Number of queue pairs rebuilt.
    recoveries: u64,
    /// Clients that cannot be served any more.
    evicted: Vec<ClientId>,
    /// The moment at which operations that are awaited are checked again, if no turn comes earlier.
    operations_at: Option<Moment>,
    /// Buffer for completions, kept from turn to turn.
    completions: Vec<Completion>,
    /// Buffer for requests that are received at once, kept from turn to turn.
    received: Vec<(ClientId, Received)>,
}

impl<N: Nic> std::fmt::Debug for Node<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("config", &self.config)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl<N: Nic + 'static> Node<N> {
    /// Creates a node that lends memory of `nic`. `incarnation` is a random number that no earlier run of a node had.
    /// The node draws the next keys from `secret`, which only the node knows.
    ///
    /// # Errors
    /// The configuration makes no sense, or the NIC has no memory or queues.
    pub fn new(
        nic: &mut N,
        config: NodeConfig,
        incarnation: Incarnation,
        secret: [u8; 32],
    ) -> Result<Self, StartError> {
        config.validate()?;
        let capabilities = nic.capabilities();
        let chains = config.chains && capabilities.chains.is_all();
        let config = NodeConfig { chains, ..config }.with_room_for_chunks();
        if config.mechanism == Mechanism::MemoryWindow && !capabilities.window_type_1 {
            return Err(VerbsError::Unsupported("memory windows of type 1").into());
        }
        if config.mechanism == Mechanism::WindowGroup && !capabilities.window_type_2 {
            return Err(VerbsError::Unsupported("memory windows of type 2").into());
        }
        let memory = nic.allocate_memory(config.memory_bytes())?;
        if config.fill_memory {
            memory.zero(0, config.memory_bytes());
        }
        // On a device with shorter queues fewer clients and tenants fit.
        let depth_max = (capabilities.completion_depth_max / 2 + 1).next_power_of_two();
        let mailbox = Mailbox::new(nic, depth_max)?;
        let enforcement = Enforcement::new(nic, &config, memory.clone(), secret, depth_max)?;
        let chunks = config
            .chunks
            .filter(|_| config.chains)
            .map(|limits| OffloadedChunks::new(nic, (limits, config.chunks_ready), &config));
        Ok(Self {
            turns: 0,
            new_had_more: false,
            chunks: chunks.transpose()?,
            incarnation,
            books: Books::new(memory.clone(), config.clone(), incarnation),
            enforcement,
            mailbox,
            ends: Ends::new(capabilities.sees_peer_ends, config.recoveries_max),
            memory,
            recoveries: 0,
            evicted: Vec::new(),
            operations_at: None,
            completions: Vec::new(),
            received: Vec::new(),
            config,
        })
    }
}

impl<N: Nic> Node<N> {
    /// Returns the number of this run of the node.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the memory that the node lends, for operations that do not go over its NIC.
    #[must_use]
    pub fn memory(&self) -> N::Memory {
        self.memory.clone()
    }

    /// Returns the configuration with which the node runs.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Continues numbering clients, tenants and objects at `number`, for tests near the end of a counter.
    #[doc(hidden)]
    pub fn dangerous_count_from(&mut self, number: u64) {
        self.books.count_from(number);
    }

    /// Returns the queues that hold the chains of a client's workers, for tests in which one fails.
    #[doc(hidden)]
    #[must_use]
    pub fn dangerous_chains_of(&self, client: ClientId) -> Vec<QpId> {
        self.chunks.as_ref().map_or_else(Vec::new, |chunks| chunks.chains_of(client))
    }

    /// Makes the first such queue of any client fail, as if its NIC had refused a request, for tests.
    #[doc(hidden)]
    pub fn dangerous_break_worker(&mut self, nic: &mut N) {
        let clients: Vec<_> = self.books.client_ids().collect();
        let chain = clients.into_iter().find_map(|client| self.dangerous_chains_of(client).first().copied());
        let broken = chain.is_some_and(|chain| nic.modify_qp(chain, QpChange::Error).is_ok());
        if let (true, Some(chunks)) = (broken, &mut self.chunks) {
            chunks.handle_broken(nic);
        }
    }

    /// Does the work that is due, in the order that lets opposite operations meet in one batch (Patronus §5.4): first
    /// confirmations of the NIC, then requests, then leases, and last windows and replies. Returns whether it did
    /// anything.
    pub fn turn(&mut self, nic: &mut N, now: Moment) -> bool {
        self.turns += 1;
        self.books.begin_turn();
        let mut worked = self.take_confirmations(nic, now);
        // Refused accesses are charged before requests are read: a rebuild depends on the client's standing now.
        let events = self.take_some_events(nic, now);
        worked |= events > 0;
        if events < EVENTS_PER_TURN {
            worked |= self.take_requests(nic, now);
        }
        worked |= self.books.handle_timeout(now);
        self.apply_effects();
        if self.enforcement.awaits_operations() {
            self.take_outcomes(now);
        }
        worked |= self.go_on_taking_apart(nic, now);
        worked |= self.books.scrub(now);
        self.apply_effects();
        worked |= self.go_on_rebuilding(nic, now);
        worked |= self.carry_out(nic, now);
        worked |= self.look_after_chunks(nic, now);
        worked |= self.send_replies(nic);
        self.enforcement.drop_domains(nic);
        self.operations_at = self.enforcement.awaits_operations().then(|| now.after(OPERATION_TIME));
        worked || self.enforcement.mechanism.tend(nic, now)
    }

    /// Returns the next moment at which the node needs a turn without any request.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        let chunks = self.chunks.as_ref().and_then(OffloadedChunks::next_wake);
        let enforcement = self.enforcement.mechanism.next_wake();
        [self.books.next_wake(), enforcement, chunks, self.operations_at].into_iter().flatten().min()
    }

    fn take_confirmations(&mut self, nic: &mut N, now: Moment) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        self.enforcement.mechanism.poll(nic, &mut completions);
        for completion in &completions {
            let confirmed = self.enforcement.confirm(nic, completion, now);
            self.take_outcomes(now);
            if let Some(tenant) = confirmed {
                self.books.look_at_if_deserted(tenant);
                self.books.retry_parked(now);
                self.apply_effects();
            }
        }
        let worked = !completions.is_empty();
        self.completions = completions;
        worked
    }

    fn take_requests(&mut self, nic: &mut N, now: Moment) -> bool {
        let mut left = self.config.requests_per_turn as usize;
        let mut worked = self.take_messages(nic, &mut left, now);
        while left > 0 && self.books.has_steps() {
            let most = left.min(REQUESTS_AT_ONCE);
            // Messages that wait with requests get half of the turn.
            let half = if self.new_had_more { most / 2 } else { most.div_ceil(2) };
            let polls = if self.mailbox.has_requests() { half } else { most };
            self.completions.clear();
            let polled = self.mailbox.poll(nic, polls, &mut self.completions);
            if polled == 0 && !self.mailbox.has_requests() {
                break;
            }
            worked = true;
            let mut received = std::mem::take(&mut self.received);
            self.take_in_messages(nic, &mut received);
            self.new_had_more = received.len() > most / 2;
            if polled > 0 {
                // A client that requests a rebuild has broken a queue pair just before.
                self.take_events(nic, now);
            }
            while received.len() < most && self.mailbox.take_out(nic, most - received.len(), &mut received) {}
            left -= received.len().clamp(1, left);
            self.serve_all(nic, &mut received, now);
            self.received = received;
        }
        // Requests that the turn has no steps for wait for the next one.
        worked || self.mailbox.has_requests()
    }

    /// Takes in the polled completions of messages, and the requests that need not wait.
    fn take_in_messages(&mut self, nic: &mut N, received: &mut Vec<(ClientId, Received)>) {
        let completions = std::mem::take(&mut self.completions);
        for completion in &completions {
            // Others are of clients that have left, or of data queue pairs, whose flushed requests complete here.
            if let Some((client, None)) = self.ends.owner(completion.queue_pair)
                && !self.mailbox.take_in(nic, client, completion, received)
            {
                self.books.evict(client);
                self.apply_effects();
            }
        }
        self.completions = completions;
    }

    /// Serves requests that were received together.
    fn serve_all(&mut self, nic: &mut N, received: &mut Vec<(ClientId, Received)>, now: Moment) {
        // The records of several objects are fetched at once, and not each when its request is served. Looking a record
        // up waits for memory too, so the look-ups follow each other closely: the processor then does them side by side.
        for (_, Received { request, .. }) in &*received {
            if let Some(RequestBody::Grant(GrantRequest::Acquire(Acquire { object, .. }))) = request {
                self.books.fetch(*object);
            }
        }
        for (client, request) in &*received {
            self.take_request(nic, *client, request, now);
        }
        received.clear();
    }

    /// Receives at most `left` messages of clients without queue pairs.
    fn take_messages(&mut self, nic: &mut N, left: &mut usize, now: Moment) -> bool {
        let mut worked = false;
        while *left > 0
            && self.books.has_steps()
            && let Some((client, received)) = self.mailbox.streams.take_out()
        {
            worked = true;
            *left -= 1;
            self.take_request(nic, client, &received, now);
        }
        worked
    }

    /// Handles a request of an attached client.
    fn take_request(&mut self, nic: &mut N, client: ClientId, received: &Received, now: Moment) {
        let Received { sequence, request, data } = received;
        let tenant = self.books.tenant_of(client).expect("a client's messages leave with it");
        let from = RequestOrigin { client, tenant, sequence: *sequence };
        match request {
            Some(request) => self.serve(nic, from, request, data, now),
            None => self.answer(from, Err(Refusal::Malformed)),
        }
        self.apply_effects();
    }

    fn serve(&mut self, nic: &mut N, from: RequestOrigin, request: &RequestBody, data: &[u8], now: Moment) {
        match *request {
            // A client with workers must send its request to them.
            RequestBody::Grant(GrantRequest::AllocateChunk) if self.chunks.is_some() => {
                self.answer(from, Err(Refusal::Malformed));
            }
            RequestBody::Grant(request) => self.books.handle_request(from, request, now),
            RequestBody::Named(request) => self.books.handle_named(from, request, now),
            RequestBody::QueuePair(QueuePairRequest::JoinChunks) => {
                let done = self.join_chunks(nic, from, now);
                self.answer(from, done.map(|terms| (ReplyBody::Chunks(terms), Vec::new())));
            }
            RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair }) => {
                if let Err(refusal) = self.rebuild(nic, from, queue_pair, now) {
                    self.answer(from, Err(refusal));
                }
            }
            RequestBody::Copy(access) => {
                let room = self.mailbox.data_bytes_max(from.client);
                let done = match self.config.mechanism {
                    Mechanism::NodeCopy => {
                        node_copy::carry_out(&self.books, &self.memory, from, access, data, room)
                    }
                    _ => Err(Refusal::Malformed),
                };
                self.answer(from, done);
            }
        }
    }

    /// Begins the rebuild of a broken queue pair that a client requests.
    fn rebuild(&mut self, nic: &mut N, from: RequestOrigin, number: u32, now: Moment) -> Result<(), Refusal> {
        let qp = self.ends.stop_broken(nic, from.client, number)?;
        if !self.ends.sees_peer_ends() {
            // The queue pair is stopped now, so the NIC can report whether an access broke it.
            self.take_events(nic, now);
        }
        self.books.check_served(from.client, from.tenant, now)?;
        self.ends.rebuild(from.client, from.sequence, qp, number);
        Ok(())
    }

    /// Takes the next step for each queue pair that is being rebuilt.
    fn go_on_rebuilding(&mut self, nic: &mut N, now: Moment) -> bool {
        let Self { ends, enforcement, .. } = self;
        let (over, worked) = ends.go_on_rebuilding(nic, &mut *enforcement.mechanism);
        for Rebuilt { client, sequence, done } in over {
            if done {
                self.recoveries += 1;
                self.books.audit_client(now, AuditEvent::Recovery, client, None);
            }
            let body = if done { ReplyBody::Done } else { ReplyBody::Refused(Refusal::NicFailed) };
            self.reply(client, Reply { sequence, body }, Vec::new());
        }
        worked
    }

    /// Handles all events that the NIC has, such as refused accesses.
    pub(crate) fn take_events(&mut self, nic: &mut N, now: Moment) {
        while self.take_some_events(nic, now) == EVENTS_PER_TURN {}
    }

    /// Handles as many events as one turn has time for. Returns their number.
    fn take_some_events(&mut self, nic: &mut N, now: Moment) -> u32 {
        for taken in 0..EVENTS_PER_TURN {
            let Some(event) = nic.poll_event() else { return taken };
            match event {
                Event::AccessError(qp, refused) => {
                    // A client that has left meanwhile is charged for nothing.
                    if let Some((client, number)) = self.ends.owner(qp) {
                        let broken = self.broken(client, number, refused);
                        self.books.handle_violation(client, broken, refused, now);
                    }
                }
                Event::Fatal(qp) => {
                    self.enforcement.handle_broken(nic, qp);
                    if let Some(chunks) = &mut self.chunks {
                        chunks.handle_broken(nic);
                    }
                    self.take_outcomes(now);
                }
            }
            self.apply_effects();
        }
        EVENTS_PER_TURN
    }

    /// Returns the kind of the queue pair on which an access was refused.
    fn broken(&self, client: ClientId, number: Option<u32>, refused: Option<RefusedAccess>) -> Broken {
        match (number, &self.chunks) {
            (None, _) => Broken::Control,
            (Some(number), Some(chunks)) if self.ends.is_for_chunks(client, number) => {
                Broken::Judged(chunks.charge(client, refused))
            }
            (Some(_), _) => Broken::Data,
        }
    }

    fn join_chunks(&mut self, nic: &mut N, from: RequestOrigin, now: Moment) -> Result<ChunkTerms, Refusal> {
        self.books.check_served(from.client, from.tenant, now)?;
        match &mut self.chunks {
            Some(chunks) => chunks.join(nic, from.client),
            None => self.books.join_chunks(from),
        }
    }

    /// Frees the chunks of clients that have left, and records the NIC's changes.
    fn look_after_chunks(&mut self, nic: &mut N, now: Moment) -> bool {
        let Some(chunks) = &mut self.chunks else { return false };
        let worked = chunks.watch(nic, now) | chunks.proceed(nic, now) | chunks.resize(nic, now);
        let adopted = chunks.adopt(nic, CHUNKS_PER_TURN, now);
        for change in adopted {
            self.books.audit_chunk(now, change);
        }
        worked
    }

    /// Sets up the permissions that start in this turn, and takes down those that ended.
    fn carry_out(&mut self, nic: &mut N, now: Moment) -> bool {
        self.enforcement.release_lingering(self.books.wants_memory_back(), now);
        let busy = self.enforcement.take_busy();
        let worked = !busy.is_empty();
        for &tenant in &busy {
            let may_linger = self.books.memory_is_plentiful();
            let done = self.enforcement.carry_out(nic, &self.ends, tenant, may_linger, now);
            self.take_outcomes(now);
            if done {
                self.books.look_at_if_deserted(tenant);
            }
        }
        self.enforcement.return_busy(busy);
        self.books.retry_if_idle(now);
        self.apply_effects();
        worked
    }

    /// Reports the outcomes of exposures and withdrawals to the books.
    fn take_outcomes(&mut self, now: Moment) {
        let mut outcomes = self.enforcement.take_outcomes();
        for outcome in outcomes.drain(..) {
            match outcome {
                EnforcementOutcome::Exposed(permission, credential) => {
                    self.books.handle_exposed(permission, credential, now);
                }
                EnforcementOutcome::NotExposed(permission, refusal) => {
                    self.books.handle_not_exposed(permission, refusal, now);
                }
                EnforcementOutcome::Withdrawn(residue) => self.books.handle_withdrawn(residue, now),
                EnforcementOutcome::Settled(owed) => self.books.handle_settled(owed),
            }
        }
        self.enforcement.return_outcomes(outcomes);
        self.apply_effects();
    }

    /// Passes the decisions of the books to the other parts.
    #[inline]
    pub(crate) fn apply_effects(&mut self) {
        // Nearly always there is no effect, and this check costs less than a call.
        while self.books.has_effects() {
            self.apply_next_effect();
        }
    }

    /// Applies the next effect in place. Effects are large, and a copy of one waits until the effect is written.
    fn apply_next_effect(&mut self) {
        let Self { books, enforcement, mailbox, evicted, .. } = self;
        let mut keeps_up = true;
        match books.next_effect() {
            Some(Effect::Expose(exposure)) => enforcement.expose(exposure),
            Some(Effect::Withdraw(withdrawal)) => enforcement.withdraw(withdrawal),
            Some(Effect::Reply(client, reply)) => keeps_up = mailbox.reply(*client, reply, Vec::new()),
            Some(Effect::Evict(client)) => evicted.push(*client),
            None => {}
        }
        if let (Some(Effect::Reply(client, _)), false) = (books.poll_effect(), keeps_up) {
            books.evict(client);
        }
    }

    /// Queues a reply to a client. Evicts a client that lets replies accumulate.
    fn reply(&mut self, client: ClientId, reply: Reply, data: Vec<u8>) {
        if !self.mailbox.reply(client, &reply, data) {
            self.books.evict(client);
        }
    }

    fn answer(&mut self, to: RequestOrigin, done: Result<(ReplyBody, Vec<u8>), Refusal>) {
        let (body, data) = done.unwrap_or_else(|refusal| (ReplyBody::Refused(refusal), Vec::new()));
        self.reply(to.client, Reply { sequence: to.sequence, body }, data);
    }

    fn send_replies(&mut self, nic: &mut N) -> bool {
        let mut lost = Vec::new();
        let worked = self.mailbox.send(nic, &mut lost);
        for client in lost {
            self.books.evict(client);
        }
        self.apply_effects();
        worked
    }

    /// Continues to take apart clients, tenants and freed objects, as far as this turn's steps allow. Returns whether
    /// there were any.
    pub(crate) fn go_on_taking_apart(&mut self, nic: &mut N, now: Moment) -> bool {
        if self.books.is_whole() {
            return false;
        }
        self.books.go_on_ending(now);
        self.apply_effects();
        while self.books.has_steps()
            && let Some(tenant) = self.books.first_deserted()
            && self.look_at_deserted(nic, tenant, now)
        {
            self.books.pass_deserted();
        }
        true
    }

    /// Checks a tenant without clients. The tenant stays for as long as the objects that it has left behind are kept.
    /// Returns whether there is no more to do now.
    fn look_at_deserted(&mut self, nic: &mut N, tenant: TenantId, now: Moment) -> bool {
        match self.books.let_kept_go(tenant, now) {
            Some(Left::Nothing) => {}
            Some(Left::More) => return false,
            Some(Left::Kept | Left::Lent) | None => return true,
        }
        if self.enforcement.awaits_operations_of(tenant) {
            self.books.look_at_kept_at(now.after(LOOK_AGAIN));
            return true;
        }
        let burden = self.books.objects_of(tenant) + self.enforcement.burden(tenant);
        if burden <= self.config.steps_per_turn as usize {
            self.books.take_steps(burden);
            self.end_tenant(nic, tenant, now);
            return true;
        }
        // Too much for one turn: the windows end first. The memory that they exposed then becomes free without more
        // work here.
        let shrunk = self.enforcement.shrink(nic, tenant, self.books.steps_left(), now);
        self.books.take_steps(shrunk.ended);
        if shrunk.ended > 0 {
            return false;
        }
        if shrunk.waits_for_nic {
            self.books.look_at_kept_at(now.after(LOOK_AGAIN));
        } else {
            // No confirmation will arrive that could make the rest smaller.
            self.end_tenant(nic, tenant, now);
        }
        true
    }

    /// Removes a tenant without clients, with all that it holds.
    fn end_tenant(&mut self, nic: &mut N, tenant: TenantId, now: Moment) {
        self.take_off(nic, tenant, now);
        self.books.handle_tenant_ended(tenant, now);
        self.apply_effects();
    }

    /// Removes a tenant without clients from the NIC.
    fn take_off(&mut self, nic: &mut N, tenant: TenantId, now: Moment) {
        let leftovers = self.enforcement.end_tenant(nic, &self.ends, tenant, now);
        self.books.handle_tenant_off(tenant, leftovers.unexposed, leftovers.residues, now);
    }

    /// Removes the node from the NIC: clients, tenants, queues.
    pub fn end(&mut self, nic: &mut N, now: Moment) {
        let clients: Vec<ClientId> = self.books.client_ids().collect();
        for client in clients {
            self.detach(nic, client, now);
        }
        while !self.books.is_whole() {
            self.books.renew_steps();
            self.go_on_taking_apart(nic, now);
        }
        // Tenants without clients that have left objects behind. All of them are off the NIC before the first ends: one
        // may still expose memory of another.
        let tenants: Vec<TenantId> = self.books.tenants().collect();
        for &tenant in &tenants {
            self.take_off(nic, tenant, now);
        }
        for &tenant in &tenants {
            self.books.handle_tenant_ended(tenant, now);
        }
        self.apply_effects();
        if let Some(chunks) = self.chunks.take() {
            chunks.end(nic);
        }
        self.mailbox.end(nic);
        self.enforcement.mechanism.end(nic);
    }

    /// Takes out a client that cannot be served any more. The caller should disconnect it, and then call
    /// [`Node::detach`].
    pub fn poll_evicted(&mut self) -> Option<ClientId> {
        self.evicted.pop()
    }

    /// Records that the node's host has refused a peer, and the reason, before the peer was a client. `further` is the
    /// number of other refused peers without a record.
    pub fn note_refused(&mut self, peer: String, reason: String, further: u64, now: Moment) {
        self.books.audit_refused(now, (peer, reason), further);
    }

    /// Takes out the next audit record.
    pub fn poll_audit(&mut self) -> Option<AuditRecord> {
        self.books.poll_audit()
    }

    /// Returns all present bars and pauses: those of tenants by name, then those of clients by number.
    #[must_use]
    pub fn bars(&self, now: Moment) -> Vec<Bar> {
        self.books.bars(now)
    }

    /// Lifts the bars and pauses of the tenant called `name` and of its clients, as if none of them had ever broken a
    /// rule. Returns whether there was a bar or a pause. A client that was evicted for its bar must attach again.
    pub fn unbar(&mut self, name: &str, now: Moment) -> bool {
        self.books.unbar(name, now)
    }

    /// Reports on the attached clients, in the order of their numbers.
    #[must_use]
    pub fn clients(&self, now: Moment) -> Vec<ClientReport> {
        let mut clients = self.books.clients(now);
        for client in &mut clients {
            if let Some(chunks) = &self.chunks {
                client.chunks = chunks.held_by(client.id);
            }
        }
        clients
    }

    /// Returns the counts of events, and of what the node holds.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let (windows, window_operations) = self.enforcement.mechanism.windows();
        let (control_messages, recoveries) = (self.mailbox.received(), self.recoveries);
        let books = self.books.counters();
        let chunks = self.chunks.as_ref().map_or(books, OffloadedChunks::counters);
        Counters {
            control_messages,
            recoveries,
            windows,
            window_operations,
            turns: self.turns,
            chunks: chunks.chunks,
            chunks_held: chunks.chunks_held,
            chunk_allocations: chunks.chunk_allocations,
            chunks_set_aside: chunks.chunks_set_aside,
            chunk_rebuilds: chunks.chunk_rebuilds,
            ..books
        }
    }
}
