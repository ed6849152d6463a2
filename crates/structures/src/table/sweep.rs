//! Freeing what dead clients have left.
//!
//! A sweep looks at the table twice, with two leases between. What is claimed both times, under the same version, and in
//! no slot either time, is an orphan. For a client puts a block into a slot under a permission that it got before the
//! claim was a lease old, so two leases after the claim no such change can come any more. Slots are looked at in the
//! order of the subtables' numbers: a split moves keys only to a subtable with a greater number, and copies a slot before
//! it clears it. So a slot that moves is seen at least once.

use super::find::SlotAt;
use super::permissions::{Part, is_gone};
use super::split::Progress;
use super::words::{Claim, Place, Slot};
use super::{Table, TableError};
use crate::pipeline::join;
use crate::record::{RECORD_BYTES, Record};
use portcullis::{Clock, Effect, Lifetime, ObjectRef, VerbsEndpoint};
use portcullis_protocol::planted::{self, Fault};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks that are freed at a time.
const FREED_AT_ONCE: usize = 16;
/// How often a look that could not be finished is begun again.
const LOOKS_MAX: u32 = 16;
/// What a sweep is doing, for the error of one that gets no further.
const LOOKING: (&str, Effect) = ("a look at a whole table", Effect::Nothing);
const FREEING: (&str, Effect) = ("freeing what dead clients have left", Effect::Perhaps);

/// What a sweep has freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Blocks that were in no slot.
    pub blocks: u64,
    /// Slots of keys whose insertion nobody finished.
    pub pending: u64,
    /// Subtables that no split has linked.
    pub subtables: u64,
    /// Subtables and extents that nobody has finished making.
    pub unfinished: u64,
    /// Splits that were finished.
    pub splits: u64,
}

