//! The node itself: what it consists of, who comes and goes, and the order of a turn.

use crate::audit::{AuditEvent, AuditQueue, AuditRecord};
use crate::batches::Stock;
use crate::client::{Client, QpOwners};
use crate::client_ends::ClientEnds;
use crate::departures::Departures;
use crate::headers::HeaderPool;
use crate::key_holders::KeyHolders;
use crate::leases::Leases;
use crate::object::Object;
use crate::permissions::{NONE, Permissions};
use crate::postponed::Postponed;
use crate::recovery::EVENTS_PER_TURN;
use crate::recovery::Recoveries;
use crate::requests::SCRUB_PER_TURN_BYTES;
use crate::roster::Roster;
use crate::slabs::{ObjectId, Slabs};
use crate::taint::Taint;
use crate::tenant::{Answer, Tenant};
use crate::violations::TenantRecord;
use crate::windows::GoneWindows;
use crate::{ConfigError, NodeConfig};
use portcullis_nic::{Access, Completion, CqId, Memory, Nic, PdId, QpChange, QpId, VerbsError};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{
    ClientId, Incarnation, Mechanism, Moment, ObjectName, ObjectRef, Refusal, RemoteAddress, Reply,
    ReplyBody, TenantId,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Where the pool's addresses begin: no address of any process, and within the 48 bits of a header.
pub const POOL_BASE: RemoteAddress = RemoteAddress(0x1000_0000_0000);

/// Entries of the completion queue for control messages: one for each message of a thousand clients.
const CONTROL_CQ_DEPTH: u32 = 1 << 17;
/// Requests that are taken in before it is asked whether the turn has time for more.
const REQUESTS_AT_ONCE: usize = 8;
/// Entries of the completion queue for binds: failures complete each request, also the unsignalled ones.
const BIND_CQ_DEPTH: u32 = 1 << 15;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The NIC refuses.
    #[error("the NIC refuses: {0}")]
    Nic(#[from] VerbsError),
}

/// What a tenant's clients need on the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The tenant.
    pub tenant: TenantId,
    /// Its protection domain: the node's ends of its clients' queue pairs belong there.
    pub pd: PdId,
    /// Where those queue pairs complete.
    pub cq: CqId,
}

/// What a node has counted since it started, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Control messages taken in.
    pub control_messages: u64,
    /// Binds, rebinds and unbinds posted.
    pub window_operations: u64,
    /// Permissions granted.
    pub grants: u64,
    /// Permissions that their holders, or the node, ended early.
    pub revokes: u64,
    /// Permissions that ended by time.
    pub expiries: u64,
    /// Extensions that the node saw.
    pub extensions: u64,
    /// Accesses that the NIC refused.
    pub violations: u64,
    /// Queue pairs rebuilt.
    pub recoveries: u64,
    /// Attached clients.
    pub clients: u64,
    /// Tenants with attached clients.
    pub tenants: u64,
    /// Permissions in any stage.
    pub permissions: u64,
    /// Objects, those that are going included.
    pub objects: u64,
    /// Bytes of the pool that objects take, headers and rounding included.
    pub bytes_used: u64,
    /// Headers of the header pool in use.
    pub headers_used: u64,
    /// Windows in any state.
    pub windows: u64,
    /// Requests that wait for others to let go.
    pub postponed: u64,
    /// Audit records that were lost, since they were not taken in time.
    pub audit_lost: u64,
}

