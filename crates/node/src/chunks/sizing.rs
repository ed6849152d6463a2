//! A pool whose memory follows its use: the node takes free chunks out of the pool and gives their memory back to the
//! machine. It puts them back when few are ready.
//!
//! The node takes and gives chunks as any client does ([`Reserve`]), so clients allocate and free meanwhile. It knows
//! the number of ready chunks from its own records, which are a millisecond old. It gives chunks below `ready` and
//! takes chunks above twice as many, so a pool whose use varies a little stays as it is. If a client allocates faster
//! than the node gives, its request is refused because no chunk is free, and it tries again.
//!
//! # Keys
//! A chunk gets new windows when the node has it after 128 uses. The node does not search for chunks that were used
//! often: the isolation of clients from each other does not need new keys. A window works on its holder's queue pairs
//! only, whichever client knows its key. Keys that repeat after 256 uses could let a client reach its own chunk by a
//! key that it had for the same chunk 256 uses ago. That is its own memory.

use super::{OffloadedChunks, node_number};
use portcullis_nic::{Memory, Nic, VerbsError};
use portcullis_offload::{Change, ChunkPool, Progress, Reserve};
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, Lifetime, Moment};

/// Delay until the node checks again for replies and completions of the NIC.
const LOOK_SOON: Lifetime = Lifetime::micros(50);

/// The node's own share of its pool.
#[derive(Debug)]
pub(super) struct Sizing<M> {
    pub reserve: Reserve<M, CHUNK_QUEUE_PAIRS>,
    /// The least number of free chunks that are kept ready.
    ready: u64,
    /// Number of chunks that the node has given so far.
    pub given: u64,
    pub next_look: Option<Moment>,
}

impl<M: Memory> Sizing<M> {
    pub fn new<N: Nic<Memory = M>>(
        pool: &mut ChunkPool<M, CHUNK_QUEUE_PAIRS>,
        nic: &mut N,
        ready: u64,
    ) -> Result<Self, VerbsError> {
        let reserve = Reserve::new(pool, nic, node_number())?;
        Ok(Self { reserve, ready, given: 0, next_look: None })
    }

    /// Returns the number of chunks that the node holds.
    pub fn held(&self) -> u64 {
        self.reserve.held().len() as u64
    }

    /// Returns the change that this number of free chunks calls for.
    fn wanted(&self, free: u64) -> Option<Change> {
        let ready = free.saturating_sub(self.held());
        if ready < self.ready && self.held() > 0 {
            Some(Change::Give)
        } else if ready > self.ready.saturating_mul(2) {
            Some(Change::Take)
        } else {
            None
        }
    }
}

impl<M: Memory> OffloadedChunks<M> {
    /// Makes the pool smaller or larger, by one chunk at a time. Returns whether it did anything.
    pub fn resize<N: Nic<Memory = M>>(&mut self, nic: &mut N, now: Moment) -> bool {
        if self.is_broken {
            return false;
        }
        let free = self.limits.chunks.saturating_sub(self.held_by_clients());
        let Some(sizing) = &mut self.sizing else { return false };
        let changed = match sizing.reserve.under_way() {
            Some(change) => sizing.proceed(&mut self.pool, nic, change),
            None => match sizing.wanted(free) {
                Some(change) => sizing.begin(&mut self.pool, nic, change),
                None => Ok(false),
            },
        };
        sizing.next_look = sizing.reserve.under_way().map(|_| now.after(LOOK_SOON));
        if sizing.reserve.under_way() == Some(Change::Bind)
            && let Some(&chunk) = sizing.reserve.held().last()
        {
            let windows = self.pool.windows_of(chunk).iter();
            self.chunk_of_key.extend(windows.map(|window| (window.rkey.index(), chunk)));
        }
        changed.unwrap_or_else(|_| {
            self.rebuilds.ask();
            true
        })
    }
}

impl<M: Memory> Sizing<M> {
    fn begin<N: Nic<Memory = M>>(
        &mut self,
        pool: &mut ChunkPool<M, CHUNK_QUEUE_PAIRS>,
        nic: &mut N,
        change: Change,
    ) -> Result<bool, VerbsError> {
        match change {
            Change::Take => self.reserve.take(nic)?,
            Change::Give | Change::Bind => self.reserve.give(pool, nic)?,
        }
        Ok(true)
    }

    fn proceed<N: Nic<Memory = M>>(
        &mut self,
        pool: &mut ChunkPool<M, CHUNK_QUEUE_PAIRS>,
        nic: &mut N,
        change: Change,
    ) -> Result<bool, VerbsError> {
        let before = self.held();
        if self.reserve.proceed(pool, nic)? == Progress::Pending {
            return Ok(self.reserve.under_way() != Some(change));
        }
        self.given += before.saturating_sub(self.held());
        if self.held() > before
            && let Some(&chunk) = self.reserve.held().last()
        {
            // No client reaches the chunk: its windows are the node's.
            let bytes = pool.geometry().chunk_bytes;
            pool.chunks_memory().give_back(chunk * bytes, bytes);
        }
        Ok(true)
    }
}
