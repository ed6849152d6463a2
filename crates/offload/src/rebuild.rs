//! Rebuilds a pool in which a worker has broken, from its table. Workers that stand still may have the lock.
//!
//! All workers are stopped where they stand. Chains change the free list by writing one word, its top, so the list is
//! sound at every moment. A listed chunk is free, unbound and zero, and stays as it is. If a chunk is not listed and
//! its record names a holder, the holder keeps it: the record names a holder only after all windows were bound, and
//! until the first of them is freed. Every other chunk was being allocated or freed. It becomes free, with new windows,
//! and zero.
//!
//! An allocation whose reply has not left is undone: its client does not know the chunk and could never free it. The
//! worker's counts show whether a reply has left. A free that has not begun is not executed: its client holds the
//! chunk, and sends the request again.

use crate::chain::{Scratch, TICKET_AT};
use crate::pool::ChunkPool;
use crate::record::Layout;
use crate::worker::Workers;
use portcullis_nic::{ChainNic, Memory, Nic, RemoteAddress, VerbsError, entry};
use std::collections::BTreeSet;

/// The parts of a rebuild, for an examination of a rebuild without one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a part of the rebuild that is there or not")]
pub struct RebuildSteps {
    /// A chunk whose record names a holder stays with that holder.
    pub keep_held: bool,
    /// An allocation whose reply has not left is undone.
    pub undo_untold: bool,
    /// A chunk that becomes free gets new windows.
    pub renew_windows: bool,
    /// A chunk that becomes free is filled with zeros.
    pub zero: bool,
    /// The next ticket becomes the one for which the lock waits.
    pub pass_lock: bool,
}

impl RebuildSteps {
    /// All parts: a rebuild needs each of them.
    pub const ALL: Self =
        Self { keep_held: true, undo_untold: true, renew_windows: true, zero: true, pass_lock: true };
}

impl<M: Memory, const GROUP: usize> ChunkPool<M, GROUP> {
    /// Rebuilds the pool after a worker has broken. `workers` are all workers of the pool. They are stopped where they
    /// stand, and end. Each client has to be attached again, with its number and its group.
    ///
    /// A client keeps the chunks whose replies it received. A request of it that had begun is either executed or has no
    /// effect.
    ///
    /// # Errors
    /// The NIC has too few windows, or does not destroy an object. Then the pool cannot be used any more.
    pub fn rebuild<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: Vec<Workers<GROUP>>,
    ) -> Result<(), VerbsError> {
        self.rebuild_with(nic, workers, RebuildSteps::ALL)
    }

    /// Executes parts of a rebuild, for an examination without the others.
    ///
    /// # Errors
    /// The errors of [`ChunkPool::rebuild`].
    pub fn rebuild_with<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: Vec<Workers<GROUP>>,
        steps: RebuildSteps,
    ) -> Result<(), VerbsError> {
        for pair in &workers {
            self.halt(nic, &pair.alloc)?;
            self.halt(nic, &pair.free)?;
        }
        for pair in &workers {
            if let Some(chunk) = self.untold(nic, pair)?
                && steps.undo_untold
            {
                self.table.clear_owner(chunk);
            }
        }
        workers.into_iter().try_for_each(|pair| self.detach(nic, pair))?;
        self.reset_starter(nic)?;
        // If the list is damaged, no chunk counts as free.
        let mut free = self.listed().unwrap_or_default();
        let listed: BTreeSet<_> = free.iter().copied().collect();
        for chunk in 0..self.geometry.chunks {
            let is_held = steps.keep_held && self.table.owner(chunk).is_some();
            if !is_held && !listed.contains(&chunk) {
                self.take_back(nic, chunk, steps)?;
                free.push(chunk);
            }
        }
        self.list(free.into_iter());
        if steps.pass_lock {
            let (_, releases) = self.lock_counts(nic)?;
            self.words.store(TICKET_AT, releases.into());
        }
        Ok(())
    }

    /// Returns the chunk that was allocated for a client whose reply has not left. The client's workers must be halted.
    fn untold<N: Nic<Memory = M>>(
        &self,
        nic: &mut N,
        workers: &Workers<GROUP>,
    ) -> Result<Option<u64>, VerbsError> {
        let parts = workers.alloc.parts();
        let word = |at| self.scratch.load(parts.scratch_at + at);
        let (laps, binds) = (word(Scratch::<GROUP>::LAPS), GROUP as u64);
        // The record is in scratch memory before the binds, and belongs to the client after them. So the record is that
        // of this lap if all its binds were executed. Otherwise it is that of the lap before.
        let chains = nic.require_chains()?;
        let bound = chains.completions_counted(parts.bound)?;
        let lap = if bound == low((laps + 1).wrapping_mul(binds)) { laps + 1 } else { laps };
        if chains.completions_counted(parts.replied)? == low(lap) {
            return Ok(None);
        }
        let address = word(Scratch::<GROUP>::RECORD + Layout::<GROUP>::BIND_AT[0] + entry::REMOTE_ADDRESS);
        let chunk = self.geometry.chunk_at(RemoteAddress(address));
        Ok(chunk.filter(|&chunk| self.table.owner(chunk) == Some(workers.number)))
    }

    /// Frees a chunk that was being allocated or freed. Its present or next use is over: no other use gets the same
    /// number.
    fn take_back<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        chunk: u64,
        steps: RebuildSteps,
    ) -> Result<(), VerbsError> {
        let next_use = self.table.number_of_use(chunk).wrapping_add(1);
        self.table.clear_owner(chunk);
        if steps.renew_windows {
            self.renew_windows(nic, chunk, next_use)?;
        }
        if steps.zero {
            let bytes = self.geometry.chunk_bytes;
            self.chunks_memory().zero(chunk * bytes, bytes);
        }
        Ok(())
    }
}

/// Counts have 32 bits and wrap around.
fn low(count: u64) -> u32 {
    u32::try_from(count & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}
