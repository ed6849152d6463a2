//! Chunks that the node's CPU hands out, for NICs without chains. They are objects of the pool under exclusive
//! permissions without a deadline.
//!
//! A client shares its tenant's quota in the same way as for chunks that the NIC hands out. A chunk is zero when it is
//! allocated, whichever client had its memory before. It ends when its client revokes the permission or leaves.

use super::Books;
use super::permissions::{Claim, Extent, PermissionKind};
use super::requests::{NewObject, RequestOrigin, Wish};
use crate::config::ChunkLimits;
use portcullis_nic::Memory;
use portcullis_protocol::{
    ChunkTerms, HandedOutBy, Keep, Lifetime, Moment, Refusal, Rights, Sharing, TenantId,
};

/// The lifetime of a chunk's permission, which has no deadline.
const NO_END: Lifetime = Lifetime(u64::MAX);
/// Alignment of a chunk, in bytes. Atomics need aligned words, and chunks need no more.
const ALIGNMENT: u64 = 8;

impl<M: Memory> Books<M> {
    /// Prepares a client for requests for chunks: assigns it a share of its tenant's quota.
    ///
    /// # Errors
    /// The node has no chunks, the client has joined already, or its tenant's quota is used up.
    pub fn join_chunks(&mut self, from: RequestOrigin) -> Result<ChunkTerms, Refusal> {
        let ChunkLimits { chunks, chunk_bytes, client_max } = self.config.chunks.ok_or(Refusal::NoChunks)?;
        let (used, limit) = (self.chunks_given_to(from.tenant), self.config.quota.chunks_max);
        let quota = client_max.min(limit.saturating_sub(used));
        let client = self.accounts.clients.get_mut(from.client).ok_or(Refusal::Malformed)?;
        if client.chunks.quota > 0 {
            return Err(Refusal::Malformed);
        }
        if quota == 0 {
            return Err(Refusal::Quota { used, limit });
        }
        client.chunks.quota = quota;
        let base = super::POOL_BASE;
        Ok(ChunkTerms { base, chunks, chunk_bytes, quota, held: 0, by: HandedOutBy::Cpu })
    }

    /// Returns the number of chunks that the clients of a tenant may already hold together.
    fn chunks_given_to(&self, tenant: TenantId) -> u64 {
        self.accounts
            .clients
            .iter()
            .filter(|client| client.tenant == tenant)
            .map(|client| client.chunks.quota)
            .sum()
    }

    /// Allocates a chunk.
    pub(super) fn allocate_chunk(&mut self, from: RequestOrigin, now: Moment) -> Result<(), Refusal> {
        let limits = self.config.chunks.ok_or(Refusal::NoChunks)?;
        let memory = NewObject { size: limits.chunk_bytes, alignment: ALIGNMENT, keep: Keep::No };
        let wish = Wish::of_chunk(from, limits.chunk_bytes, now);
        self.allocate(wish, memory, now)
    }

    /// Checks whether a client may have one more chunk.
    pub(super) fn check_chunk(&self, from: RequestOrigin) -> Result<(), Refusal> {
        let limits = self.config.chunks.ok_or(Refusal::NoChunks)?;
        let chunks = self.accounts.clients.get(from.client).map(|client| client.chunks).unwrap_or_default();
        if chunks.quota == 0 {
            return Err(Refusal::NoChunks);
        }
        if chunks.held() >= chunks.quota {
            return Err(Refusal::Quota { used: chunks.held(), limit: chunks.quota });
        }
        if self.accounts.chunks_held() >= limits.chunks {
            return Err(Refusal::OutOfMemory { size: limits.chunk_bytes });
        }
        Ok(())
    }
}

impl Wish {
    fn of_chunk(from: RequestOrigin, length: u64, now: Moment) -> Self {
        let claim = Claim { extent: Extent { offset: 0, length }, sharing: Sharing::Exclusive };
        let rights = Rights::READ | Rights::WRITE | Rights::ATOMIC;
        let kind = PermissionKind::Chunk;
        Self { from, rights, claim, kind, lifetime: NO_END, guest: None, asked: now }
    }
}
