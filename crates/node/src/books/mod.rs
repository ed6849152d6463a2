//! The books: which client may access which bytes, and until when.
//!
//! Requests, time, refused accesses and confirmations of the NIC enter through `handle_*`. Decisions come out of
//! [`Books::poll_effect`]. The books know no NIC and no message bytes. They access the pool's memory only for the
//! headers of permissions, and to zero memory.

mod accounts;
mod adoption;
mod audit_trail;
mod bars;
mod charged;
mod charging;
mod chunks;
mod departures;
mod directory;
mod effects;
mod freeing;
mod grants;
mod guests;
mod key_holders;
mod leases;
mod members;
mod names;
mod pending_frees;
mod permissions;
mod pool;
mod postponed;
mod recent_keys;
mod requests;
mod scrubs;
mod standings;
mod violations;
mod waiting;

pub use bars::{Bar, ClientReport};
pub use pool::POOL_BASE;
pub use violations::{Charge, Standing, Violations};

pub(crate) use charging::Broken;
pub(crate) use departures::Left;
pub(crate) use effects::{Effect, Exposure, OwedReply, Residue, Withdrawal};
pub(crate) use permissions::PermissionSlot;
pub(crate) use pool::{ObjectId, Slabs, offset};
pub(crate) use requests::RequestOrigin;

use crate::audit::AuditEvent;
use crate::config::NodeConfig;
use crate::counters::Counters;
use accounts::Accounts;
use audit_trail::AuditTrail;
use departures::Departures;
use directory::Directory;
use freeing::Freeing;
use guests::LeavingGuests;
use permissions::Permissions;
use pool::Pool;
use portcullis_nic::Memory;
use portcullis_protocol::{
    ClientId, Incarnation, Moment, ObjectName, Refusal, Reply, ReplyBody, Rkey, TenantId,
};
use postponed::Postponed;
use scrubs::Scrubs;
use standings::Standings;
use std::collections::VecDeque;

/// The manager's books of Patronus §5.
pub(crate) struct Books<M> {
    config: NodeConfig,
    pool: Pool<M>,
    permissions: Permissions,
    scrubs: Scrubs,
    postponed: Postponed,
    /// Objects whose waiting requests a later turn serves, with the objects' births.
    put_off: VecDeque<(ObjectId, u64)>,
    accounts: Accounts,
    standings: Standings,
    departures: Departures,
    directory: Directory,
    leaving: LeavingGuests,
    freeing: Freeing,
    /// Number of steps that this turn may still take, for work that the next turn can continue.
    steps_left: u32,
    audit: AuditTrail,
    counters: Counters,
    effects: VecDeque<Effect>,
}

impl<M: Memory> Books<M> {
    /// Books of a node that lends `memory`, which is all zeros.
    pub fn new(memory: M, config: NodeConfig, incarnation: Incarnation) -> Self {
        Self {
            pool: Pool::new(memory, &config, incarnation),
            permissions: Permissions::default(),
            scrubs: Scrubs::default(),
            postponed: Postponed::new(config.postponed_max),
            put_off: VecDeque::new(),
            accounts: Accounts::new(config.quota),
            standings: Standings::new(config.violations),
            departures: Departures::default(),
            directory: Directory::new(config.quota),
            leaving: LeavingGuests::default(),
            freeing: Freeing::default(),
            steps_left: config.steps_per_turn,
            audit: AuditTrail::new(&config),
            counters: Counters::default(),
            effects: VecDeque::new(),
            config,
        }
    }

    /// Continues numbering clients, tenants and objects at `number`, for tests near the end of a counter.
    pub fn count_from(&mut self, number: u64) {
        self.accounts.clients.count_from(number);
        self.accounts.tenants.count_from(number);
        self.pool.count_from(number);
    }

    /// Prefetches the memory that a request for an object reads first, before the request is handled. Decides nothing:
    /// any name is allowed.
    #[inline]
    pub fn fetch(&self, object: ObjectName) {
        self.pool.fetch(object);
    }

    /// Whether [`poll_effect`](Self::poll_effect) has an effect.
    #[inline]
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Returns the next effect, without taking it out.
    #[inline]
    pub fn next_effect(&self) -> Option<&Effect> {
        self.effects.front()
    }

    /// Takes out the next effect.
    #[inline]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Begins a turn. Requests get half of its steps, so that leases also end during a flood of requests.
    pub fn begin_turn(&mut self) {
        self.scrubs.begin_turn();
        self.steps_left = self.config.steps_per_turn / 2;
    }

    /// Does the work that is due by now, with the other half of the turn's steps. Returns whether there was any.
    pub fn handle_timeout(&mut self, now: Moment) -> bool {
        self.steps_left += self.config.steps_per_turn / 2;
        let mut worked = self.serve_put_off(now);
        worked |= self.end_bars(now);
        worked |= self.expire(now);
        worked |= self.time_out_requests(now);
        worked |= self.expire_kept(now);
        worked
    }

