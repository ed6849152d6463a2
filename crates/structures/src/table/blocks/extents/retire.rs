//! The return of extents to the node.
//!
//! An extent is given back only when none of its blocks is claimed, and no client can claim one any more:
//!
//! 1. The client retires all blocks, each with a COMPARE_AND_SWAP from a free claim. If another client has claimed a
//!    block, or retires the extent as well, the client restores those that it has retired.
//! 2. It takes the extent's record in the head, within a lease of the first step. From then on the extent does not
//!    exist.
//! 3. It records which versions the blocks have had, frees the object, and marks the number as vacant.
//!
//! A client that dies in the first step leaves retired blocks. A sweep restores a block that was retired at both of its
//! looks: the client can no longer take the record then. A client that dies later leaves a record that no client
//! completes, and a sweep does the remaining steps.
//!
//! The node frees the object when the last permission over it ends. So a reader that holds such a permission reads old
//! bytes, under a version that no slot names any more.

use super::super::sizes::SizeClass;
use super::Extents;
use super::records::{ExtentRecord, record_of, vacant_record};
use crate::pipeline::{join, word_of};
use crate::table::TableError;
use crate::table::leases::Leased;
use crate::table::words::{BlockId, Claim, Version};
use portcullis::{Clock, Lifetime, Moment, ObjectRef, Rights, VerbsEndpoint};
use portcullis_planted::planted;
use std::cell::Cell;
use std::rc::Rc;

/// Number of blocks that are retired at a time.
const RETIRED_AT_ONCE: usize = 256;
/// Number of bytes of claims that are read at a time.
const READ_BYTES: usize = 4096;
/// A search of all extents for unused ones takes at most one in this many parts of a client's time.
const LOOKS_PART: u64 = 20;
/// Number of extents that are given back at a time: memory on which other clients have permissions does not become free
/// at once.
const GIVEN_BACK_AT_ONCE: usize = 8;

/// The search for extents that can be given back.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Time at which all extents are searched again for unused ones.
    looks_again_at: Cell<Moment>,
    /// Time until which memory of extents that were given back may still be on its way.
    pub come_until: Cell<Moment>,
    /// Whether the caller makes room if there is none.
    pub caller_makes_room: Cell<bool>,
}

impl<E: VerbsEndpoint, C: Clock> Extents<E, C> {
    /// Gives some extents that have no block in use back to the node: first among those in which this client has freed
    /// blocks, and now and then among all. Returns whether there were any.
    pub async fn give_back_unused(&self) -> Result<bool, TableError> {
        let now = self.pipeline.now();
        self.give_back_stocks().await?;
        let candidates = std::mem::take(&mut self.free.borrow_mut().freed_in);
        if self.give_back_unused_of(candidates).await? {
            return Ok(true);
        }
        if now < self.returns.looks_again_at.get() {
            return Ok(false);
        }
        let all: Vec<u32> = self.all().await?.into_iter().map(|(number, _)| number).collect();
        let found = self.give_back_unused_of(all).await?;
        let took = self.pipeline.now().since(now);
        let pause = Lifetime((took.0 * LOOKS_PART).max(self.options.lease.0));
        self.returns.looks_again_at.set(match found {
            true => now,
            false => self.pipeline.now().after(pause),
        });
        Ok(found)
    }

    async fn give_back_unused_of(&self, extents: impl IntoIterator<Item = u32>) -> Result<bool, TableError> {
        let mut given_back = 0;
        let mut extents = extents.into_iter();
        for number in extents.by_ref() {
            given_back += usize::from(self.retire(number).await?);
            if given_back == GIVEN_BACK_AT_ONCE {
                break;
            }
        }
        self.free.borrow_mut().freed_in.extend(extents);
        Ok(given_back > 0)
    }

    /// Gives an extent back to the node, if none of its blocks is claimed. Returns whether it did.
    pub async fn retire(&self, number: u32) -> Result<bool, TableError> {
        let until = self.options.claimed_until(self.pipeline.now());
        // The node frees the extent's memory when the last permission over it has ended.
        self.spent.end_all();
        let record = self.records.read(number).await?;
        let Some((object, shape)) = record.kept(number) else { return Ok(false) };
        self.know(number, object, shape);
        let Some(claims) = self.claims_if_any(number).await? else { return Ok(false) };
        if !claims.iter().all(|claim| claim.is_free()) && !planted!(ClaimedNotCompared) {
            return Ok(false);
        }
        let retired = self.retire_blocks(number, &claims).await?;
        let all_are = retired.len() == claims.len() || planted!(ClaimedNotCompared);
        if !all_are || !self.records.take(number, &record, until).await? {
            for (block_id, claim) in retired {
                self.restore(block_id, claim).await?;
            }
            return Ok(false);
        }
        let until = self.options.claimed_until(self.pipeline.now());
        let last = claims.iter().map(|claim| claim.version()).max().unwrap_or_default();
        self.finish_retirement(number, (object, shape.class, last), until).await?;
        Ok(true)
    }

