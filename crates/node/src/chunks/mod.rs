//! Chunks that the NIC hands out alone (OneSidedMW): what the node's CPU does for them, off the path.
//!
//! Clients ask workers on the NIC. Here are the rest: a client's workers are made when it asks for them, and when it has
//! gone, what it held is freed. What the NIC has done is taken into the books afterwards ([`adoption`]). Nothing here is
//! on the path of an allocation or of an access.

mod adoption;
mod rebuilding;
mod sizing;
mod watch;

pub(crate) use adoption::Adopted;

use crate::books::Charge;
use crate::config::{ChunkLimits, NodeConfig};
use crate::counters::Counters;
use adoption::Adoption;
use portcullis_nic::{
    Access, Memory, Nic, PdId, QpAddress, QpChange, QpId, RefusedAccess, VerbsError, connect_qp,
};
use portcullis_offload::chain::{Chains, Line, Step};
use portcullis_offload::{ChunkPool, ChunkPoolConfig, ClientNumber, Progress, Reclaim, Workers};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{
    CHUNK_QUEUE_PAIRS, ChunkTerms, ClientId, HandedOutBy, Lifetime, Moment, Refusal, TenantId,
};
use rebuilding::Rebuilds;
use sizing::Sizing;
use std::collections::{BTreeMap, HashMap};
use watch::LockWatch;

/// What a client's queue pairs for chunks let through, as far as windows allow it.
pub(crate) const CHUNK_ACCESS: Access = Access::REMOTE;
/// How soon the node looks again at clients that are gone, and at chunks that were handed out meanwhile.
const LOOK_AGAIN: Lifetime = Lifetime::millis(1);
/// Workers of clients that are gone, while others have all of theirs, and the node's own two.
const WORKERS_SPARE: u32 = 18;

/// The node's ends of a client's queue pairs for chunks.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ChunkEnds {
    /// For accesses, with the addresses of the client's ends.
    pub access: Vec<(QpId, QpAddress)>,
    /// The client's own queue pairs on which it asks, where the node can connect them: both ends are on its NIC.
    pub asking: Vec<QpId>,
}

/// A client that has queue pairs for chunks.
#[derive(Debug)]
struct Member {
    tenant: TenantId,
    ends: ChunkEnds,
    /// `None`: it has not asked for any, or the pool was rebuilt since.
    workers: Option<Workers<CHUNK_QUEUE_PAIRS>>,
    /// How many chunks it can hold, once it has asked for workers. Zero before.
    quota: u64,
}

/// A client that is gone, and may still hold chunks.
#[derive(Debug)]
struct Leaving<M> {
    tenant: TenantId,
    quota: u64,
    reclaim: Reclaim<M, CHUNK_QUEUE_PAIRS>,
}

/// The pool of chunks and its clients.
#[derive(Debug)]
pub(crate) struct Chunks<M> {
    pool: ChunkPool<M, CHUNK_QUEUE_PAIRS>,
    limits: ChunkLimits,
    /// How many chunks the clients of one tenant can hold.
    tenant_max: u64,
    members: BTreeMap<ClientId, Member>,
    leaving: Vec<Leaving<M>>,
    adoption: Adoption,
    /// Where the node holds chunks itself.
    sizing: Option<Sizing<M>>,
    /// The chunk of each window, by the upper bits of its keys.
    chunk_of_key: HashMap<u32, u64>,
    lock: LockWatch,
    rebuilds: Rebuilds,
    /// A worker has broken, and the pool could not be rebuilt yet: nobody is served.
    is_broken: bool,
    next_look: Option<Moment>,
}