    /// Returns the next moment at which the books need a turn.
    pub fn next_wake(&self) -> Option<Moment> {
        let more = !self.is_whole() || !self.put_off.is_empty();
        let wakes = [
            more.then_some(Moment(0)),
            self.permissions.next_due(),
            self.postponed.next_timeout(),
            self.departures.kept_check,
            self.standings.next_bar_end(),
        ];
        wakes.into_iter().flatten().min()
    }

    /// Whether this turn may take one more step.
    pub fn has_steps(&self) -> bool {
        self.steps_left > 0
    }

    /// Takes one of the steps that this turn has left. Returns whether there was one.
    fn take_step(&mut self) -> bool {
        let left = self.steps_left.checked_sub(1);
        self.steps_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes `steps` steps, or all that this turn has left.
    pub fn take_steps(&mut self, steps: usize) {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    /// Checks whether the tenant called `name` may have one more client. Returns the tenant, if the node knows it.
    ///
    /// # Errors
    /// The tenant is barred or paused, or the node is full.
    pub fn admit(&self, name: &str, now: Moment) -> Result<Option<TenantId>, Refusal> {
        self.standings.of(name, now).check(now)?;
        if self.accounts.clients.len() >= self.config.clients_max {
            return Err(Refusal::NodeFull { limit: self.config.clients_max.into() });
        }
        self.accounts.clients.next_id().ok_or(Refusal::NodeFull { limit: u64::MAX })?;
        Ok(self.accounts.tenants.named(name))
    }

    /// Returns the number of the next tenant. `None`: the marks that distinguish tenants are used up.
    pub fn next_tenant(&self) -> Option<TenantId> {
        self.accounts.tenants.has_marks().then(|| self.accounts.tenants.next_id())
    }

    /// Enters a tenant with the number [`next_tenant`](Self::next_tenant). `shared_key` opens all its permissions, if
    /// they have no keys of their own.
    pub fn enter_tenant(&mut self, name: &str, shared_key: Option<Rkey>) {
        let offended = self.standings.knows(name);
        self.accounts.tenants.insert(name.into(), shared_key, offended);
    }

    /// Iterates over all tenants.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.accounts.tenants.iter().map(|(id, _)| id)
    }

    /// Keeps a tenant for a client that will attach, at least until that client leaves.
    pub fn hold_tenant(&mut self, tenant: TenantId) {
        self.accounts.tenants.get_mut(tenant).join();
    }

    /// Returns the number of the next client. `None`: all numbers are used up.
    pub fn next_client(&self) -> Option<ClientId> {
        self.accounts.clients.next_id()
    }

    /// Attaches a client, with the number [`next_client`](Self::next_client), to a tenant that was held for it.
    pub fn handle_attached(&mut self, client: ClientId, tenant: TenantId, process: Option<u32>, now: Moment) {
        self.accounts.clients.insert(client, tenant, process, self.config.violations);
        self.audit_client(now, AuditEvent::Attach, client, None);
    }

    /// Reports, once, that a client cannot be served any more.
    pub fn evict(&mut self, client: ClientId) {
        if let Some(it) = self.accounts.clients.get_mut(client)
            && !std::mem::replace(&mut it.lost, true)
        {
            self.effects.push_back(Effect::Evict(client));
        }
    }

    /// Returns a client's tenant. `None`: the client has left.
    pub fn tenant_of(&self, client: ClientId) -> Option<TenantId> {
        self.accounts.clients.get(client).map(|client| client.tenant)
    }

    /// Iterates over the attached clients, in the order of their numbers.
    pub fn client_ids(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.accounts.clients.iter().map(|client| client.id)
    }

    /// Whether an ended permission may stay exposed for a while, because memory is plentiful (Patronus §5.4).
    pub fn memory_is_plentiful(&self) -> bool {
        self.pool.is_plentiful()
    }

    /// Whether the node needs memory that ended permissions still expose.
    pub fn wants_memory_back(&self) -> bool {
        self.postponed.is_thirsty() || (self.accounts.going() > 0 && !self.memory_is_plentiful())
    }

    /// Returns the counts of events, and of what the books hold.
    pub fn counters(&self) -> Counters {
        Counters {
            clients: self.accounts.clients.len().into(),
            tenants: self.accounts.tenants.iter().count() as u64,
            permissions: self.permissions.len() as u64,
            objects: self.pool.slabs.objects().into(),
            chunks: self.config.chunks.map_or(0, |limits| limits.chunks),
            chunks_held: self.accounts.chunks_held(),
            chunk_allocations: self.accounts.chunk_allocations(),
            bytes_used: self.pool.slabs.bytes_used(),
            headers_used: self.pool.headers_used().into(),
            postponed: self.postponed.len() as u64,
            names: self.directory.names(),
            audit_lost: self.audit.lost(),
            ..self.counters
        }
    }

    fn reply(&mut self, to: RequestOrigin, body: ReplyBody) {
        self.effects.push_back(Effect::Reply(to.client, Reply { sequence: to.sequence, body }));
    }

    fn refuse(&mut self, to: RequestOrigin, refusal: Refusal) {
        self.reply(to, ReplyBody::Refused(refusal));
    }
}
