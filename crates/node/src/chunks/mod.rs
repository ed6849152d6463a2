//! Chunks that the NIC hands out without the CPU (OneSidedMW): the part of the node's CPU, off the critical path.
//!
//! Clients send their requests to workers on the NIC. This module does the rest: it makes a client's workers when the
//! client requests them, and frees a client's chunks when the client has left. It records the NIC's changes in the
//! books afterwards ([`adoption`]). Nothing here is on the path of an allocation or of an access.

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
use portcullis_offload::chain::{Chains, Line, RowOperation};
use portcullis_offload::{ChunkPool, ChunkPoolConfig, ClientNumber, Progress, Reclaim, Workers};
use portcullis_planted::planted;
use portcullis_protocol::{
    CHUNK_QUEUE_PAIRS, ChunkTerms, ClientId, HandedOutBy, Lifetime, Moment, Refusal, TenantId,
};
use rebuilding::Rebuilds;
use sizing::Sizing;
use std::collections::{BTreeMap, HashMap};
use watch::LockWatch;

/// Access that a client's queue pairs for chunks allow, as far as windows allow it.
pub(crate) const CHUNK_ACCESS: Access = Access::REMOTE;
/// Delay until the node checks again the clients that have left, and the chunks that were handed out meanwhile.
const LOOK_AGAIN: Lifetime = Lifetime::millis(1);
/// Number of workers besides those of all attached clients: for clients that have left, and the node's own two.
const WORKERS_SPARE: u32 = 18;

/// The node's ends of a client's queue pairs for chunks.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ChunkEnds {
    /// The queue pairs for accesses, with the addresses of the client's ends.
    pub access: Vec<(QpId, QpAddress)>,
    /// The client's own queue pairs for requests, if the node can connect them: if both ends are on its NIC.
    pub asking: Vec<QpId>,
}

/// A client that has queue pairs for chunks.
#[derive(Debug)]
struct Member {
    tenant: TenantId,
    ends: ChunkEnds,
    /// The client's workers. `None`: it has not requested any, or the pool was rebuilt since.
    workers: Option<Workers<CHUNK_QUEUE_PAIRS>>,
    /// The most chunks that the client can hold, once it has requested workers. Zero before.
    quota: u64,
}

/// A client that has left, and may still hold chunks.
#[derive(Debug)]
struct Leaving<M> {
    tenant: TenantId,
    quota: u64,
    reclaim: Reclaim<M, CHUNK_QUEUE_PAIRS>,
}

/// The pool of chunks that the NIC hands out, and its clients.
#[derive(Debug)]
pub(crate) struct OffloadedChunks<M> {
    pool: ChunkPool<M, CHUNK_QUEUE_PAIRS>,
    limits: ChunkLimits,
    /// The most chunks that the clients of one tenant can hold together.
    tenant_max: u64,
    members: BTreeMap<ClientId, Member>,
    leaving: Vec<Leaving<M>>,
    adoption: Adoption,
    /// The chunks that the node holds itself, if it resizes the pool.
    sizing: Option<Sizing<M>>,
    /// The chunk of each window, by the upper bits of its keys.
    chunk_of_key: HashMap<u32, u64>,
    lock: LockWatch,
    rebuilds: Rebuilds,
    /// A worker has broken, and the pool could not be rebuilt yet: no client is served.
    is_broken: bool,
    next_look: Option<Moment>,
}

impl<M: Memory> OffloadedChunks<M> {
    /// Creates a pool whose chunks are all free.
    ///
    /// # Errors
    /// The NIC has no chains, or a limit of the NIC is reached. No object is left behind.
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

    /// Returns the protection domain of the node's ends of queue pairs for accesses.
    pub fn domain(&self) -> PdId {
        self.pool.domains().access
    }

    /// Enters a client that has attached.
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

    /// Makes the workers of a client, which serve it from here on. A client requests workers again after the pool was
    /// rebuilt: its quota stays, and the chunks that it holds count.
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

