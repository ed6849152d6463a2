//! Freeing of the memory that dead clients have left.
//!
//! A sweep looks at the table twice, with two leases between. A block that is claimed both times, under the same
//! version, and in no slot either time, is an orphan. The reason: a client puts a block into a slot under a permission
//! that it got before the claim was a lease old, so two leases after the claim no such change can happen any more. The
//! sweep reads slots in the order of the subtables' numbers: a split moves keys only to a subtable with a greater
//! number, and copies a slot before it clears it. So a slot that moves is seen at least once.
//!
//! A piece of a value is in no slot. It is no orphan while its first block is in a slot, or is claimed and not an
//! orphan itself.

use super::blocks::{ClaimedBlocks, ExtentRecord, RecordState};
use super::index::{Progress, SlotAt};
use super::leases::Leased;
use super::words::{BlockId, Claim, Slot};
use super::{Table, TableError};
use crate::pipeline::join;
use crate::record::{RECORD_BYTES, Record};
use portcullis::{Clock, Effect, Lifetime, ObjectRef, VerbsEndpoint};
use portcullis_planted::planted;
use std::collections::{BTreeMap, BTreeSet};

/// Number of blocks that are freed at a time.
const FREED_AT_ONCE: usize = 16;
/// Number of times that a look which could not be finished is begun again.
const LOOKS_MAX: u32 = 16;
/// Names of a sweep's phases, for the error of a sweep that makes no progress.
const LOOKING: (&str, Effect) = ("a look at a whole table", Effect::Nothing);
const FREEING: (&str, Effect) = ("freeing what dead clients have left", Effect::Perhaps);

/// The result of a sweep: what it has freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Number of blocks that were in no slot.
    pub blocks: u64,
    /// Number of slots of keys whose insertion no client finished.
    pub pending: u64,
    /// Number of subtables that no split has linked.
    pub subtables: u64,
    /// Number of subtables and extents that no client has finished making or giving back.
    pub unfinished: u64,
    /// Number of extents without blocks in use, which have gone back to the node.
    pub extents: u64,
    /// Number of splits that were finished.
    pub splits: u64,
}

