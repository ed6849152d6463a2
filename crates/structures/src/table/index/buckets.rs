//! The buckets of subtables, as they are read and changed.

use super::{Bucket, Index, SlotAt};
use crate::pipeline::WriteAndSwap;
use crate::table::TableError;
use crate::table::leases::{Leased, Part};
use crate::table::shape::{BUCKET_BYTES, SHARED_AT, bucket_at};
use crate::table::words::{BucketHeader, Slot};
use portcullis::{BarePermission, Clock, Moment, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// Number of buckets that one read takes.
const BUCKETS_AT_ONCE: u32 = 64;

impl<E: VerbsEndpoint, C: Clock> Index<E, C> {
    /// Reads one bucket.
    pub async fn read_bucket(&self, subtable: u32, number: u32) -> Result<Bucket, TableError> {
        let at = bucket_at(number) - SHARED_AT;
        let bytes = self.subtable(subtable).read(at, BUCKET_BYTES).await?;
        Ok(Bucket::parse(subtable, number, &bytes.try_into().expect("as many as were read")))
    }

    /// Returns the start of a scan of the whole table: all buckets of the first subtable.
    pub fn first_visit(&self) -> (u32, Vec<bool>) {
        (0, vec![true; self.options.buckets() as usize])
    }

    /// Reads the wanted buckets of a subtable, and adds the buckets that were split off them to those still to be
    /// visited.
    pub async fn visit(
        &self,
        subtable: u32,
        wanted: &[bool],
        visits: &mut Vec<(u32, Vec<bool>)>,
    ) -> Result<Vec<Bucket>, TableError> {
        let mut buckets = self.read_buckets(subtable).await?;
        buckets.retain(|bucket| wanted[bucket.number as usize]);
        // The links are read after the headers, so there is one for each split that a header shows.
        let links = self.links(subtable).await?;
        let deepest = buckets.iter().map(|bucket| bucket.header.depth()).max().unwrap_or(0);
        for depth in links.birth_depth..deepest {
            let mut wanted = vec![false; self.options.buckets() as usize];
            for bucket in buckets.iter().filter(|bucket| bucket.header.depth() > depth) {
                wanted[bucket.number as usize] = true;
            }
            let child = links.child(depth).ok_or(TableError::Damaged { subtable, bucket: 0 })?;
            visits.push((child, wanted));
        }
        Ok(buckets)
    }

    /// Reads all buckets of a subtable.
    pub async fn read_buckets(&self, subtable: u32) -> Result<Vec<Bucket>, TableError> {
        let mut buckets = Vec::with_capacity(self.options.buckets() as usize);
        for first in (0..self.options.buckets()).step_by(BUCKETS_AT_ONCE as usize) {
            let count = (self.options.buckets() - first).min(BUCKETS_AT_ONCE);
            let at = bucket_at(first) - SHARED_AT;
            let bytes = self.subtable(subtable).read(at, count as usize * BUCKET_BYTES).await?;
            buckets.extend(Bucket::parse_all(subtable, first, &bytes));
            self.pipeline.note_step();
        }
        Ok(buckets)
    }

    /// Returns the slots that are now in the place of a slot.
    pub async fn slots_now(
        &self,
        before: &Bucket,
        at: SlotAt,
    ) -> Result<Vec<(BucketHeader, Slot)>, TableError> {
        let mut slots = Vec::new();
        let mut visits = vec![(at.subtable, before.header.depth())];
        while let Some((subtable, depth)) = visits.pop() {
            let bucket = self.read_bucket(subtable, at.bucket).await?;
            let links = self.links(subtable).await?;
            let children = (depth..bucket.header.depth()).filter_map(|at| Some((links.child(at)?, at + 1)));
            visits.extend(children);
            let slot = bucket.slots[at.slot as usize];
            if !slot.is_empty() && !slot.is_pending() {
                slots.push((bucket.header, slot));
            }
        }
        Ok(slots)
    }

    /// Writes bytes, and then changes a slot, if the handle has the permission for that and it is not `until` yet. The slot
    /// is changed only if the bytes are written. `None`: there is no such permission, or it is too late. The swap is
    /// `None` if the slot is not changed in any case.
    pub fn ask_write_and_swap(
        &self,
        write: (&Rc<BarePermission>, u64, &[u8]),
        at: SlotAt,
        [old, new]: [Slot; 2],
        until: Moment,
    ) -> Option<WriteAndSwap<'_, E, C>> {
        let permission = self.leases.fresh(Part::Subtable(at.subtable))?;
        if self.pipeline.now() >= until {
            return None;
        }
        Some(self.pipeline.write_and_swap(write, (&permission, at.offset(), [old.0, new.0])))
    }

    /// Changes a slot. Returns its old content. `None`: it was too late to try.
    pub async fn swap(
        &self,
        at: SlotAt,
        old: Slot,
        new: Slot,
        until: Moment,
    ) -> Result<Option<Slot>, TableError> {
        loop {
            let permission = self.subtable(at.subtable).permission().await?;
            // The time is checked under the permission: the permission must not be from after that time.
            if self.pipeline.now() >= until && !planted!(LateClaimUsed) {
                return Ok(None);
            }
            match self.pipeline.compare_and_swap(&permission, at.offset(), old.0, new.0).await {
                Ok(before) => return Ok(Some(Slot(before))),
                // The swap was refused, so it has not happened.
                Err(error) => self.leases.mend(error.into()).await?,
            }
        }
    }
}