    /// Retires the blocks of an extent whose claims are still as they were read. Returns those blocks.
    async fn retire_blocks(
        &self,
        extent: u32,
        claims: &[Claim],
    ) -> Result<Vec<(BlockId, Claim)>, TableError> {
        let blocks: Vec<_> =
            (0..).map(|block| BlockId { extent, block }).zip(claims.iter().copied()).collect();
        let mut retired = Vec::new();
        for some in blocks.chunks(RETIRED_AT_ONCE) {
            let swaps = some.iter().map(|&(block_id, claim)| async move {
                let at = u64::from(block_id.block) * 8;
                let before = self.claims_of(extent).swap(at, claim.0, claim.retired().0).await?;
                Ok::<_, TableError>((before == claim.0).then_some((block_id, claim.retired())))
            });
            for swapped in join(swaps).await {
                retired.extend(swapped?);
            }
        }
        Ok(retired)
    }

    /// Makes a retired block claimable again.
    pub async fn restore(&self, block_id: BlockId, retired: Claim) -> Result<bool, TableError> {
        let (at, restored) = (u64::from(block_id.block) * 8, retired.restored());
        match self.claims_of(block_id.extent).swap(at, retired.0, restored.0).await {
            Err(error) if error.is_gone() => Ok(false),
            swapped => Ok(swapped? == retired.0),
        }
    }

    /// Does the steps after an extent's record was taken. A step that is not done until `until` is left to a sweep.
    async fn finish_retirement(
        &self,
        number: u32,
        (object, class, last): (ObjectRef, SizeClass, Version),
        until: Moment,
    ) -> Result<(), TableError> {
        let base = last.base_of_successor();
        if !self.records.write(number, record_of(object, class, base, false), until).await? {
            return Ok(());
        }
        self.forget(number);
        self.head.free_object(object).await?;
        self.vacate_number(number, base, until).await
    }

    async fn vacate_number(&self, number: u32, base: Version, until: Moment) -> Result<(), TableError> {
        if !self.records.write(number, vacant_record(base, self.head.incarnation()), until).await? {
            return Ok(());
        }
        self.records.count_change().await?;
        self.known.borrow_mut().vacant.insert(number);
        self.returns.come_until.set(self.pipeline.now().after(self.comes_back_after()));
        Ok(())
    }

    /// Time for which the memory of a freed object may stay with other clients that had a permission on it.
    fn comes_back_after(&self) -> Lifetime {
        Lifetime(self.options.hold().0 * 5 / 4)
    }

    /// Completes a change that a dead client has left half done under an extent's number: its object, if there is one,
    /// is freed, and the number becomes vacant. Returns false if another client was quicker.
    pub async fn reclaim_number(&self, number: u32, left: &ExtentRecord) -> Result<bool, TableError> {
        let until = self.options.claimed_until(self.pipeline.now());
        if !self.records.take(number, left, until).await? {
            return Ok(false);
        }
        let (Some(object), Some(shape)) = (left.object, left.shape(number)) else {
            self.vacate_number(number, left.base, until).await?;
            return Ok(true);
        };
        let last = self.last_version(object, shape.blocks, left.base).await?;
        self.finish_retirement(number, (object, shape.class, last), until).await?;
        Ok(true)
    }

    /// Returns the last version of the blocks of an extent that no client uses any more.
    async fn last_version(
        &self,
        object: ObjectRef,
        blocks: u32,
        base: Version,
    ) -> Result<Version, TableError> {
        loop {
            match self.try_last_version(object, blocks, base).await {
                // In this case the dead client had already written the version into the record.
                Err(error) if error.is_gone() => return Ok(base),
                Err(error) => self.leases.mend(error).await?,
                last => return last,
            }
        }
    }

    async fn try_last_version(
        &self,
        object: ObjectRef,
        blocks: u32,
        base: Version,
    ) -> Result<Version, TableError> {
        let bytes = u64::from(blocks) * 8;
        let permission =
            Rc::new(self.pipeline.acquire(self.leases.ask(object, (0, bytes), Rights::READ)).await?);
        let mut last = base;
        for at in (0..bytes).step_by(READ_BYTES) {
            let length = usize::try_from(bytes - at).unwrap_or(READ_BYTES).min(READ_BYTES);
            let claims = self.pipeline.read_bytes(&permission, at, length).await?;
            let versions = claims.chunks_exact(8).map(|word| Claim(word_of(word, 0)).version());
            last = versions.fold(last, Version::max);
        }
        self.pipeline.end(permission);
        Ok(last)
    }
}
