//! The books: who may touch which bytes, and until when.
//!
//! Requests, time, refused accesses and what the NIC has confirmed go in by `handle_*`; what follows comes out of
//! [`Books::poll_effect`]. The books know no NIC and no message bytes. They read and write the pool's memory for what
//! stands in permissions' headers, and to zero it.

mod adoption;
mod bars;
mod charging;
mod clients;
mod departures;
mod effects;
mod grants;
mod key_holders;
mod leases;
mod permissions;
mod pool;
mod postponed;
mod quota;
mod recent_keys;
mod requests;
mod scrubs;
mod standings;
mod tenants;
mod violations;
mod waiting;

pub use bars::{Bar, ClientReport};
pub use pool::POOL_BASE;
pub use violations::{Charge, Standing, Violations};

pub(crate) use charging::Broken;
pub(crate) use departures::Left;
pub(crate) use effects::{Effect, Exposure, OwedReply, Residue, Withdrawal};
pub(crate) use permissions::PermissionSlot;
pub(crate) use pool::offset;
pub(crate) use requests::RequestOrigin;

use crate::audit::{AuditEvent, AuditQueue, AuditRecord, AuditedPermission};
use crate::config::NodeConfig;
use crate::counters::Counters;
use clients::Clients;
use departures::Departures;
use key_holders::KeyHolders;
use leases::Leases;
use permissions::Permissions;
use pool::{ObjectId, Pool};
use portcullis_nic::Memory;
use portcullis_protocol::{ClientId, Incarnation, Moment, Refusal, Reply, ReplyBody, Rkey, TenantId};
use postponed::Postponed;
use scrubs::Scrubs;
use standings::Standings;
use std::collections::VecDeque;
use std::sync::Arc;
use tenants::Tenants;

/// The manager's books of Patronus §5.
pub(crate) struct Books<M> {
    config: NodeConfig,
    pool: Pool<M>,
    permissions: Permissions,
    key_holders: KeyHolders,
    leases: Leases,
    scrubs: Scrubs,
    postponed: Postponed,
    /// Objects whose waiting requests a later turn looks at, and their births.
    put_off: VecDeque<(ObjectId, u64)>,
    tenants: Tenants,
    clients: Clients,
    standings: Standings,
    departures: Departures,
    /// Objects that wait until nothing exposes them any more.
    going: u32,
    /// Steps that this turn may still take of what can go on in the next.
    steps_left: u32,
    audit: AuditQueue,
    counters: Counters,
    effects: VecDeque<Effect>,
}

impl<M: Memory> Books<M> {
    /// Books of a node that lends `memory`, which is all zeros.
    pub fn new(memory: M, config: NodeConfig, incarnation: Incarnation) -> Self {
        let audit = if config.audit {
            AuditQueue::new(config.audit_events, config.audit_records_max as usize)
        } else {
            AuditQueue::disabled()
        };
        Self {
            pool: Pool::new(memory, &config, incarnation),
            permissions: Permissions::default(),
            key_holders: KeyHolders::default(),
            leases: Leases::default(),
            scrubs: Scrubs::default(),
            postponed: Postponed::new(config.postponed_max),
            put_off: VecDeque::new(),
            tenants: Tenants::default(),
            clients: Clients::default(),
            standings: Standings::new(config.violations),
            departures: Departures::default(),
            going: 0,
            steps_left: config.steps_per_turn,
            audit,
            counters: Counters::default(),
            effects: VecDeque::new(),
            config,
        }
    }

    /// Goes on with this number for clients, tenants and objects: for tests of what happens near the end of a counter.
    pub fn count_from(&mut self, number: u64) {
        self.clients.count_from(number);
        self.tenants.count_from(number);
        self.pool.count_from(number);
    }

    /// What is to be done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The next audit record. Records have a queue of their own, which loses some rather than grow.
    pub fn poll_audit(&mut self) -> Option<AuditRecord> {
        self.audit.pop()
    }

    /// A turn begins. Requests get half of its steps, so that leases end also in a flood of requests.
    pub fn begin_turn(&mut self) {
        self.scrubs.begin_turn();
        self.steps_left = self.config.steps_per_turn / 2;
    }

    /// What the time has brought is dealt with, with the other half of the turn's steps. Returns whether anything was
    /// done.
    pub fn handle_timeout(&mut self, now: Moment) -> bool {
        self.steps_left += self.config.steps_per_turn / 2;
        let mut worked = self.serve_put_off(now);
        worked |= self.end_bars(now);
        worked |= self.expire(now);
        worked |= self.time_out_requests(now);
        worked |= self.expire_kept(now);
        worked
    }

