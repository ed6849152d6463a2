//! The quota of one tenant, and the cost of violations.

use super::PAGE_BYTES;
use crate::books::Slabs;
use portcullis_protocol::Lifetime;

/// The most that one tenant may hold at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Bytes of the pool that the tenant's objects take. Each object counts with its 32-byte header and rounded up to
    /// its size class: at least 96 bytes. By default the pool itself is the limit.
    pub bytes_max: u64,
    /// Objects.
    pub objects_max: u64,
    /// Live permissions.
    pub permissions_max: u64,
    /// Names in the directory. Each takes about 200 bytes of the node's own memory, and each tenant with which it is
    /// shared takes as much again.
    pub names_max: u64,
    /// Other tenants with which one name is shared.
    pub shares_max: u64,
    /// Chunks that the tenant's clients may hold together. Each client gets its share of them when it requests its
    /// workers.
    pub chunks_max: u64,
}

/// A pool of chunks, which the NIC hands out without the CPU (OneSidedMW), or the node's CPU if the NIC has no chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkLimits {
    /// Number of chunks.
    pub chunks: u64,
    /// Number of bytes of each chunk: a multiple of 8.
    pub chunk_bytes: u64,
    /// The most chunks that one client can hold at a time.
    pub client_max: u64,
}

impl ChunkLimits {
    /// Returns the number of bytes of all chunks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.chunks.saturating_mul(self.chunk_bytes)
    }

    /// Returns the number of bytes of whole pages that hold all chunks as objects of the pool.
    pub(crate) fn bytes_in_pool(&self) -> u64 {
        let takes = Slabs::<()>::footprint(self.chunk_bytes, 8).unwrap_or(u64::MAX);
        let pages = match PAGE_BYTES / takes {
            // A large chunk begins in a page of its own.
            0 => self.chunks.saturating_mul(takes.div_ceil(PAGE_BYTES) + 1),
            in_a_page => self.chunks.div_ceil(in_a_page),
        };
        pages.saturating_mul(PAGE_BYTES)
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            bytes_max: u64::MAX,
            objects_max: 1 << 17,
            permissions_max: 65_536,
            names_max: 4096,
            shares_max: 32,
            chunks_max: u64::MAX,
        }
    }
}

/// The number of violations that are free, and the cost of further ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViolationLimits {
    /// The most violations that cost nothing, after a time without violations.
    pub free_max: u32,
    /// The time after which one of the free violations comes back.
    pub free_again: Lifetime,
    /// The first pause. Each further pause is twice as long.
    pub pause_min: Lifetime,
    /// The longest pause.
    pub pause_max: Lifetime,
    /// Number of violations that cost a pause. The last of them leads to a bar.
    pub bar_after: u32,
    /// Duration of a bar. Its beginning ends all permissions of the tenant, so that none of their keys outlives it.
    pub bar_for: Lifetime,
    /// The longest time after a permission's end for which an access with its key counts as late.
    pub late_grace: Lifetime,
    /// The longest pause for late accesses, if the NIC reports the access that it refused.
    pub late_pause_max: Lifetime,
    /// Number of ended permissions of a client whose keys are remembered. A late access with a forgotten key looks like
    /// a guess.
    pub keys_remembered: u32,
    /// For a NIC that does not report the access that it refused: the most accesses of a tenant's clients that count as
    /// late, after a time without any. Further ones count as guesses.
    pub excuses_max: u32,
    /// The time after which one of those comes back.
    pub excuse_again: Lifetime,
}

impl Default for ViolationLimits {
    fn default() -> Self {
        Self {
            free_max: 16,
            free_again: Lifetime::millis(100),
            pause_min: Lifetime::millis(1),
            pause_max: Lifetime::seconds(1),
            bar_after: 64,
            bar_for: Lifetime::seconds(600),
            late_grace: Lifetime::seconds(1),
            late_pause_max: Lifetime::millis(16),
            keys_remembered: 1024,
            excuses_max: 16,
            excuse_again: Lifetime::millis(200),
        }
    }
}
