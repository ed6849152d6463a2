//! A pool of chunks: its memory, its table, its windows, and its three protection domains.
//!
//! - The **engine**'s domain has everything that chains read and write. Only queue pairs of chains are in it, and each
//!   is its own peer. No client's queue pair is in it: with a guessed key, a client could rewrite chains.
//! - The **access** domain has the chunks, without remote rights, and the windows over them. Clients' access queue
//!   pairs end there, and so do the queues that bind. All tenants share this domain. They are isolated because each
//!   window works on one queue pair only.
//! - The **edge** domain has the buffers of requests and replies, with local rights only. The queue pairs on which
//!   clients send requests end there.

use crate::chain::{Chains, OTHER_WORDS_AT, Scratch, TICKET_AT, TOP_AT};
use crate::message::Geometry;
use crate::objects::Objects;
use crate::record::{ClientNumber, Layout, NIL, OWNER_AT, STATUS_AT, TABLE_BYTES};
use crate::table::{FIRST_USE, Regions, Table};
use portcullis_nic::{
    Access, ChainNic, ChainRole, ChainVerb, CqId, Memory, Nic, Operation, PdId, QpAttributes, QpChange, QpId,
    Region, RemoteAddress, Status, VerbsError, Window, WindowKind, WorkRequest,
};

/// Address of the first chunk, as clients use it.
const CHUNKS_BASE: RemoteAddress = RemoteAddress(1 << 40);
/// Depth of the send queue with which the CPU starts chains.
const STARTER_DEPTH: u32 = 64;

/// Configuration of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPoolConfig {
    /// Number of chunks.
    pub chunks: u64,
    /// Number of bytes of each chunk: a multiple of 8.
    pub chunk_bytes: u64,
    /// The most workers at once. A client has two.
    pub workers: u32,
}

/// The three protection domains.
#[derive(Clone, Copy, Debug)]
pub struct Domains {
    /// The domain of the memory that chains access.
    pub engine: PdId,
    /// The domain of the memory that clients access.
    pub access: PdId,
    /// The domain of the buffers that receive clients' requests.
    pub edge: PdId,
}

/// A pool of chunks that the NIC hands out without the CPU, each with windows for `GROUP` queue pairs of its holder.
#[derive(Clone, Debug)]
pub struct ChunkPool<M, const GROUP: usize> {
    pub(crate) domains: Domains,
    pub(crate) geometry: Geometry,
    pub(crate) chains: Chains,
    pub(crate) table: Table<M, GROUP>,
    pub(crate) words: M,
    /// The workers' scratch memory. `scratch_free` numbers its parts that no worker uses.
    pub(crate) scratch: M,
    pub(crate) scratch_free: Vec<u32>,
    /// The most workers.
    pub(crate) workers: u32,
    chunks_memory: M,
    pub(crate) areas: Areas,
    /// Counts the releases of the lock.
    pub(crate) lock: CqId,
    starter: QpId,
    starter_cq: CqId,
    /// Number of requests posted to the starter so far, and number of those that it has completed.
    starts: (u64, u64),
    /// The pool's verbs objects. Their windows are those of the chunks, one chunk after another.
    objects: Objects,
    /// The number of each chunk's first use with its present windows.
    windows_since: Vec<u64>,
}

/// The memory regions of a pool that chains access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    pub table: Region,
    /// The table, where address zero is the first record's owner.
    pub owners: Region,
    /// The table, where address zero is the first record's status.
    pub tails: Region,
    pub words: Region,
    pub scratch: Region,
    pub zeros: Region,
    /// The chunks, as the destination of zeros.
    pub scrubbed: Region,
    /// The chunks, in the access domain, as the target of binds.
    pub chunks: Region,
}

/// The memory and the verbs objects of a pool, for callers that watch its steps.
#[derive(Debug)]
pub struct PoolParts<'a, M> {
    /// The chains of its workers.
    pub chains: &'a Chains,
    /// The table ([`record`](crate::record)).
    pub table: &'a M,
    /// The top of the free list, and the next ticket.
    pub words: &'a M,
    /// The workers' scratch memory.
    pub scratch: &'a M,
    /// The windows of its chunks, one chunk after another.
    pub windows: &'a [Window],
    /// Counts the releases of the lock.
    pub lock: CqId,
    /// The queue pair with which the CPU starts chains.
    pub starter: QpId,
}

/// The rights of chains over their memory.
pub(crate) const ENGINE: Access = Access::REMOTE.union(Access::LOCAL_WRITE);

/// The memories of a pool.
struct Memories<M> {
    table: M,
    words: M,
    words_bytes: u64,
    scratch: M,
    zeros: M,
    chunks: M,
}

