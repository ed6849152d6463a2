//! What one tenant may hold, and what violations cost.

use super::PAGE_BYTES;
use crate::books::Slabs;
use portcullis_protocol::Lifetime;

/// The most that one tenant may hold at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Bytes of the pool that its objects take, each with its 32-byte header and rounded up to its size class: at least
    /// 96 bytes. By default the pool itself is the limit.
    pub bytes_max: u64,
    /// Objects.
    pub objects_max: u64,
    /// Live permissions.
    pub permissions_max: u64,
    /// Names in the directory. Each takes about 200 bytes of the node's own memory, and each tenant that it is shared
    /// with as much again.
    pub names_max: u64,
    /// Other tenants that one name is shared with.
    pub shares_max: u64,
    /// Chunks that its clients may hold together. Each client takes its share of them when it asks for its workers.
    pub chunks_max: u64,
}

/// A pool of chunks that the NIC hands out alone (OneSidedMW), or the node's CPU where the NIC has no chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkLimits {
    /// How many chunks.
    pub chunks: u64,
    /// Bytes of each: a multiple of 8.
    pub chunk_bytes: u64,
    /// How many of them one client can hold at a time.
    pub client_max: u64,
}

impl ChunkLimits {
    /// Bytes of all chunks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.chunks.saturating_mul(self.chunk_bytes)
    }

    /// Bytes of whole pages that hold all chunks as objects of the pool.
    pub(crate) fn bytes_in_pool(&self) -> u64 {
        let takes = Slabs::<()>::footprint(self.chunk_bytes, 8).unwrap_or(u64::MAX);
        let pages = match PAGE_BYTES / takes {
            // A large one begins in a page of its own.
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

/// How many violations cost how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ViolationLimits {
    /// Violations that cost nothing, at most, after a time without violations.
    pub free_max: u32,
    /// The time in which one of them comes back.
    pub free_again: Lifetime,
    /// The first pause. Each further pause is twice as long.
    pub pause_min: Lifetime,
    /// The longest pause.
    pub pause_max: Lifetime,
    /// Violations that cost a pause. The last of them bars.
    pub bar_after: u32,
    /// How long a bar lasts. Its beginning ends all permissions of the tenant, so that none of their keys outlives it.
    pub bar_for: Lifetime,
    /// How long after a permission's end an access with its key counts as late.
    pub late_grace: Lifetime,
    /// The longest pause for late accesses, where the NIC says what it refused.
    pub late_pause_max: Lifetime,
    /// Ended permissions of a client whose keys are remembered. A late access with a forgotten key looks like a guess.
    pub keys_remembered: u32,
    /// If the NIC does not say what it refused: accesses of a tenant's clients that are taken for late, at most, after
    /// a time without any. Further ones count as guesses.
    pub excuses_max: u32,
    /// The time in which one of those comes back.
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