/// A memory node: the manager of Patronus §5, over any NIC.
///
/// It does nothing by itself: whoever owns it calls [`Node::turn`] with the time, and turns the NIC.
pub struct Node<N: Nic> {
    pub(crate) config: NodeConfig,
    pub(crate) incarnation: Incarnation,
    pub(crate) memory: N::Memory,
    pub(crate) scale: u64,
    /// See [`portcullis_nic::Capabilities::sees_peer_ends`].
    pub(crate) sees_peer_ends: bool,
    pub(crate) control_cq: CqId,
    pub(crate) bind_cq: CqId,
    pub(crate) slabs: Slabs<Object>,
    pub(crate) headers: HeaderPool,
    /// Which permission a header of the header pool is for.
    pub(crate) header_slots: Vec<u32>,
    pub(crate) permissions: Permissions,
    pub(crate) key_holders: KeyHolders,
    pub(crate) leases: Leases,
    pub(crate) taint: Taint,
    pub(crate) scrubs: VecDeque<(u32, u64)>,
    /// Bytes that this turn may still zero.
    pub(crate) scrub_left: u64,
    /// Steps that this turn may still take of what can go on in the next.
    pub(crate) steps_left: u32,
    pub(crate) departures: Departures,
    pub(crate) postponed: Postponed,
    /// Objects whose waiting requests a later turn looks at, and their births.
    pub(crate) put_off: VecDeque<(ObjectId, u64)>,
    pub(crate) recoveries: Recoveries,
    pub(crate) tenants: Vec<Option<Box<Tenant>>>,
    /// Windows between hands, kept for its room.
    pub(crate) stock: Stock,
    /// Tenants with something to set up or take down in this turn.
    pub(crate) busy: Vec<u32>,
    /// Objects that there have been.
    pub(crate) births: u64,
    /// When kept objects of tenants without clients are looked at next.
    pub(crate) kept_check: Option<Moment>,
    /// Objects that wait until nothing exposes them any more.
    pub(crate) going: u32,
    /// When lingering windows are looked at next.
    pub(crate) linger_check: Moment,
    /// When the window pools are looked after next.
    pub(crate) tend_check: Moment,
    pub(crate) clients: Roster<N::Memory>,
    /// Whose queue pair it is, and which of its own: by the NIC's number.
    pub(crate) qp_owners: QpOwners,
    /// Domains of tenants that have gone, as long as somebody's queue pairs are still in them.
    pub(crate) empty_domains: Vec<PdId>,
    /// Tenants by queue pair for binds.
    pub(crate) binders: HashMap<QpId, u32>,
    pub(crate) standings: HashMap<Arc<str>, TenantRecord>,
    /// When the first bar ends.
    pub(crate) next_bar_end: Option<Moment>,
    pub(crate) audit: AuditQueue,
    pub(crate) counters: Counters,
    /// Clients with replies to send.
    pub(crate) outbox: Vec<u64>,
    /// Clients that cannot be served any more.
    pub(crate) evicted: Vec<ClientId>,
    completions: Vec<Completion>,
    next_mark: u64,
    lots: StdRng,
    pub(crate) gone_windows: GoneWindows,
}