impl<M: Memory> Chunks<M> {
    /// A pool whose chunks are all free.
    ///
    /// # Errors
    /// The NIC has no chains, or too little of something. Nothing is left behind.
    pub fn new<N: Nic<Memory = M>>(
        nic: &mut N,
        (limits, ready): (ChunkLimits, Option<u64>),
        node: &NodeConfig,
    ) -> Result<Self, VerbsError> {
        let workers = node.clients_max.saturating_mul(2).saturating_add(WORKERS_SPARE);
        let config = ChunkPoolConfig { chunks: limits.chunks, chunk_bytes: limits.chunk_bytes, workers };
        let mut pool = ChunkPool::create_with(nic, config, chains(), &[])?;
        let sizing = ready.map(|ready| Sizing::new(&mut pool, nic, ready)).transpose()?;
        Ok(Self {
            chunk_of_key: chunks_by_key(&pool),
            adoption: Adoption::new(&pool),
            sizing,
            pool,
            limits,
            tenant_max: node.quota.chunks_max,
            members: BTreeMap::new(),
            leaving: Vec::new(),
            lock: LockWatch::default(),
            rebuilds: Rebuilds::default(),
            is_broken: false,
            next_look: None,
        })
    }

    /// Where the node's ends of queue pairs for accesses are made.
    pub fn domain(&self) -> PdId {
        self.pool.domains().access
    }