/// What one look at the table has found.
#[derive(Default)]
struct Look {
    claimed: BTreeMap<Place, Claim>,
    pending: BTreeMap<SlotAt, Slot>,
    unlinked: BTreeMap<u32, ObjectRef>,
    /// Subtables and extents whose records do not say that they are kept, by where the record is.
    unfinished: BTreeMap<u64, ObjectRef>,
    frozen: BTreeSet<u32>,
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Frees what clients that have died have left, and finishes their splits. Takes two leases and more. Any client may
    /// do it at any time, and all others go on.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn sweep(&self) -> Result<Swept, TableError> {
        self.check_writable()?;
        let first = self.pipeline.limited(LOOKING, self.look()).await?;
        // A little longer: the clocks of two clients may differ by a thousandth.
        let apart = Lifetime(self.options.lease.0 * 2 + self.options.lease.0 / 64 + 1_000);
        self.pipeline.sleep(if planted::is(Fault::SweptAtOnce) { Lifetime(0) } else { apart }).await?;
        let second = self.pipeline.limited(LOOKING, self.look()).await?;
        self.pipeline.limited(FREEING, self.free_what_is_in_both(first, second)).await
    }

    async fn free_what_is_in_both(&self, first: Look, second: Look) -> Result<Swept, TableError> {
        let mut swept = Swept::default();
        for &subtable in first.frozen.intersection(&second.frozen) {
            self.pipeline.note_step();
            self.finish_dead_split(subtable).await?;
            swept.splits += 1;
        }
        for (at, slot) in both(&first.pending, &second.pending) {
            self.pipeline.note_step();
            swept.pending += u64::from(self.clear(at, slot).await?);
        }
        for some in both(&first.claimed, &second.claimed).chunks(FREED_AT_ONCE) {
            self.pipeline.note_step();
            for freed in join(some.iter().map(|&(place, claim)| self.free_orphan(place, claim))).await {
                swept.blocks += u64::from(freed?);
            }
        }
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

    async fn look(&self) -> Result<Look, TableError> {
        let mut attempts = 1;
        loop {
            match self.try_look().await {
                // Each attempt gets further than the limit of an operation asks for, and may still come to nothing.
                Err(error) if attempts < LOOKS_MAX => self.mend(error).await?,
                done => return done,
            }
            attempts += 1;
        }
    }

    /// Finds what is claimed and in no slot. Claims come first: what is in a slot then is found there.
    async fn try_look(&self) -> Result<Look, TableError> {
        let mut look = Look { claimed: self.all_claims().await?, ..Look::default() };
        for number in 0..self.extents_begun().await? {
            self.pipeline.note_step();
            let at = self.options.extent_record_at(number);
            if let Some(record) = self.record_at(at).await?.filter(|record| !record.is_kept) {
                look.unfinished.insert(at, record.object);
            }
        }
        let mut linked = BTreeSet::from([0]);
        let mut number = 0;
        while u64::from(number) < self.subtables_begun().await? {
            self.pipeline.note_step();
            let at = self.options.subtable_record_at(number);
            match self.record_at(at).await? {
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
        Ok(look)
    }

    /// Looks at all slots of a subtable. Returns the subtables that were split off it.
    async fn look_into(&self, number: u32, look: &mut Look) -> Result<Vec<u32>, TableError> {
        for bucket in self.read_buckets(number).await? {
            for (at, slot) in bucket.slots() {
                look.see(at, slot);
            }
        }
        // Links come after the slots: a child that is linked later takes nothing that was not seen here.
        Ok(self.links(number).await?.children().collect())
    }

    /// Frees memory that nobody has finished making, and takes its record away. Returns whether it did.
    async fn free_unfinished(&self, at: u64, object: ObjectRef) -> Result<bool, TableError> {
        let record = self.record_at(at).await?;
        if record.is_none_or(|record| record.is_kept || record.object != object) {
            return Ok(false);
        }
        self.write_in(Part::Head, at, &[0; RECORD_BYTES]).await?;
        match self.pipeline.free(object).await.map_err(TableError::from) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn all_claims(&self) -> Result<BTreeMap<Place, Claim>, TableError> {
        let mut claimed = BTreeMap::new();
        if let Some(chunk_blocks) = &self.state.borrow().chunk_blocks {
            claimed.extend(chunk_blocks.claims());
        }
        for (extent, class) in self.all_extents().await? {
            claimed.extend(self.claims_of(extent, class).await?.unwrap_or_default());
        }
        Ok(claimed)
    }

    /// Frees a subtable that no other links to, and takes its record away. Returns whether it did.
    ///
    /// A client that has died may have written down that it splits the parent into this subtable, without having linked
    /// it. Whoever takes that split over links it. So this happens under the right to split the parent.
    async fn free_subtable(&self, number: u32, object: ObjectRef) -> Result<bool, TableError> {
        let Some(parent) = self.links(number).await?.parent else { return Ok(false) };
        let Some((right, progress)) = self.right_to_split(parent).await? else { return Ok(false) };
        if matches!(progress, Progress::Splitting { child, .. } if child == number) {
            self.pipeline.end(right);
            self.finish_dead_split(parent).await?;
            return Ok(false);
        }
        let linked = self.links(parent).await?.children().any(|child| child == number);
        if !linked {
            let at = self.options.subtable_record_at(number);
            self.write_in(Part::Head, at, &[0; RECORD_BYTES]).await?;
            self.pipeline.free(object).await?;
        }
        self.pipeline.end(right);
        Ok(!linked)
    }

    async fn clear(&self, at: SlotAt, slot: Slot) -> Result<bool, TableError> {
        let before = self.swap_in(Part::Subtable(at.subtable), at.offset(), slot.0, Slot::EMPTY.0).await?;
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
        if self.claimed.get(&slot.place()).is_some_and(|claim| claim.version() == slot.version()) {
            self.claimed.remove(&slot.place());
        }
    }
}

/// What is in both with the same value.
fn both<K: Copy + Ord, V: Copy + PartialEq>(first: &BTreeMap<K, V>, second: &BTreeMap<K, V>) -> Vec<(K, V)> {
    first.iter().filter(|(key, value)| second.get(key) == Some(value)).map(|(k, v)| (*k, *v)).collect()
}