    /// The next moment at which the books want a turn.
    pub fn next_wake(&self) -> Option<Moment> {
        let more = !self.departures.is_empty() || !self.put_off.is_empty();
        let wakes = [
            more.then_some(Moment(0)),
            self.leases.next(),
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

    /// Takes so many steps, or all that this turn has left.
    pub fn take_steps(&mut self, steps: usize) {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    /// A tenant called `name` may let a client come: the tenant, if the node knows it already.
    ///
    /// # Errors
    /// The tenant is barred or paused, or the node is full.
    pub fn admit(&self, name: &str, now: Moment) -> Result<Option<TenantId>, Refusal> {
        self.standings.of(name, now).check(now)?;
        if self.clients.len() >= self.config.clients_max {
            return Err(Refusal::NodeFull { limit: self.config.clients_max.into() });
        }
        self.clients.next_id().ok_or(Refusal::NodeFull { limit: u64::MAX })?;
        Ok(self.tenants.named(name))
    }

    /// The number that the next tenant gets. `None`: there have been too many to tell one more apart.
    pub fn next_tenant(&self) -> Option<TenantId> {
        self.tenants.has_marks().then(|| self.tenants.next_id())
    }

    /// Enters a tenant, which is [`next_tenant`](Self::next_tenant). `shared_key` opens all of its permissions, where
    /// those have no keys of their own.
    pub fn enter_tenant(&mut self, name: &str, shared_key: Option<Rkey>) {
        let offended = self.standings.knows(name);
        self.tenants.insert(name.into(), shared_key, offended);
    }

    /// The tenants that there are.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.tenants.iter().map(|(id, _)| id)
    }

    /// A client of this tenant comes: the tenant stays at least until that client leaves.
    pub fn hold_tenant(&mut self, tenant: TenantId) {
        let tenant = self.tenants.get_mut(tenant);
        tenant.clients += 1;
        tenant.alone_since = None;
    }

    /// The number that the next client gets. `None`: there are no more.
    pub fn next_client(&self) -> Option<ClientId> {
        self.clients.next_id()
    }

    /// A client of a tenant that was held for it is attached. It is [`next_client`](Self::next_client).
    pub fn handle_attached(&mut self, client: ClientId, tenant: TenantId, process: Option<u32>, now: Moment) {
        self.clients.insert(client, tenant, process, self.config.violations);
        self.audit_client(now, AuditEvent::Attach, client, None);
    }

    /// A client cannot be served any more: said once.
    pub fn evict(&mut self, client: ClientId) {
        if let Some(it) = self.clients.get_mut(client)
            && !std::mem::replace(&mut it.lost, true)
        {
            self.effects.push_back(Effect::Evict(client));
        }
    }

    /// A client's tenant. `None`: the client has gone.
    pub fn tenant_of(&self, client: ClientId) -> Option<TenantId> {
        self.clients.get(client).map(|client| client.tenant)
    }

    /// The attached clients, by number.
    pub fn client_ids(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.clients.iter().map(|client| client.id)
    }

    /// Whether an ended permission's exposure may last a while, since memory is plentiful (Patronus §5.4).
    pub fn memory_is_plentiful(&self) -> bool {
        self.pool.is_plentiful()
    }

    /// Whether somebody waits for memory that ended permissions still expose.
    pub fn wants_memory_back(&self) -> bool {
        self.postponed.is_thirsty() || (self.going > 0 && !self.memory_is_plentiful())
    }

    /// What the books have counted, and what stands in them.
    pub fn counters(&self) -> Counters {
        Counters {
            clients: self.clients.len().into(),
            tenants: self.tenants.iter().count() as u64,
            permissions: self.permissions.len() as u64,
            objects: self.pool.slabs.objects().into(),
            bytes_used: self.pool.slabs.bytes_used(),
            headers_used: self.pool.headers_used().into(),
            postponed: self.postponed.len() as u64,
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

    /// Writes down what happened to a client.
    pub fn audit_client(
        &mut self,
        at: Moment,
        event: AuditEvent,
        client: ClientId,
        reason: Option<&'static str>,
    ) {
        self.audit_of_client(at, event, client, |record| AuditRecord { reason, ..record });
    }

    /// The same, with what `add` adds to the record.
    fn audit_of_client(
        &mut self,
        at: Moment,
        event: AuditEvent,
        client: ClientId,
        add: impl FnOnce(AuditRecord) -> AuditRecord,
    ) {
        let (clients, tenants) = (&self.clients, &self.tenants);
        self.audit.push(at, event, |record| {
            let client = clients.get(client);
            add(AuditRecord {
                tenant: client.map(|it| Arc::clone(&tenants.get(it.tenant).name)),
                client: client.map(|client| client.id),
                process: client.and_then(|client| client.process),
                ..record
            })
        });
    }

    /// Writes down what happened to a permission.
    fn audit_permission(
        &mut self,
        at: Moment,
        event: AuditEvent,
        slot: PermissionSlot,
        reason: Option<&'static str>,
    ) {
        let (permissions, pool, tenants) = (&self.permissions, &self.pool, &self.tenants);
        let (clients, departures) = (&self.clients, &self.departures);
        self.audit.push(at, event, |record| {
            let permission = permissions.get(slot);
            let attached = clients.get(permission.client).map(|it| (it.id, it.process));
            let gone = departures.client(permission.client).map(|it| (it.id, it.process));
            let (client, process) = attached.or(gone).unzip();
            let (address, length) = pool.bytes_of(permission);
            AuditRecord {
                tenant: Some(Arc::clone(&tenants.get(permission.tenant).name)),
                client,
                process: process.flatten(),
                permission: Some(AuditedPermission {
                    id: permission.id,
                    address,
                    length,
                    rights: permission.rights,
                    sharing: permission.claim.sharing,
                    lifetime: permission.lifetime,
                }),
                reason,
                ..record
            }
        });
    }
}