impl<M: Memory> Memories<M> {
    fn allocate<N: Nic<Memory = M>, const GROUP: usize>(
        nic: &mut N,
        config: ChunkPoolConfig,
        words_bytes: u64,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            table: nic.allocate_memory(TABLE_BYTES)?,
            words: nic.allocate_memory(words_bytes)?,
            words_bytes,
            scratch: nic.allocate_memory(scratch_bytes::<GROUP>(config))?,
            zeros: nic.allocate_memory(config.chunk_bytes)?,
            chunks: nic.allocate_memory(config.chunks * config.chunk_bytes)?,
        })
    }

    fn register<N: Nic<Memory = M>, const GROUP: usize>(
        &self,
        nic: &mut N,
        objects: &mut Objects,
        domains: Domains,
        config: ChunkPoolConfig,
    ) -> Result<Areas, VerbsError> {
        let chunks_bytes = config.chunks * config.chunk_bytes;
        let mut area = |memory, from, to| {
            let made = nic.register_region(domains.engine, memory, from..to, RemoteAddress(0), ENGINE);
            objects.region(made)
        };
        let table = area(&self.table, 0, TABLE_BYTES)?;
        let owners = area(&self.table, OWNER_AT, TABLE_BYTES)?;
        let tails = area(&self.table, STATUS_AT, TABLE_BYTES)?;
        let words = area(&self.words, 0, self.words_bytes)?;
        let scratch = area(&self.scratch, 0, scratch_bytes::<GROUP>(config))?;
        let zeros = area(&self.zeros, 0, config.chunk_bytes)?;
        let scrubbed = area(&self.chunks, 0, chunks_bytes)?;
        let access = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let chunks = nic.register_region(domains.access, &self.chunks, 0..chunks_bytes, CHUNKS_BASE, access);
        let chunks = objects.region(chunks)?;
        Ok(Areas { table, owners, tails, words, scratch, zeros, scrubbed, chunks })
    }
}

const fn scratch_bytes<const GROUP: usize>(config: ChunkPoolConfig) -> u64 {
    config.workers as u64 * Scratch::<GROUP>::BYTES
}

impl<M: Memory, const GROUP: usize> ChunkPool<M, GROUP> {
    /// Creates a pool whose chunks are all free, and zero.
    ///
    /// # Errors
    /// The NIC has no chains, a limit of the NIC is reached, or the configuration makes no sense. No object is left
    /// behind.
    pub fn create<N: Nic<Memory = M>>(nic: &mut N, config: ChunkPoolConfig) -> Result<Self, VerbsError> {
        Self::create_with(nic, config, Chains::new::<GROUP>(), &[])
    }

    /// Creates a pool with other chains than this crate's, for an examination of those chains. `words` are the values
    /// of more words of the pool, from [`OTHER_WORDS_AT`](crate::chain::OTHER_WORDS_AT) on.
    ///
    /// # Errors
    /// The errors of [`ChunkPool::create`].
    pub fn create_with<N: Nic<Memory = M>>(
        nic: &mut N,
        config: ChunkPoolConfig,
        chains: Chains,
        words: &[u64],
    ) -> Result<Self, VerbsError> {
        check::<GROUP>(config)?;
        let mut objects = Objects::default();
        match Self::build(nic, config, (chains, words), &mut objects) {
            Ok(pool) => Ok(Self { objects, ..pool }),
            Err(error) => {
                // An object that the NIC does not destroy was not made, or the NIC is broken: the first error gives the
                // reason.
                let _ = objects.destroy(nic);
                Err(error)
            }
        }
    }

