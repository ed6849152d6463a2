//! Blocks: where the keys and their values lie.
//!
//! The blocks of a table lie in [`extents`], or in [`chunks`] of the handle that has made the table. [`Blocks`] hides the
//! difference, and puts long values together from their [`pieces`].

pub(super) mod block;
mod chunks;
mod claimed;
mod claimed_blocks;
mod extents;
mod pieces;
mod reading;
mod sizes;

pub(super) use claimed::Claimed;
pub(super) use claimed_blocks::ClaimedBlocks;
pub(super) use extents::{ExtentRecord, RecordState};
pub(super) use pieces::Value;
pub use pieces::{block_bytes, stored_bytes};
pub(super) use reading::Named;
pub(super) use sizes::{ExtentShape, extent_bytes};

use super::head::Head;
use super::leases::Leases;
use super::words::{BlockId, Claim, Slot};
use super::{TableError, TableOptions};
use crate::Pipeline;
use crate::pipeline::Beside;
use chunks::Chunks;
use extents::Extents;
use portcullis::{ChunkTerms, Clock, VerbsEndpoint};
use sizes::SizeClass;
use std::rc::Rc;

/// The blocks of a table.
pub(super) struct Blocks<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    leases: Rc<Leases<E, C>>,
    extents: Rc<Extents<E, C>>,
    /// The refill of a stock, which owns the extents while it is under way.
    refill: Beside<E, C>,
    /// The blocks in chunks, if the table has its blocks there and this handle has made it.
    chunks: Option<Chunks<E, C>>,
}

impl<E: VerbsEndpoint, C: Clock> Blocks<E, C> {
    /// `terms`: the terms of chunks, if the blocks lie in chunks.
    pub fn new(
        pipeline: &Rc<Pipeline<E, C>>,
        options: TableOptions,
        leases: &Rc<Leases<E, C>>,
        head: &Rc<Head<E, C>>,
        terms: Option<ChunkTerms>,
    ) -> Self {
        Self {
            pipeline: Rc::clone(pipeline),
            options,
            leases: Rc::clone(leases),
            extents: Rc::new(Extents::new(pipeline, options, leases, head)),
            refill: Beside::new(pipeline),
            chunks: terms.map(|terms| Chunks::new(pipeline, options, terms)),
        }
    }

    /// Returns the extents of the table: none has a block if the blocks lie in chunks.
    pub fn extents(&self) -> &Extents<E, C> {
        &self.extents
    }

    /// Returns the blocks in chunks, if the blocks lie there.
    pub fn chunks(&self) -> Option<&Chunks<E, C>> {
        self.chunks.as_ref()
    }

    /// Gives back all chunks that the handle has. The values are lost with them.
    pub async fn give_all_chunks_back(&self) -> Result<(), TableError> {
        match &self.chunks {
            Some(chunks) => chunks.give_all_back().await,
            None => Ok(()),
        }
    }

    /// Claims a block of `bytes` bytes.
    async fn claim(&self, bytes: u64) -> Result<Claimed, TableError> {
        match &self.chunks {
            Some(chunks) => chunks.claim(bytes).await,
            None => {
                let class = SizeClass::of(bytes);
                let claimed = self.extents.claim(class).await?;
                self.refill_if_due(class);
                Ok(claimed)
            }
        }
    }

    /// Takes a claimed block of `bytes` bytes without a request. `None`: the handle has none.
    fn take_usable(&self, bytes: u64) -> Option<Claimed> {
        if self.chunks.is_some() {
            return None;
        }
        let class = SizeClass::of(bytes);
        let claimed = self.extents.take_usable(class)?;
        self.refill_if_due(class);
        Some(claimed)
    }

    /// Begins to refill the stock of a class if half of it is used up.
    fn refill_if_due(&self, class: SizeClass) {
        if self.refill.is_idle() && self.extents.wants_refill(class) {
            let extents = Rc::clone(&self.extents);
            self.refill.begin(async move { extents.refill(class).await });
        }
    }

    /// Frees a block that was claimed and is in no slot, and its pieces.
    pub async fn give_back(&self, mut claimed: Claimed) -> Result<(), TableError> {
        let (block_id, claim) = (claimed.block_id, claimed.claim());
        let pieces = std::mem::take(&mut claimed.pieces);
        self.end_writing(claimed);
        self.free(block_id, claim).await?;
        self.free_pieces(&pieces).await
    }

    /// Ends the permission to write a block.
    pub fn end_writing(&self, claimed: Claimed) {
        // In a chunk, the permission is the chunk's, in which there are other blocks.
        if self.chunks.is_none() {
            self.extents.end_writing(claimed.permission);
        }
    }

    /// Frees a block whose slot this client has just changed. Does not wait for the result.
    async fn free(&self, block_id: BlockId, claim: Claim) -> Result<(), TableError> {
        match &self.chunks {
            Some(chunks) => chunks.free(block_id, claim.version()).await,
            None => self.extents.free(block_id, claim).await,
        }
    }

    /// Frees the blocks of a slot that was replaced. The replacement has happened, whatever the result of this is: a
    /// sweep frees the rest.
    pub async fn free_value(&self, old: Slot, value: &Value) {
        let (block_id, claim) = (old.block_id(), Claim::renewed(old.version(), value.renewals));
        self.leases.let_go_of_block(block_id);
        let _ = self.free(block_id, claim).await;
        let _ = self.free_pieces(&value.pieces).await;
    }

    /// Frees a block that no client uses, and waits for that: after a sweep it must be free. Returns false if another
    /// client was quicker.
    pub async fn free_orphan(&self, block_id: BlockId, claim: Claim) -> Result<bool, TableError> {
        match &self.chunks {
            Some(chunks) => chunks.free(block_id, claim.version()).await.map(|()| true),
            None => self.extents.free_orphan(block_id, claim).await,
        }
    }
}
