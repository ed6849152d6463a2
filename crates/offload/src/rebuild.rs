//! A pool in which a worker has broken is made anew from what its table says. Workers that stand still may have the lock.
//!
//! All workers are stopped where they stand. Chains change the free list by writing one word, its top, so the list is
//! sound at every moment: what is listed is free, unbound and zero, and stays as it is. A chunk that is not listed is its
//! holder's if its record says so: the record says so only after all windows were bound, and no more before the first was
//! freed. What is left was on its way. It becomes free, with new windows, and zero.
//!
//! An allocation whose reply has not left is undone: its client does not know the chunk and could never free it. Whether a
//! reply has left, the worker's counts say. A free that was not begun is not done: its client holds the chunk, and asks
//! again.

use crate::chain::{Scratch, TICKET_AT};
use crate::pool::ChunkPool;
use crate::record::Layout;
use crate::worker::Workers;
use portcullis_nic::{Memory, Nic, RemoteAddress, VerbsError, entry};
use std::collections::BTreeSet;

/// What a rebuild does, for those who examine what would happen without a part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a part of the rebuild that is there or not")]
pub struct RebuildSteps {
    /// What a record says is somebody's stays so.
    pub keep_held: bool,
    /// An allocation whose reply has not left is undone.
    pub undo_untold: bool,
    /// What becomes free has new windows.
    pub renew_windows: bool,
    /// What becomes free is zero.
    pub zero: bool,
    /// The next ticket is the one that the lock waits for.
    pub pass_lock: bool,
}

impl RebuildSteps {
    /// All that is needed.
    pub const ALL: Self =
        Self { keep_held: true, undo_untold: true, renew_windows: true, zero: true, pass_lock: true };
}

impl<M: Memory, const GROUP: usize> ChunkPool<M, GROUP> {
    /// Makes the pool anew, after a worker has broken. `workers` are all that it has; they are stopped where they stand,
    /// and end. Each client has to be attached again, with its number and its group.
    ///
    /// A client keeps the chunks whose replies it got. What had begun for it is done or not done.
    ///
    /// # Errors
    /// The NIC has too few windows, or lets something not go. Then the pool is of no use any more.
    pub fn rebuild<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: Vec<Workers<GROUP>>,
    ) -> Result<(), VerbsError> {
        self.rebuild_with(nic, workers, RebuildSteps::ALL)
    }

    /// A part of a rebuild, for those who examine what would happen without the rest.
    ///
    /// # Errors
    /// As [`ChunkPool::rebuild`].
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
        // A list that makes no sense says nothing.
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

    /// The chunk that was allocated for a client whose reply has not left. The client's workers are halted.
    fn untold<N: Nic<Memory = M>>(
        &self,
        nic: &N,
        workers: &Workers<GROUP>,
    ) -> Result<Option<u64>, VerbsError> {
        let parts = workers.alloc.parts();
        let word = |at| self.scratch.load(parts.scratch_at + at);
        let (laps, binds) = (word(Scratch::<GROUP>::LAPS), GROUP as u64);
        // The record is in scratch memory before the binds, and is its client's after them. So this lap has it if all its
        // binds were done; else it is that of the lap before.
        let bound = nic.completions_counted(parts.bound)?;
        let lap = if bound == low((laps + 1).wrapping_mul(binds)) { laps + 1 } else { laps };
        if nic.completions_counted(parts.replied)? == low(lap) {
            return Ok(None);
        }
        let address = word(Scratch::<GROUP>::RECORD + Layout::<GROUP>::BIND_AT[0] + entry::REMOTE_ADDRESS);
        let chunk = self.geometry.chunk_at(RemoteAddress(address));
        Ok(chunk.filter(|&chunk| self.table.owner(chunk) == Some(workers.number)))
    }

    /// Frees a chunk that was on its way. The use that it had or was about to have is over: no other has its number.
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

/// Counts have 32 bits and go round.
fn low(count: u64) -> u32 {
    u32::try_from(count & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}