    /// Makes the pool. Its verbs objects stay in `objects`.
    fn build<N: Nic<Memory = M>>(
        nic: &mut N,
        config: ChunkPoolConfig,
        (chains, words): (Chains, &[u64]),
        objects: &mut Objects,
    ) -> Result<Self, VerbsError> {
        let geometry = Geometry { base: CHUNKS_BASE, chunk_bytes: config.chunk_bytes, chunks: config.chunks };
        let domains = Domains {
            engine: objects.domain(nic)?,
            access: objects.domain(nic)?,
            edge: objects.domain(nic)?,
        };
        let words_bytes = OTHER_WORDS_AT + 8 * words.len() as u64;
        let memories = Memories::allocate::<N, GROUP>(nic, config, words_bytes)?;
        for (word, at) in words.iter().zip((OTHER_WORDS_AT..).step_by(8)) {
            memories.words.store(at, *word);
        }
        let areas = memories.register::<N, GROUP>(nic, objects, domains, config)?;
        let lock = objects.cq(nic.require_chains()?.create_counting_cq())?;
        let starter_cq = objects.cq(nic.create_cq(STARTER_DEPTH))?;
        let attributes = QpAttributes {
            send_cq: starter_cq,
            receive_cq: starter_cq,
            send_depth: STARTER_DEPTH,
            receive_depth: 0,
        };
        let role = ChainRole { privileged: true, ..ChainRole::default() };
        let starter =
            objects.queue_pair(nic.require_chains()?.create_chain_qp(domains.engine, attributes, role))?;
        connect_to_itself(nic, starter)?;
        for _ in 0..config.chunks * GROUP as u64 {
            objects.window(nic.allocate_window(domains.access, WindowKind::Two))?;
        }
        let Areas { table, words, scratch, zeros, scrubbed, chunks, .. } = areas;
        let regions = Regions { chunks, scrubbed, zeros, words, table, scratch };
        let table = Table::new(memories.table, geometry, regions);
        table.write_none(&nic.require_chains()?)?;
        let pool = Self {
            domains,
            geometry,
            chains,
            table,
            words: memories.words,
            scratch: memories.scratch,
            scratch_free: (0..config.workers).rev().collect(),
            workers: config.workers,
            chunks_memory: memories.chunks,
            areas,
            lock,
            starter,
            starter_cq,
            starts: (0, 0),
            objects: Objects::default(),
            windows_since: objects.windows().chunks(GROUP).map(|_| FIRST_USE).collect(),
        };
        let queue_memory = nic.require_chains()?;
        for (chunk, windows) in (0..).zip(objects.windows().chunks(GROUP)) {
            pool.table.write_chunk(&queue_memory, chunk, FIRST_USE, windows)?;
        }
        pool.list(0..config.chunks);
        Ok(pool)
    }

    /// Makes `chunks` the free list. No chain may be under way.
    pub(crate) fn list(&self, chunks: impl DoubleEndedIterator<Item = u64>) {
        let top = chunks.rev().fold(NIL, |next, chunk| {
            self.table.set_next(chunk, next);
            Layout::<GROUP>::record_of(chunk)
        });
        self.words.store(TOP_AT, top);
    }

    /// The windows of a chunk.
    ///
    /// # Panics
    /// There is no such chunk.
    #[must_use]
    pub fn windows_of(&self, chunk: u64) -> &[Window] {
        let first = usize::try_from(chunk).map_or(usize::MAX, |chunk| chunk * GROUP);
        &self.objects.windows()[first..first + GROUP]
    }