    /// Returns the number of chunks that the clients of a tenant may already hold together.
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
            // The first error gives the reason.
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
            // The requests that were under way when the pool was rebuilt are over: the client expects no reply to them.
            nic.modify_qp(qp, QpChange::Reset)?;
            connect_qp(nic, qp, peer)?;
        }
        let here = [nic.qp_address(alloc)?, nic.qp_address(free)?];
        self.pool.start_workers(nic, workers, here)
    }

    /// Handles the departure of a client. Its queue pairs for accesses stay until its chunks are free: windows are
    /// bound to them.
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

    /// Continues the reclaims of clients that have left. Returns whether any was completed.
    pub fn proceed<N: Nic<Memory = M>>(&mut self, nic: &mut N, now: Moment) -> bool {
        if self.is_broken || self.next_look.is_none_or(|at| now < at) {
            return false;
        }
        let Self { pool, leaving, rebuilds, .. } = self;
        let before = leaving.len();
        leaving.retain_mut(|it| match it.reclaim.proceed(pool, nic) {
            _ if planted!(DepartedKeepChunks) => true,
            Ok(Progress::Pending) => true,
            Ok(Progress::Done) => {
                it.reclaim.group().iter().for_each(|&qp| destroy(nic, qp));
                false
            }
            // No worker is free now. The next check tries again.
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

    /// Records the NIC's changes, of at most `steps` chunks. Returns the changes.
    pub fn adopt<N: Nic<Memory = M>>(&mut self, nic: &mut N, steps: u32, now: Moment) -> Vec<Adopted> {
        let (_, releases) = self.pool.lock_counts(nic).unwrap_or_default();
        let Self { pool, members, leaving, adoption, .. } = self;
        let is_at_rest = || {
            let mut workers = members.values().filter_map(|member| member.workers.as_ref());
            leaving.is_empty() && workers.all(|it| pool.is_at_rest(nic, it).unwrap_or(false))
        };
        let mut adopted = adoption.step(pool, (releases, is_at_rest), steps, now);
        // Takes and gives of the node itself are no client's uses.
        let of_client = |number: &ClientNumber| *number != node_number();
        for change in &mut adopted {
            (change.before, change.now) = (change.before.filter(of_client), change.now.filter(of_client));
        }
        adopted.retain(|change| change.before.is_some() || change.now.is_some());
        adopted
    }

    /// Returns the next moment at which there is work to do here.
    pub fn next_wake(&self) -> Option<Moment> {
        let resize = self.sizing.as_ref().and_then(|sizing| sizing.next_look);
        let own = [self.next_look, resize, self.lock.next_look()].map(|at| at.filter(|_| !self.is_broken));
        own.into_iter().chain([self.adoption.next_step(), self.rebuilds.next()]).flatten().min()
    }

    /// Classifies a refused access on a client's queue pair for chunks.
    pub fn charge(&self, client: ClientId, refused: Option<RefusedAccess>) -> Charge {
        let number = number_of(client);
        let chunk = refused.and_then(|refused| self.chunk_of_key.get(&refused.rkey.index()).copied());
        let holds = |chunk: &u64| self.pool.holder(*chunk) == number;
        match chunk {
            Some(chunk) if holds(&chunk) => Charge::Stray,
            // If a use was over before the node has read its record, only the record shows its holder.
            Some(chunk) if number.is_some() && self.pool.freed_by(chunk) == number => Charge::Late,
            Some(chunk) if number.is_some_and(|it| self.adoption.was_holder(chunk, it)) => Charge::Late,
            _ => Charge::Guess,
        }
    }

    /// Returns the counters of chunks, as far as the node has recorded the NIC's changes.
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

    /// Returns the number of chunks that clients hold, as far as the node has recorded it.
    fn held_by_clients(&self) -> u64 {
        self.adoption.held() - self.adoption.held_by(node_number())
    }

    /// Returns the number of chunks that a client holds, as far as the node has recorded it.
    pub fn held_by(&self, client: ClientId) -> u64 {
        number_of(client).map_or(0, |number| self.adoption.held_by(number))
    }

    /// Removes the pool and its workers from the NIC. All clients must have left.
    pub fn end<N: Nic<Memory = M>>(mut self, nic: &mut N) {
        for Leaving { reclaim, .. } in std::mem::take(&mut self.leaving) {
            self.pool.adopt_queue_pairs(reclaim.group());
            // The NIC is about to be closed: an object that it does not destroy now does no harm.
            let _ = reclaim.abandon(&mut self.pool, nic);
        }
        if let Some(sizing) = self.sizing.take() {
            let _ = sizing.reserve.abandon(&mut self.pool, nic);
        }
        let _ = self.pool.destroy(nic);
    }
}

/// Returns the chains of the workers.
fn chains() -> Chains {
    let chains = Chains::new::<CHUNK_QUEUE_PAIRS>();
    let without = |lines: &[Line]| {
        let free = chains.free.edited(|rows| {
            let left_out = rows.iter_mut().filter(|row| lines.contains(&row.label.0));
            left_out.for_each(|row| row.operation = RowOperation::Nop);
        });
        Chains { free, ..chains }
    };
    if planted!(ChunkNotZeroed) {
        return without(&[Line::CopyZero]);
    }
    if planted!(ChunkStaysBound) {
        return without(&[Line::EnableBinds, Line::AwaitBinds]);
    }
    if planted!(ChunkUsesNotCounted) {
        return without(&[Line::NextKey]);
    }
    chains
}

/// Returns the chunk of each window, by the upper bits of its keys.
fn chunks_by_key<M: Memory>(pool: &ChunkPool<M, CHUNK_QUEUE_PAIRS>) -> HashMap<u32, u64> {
    let chunks = (0..pool.geometry().chunks).flat_map(|chunk| [chunk; CHUNK_QUEUE_PAIRS]);
    pool.parts().windows.iter().map(|window| window.rkey.index()).zip(chunks).collect()
}

fn destroy(nic: &mut impl Nic, qp: QpId) {
    let _ = nic.destroy_qp(qp);
}

/// Returns the number of the node itself in chains. No client gets so large a number.
fn node_number() -> ClientNumber {
    ClientNumber::MAX
}

/// Returns the number of a client in chains.
fn number_of(client: ClientId) -> Option<ClientNumber> {
    ClientNumber::new(client.0.checked_add(1)?)
}

/// Returns the client with this number in chains.
pub(crate) fn client_of(number: ClientNumber) -> ClientId {
    ClientId(number.get() - 1)
}
