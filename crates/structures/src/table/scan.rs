//! Scans of a table: its keys and their number.

use super::blocks::Value;
use super::blocks::block::{self, Content};
use super::find::{Attempts, Retry};
use super::index::{Bucket, SlotAt};
use super::words::{BucketHeader, Slot};
use super::{Table, TableError};
use portcullis::{Clock, Effect, Moment, VerbsEndpoint};
use std::ops::ControlFlow;

/// A key, as a scan of the table finds it.
pub(super) struct Item<'a> {
    pub key: &'a [u8],
    /// The value. If values of several blocks are not wanted: the part that is in the first block.
    pub value: &'a [u8],
    /// Number of bytes of the value.
    pub length: usize,
    pub expires: Option<Moment>,
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Hands each key and its value to `each`, in no order. A key that is in the table all the time is handed over
    /// exactly once. A key that is inserted or removed meanwhile is handed over once or not at all, unless it is
    /// removed and inserted again.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn for_each(&self, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), TableError> {
        let each = |key: &[u8], value: &[u8]| {
            each(key, value);
            ControlFlow::Continue(())
        };
        self.try_for_each(each).await
    }

    /// Hands keys and values to `each` as [`Table::for_each`] does, until `each` breaks off. After that no more of the
    /// table is read.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn try_for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        let operation = async {
            let now = self.head.node_time().await?;
            let mut see = |item: &Item<'_>| {
                let counts = item.expires.is_none_or(|at| at > now);
                if counts { each(item.key, item.value) } else { ControlFlow::Continue(()) }
            };
            let mut visits = vec![self.index.first_visit()];
            while let Some(next) = visits.pop() {
                if self.look_at(next, &mut visits, true, &mut see).await?.is_break() {
                    break;
                }
            }
            Ok(())
        };
        self.pipeline.limited(("a look at a whole table", Effect::Nothing), operation).await
    }

    /// Hands each key and the length of its value to `each`, as [`Table::for_each`] does. Values of several blocks are not read.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn for_each_length(&self, mut each: impl FnMut(&[u8], usize)) -> Result<(), TableError> {
        let operation = async {
            let now = self.head.node_time().await?;
            let mut see = |item: &Item<'_>| {
                if item.expires.is_none_or(|at| at > now) {
                    each(item.key, item.length);
                }
                ControlFlow::Continue(())
            };
            let mut visits = vec![self.index.first_visit()];
            while let Some(next) = visits.pop() {
                // The closure never breaks off, so the look goes on to its end.
                let _ = self.look_at(next, &mut visits, false, &mut see).await?;
            }
            Ok(())
        };
        self.pipeline.limited(("a look at a whole table", Effect::Nothing), operation).await
    }

    /// Hands the keys in the wanted buckets of a subtable to `see`, including keys that have expired, until `see`
    /// breaks off. Adds the buckets that were split off them to those still to be visited. `whole`: values are wanted,
    /// including those of several blocks.
    pub(super) async fn look_at(
        &self,
        (subtable, wanted): (u32, Vec<bool>),
        visits: &mut Vec<(u32, Vec<bool>)>,
        whole: bool,
        mut see: impl FnMut(&Item<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TableError> {
        for bucket in self.index.visit(subtable, &wanted, visits).await? {
            for (at, slot) in bucket.slots().filter(|(_, slot)| !slot.is_empty() && !slot.is_pending()) {
                self.pipeline.note_step();
                for (header, slot, bytes) in self.read_current(&bucket, at, slot).await? {
                    let content = block::decode(&bytes, slot.version(), slot.block_id());
                    // A split leaves keys behind for a moment after it has moved them.
                    let here = |key| header.covers(self.index.hash_of(key).suffix);
                    let Some(content) = content.filter(|content| here(content.key)) else { continue };
                    if self.see(slot, &content, whole, &mut see).await?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Hands one key to `see`.
    async fn see(
        &self,
        slot: Slot,
        content: &Content<'_>,
        whole: bool,
        see: &mut impl FnMut(&Item<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TableError> {
        let (key, expires) = (content.key, content.expires);
        if content.pieces.is_empty() || !whole {
            let (value, length) = (content.value, content.length());
            return Ok(see(&Item { key, value, length, expires }));
        }
        let value = match Box::pin(self.blocks.whole(&Value::of(content), slot)).await? {
            Some(value) => Some(value),
            // The key was replaced or removed meanwhile.
            None => self.get_now(key).await?,
        };
        Ok(value.map_or(ControlFlow::Continue(()), |value| {
            see(&Item { key, value: &value, length: value.len(), expires })
        }))
    }

    /// Counts the keys. Keys that are inserted or removed meanwhile may be counted or not.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn length(&self) -> Result<u64, TableError> {
        let mut count = 0;
        self.for_each(|_, _| count += 1).await?;
        Ok(count)
    }

    /// Reads the block of a slot. If the slot has changed since, reads the block that it names now, or the blocks that
    /// the same slots name in the subtables into which the bucket was split. Returns each block with its bucket's
    /// header.
    ///
    /// # Errors
    /// [`TableError::Damaged`]: a slot continues to name a block of another key, for longer than any change takes.
    async fn read_current(
        &self,
        bucket: &Bucket,
        at: SlotAt,
        slot: Slot,
    ) -> Result<Vec<(BucketHeader, Slot, Vec<u8>)>, TableError> {
        let mut attempts = Attempts::new(self.pipeline.now());
        let mut now = vec![(bucket.header, slot)];
        loop {
            let mut read = Vec::new();
            for &(header, slot) in &now {
                let bytes = self.blocks.read_block(slot).await;
                match bytes {
                    Ok(Some(bytes)) => read.push((header, slot, self.pipeline.copied(bytes))),
                    Ok(None) => {}
                    Err(error) => self.leases.mend(error).await?,
                }
            }
            let whole = |(_, slot, bytes): &(_, Slot, Vec<u8>)| {
                block::decode(bytes, slot.version(), slot.block_id()).is_some()
            };
            if read.len() == now.len() && read.iter().all(whole) {
                return Ok(read);
            }
            let is_stale = |slot| !read.iter().any(|found| found.1 == slot && whole(found));
            let stale = now.iter().map(|(_, slot)| *slot).find(|slot| is_stale(*slot)).unwrap_or(slot);
            self.again(&mut attempts, Retry::Stale(at, stale)).await?;
            now = self.index.slots_now(bucket, at).await?;
        }
    }
}