    /// A client has attached.
    ///
    /// # Errors
    /// The NIC refuses.
    pub fn enter<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        client: ClientId,
        tenant: TenantId,
        ends: ChunkEnds,
    ) -> Result<(), VerbsError> {
        for &(qp, _) in &ends.access {
            nic.modify_qp(qp, QpChange::Access { access: CHUNK_ACCESS })?;
        }
        self.members.insert(client, Member { tenant, ends, workers: None, quota: 0 });
        Ok(())
    }

    /// Makes the workers of a client, which serve it from here on. A client asks again when the pool was rebuilt: its quota
    /// stays, and what it holds counts.
    ///
    /// # Errors
    /// The client has no queue pairs for chunks, or has workers already; its tenant's quota is used up; the NIC refuses.
    pub fn join<N: Nic<Memory = M>>(&mut self, nic: &mut N, client: ClientId) -> Result<ChunkTerms, Refusal> {
        if self.is_broken {
            return Err(Refusal::NicFailed);
        }
        let member = self.members.get(&client).filter(|member| member.ends.asking.len() == 2);
        let member = member.ok_or(Refusal::NoChunks)?;
        if member.workers.is_some() {
            return Err(Refusal::Malformed);
        }
        let used = self.given_to(member.tenant);
        let number = number_of(client).ok_or(Refusal::NicFailed)?;
        let (quota, held) = match member.quota {
            0 => (self.limits.client_max.min(self.tenant_max.saturating_sub(used)), 0),
            quota => (quota, self.pool.chunks_of(number).len() as u64),
        };
        if quota == 0 {
            return Err(Refusal::Quota { used, limit: self.tenant_max });
        }
        let ends = member.ends.clone();
        let workers = self.hire(nic, number, &ends, quota - held).map_err(|error| match error {
            VerbsError::Exhausted { limit, .. } => Refusal::NodeFull { limit },
            _ => Refusal::NicFailed,
        })?;
        if let Some(member) = self.members.get_mut(&client) {
            (member.workers, member.quota) = (Some(workers), quota);
        }
        let geometry = self.pool.geometry();
        let (base, chunks, chunk_bytes) = (geometry.base, geometry.chunks, geometry.chunk_bytes);
        Ok(ChunkTerms { base, chunks, chunk_bytes, quota, held, by: HandedOutBy::Nic })
    }

    /// How many chunks the clients of a tenant may hold together already.
    fn given_to(&self, tenant: TenantId) -> u64 {
        let present = self.members.values().filter(|it| it.tenant == tenant).map(|it| it.quota);
        let gone = self.leaving.iter().filter(|it| it.tenant == tenant).map(|it| it.quota);
        present.chain(gone).sum()
    }

    fn hire<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        number: ClientNumber,
        ends: &ChunkEnds,
        quota: u64,
    ) -> Result<Workers<CHUNK_QUEUE_PAIRS>, VerbsError> {
        let group: Vec<_> = ends.access.iter().map(|&(qp, _)| qp).collect();
        let workers = self.pool.attach(nic, number, &group, quota)?;
        let begun = self.connect(nic, &workers, &ends.asking);
        if let Err(error) = begun {
            // The first error says why.
            let _ = self.pool.dismiss_workers(nic, workers);
            return Err(error);
        }
        Ok(workers)
    }

    fn connect<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: &Workers<CHUNK_QUEUE_PAIRS>,
        asking: &[QpId],
    ) -> Result<(), VerbsError> {
        let &[alloc, free] = asking else { return Err(VerbsError::NoSuch { what: "queue pair to ask on" }) };
        for (qp, peer) in [alloc, free].into_iter().zip(workers.addresses(nic)?) {
            // What was under way when the pool was rebuilt is over: the client expects no more of it.
            nic.modify_qp(qp, QpChange::Reset)?;
            connect_qp(nic, qp, peer)?;
        }
        let here = [nic.qp_address(alloc)?, nic.qp_address(free)?];
        self.pool.start_workers(nic, workers, here)
    }

    /// A client is gone. Its queue pairs for accesses stay until its chunks are free: windows are bound to them.
    pub fn leave<N: Nic<Memory = M>>(&mut self, nic: &mut N, client: ClientId, now: Moment) {
        let Some(Member { tenant, ends, workers, quota }) = self.members.remove(&client) else { return };
        self.next_look = Some(now);
        let group: Vec<_> = ends.access.iter().map(|&(qp, _)| qp).collect();
        let begun = match (workers, number_of(client)) {
            (Some(workers), _) => Reclaim::begin(&self.pool, nic, workers),
            (None, Some(number)) if quota > 0 => Ok(Reclaim::resume(number, group.clone())),
            (None, _) => return group.into_iter().for_each(|qp| destroy(nic, qp)),
        };
        match begun {
            Ok(reclaim) => self.leaving.push(Leaving { tenant, quota, reclaim }),
            Err(_) => {
                self.pool.adopt_queue_pairs(&group);
                self.is_broken = true;
            }
        }
    }

    /// Goes on with what is to be done for clients that are gone. Returns whether anything was done.
    pub fn proceed<N: Nic<Memory = M>>(&mut self, nic: &mut N, now: Moment) -> bool {
        if self.is_broken || self.next_look.is_none_or(|at| now < at) {
            return false;
        }
        let Self { pool, leaving, rebuilds, .. } = self;
        let before = leaving.len();
        leaving.retain_mut(|it| match it.reclaim.proceed(pool, nic) {
            _ if planted::is(Fault::DepartedKeepChunks) => true,
            Ok(Progress::Pending) => true,
            Ok(Progress::Done) => {
                it.reclaim.group().iter().for_each(|&qp| destroy(nic, qp));
                false
            }
            // There is no worker to be had now; the next look tries again.
            Err(VerbsError::Exhausted { .. }) => true,
            Err(_) => {
                rebuilds.ask();
                true
            }
        });
        let worked = leaving.len() < before;
        self.next_look = (!self.leaving.is_empty() && !self.is_broken).then(|| now.after(LOOK_AGAIN));
        worked
    }

    /// Takes up what the NIC has done, as far as `steps` chunks go. Returns what has changed.
    pub fn adopt<N: Nic<Memory = M>>(&mut self, nic: &N, steps: u32, now: Moment) -> Vec<Adopted> {
        let (_, releases) = self.pool.lock_counts(nic).unwrap_or_default();
        let Self { pool, members, leaving, adoption, .. } = self;
        let is_at_rest = || {
            let mut workers = members.values().filter_map(|member| member.workers.as_ref());
            leaving.is_empty() && workers.all(|it| pool.is_at_rest(nic, it).unwrap_or(false))
        };
        let mut adopted = adoption.step(pool, (releases, is_at_rest), steps, now);
        // What the node takes and gives itself is nobody's use.
        let of_client = |number: &ClientNumber| *number != node_number();
        for change in &mut adopted {
            (change.before, change.now) = (change.before.filter(of_client), change.now.filter(of_client));
        }
        adopted.retain(|change| change.before.is_some() || change.now.is_some());
        adopted
    }

    /// When there is something to be done without being asked.
    pub fn next_wake(&self) -> Option<Moment> {
        let resize = self.sizing.as_ref().and_then(|sizing| sizing.next_look);
        let own = [self.next_look, resize, self.lock.next_look()].map(|at| at.filter(|_| !self.is_broken));
        own.into_iter().chain([self.adoption.next_step(), self.rebuilds.next()]).flatten().min()
    }

    /// What a refused access on a client's queue pair for chunks looks like.
    pub fn charge(&self, client: ClientId, refused: Option<RefusedAccess>) -> Charge {
        let number = number_of(client);
        let chunk = refused.and_then(|refused| self.chunk_of_key.get(&refused.rkey.index()).copied());
        let holds = |chunk: &u64| self.pool.holder(*chunk) == number;
        match chunk {
            Some(chunk) if holds(&chunk) => Charge::Stray,
            // A use that was over before the node has read of it is in the record alone.
            Some(chunk) if number.is_some() && self.pool.freed_by(chunk) == number => Charge::Late,
            Some(chunk) if number.is_some_and(|it| self.adoption.was_holder(chunk, it)) => Charge::Late,
            _ => Charge::Guess,
        }
    }

    /// What is counted here, as far as the node has taken it up.
    pub fn counters(&self) -> Counters {
        let (held, given) = self.sizing.as_ref().map_or((0, 0), |sizing| (sizing.held(), sizing.given));
        let of_node = self.adoption.held_by(node_number()) + given;
        Counters {
            chunks: self.limits.chunks,
            chunks_held: self.held_by_clients(),
            chunk_allocations: self.adoption.allocations().saturating_sub(of_node),
            chunks_set_aside: held,
            chunk_rebuilds: self.rebuilds.count,
            ..Counters::default()
        }
    }

    /// Chunks that clients hold, as far as the node has taken it up.
    fn held_by_clients(&self) -> u64 {
        self.adoption.held() - self.adoption.held_by(node_number())
    }

    /// How many chunks a client holds, as far as the node has taken it up.
    pub fn held_by(&self, client: ClientId) -> u64 {
        number_of(client).map_or(0, |number| self.adoption.held_by(number))
    }

    /// Removes the pool and its workers from the NIC. All clients have left.
    pub fn end<N: Nic<Memory = M>>(mut self, nic: &mut N) {
        for Leaving { reclaim, .. } in std::mem::take(&mut self.leaving) {
            self.pool.adopt_queue_pairs(reclaim.group());
            // The NIC is about to go: what it does not let go now, nobody misses.
            let _ = reclaim.abandon(&mut self.pool, nic);
        }
        if let Some(sizing) = self.sizing.take() {
            let _ = sizing.reserve.abandon(&mut self.pool, nic);
        }
        let _ = self.pool.destroy(nic);
    }
}

