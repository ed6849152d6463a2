//! The move of keys from a subtable to a new one.
//!
//! A bucket is moved in these steps, each of which may be repeated:
//! 1. Each slot is frozen by a COMPARE_AND_SWAP. So a change by another client comes before it or fails.
//! 2. The bucket of the new subtable with the same number is written. Its header is not published, so no client uses
//!    it.
//! 3. The header of the old bucket is changed. From here on the keys that move are in the new bucket. A client that
//!    comes from the old bucket uses it at once.
//! 4. The header of the new bucket is published, for clients that do not come from the old one.
//! 5. The slots of the old bucket are unfrozen: slots whose keys stay get their old content, all others become empty.

use super::Splits;
use crate::Pipeline;
use crate::pipeline::{all, join, word_of};
use crate::table::TableError;
use crate::table::index::{Bucket, Progress, SlotAt};
use crate::table::shape::{BUCKET_BYTES, SHARED_AT, SLOTS, bucket_at, child_at};
use crate::table::words::{BucketHeader, Slot, mask};
use portcullis::{BarePermission, Clock, Error, Lifetime, VerbsEndpoint};
use portcullis_planted::planted;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Offset of the header in a bucket.
const HEADER_AT: u64 = SLOTS as u64 * 8;
/// Number of buckets that are moved at once. If others wait for the right, this many have to be moved within a lease,
/// or a split is never finished. The number is small, so that this also succeeds on a slow network.
const BUCKETS_AT_ONCE: u32 = 8;

/// A split that this client carries out, with its permissions.
pub(super) struct Split<'s, E: VerbsEndpoint, C: Clock> {
    pub splits: &'s Splits<E, C>,
    pub parent: u32,
    pub child: u32,
    /// The depth before the split.
    pub depth: u32,
    /// The exclusive permission over the parent's progress.
    pub right: Rc<BarePermission>,
    /// The parent's buckets.
    pub old: Rc<BarePermission>,
    /// The permission over all of the child.
    pub new: Rc<BarePermission>,
}

/// A slot that was frozen.
#[derive(Clone, Copy)]
struct Frozen {
    at: SlotAt,
    slot: Slot,
    /// Whether the slot's key goes to the child.
    moves: bool,
}