impl<N: Nic> std::fmt::Debug for Node<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("config", &self.config)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl<N: Nic> Node<N> {
    /// A node that lends memory of `nic`. `incarnation` is a random number that no run of a node had before; from
    /// `secret`, which nobody else knows, it draws which keys come next.
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
        if config.mechanism == Mechanism::MemoryWindow && !nic.capabilities().window_type_1 {
            return Err(VerbsError::Unsupported("memory windows of type 1").into());
        }
        let (header_bytes, bytes) = (config.header_bytes(), config.memory_bytes());
        let memory = nic.allocate_memory(bytes)?;
        if config.fill_memory {
            memory.zero(0, bytes);
        }
        // On a device with shorter queues fewer clients and tenants fit.
        let most = (nic.capabilities().completion_depth_max / 2 + 1).next_power_of_two();
        let control_cq = nic.create_cq(CONTROL_CQ_DEPTH.min(most))?;
        let bind_cq = nic.create_cq(BIND_CQ_DEPTH.min(most))?;
        let objects = RemoteAddress(POOL_BASE.0 + header_bytes);
        let audit = if config.audit {
            AuditQueue::new(config.audit_events, config.audit_records_max as usize)
        } else {
            AuditQueue::disabled()
        };
        Ok(Self {
            incarnation,
            memory,
            scale: config.pool_bytes.div_ceil(1 << 16).next_power_of_two(),
            sees_peer_ends: nic.capabilities().sees_peer_ends,
            control_cq,
            bind_cq,
            slabs: Slabs::new(objects, config.pool_bytes),
            headers: HeaderPool::new(POOL_BASE, config.headers),
            header_slots: vec![NONE; config.headers as usize],
            permissions: Permissions::default(),
            key_holders: KeyHolders::default(),
            leases: Leases::default(),
            taint: Taint::new(POOL_BASE, bytes),
            scrubs: VecDeque::new(),
            scrub_left: 0,
            steps_left: config.steps_per_turn,
            departures: Departures::default(),
            postponed: Postponed::new(config.postponed_max),
            put_off: VecDeque::new(),
            recoveries: Recoveries::default(),
            tenants: Vec::new(),
            stock: Stock::default(),
            busy: Vec::new(),
            births: 0,
            kept_check: None,
            going: 0,
            linger_check: Moment(0),
            tend_check: Moment(0),
            clients: Roster::default(),
            qp_owners: QpOwners::default(),
            empty_domains: Vec::new(),
            binders: HashMap::new(),
            standings: HashMap::new(),
            next_bar_end: None,
            audit,
            counters: Counters::default(),
            outbox: Vec::new(),
            evicted: Vec::new(),
            completions: Vec::new(),
            next_mark: 0,
            lots: StdRng::from_seed(secret),
            gone_windows: GoneWindows::default(),
            config,
        })
    }

    /// Which run of a node this is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The configuration it runs with.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Lets a client of the tenant called `name` come, if the tenant may: the tenant's domain is there after this.
    /// Follow it with [`Node::attach`], or with [`Node::abandon`] if that cannot be.
    ///
    /// # Errors
    /// The tenant is barred or paused, or the node or its NIC is full.
    pub fn admit(&mut self, nic: &mut N, name: &str, now: Moment) -> Result<Admission, Refusal> {
        let known = self.standings.get(name);
        known.map_or(Ok(()), |record| record.guesses.standing(now).check(now))?;
        if self.clients.attached() >= self.config.clients_max {
            return Err(Refusal::NodeFull { limit: self.config.clients_max.into() });
        }
        self.clients.next_id().ok_or(Refusal::NodeFull { limit: u64::MAX })?;
        let known =
            self.tenants.iter().position(|tenant| tenant.as_ref().is_some_and(|it| &*it.name == name));
        let slot = match known {
            Some(slot) => slot,
            None => self.settle(nic, name).map_err(|error| match error {
                VerbsError::Exhausted { limit, .. } => Refusal::NodeFull { limit },
                _ => Refusal::NicFailed,
            })?,
        };
        let tenant = self.tenants[slot].as_mut().ok_or(Refusal::NicFailed)?;
        tenant.clients += 1;
        tenant.alone_since = None;
        let id = TenantId(u32::try_from(slot).unwrap_or(u32::MAX));
        let own = tenant.pd;
        let other = self.tenants.iter().flatten().map(|tenant| tenant.pd).find(|&pd| pd != own);
        let pd = other.filter(|_| planted::is(Fault::QueuePairInWrongDomain)).unwrap_or(own);
        Ok(Admission { tenant: id, pd, cq: self.control_cq })
    }

    fn settle(&mut self, nic: &mut N, name: &str) -> Result<usize, VerbsError> {
        self.drop_domains(nic);
        let next = self.next_mark.checked_add(1).ok_or(used_up("marks of tenants"))?;
        let bytes = self.memory.length();
        let pool = (&self.memory, POOL_BASE, bytes);
        let named = (name.into(), self.next_mark);
        let mut tenant = Tenant::new(nic, &self.config, pool, self.bind_cq, named, &mut self.lots)?;
        tenant.offended = self.standings.contains_key(name);
        self.next_mark = next;
        let slot = self.tenants.iter().position(Option::is_none).unwrap_or_else(|| {
            self.tenants.push(None);
            self.tenants.len() - 1
        });
        self.binders.insert(tenant.binder, u32::try_from(slot).unwrap_or(u32::MAX));
        self.tenants[slot] = Some(Box::new(tenant));
        Ok(slot)
    }

    /// Goes on with this number for clients, tenants and objects: for tests of what happens near the end of a counter.
    #[doc(hidden)]
    pub fn dangerous_count_from(&mut self, number: u64) {
        self.clients.count_from(number);
        (self.next_mark, self.births) = (number, number);
    }

    /// Lets the domains go that nobody's queue pairs are in any more: those are destroyed after [`Node::detach`].
    pub(crate) fn drop_domains(&mut self, nic: &mut N) {
        self.empty_domains.retain(|&pd| matches!(nic.deallocate_pd(pd), Err(VerbsError::Busy { .. })));
    }

    /// The client that [`Node::admit`] let come does not come.
    pub fn abandon(&mut self, nic: &mut N, tenant: TenantId, now: Moment) {
        self.leave_tenant(tenant.0, now);
        self.go_on_taking_apart(nic, now);
    }

    /// Takes a client in, whose queue pairs are connected to `ends`.
    ///
    /// # Errors
    /// The NIC refuses. The client is as [`Node::admit`] left it.
    pub fn attach(
        &mut self,
        nic: &mut N,
        tenant: TenantId,
        process: Option<u32>,
        ends: ClientEnds,
        now: Moment,
    ) -> Result<ClientId, VerbsError> {
        let pd =
            self.tenant(tenant.0).map(|tenant| tenant.pd).ok_or(VerbsError::NoSuch { what: "tenant" })?;
        let access = match self.config.mechanism {
            Mechanism::MemoryWindow | Mechanism::MemoryRegion | Mechanism::None => Access::REMOTE,
            Mechanism::QueuePair | Mechanism::NodeCopy => Access::empty(),
        };
        for &qp in &ends.data {
            nic.modify_qp(qp, QpChange::Access { access })?;
        }
        let id = self.clients.next_id().ok_or(used_up("numbers of clients"))?;
        let client = Client::new(nic, (id, tenant.0, process), pd, ends, self.config.violations)?;
        self.qp_owners.insert(client.ends.control, (id.0, None));
        for (number, &qp) in (0..).zip(&client.ends.data) {
            self.qp_owners.insert(qp, (id.0, Some(number)));
        }
        self.clients.insert(client);
        self.audit_client(now, AuditEvent::Attach, id.0, None);
        Ok(id)
    }

    /// A client is gone: its queue pairs stop, and can be destroyed after this. Its permissions end now, or in the next
    /// turns where they are many.
    pub fn detach(&mut self, nic: &mut N, client: ClientId, now: Moment) {
        // Nothing more comes from it, and a NIC that has not told yet what it refused knows now.
        if let Some(going) = self.clients.get(client.0) {
            for &qp in going.ends.data.iter().chain([&going.ends.control]) {
                let _ = nic.modify_qp(qp, QpChange::Error);
            }
        }
        // What it has broken is charged to its tenant, also if it leaves at once.
        self.take_events(nic, now);
        self.audit_client(now, AuditEvent::Detach, client.0, None);
        self.recoveries.forget(client.0);
        let Some(gone) = self.clients.remove(client.0) else { return };
        for &qp in gone.ends.data.iter().chain([&gone.ends.control]) {
            self.qp_owners.remove(qp);
        }
        gone.end(nic);
        self.take_apart(nic, &gone, now);
    }

    pub(crate) fn tenant(&self, slot: u32) -> Option<&Tenant> {
        self.tenants.get(slot as usize)?.as_deref()
    }

    pub(crate) fn tenant_mut(&mut self, slot: u32) -> Option<&mut Tenant> {
        self.tenants.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Does what there is to do, in the order that lets opposite operations meet in one batch (Patronus §5.4): first
    /// what was confirmed, then requests, then leases, and only then windows and replies. Returns whether anything
    /// was done.
    pub fn turn(&mut self, nic: &mut N, now: Moment) -> bool {
        self.scrub_left = SCRUB_PER_TURN_BYTES;
        // Requests get half of the steps, so that leases end also in a flood of requests.
        self.steps_left = self.config.steps_per_turn / 2;
        let mut worked = self.take_confirmations(nic, now);
        // What was refused is charged before its client is heard: a rebuild is judged by how it stands now.
        let events = self.take_some_events(nic, now);
        worked |= events > 0;
        if events < EVENTS_PER_TURN {
            worked |= self.take_requests(nic, now);
        }
        self.steps_left += self.config.steps_per_turn / 2;
        worked |= self.serve_put_off(now);
        worked |= self.end_bars(now);
        worked |= self.expire(now);
        worked |= self.time_out_requests(now);
        worked |= self.expire_kept(now);
        worked |= self.go_on_taking_apart(nic, now);
        worked |= self.scrub(now);
        worked |= self.recover(nic, now);
        worked |= self.carry_out(nic, now);
        worked |= self.send_replies(nic);
        if !self.empty_domains.is_empty() {
            self.drop_domains(nic);
        }
        if !worked {
            worked = self.tend_windows(nic, now);
        }
        worked
    }

    /// The next moment at which it wants a turn without being asked.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        let lingering = self.tenants.iter().flatten().filter_map(|tenant| tenant.windows.lingering_since());
        let lingering = lingering.map(|since| since.after(self.config.linger_max)).min();
        let more = !self.departures.is_empty() || !self.put_off.is_empty();
        let at_once = more.then_some(Moment(0));
        let wakes = [
            at_once,
            self.leases.next(),
            self.postponed.next_timeout(),
            lingering,
            self.kept_check,
            self.next_bar_end,
        ];
        wakes.into_iter().flatten().min()
    }

    fn take_confirmations(&mut self, nic: &mut N, now: Moment) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let polled = nic.poll(self.bind_cq, 256, &mut completions).unwrap_or(0);
        for completion in &completions {
            self.confirm(nic, completion, now);
        }
        self.completions = completions;
        polled > 0
    }

    fn take_requests(&mut self, nic: &mut N, now: Moment) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        let mut left = self.config.requests_per_turn as usize;
        let mut worked = false;
        while left > 0 && self.steps_left > 0 {
            completions.clear();
            let polled = nic.poll(self.control_cq, left.min(REQUESTS_AT_ONCE), &mut completions).unwrap_or(0);
            if polled == 0 {
                break;
            }
            worked = true;
            left -= polled;
            // Who asks for a rebuild has broken something just before.
            self.take_events(nic, now);
            for completion in &completions {
                self.hear(nic, completion, now);
            }
        }
        self.completions = completions;
        worked
    }

    /// A reply is to go to a client. One that lets them pile up is let go.
    pub(crate) fn reply(&mut self, client: u64, sequence: u32, body: ReplyBody, data: Vec<u8>) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let keeps_up = it.reply(Reply { sequence, body }, data);
        if !std::mem::replace(&mut it.queued, true) {
            self.outbox.push(client);
        }
        if !keeps_up {
            self.evict(client);
        }
    }

    /// A client cannot be served any more: said once.
    pub(crate) fn evict(&mut self, client: u64) {
        if let Some(it) = self.clients.get_mut(client)
            && !std::mem::replace(&mut it.lost, true)
        {
            self.evicted.push(it.id);
        }
    }

    /// Replies that were owed until what they promise was true.
    pub(crate) fn answer(&mut self, answers: impl IntoIterator<Item = Answer>) {
        for answer in answers {
            self.reply(answer.client, answer.sequence, answer.body, Vec::new());
        }
    }

    pub(crate) fn refuse(&mut self, client: u64, sequence: u32, refusal: Refusal) {
        self.reply(client, sequence, ReplyBody::Refused(refusal), Vec::new());
    }

    fn send_replies(&mut self, nic: &mut N) -> bool {
        let mut worked = false;
        for client in std::mem::take(&mut self.outbox) {
            let Some(it) = self.clients.get_mut(client) else { continue };
            it.queued = false;
            let sent = it.send(nic);
            worked = true;
            if sent.is_err() {
                self.evict(client);
            }
        }
        worked
    }

    /// A client that cannot be served any more: whoever let it in should show it out, and then call
    /// [`Node::detach`].
    pub fn poll_evicted(&mut self) -> Option<ClientId> {
        self.evicted.pop()
    }

    /// The next audit record.
    pub fn poll_audit(&mut self) -> Option<AuditRecord> {
        self.audit.pop()
    }

    /// What it has counted, and what it holds.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let tenants = || self.tenants.iter().flatten();
        Counters {
            clients: self.clients.attached().into(),
            tenants: tenants().count() as u64,
            permissions: self.permissions.len() as u64,
            objects: self.slabs.objects().into(),
            bytes_used: self.slabs.bytes_used(),
            headers_used: u64::from(self.headers.count() - self.headers.free()),
            windows: tenants().map(|tenant| tenant.windows.len() as u64).sum(),
            postponed: self.postponed.len() as u64,
            audit_lost: self.audit.lost(),
            ..self.counters
        }
    }

    /// Takes the node off the NIC: clients, tenants, queues.
    pub fn end(&mut self, nic: &mut N, now: Moment) {
        let clients: Vec<ClientId> = self.clients.iter().map(|client| client.id).collect();
        for client in clients {
            self.detach(nic, client, now);
        }
        self.take_all_apart(nic, now);
        // Those without clients that have left objects behind.
        for slot in 0..u32::try_from(self.tenants.len()).unwrap_or(u32::MAX) {
            self.end_tenant(nic, slot, now);
        }
        let _ = nic.destroy_cq(self.control_cq);
        let _ = nic.destroy_cq(self.bind_cq);
    }

    pub(crate) fn audit_client(
        &mut self,
        at: Moment,
        event: AuditEvent,
        client: u64,
        reason: Option<&'static str>,
    ) {
        self.audit_of_client(at, event, client, |record| AuditRecord { reason, ..record });
    }

    /// The same, with what `add` adds to the record.
    pub(crate) fn audit_of_client(
        &mut self,
        at: Moment,
        event: AuditEvent,
        client: u64,
        add: impl FnOnce(AuditRecord) -> AuditRecord,
    ) {
        let (clients, tenants) = (&self.clients, &self.tenants);
        self.audit.push(at, event, |record| {
            let client = clients.get(client);
            let tenant = client.and_then(|it| tenants.get(it.tenant as usize)?.as_ref());
            add(AuditRecord {
                tenant: tenant.map(|tenant| Arc::clone(&tenant.name)),
                client: client.map(|client| client.id),
                process: client.and_then(|client| client.process),
                ..record
            })
        });
    }

    /// Where in the pool's memory an address lies.
    pub(crate) fn offset(address: RemoteAddress) -> u64 {
        address.0 - POOL_BASE.0
    }

    /// What names an object for ever.
    pub(crate) fn reference(&self, object: ObjectId) -> ObjectRef {
        let (address, birth) = (self.slabs.address(object), self.slabs.get(object).birth);
        ObjectRef { incarnation: self.incarnation, address, birth }
    }

    /// The object that a request means, if it is this tenant's and not about to go.
    ///
    /// What is another tenant's is refused as what is gone is: whether it lives is not this tenant's to know.
    pub(crate) fn object_named(&self, tenant: u32, name: ObjectName) -> Result<ObjectId, Refusal> {
        let (missing, birth) = match name {
            ObjectName::Reference(it) if it.incarnation != self.incarnation => {
                return Err(Refusal::AnotherNode);
            }
            ObjectName::Reference(it) => (Refusal::Gone, Some(it.birth)),
            ObjectName::Address(_) => (Refusal::NoSuchObject, None),
        };
        let object = self.slabs.find(name.address()).ok_or(missing)?;
        let record = self.slabs.get(object);
        let meant = birth.is_none_or(|birth| birth == record.birth) || planted::is(Fault::BirthNotCompared);
        if meant && record.tenant == tenant && !record.going { Ok(object) } else { Err(missing) }
    }
}

/// A counter is at its end. What it counts is told apart by number, so the node rather refuses than begins anew.
fn used_up(what: &'static str) -> VerbsError {
    VerbsError::Exhausted { what, limit: u64::MAX }
}