/// The chains of the workers.
fn chains() -> Chains {
    let chains = Chains::new::<CHUNK_QUEUE_PAIRS>();
    let without = |lines: &[Line]| {
        let free = chains.free.edited(|rows| {
            let left_out = rows.iter_mut().filter(|row| lines.contains(&row.label.0));
            left_out.for_each(|row| row.step = Step::Nop);
        });
        Chains { free, ..chains }
    };
    if planted::is(Fault::ChunkNotZeroed) {
        return without(&[Line::CopyZero]);
    }
    if planted::is(Fault::ChunkStaysBound) {
        return without(&[Line::EnableBinds, Line::AwaitBinds]);
    }
    if planted::is(Fault::ChunkUsesNotCounted) {
        return without(&[Line::NextKey]);
    }
    chains
}

/// The chunk of each window, by the upper bits of its keys.
fn chunks_by_key<M: Memory>(pool: &ChunkPool<M, CHUNK_QUEUE_PAIRS>) -> HashMap<u32, u64> {
    let chunks = (0..pool.geometry().chunks).flat_map(|chunk| [chunk; CHUNK_QUEUE_PAIRS]);
    pool.parts().windows.iter().map(|window| window.rkey.index()).zip(chunks).collect()
}

fn destroy(nic: &mut impl Nic, qp: QpId) {
    let _ = nic.destroy_qp(qp);
}

/// The number by which chains know the node itself. No client lives that long.
fn node_number() -> ClientNumber {
    ClientNumber::MAX
}

/// The number by which chains know a client.
fn number_of(client: ClientId) -> Option<ClientNumber> {
    ClientNumber::new(client.0.checked_add(1)?)
}

/// The client of such a number.
pub(crate) fn client_of(number: ClientNumber) -> ClientId {
    ClientId(number.get() - 1)
}