/// The findings of one look at the table.
#[derive(Default)]
struct Look {
    claimed: ClaimedBlocks,
    /// Pieces of values that no slot leads to, and their first blocks.
    pieces: BTreeMap<BlockId, Slot>,
    /// Retired blocks of extents that are kept.
    retired: BTreeMap<BlockId, Claim>,
    pending: BTreeMap<SlotAt, Slot>,
    unlinked: BTreeMap<u32, ObjectRef>,
    /// Subtables whose records do not mark them as kept, by the place of the record.
    unfinished: BTreeMap<u64, ObjectRef>,
    /// The records of extents that a client is making or giving back.
    changing: BTreeMap<u32, ExtentRecord>,
    /// Extents without a claimed or retired block.
    unused: BTreeSet<u32>,
    frozen: BTreeSet<u32>,
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Frees the memory that dead clients have left, and finishes their splits. Takes two leases and more. Any client
    /// may do this at any time, and all other clients go on.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn sweep(&self) -> Result<Swept, TableError> {
        self.leases.check_writable()?;
        let first = self.pipeline.limited(LOOKING, self.look()).await?;
        // The pause is a little longer: the clocks of two clients may differ by a thousandth.
        let apart = Lifetime(self.options.lease.0 * 2 + self.options.lease.0 / 64 + 1_000);
        self.pipeline.sleep(if planted!(SweptAtOnce) { Lifetime(0) } else { apart }).await?;
        let second = self.pipeline.limited(LOOKING, self.look()).await?;
        self.pipeline.limited(FREEING, self.free_what_is_in_both(first, second)).await
    }

    async fn free_what_is_in_both(&self, first: Look, second: Look) -> Result<Swept, TableError> {
        let mut swept = Swept::default();
        for &subtable in first.frozen.intersection(&second.frozen) {
            self.pipeline.note_step();
            self.splits.finish_dead(subtable).await?;
            swept.splits += 1;
        }
        for (at, slot) in both(&first.pending, &second.pending) {
            self.pipeline.note_step();
            swept.pending += u64::from(self.clear(at, slot).await?);
        }
        for some in orphans(&first, &second).chunks(FREED_AT_ONCE) {
            self.pipeline.note_step();
            for freed in
                join(some.iter().map(|&(block_id, claim)| self.blocks.free_orphan(block_id, claim))).await
            {
                swept.blocks += u64::from(freed?);
            }
        }
        self.sweep_extents(&first, &second, &mut swept).await?;
        for (at, object) in both(&first.unfinished, &second.unfinished) {
            self.pipeline.note_step();
            swept.unfinished += u64::from(self.free_unfinished(at, object).await?);
        }
        for (number, object) in both(&first.unlinked, &second.unlinked) {
            self.pipeline.note_step();
            swept.subtables += u64::from(self.free_subtable(number, object).await?);
        }
        Ok(swept)
    }

    /// Completes the changes of extents that dead clients have begun, and gives the unused extents back.
    async fn sweep_extents(&self, first: &Look, second: &Look, swept: &mut Swept) -> Result<(), TableError> {
        let extents = self.blocks.extents();
        for (block_id, claim) in both(&first.retired, &second.retired) {
            self.pipeline.note_step();
            // The client that retired the block has died before it took the record, or has the record now.
            if extents.records().read(block_id.extent).await?.state == RecordState::Kept {
                extents.restore(block_id, claim).await?;
            }
        }
        for (number, record) in both(&first.changing, &second.changing) {
            self.pipeline.note_step();
            let had_object = record.object.is_some();
            swept.unfinished += u64::from(extents.reclaim_number(number, &record).await? && had_object);
        }
        for number in first.unused.intersection(&second.unused) {
            self.pipeline.note_step();
            swept.extents += u64::from(extents.retire(*number).await?);
        }
        Ok(())
    }

    async fn look(&self) -> Result<Look, TableError> {
        let mut attempts = 1;
        loop {
            match self.try_look().await {
                // Each attempt makes more progress than the limit of an operation requires, and may still fail.
                Err(error) if attempts < LOOKS_MAX => self.leases.mend(error).await?,
                done => return done,
            }
            attempts += 1;
        }
    }

    /// Finds the blocks that are claimed and in no slot. It reads claims first: a block that is in a slot at that time
    /// is then found there.
    async fn try_look(&self) -> Result<Look, TableError> {
        let mut look = Look::default();
        self.look_at_claims(&mut look).await?;
        let mut linked = BTreeSet::from([0]);
        let mut number = 0;
        while u64::from(number) < self.index.subtables_begun().await? {
            self.pipeline.note_step();
            let at = self.options.subtable_record_at(number);
            match self.head.record_at(at).await? {
                Some(Record { is_kept: false, object, .. }) => {
                    look.unfinished.insert(at, object);
                }
                Some(Record { object, .. }) => {
                    if !linked.contains(&number) {
                        look.unlinked.insert(number, object);
                    }
                    linked.extend(self.look_into(number, &mut look).await?);
                }
                None => {}
            }
            number += 1;
        }
        look.unlinked.retain(|number, _| !linked.contains(number));
        for (piece, first) in self.blocks.pieces_among(&look.claimed).await? {
            if look.claimed.is_linked(first) {
                look.claimed.link(piece);
            } else {
                look.pieces.insert(piece.block_id(), first);
            }
        }
        Ok(look)
    }

    async fn look_at_claims(&self, look: &mut Look) -> Result<(), TableError> {
        if let Some(chunks) = self.blocks.chunks() {
            look.claimed.add(chunks.claims());
        }
        let extents = self.blocks.extents();
        for (number, record) in extents.records().read_all(0, extents.records().begun().await?).await? {
            self.pipeline.note_step();
            if record.state == RecordState::Changing {
                look.changing.insert(number, record);
            }
            let Some((object, shape)) = record.kept(number) else { continue };
            extents.know(number, object, shape);
            let Some(claims) = extents.claims_if_any(number).await? else { continue };
            look.claimed.add_extent(number, &claims);
            if claims.iter().all(|claim| claim.is_free()) || planted!(ClaimedNotCompared) {
                look.unused.insert(number);
            }
            let block_ids = (0..).map(|block| BlockId { extent: number, block });
            look.retired.extend(block_ids.zip(claims).filter(|(_, claim)| claim.is_retired()));
        }
        Ok(())
    }

    /// Reads all slots of a subtable. Returns the subtables that were split off it.
    async fn look_into(&self, number: u32, look: &mut Look) -> Result<Vec<u32>, TableError> {
        for bucket in self.index.read_buckets(number).await? {
            for (at, slot) in bucket.slots() {
                look.see(at, slot);
            }
        }
        // Links are read after the slots: a child that is linked later takes no key that was not seen here.
        Ok(self.index.links(number).await?.children().collect())
    }

    /// Frees memory that no client has finished making, and removes its record. Returns whether it did.
    async fn free_unfinished(&self, at: u64, object: ObjectRef) -> Result<bool, TableError> {
        let record = self.head.record_at(at).await?;
        if record.is_none_or(|record| record.is_kept || record.object != object) {
            return Ok(false);
        }
        self.head.write(at, &[0; RECORD_BYTES]).await?;
        self.head.free_object(object).await?;
        Ok(true)
    }

    /// Frees a subtable to which no other links, and removes its record. Returns whether it did.
    ///
    /// A client that has died may have written down that it splits the parent into this subtable, without having linked
    /// it. A client that takes that split over links it. So this happens under the right to split the parent.
    async fn free_subtable(&self, number: u32, object: ObjectRef) -> Result<bool, TableError> {
        let Some(parent) = self.index.links(number).await?.parent else { return Ok(false) };
        let Some((right, progress)) = self.splits.right_to_split(parent).await? else { return Ok(false) };
        if matches!(progress, Progress::Splitting { child, .. } if child == number) {
            self.pipeline.end(right);
            self.splits.finish_dead(parent).await?;
            return Ok(false);
        }
        let linked = self.index.links(parent).await?.children().any(|child| child == number);
        if !linked {
            let at = self.options.subtable_record_at(number);
            self.head.write(at, &[0; RECORD_BYTES]).await?;
            self.pipeline.free(object).await?;
        }
        self.pipeline.end(right);
        Ok(!linked)
    }

    async fn clear(&self, at: SlotAt, slot: Slot) -> Result<bool, TableError> {
        let before = self.index.subtable(at.subtable).swap(at.offset(), slot.0, Slot::EMPTY.0).await?;
        Ok(before == slot.0)
    }
}