    /// Gives a chunk new windows, and rewrites its record for its use `number_of_use`. From here on its old windows
    /// give no access, whether or not they are bound. No chain may use the record meanwhile. The owner stays.
    pub(crate) fn renew_windows<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        chunk: u64,
        number_of_use: u64,
    ) -> Result<(), VerbsError> {
        let number = usize::try_from(chunk).unwrap_or(usize::MAX);
        for place in number * GROUP..(number + 1) * GROUP {
            let new = nic.allocate_window(self.domains.access, WindowKind::Two)?;
            nic.deallocate_window(self.objects.replace_window(place, new).id)?;
        }
        self.windows_since[number] = number_of_use;
        self.table.write_chunk(&nic.require_chains()?, chunk, number_of_use, self.windows_of(chunk))
    }

    /// Returns the number of uses that the chunk has had with its present windows.
    pub(crate) fn uses_of_windows(&self, chunk: u64) -> u64 {
        let since = usize::try_from(chunk).ok().and_then(|chunk| self.windows_since.get(chunk));
        since.map_or(0, |since| self.table.number_of_use(chunk).wrapping_sub(*since))
    }

    /// Returns the addresses of the pool's chunks, as clients use them.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the client that holds a chunk, from its record.
    #[must_use]
    pub fn holder(&self, chunk: u64) -> Option<ClientNumber> {
        self.table.owner(chunk)
    }

    /// Returns the client that has freed a chunk which no client holds, from its record.
    #[must_use]
    pub fn freed_by(&self, chunk: u64) -> Option<ClientNumber> {
        self.table.freed_by(chunk)
    }

    /// Returns the number of a chunk's present use, or of its next one if it is free. No client had the chunk before
    /// the first.
    #[must_use]
    pub fn number_of_use(&self, chunk: u64) -> u64 {
        self.table.number_of_use(chunk)
    }

    /// The chunks' bytes, one after another.
    #[must_use]
    pub fn chunks_memory(&self) -> &M {
        &self.chunks_memory
    }

    /// Returns the pool's protection domains. Clients' access queue pairs end in [`Domains::access`], and have no
    /// receive queue: a message with an invalidation would free a window without the chains' knowledge.
    #[must_use]
    pub fn domains(&self) -> Domains {
        self.domains
    }

    /// Returns the pool's memory and verbs objects, for callers that watch its steps.
    #[must_use]
    pub fn parts(&self) -> PoolParts<'_, M> {
        PoolParts {
            chains: &self.chains,
            table: self.table.memory(),
            words: &self.words,
            scratch: &self.scratch,
            windows: self.objects.windows(),
            lock: self.lock,
            starter: self.starter,
        }
    }

    /// Returns the number of tickets of the lock that were taken, and the number of its releases. If the second stays
    /// below the first for long, a worker has broken while it had the lock.
    ///
    /// # Errors
    /// The NIC has lost the count.
    pub fn lock_counts<N: Nic<Memory = M>>(&self, nic: &mut N) -> Result<(u32, u32), VerbsError> {
        let tickets = self.words.load(TICKET_AT);
        let tickets = u32::try_from(tickets & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        Ok((tickets, nic.require_chains()?.completions_counted(self.lock)?))
    }

    /// Posts requests that start chains: all of them, or none.
    pub(crate) fn start<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        verbs: &[ChainVerb],
    ) -> Result<(), VerbsError> {
        self.has_started_all(nic)?;
        let (begun, finished) = self.starts;
        let end = begun + verbs.len() as u64;
        if end - finished > STARTER_DEPTH.into() {
            return Err(VerbsError::Exhausted {
                what: "requests of the starting queue pair",
                limit: STARTER_DEPTH.into(),
            });
        }
        let request = |(id, verb): (u64, &ChainVerb)| WorkRequest {
            id,
            // The completion of the last request frees the slots of all.
            signalled: id == end,
            operation: Operation::Chain(*verb),
        };
        let requests: Vec<_> = (begun + 1..).zip(verbs).map(request).collect();
        let posted = nic.post_send(self.starter, &requests)?;
        assert_eq!(posted, requests.len(), "the slots of what has completed are free");
        self.starts.0 = end;
        Ok(())
    }

    /// Returns whether every chain that was to be started has been. The starter names queues by number: if a queue is
    /// destroyed before its chain is started, the starter breaks, and no chain can be started any more.
    pub(crate) fn has_started_all<N: Nic<Memory = M>>(&mut self, nic: &mut N) -> Result<bool, VerbsError> {
        let mut completions = Vec::new();
        nic.poll(self.starter_cq, STARTER_DEPTH as usize, &mut completions)?;
        for completion in completions.iter().filter(|it| it.status == Status::Success) {
            self.starts.1 = self.starts.1.max(completion.request);
        }
        Ok(self.starts.0 == self.starts.1)
    }

    /// Discards the requests that the starter has not completed. All workers must have ended.
    pub(crate) fn reset_starter<N: Nic<Memory = M>>(&mut self, nic: &mut N) -> Result<(), VerbsError> {
        nic.modify_qp(self.starter, QpChange::Reset)?;
        self.starts.1 = self.starts.0;
        connect_to_itself(nic, self.starter)
    }

    /// Takes over access queue pairs whose client has left. They are destroyed with the pool: windows may be bound to
    /// them, and a queue pair with bound windows cannot be destroyed.
    pub fn adopt_queue_pairs(&mut self, qps: &[QpId]) {
        self.objects.adopt_queue_pairs(qps);
    }

    /// Takes over objects that are destroyed with the pool.
    pub(crate) fn adopt(&mut self, objects: Objects) {
        self.objects.adopt(objects);
    }

    /// Destroys the pool. Its workers must have ended.
    ///
    /// # Errors
    /// One of the pool's domains still has a queue pair.
    pub fn destroy<N: Nic<Memory = M>>(self, nic: &mut N) -> Result<(), VerbsError> {
        self.objects.destroy(nic)
    }
}

fn check<const GROUP: usize>(config: ChunkPoolConfig) -> Result<(), VerbsError> {
    let ChunkPoolConfig { chunks, chunk_bytes, workers } = config;
    if chunks == 0 || chunks > Layout::<GROUP>::CHUNKS_MAX {
        return Err(VerbsError::Invalid("a pool has a chunk, and no more than its table has records for"));
    }
    if workers == 0 {
        return Err(VerbsError::Invalid("a pool has room for workers"));
    }
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(8) || chunk_bytes > u64::from(u32::MAX) {
        return Err(VerbsError::Invalid("a chunk's length is a multiple of 8, below 4 GiB"));
    }
    Ok(())
}

/// Takes a queue pair to the state RTS, with itself as its peer.
pub(crate) fn connect_to_itself<N: Nic>(nic: &mut N, qp: QpId) -> Result<(), VerbsError> {
    let peer = nic.qp_address(qp)?;
    nic.modify_qp(qp, QpChange::Init { access: Access::REMOTE })?;
    nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
    nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: 0 })
}