impl<E: VerbsEndpoint, C: Clock> Split<'_, E, C> {
    fn pipeline(&self) -> &Pipeline<E, C> {
        &self.splits.pipeline
    }

    /// Moves all buckets, and ends the permissions of the split.
    pub async fn finish(self) -> Result<(), TableError> {
        let done = self.move_all_in_time().await;
        let Self { splits, right, old, new, .. } = self;
        for permission in [old, new, right] {
            splits.pipeline.end(permission);
        }
        done
    }

    async fn move_all(&self) -> Result<(), TableError> {
        let link = child_at(self.depth) - SHARED_AT;
        let child = u64::from(self.child) + 1;
        let before = self.pipeline().compare_and_swap(&self.old, link, 0, child).await?;
        if before != 0 && before != child {
            return Err(TableError::Damaged { subtable: self.parent, bucket: 0 });
        }
        let mut suffix = 0;
        for first in (0..self.splits.options.buckets()).step_by(BUCKETS_AT_ONCE as usize) {
            self.splits.note_moved(self.parent, first);
            suffix = self.move_some(first).await?;
            self.pipeline().note_step();
        }
        self.splits.index.enter_split((suffix, self.depth), self.parent, self.child).await?;
        // If this client has taken over, the child may have been split itself since.
        let unfilled =
            word_of(&self.pipeline().read_bytes(&self.new, 0, 8).await?, 0) == Progress::Unfilled.word();
        let whole = Progress::Whole.word().to_le_bytes();
        if unfilled {
            self.pipeline().write(&self.new, 0, &whole).await?;
        }
        Ok(self.pipeline().write(&self.right, 0, &whole).await?)
    }

    /// Moves all buckets, and meanwhile keeps the permissions of the split from ending: on a slow network each step may
    /// take longer than a permission lives.
    async fn move_all_in_time(&self) -> Result<(), TableError> {
        let mut moving = pin!(self.move_all());
        let mut keeping = pin!(async {
            loop {
                if let Err(error) = self.keep_right().await {
                    return error;
                }
                self.pipeline().sleep_beside(Lifetime(self.splits.options.hold().0 / 8)).await;
            }
        });
        poll_fn(|context| match moving.as_mut().poll(context) {
            Poll::Pending => keeping.as_mut().poll(context).map(Err),
            done => done,
        })
        .await
    }

    /// Extends the permissions of the split, long before they end.
    async fn keep_right(&self) -> Result<(), TableError> {
        let hold = self.splits.options.hold();
        let soon = self.pipeline().now().after(Lifetime(hold.0 * 3 / 4));
        for permission in [&self.right, &self.old, &self.new] {
            if permission.lease().deadline() < soon {
                match self.pipeline().extend(permission, hold).await {
                    // Another client waits for the permission: its remaining time has to be enough.
                    Ok(()) | Err(Error::Refused(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Moves some buckets. Returns the suffix of the parent's keys.
    async fn move_some(&self, first: u32) -> Result<u32, TableError> {
        let count = (self.splits.options.buckets() - first).min(BUCKETS_AT_ONCE);
        let length = count as usize * BUCKET_BYTES;
        let bytes = self.pipeline().read_bytes(&self.old, bucket_at(first) - SHARED_AT, length).await?;
        let buckets: Vec<Bucket> = Bucket::parse_all(self.parent, first, &bytes).collect();
        let (waiting, moved): (Vec<Bucket>, Vec<Bucket>) =
            buckets.iter().partition(|bucket| bucket.header.depth() == self.depth);
        let mut frozen = self.freeze(&waiting).await?;
        self.look_at_keys(&mut frozen).await?;
        if !planted!(HeaderBeforeCopy) {
            self.fill(&waiting, &frozen).await?;
        }
        let headers = waiting.iter().map(|bucket| {
            let new = BucketHeader::new(self.depth + 1, bucket.header.suffix());
            let at = bucket_at(bucket.number) - SHARED_AT + HEADER_AT;
            self.pipeline().compare_and_swap(&self.old, at, bucket.header.0, new.0)
        });
        all(headers).await?;
        self.publish_headers(&buckets).await?;
        if planted!(HeaderBeforeCopy) {
            self.fill(&waiting, &frozen).await?;
        }
        let mut left: Vec<Frozen> = moved
            .iter()
            .flat_map(Bucket::slots)
            .filter(|(_, slot)| slot.is_frozen())
            .map(|(at, slot)| Frozen { at, slot, moves: false })
            .collect();
        self.look_at_keys(&mut left).await?;
        frozen.extend(left);
        self.unfreeze(&frozen).await?;
        Ok(buckets[0].header.suffix() & mask(self.depth))
    }

    /// Freezes all slots of some buckets.
    async fn freeze(&self, buckets: &[Bucket]) -> Result<Vec<Frozen>, TableError> {
        let as_it_is = |(at, slot)| Frozen { at, slot, moves: false };
        let mut frozen = Vec::new();
        let (done, mut left): (Vec<_>, Vec<_>) =
            buckets.iter().flat_map(Bucket::slots).partition(|(_, slot)| slot.is_frozen());
        if planted!(SlotsNotFrozen) {
            return Ok(done.into_iter().chain(left).map(as_it_is).collect());
        }
        // The client that has left this split has frozen these slots.
        frozen.extend(done.into_iter().map(as_it_is));
        while !left.is_empty() {
            let swaps: Vec<_> = std::mem::take(&mut left)
                .into_iter()
                .map(|(at, slot)| {
                    let (old, new) = (slot.0, slot.frozen().0);
                    (at, slot, self.pipeline().compare_and_swap(&self.old, at.offset(), old, new))
                })
                .collect();
            for (at, slot, swap) in swaps {
                let before = Slot(swap.await?);
                if before == slot {
                    frozen.push(Frozen { at, slot: slot.frozen(), moves: false });
                } else {
                    left.push((at, before));
                }
            }
        }
        Ok(frozen)
    }

    /// Finds which keys of frozen slots go to the child.
    async fn look_at_keys(&self, frozen: &mut [Frozen]) -> Result<(), TableError> {
        let full = frozen.iter_mut().filter(|place| !place.slot.is_empty());
        // All keys are read at the same time: with a permission for each block, one after another would take longer
        // than the lease of the split.
        for looked in join(full.map(|place| self.look_at_key(place))).await {
            looked?;
        }
        Ok(())
    }

    async fn look_at_key(&self, place: &mut Frozen) -> Result<(), TableError> {
        let Splits { index, blocks, .. } = self.splits;
        let moves = |key: &[u8]| index.hash_of(key).suffix >> self.depth & 1 == 1;
        // No slot that counts names a block that is gone or was used again: its key has moved.
        place.moves = blocks.look_at_key(place.slot, moves).await?.unwrap_or(true);
        Ok(())
    }

    /// Writes buckets of the child.
    async fn fill(&self, buckets: &[Bucket], frozen: &[Frozen]) -> Result<(), TableError> {
        let mut writes = Vec::new();
        for bucket in buckets {
            let mut words = [0; SLOTS + 1];
            let moving = frozen.iter().filter(|it| it.at.bucket == bucket.number && it.moves);
            for it in moving {
                words[it.at.slot as usize] = it.slot.settled().0;
            }
            let suffix = bucket.header.suffix() | 1 << self.depth;
            let header = BucketHeader::new(self.depth + 1, suffix);
            let too_early = planted!(BucketUsedTooEarly);
            words[SLOTS] = if too_early { header } else { header.unpublished() }.0;
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            writes.push(self.pipeline().write(&self.new, bucket_at(bucket.number), &bytes));
        }
        all(writes).await?;
        Ok(())
    }

    /// Publishes the headers of the child's buckets whose keys the parent has given up.
    async fn publish_headers(&self, buckets: &[Bucket]) -> Result<(), TableError> {
        let swaps = buckets.iter().map(|bucket| {
            let suffix = bucket.header.suffix() & mask(self.depth) | 1 << self.depth;
            let header = BucketHeader::new(self.depth + 1, suffix);
            let at = bucket_at(bucket.number) + HEADER_AT;
            self.pipeline().compare_and_swap(&self.new, at, header.unpublished().0, header.0)
        });
        all(swaps).await?;
        Ok(())
    }

    /// Unfreezes slots whose buckets have their new headers.
    async fn unfreeze(&self, frozen: &[Frozen]) -> Result<(), TableError> {
        let swaps = frozen.iter().map(|it| {
            let new = if it.moves { Slot::EMPTY } else { it.slot.settled() };
            self.pipeline().compare_and_swap(&self.old, it.at.offset(), it.slot.0, new.0)
        });
        all(swaps).await?;
        Ok(())
    }
}