impl Look {
    fn see(&mut self, at: SlotAt, slot: Slot) {
        if slot.is_frozen() {
            self.frozen.insert(at.subtable);
        }
        if slot.is_empty() {
            return;
        }
        if slot.is_pending() {
            self.pending.insert(at, slot);
        }
        self.claimed.link(slot);
    }
}

/// Returns the blocks to which no key leads at both looks, and whose claims have not changed. Pieces are orphans with
/// their first blocks.
fn orphans(first: &Look, second: &Look) -> Vec<(BlockId, Claim)> {
    let before: BTreeMap<BlockId, Claim> = first.claimed.unlinked().collect();
    let now: BTreeMap<BlockId, Claim> = second.claimed.unlinked().collect();
    let mut orphans: BTreeMap<_, _> = both(&before, &now).into_iter().collect();
    let is_alone = |block_id: &BlockId| {
        let Some(of) = second.pieces.get(block_id) else { return true };
        second.claimed.claim_of(*of).is_none_or(|(claim, _)| orphans.get(&of.block_id()) == Some(&claim))
    };
    let spared: Vec<_> = orphans.keys().filter(|block_id| !is_alone(block_id)).copied().collect();
    spared.iter().for_each(|block_id| {
        orphans.remove(block_id);
    });
    orphans.into_iter().collect()
}

/// Returns the entries that are in both maps with the same value.
fn both<K: Copy + Ord, V: Copy + PartialEq>(first: &BTreeMap<K, V>, second: &BTreeMap<K, V>) -> Vec<(K, V)> {
    first.iter().filter(|(key, value)| second.get(key) == Some(value)).map(|(k, v)| (*k, *v)).collect()
}
