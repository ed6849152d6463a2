//! The split of a subtable: half of its keys move to a new subtable, bucket by bucket, while all clients go on.
//!
//! The right to split is an exclusive permission over the first bytes of the subtable, where its progress is written.
//! If its holder dies, the next client that needs the split gets that permission when the lease has ended, and finishes
//! (Patronus §7.2.3, Figure 8a). Before that it makes sure that no request of the dead client is still under way: it
//! acquires both subtables exclusively once, which ends every permission that the dead client can have had on them.
//!
//! A bucket is moved in these steps, each of which may be repeated:
//! 1. Each slot is frozen by a COMPARE_AND_SWAP. So a change by another client comes before it or fails.
//! 2. The bucket of the new subtable with the same number is written. Its header is not published, so no client uses
//!    it.
//! 3. The header of the old bucket is changed. From here on the keys that move are in the new bucket. A client that
//!    comes from the old bucket uses it at once.
//! 4. The header of the new bucket is published, for clients that do not come from the old one.
//! 5. The slots of the old bucket are unfrozen: slots whose keys stay get their old content, all others become empty.

use super::blocks::Readable;
use super::blocks::block::{self, HEADER_BYTES};
use super::index::{Bucket, Progress, SlotAt};
use super::shape::{BUCKET_BYTES, SHARED_AT, SLOTS, bucket_at, child_at};
use super::words::{BucketHeader, Slot, mask};
use super::{Table, TableError};
use crate::held::AtEnd;
use crate::pipeline::{all, join, word_of};
use portcullis::{Acquire, BarePermission, Clock, Error, Lifetime, Rights, Sharing, VerbsEndpoint};
use portcullis_planted::planted;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Offset of the header in a bucket.
const HEADER_AT: u64 = SLOTS as u64 * 8;
/// Time after which a client looks again whether a frozen slot has moved.
const BUCKET_MOVED_WITHIN: Lifetime = Lifetime::micros(20);
/// Number of buckets that are moved at once. If others wait for the right, this many have to be moved within a lease,
/// or a split is never finished. The number is small, so that this also succeeds on a slow network.
const BUCKETS_AT_ONCE: u32 = 8;
/// Number of bytes of a block that are read to learn its key; longer keys take a second read.
const KEY_READ_BYTES: u32 = 128;

/// The progress of a split that a handle carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitUnderWay {
    /// Number of buckets whose keys are where they belong after the split.
    pub moved: u32,
    /// Number of buckets of the subtable.
    pub buckets: u32,
}

/// The permissions of a client while it splits.
struct Split {
    parent: u32,
    child: u32,
    /// The depth before the split.
    depth: u32,
    /// The exclusive permission over the parent's progress.
    right: Rc<BarePermission>,
    /// The parent's buckets.
    old: Rc<BarePermission>,
    /// The permission over all of the child.
    new: Rc<BarePermission>,
}

/// A slot that was frozen.
#[derive(Clone, Copy)]
struct Frozen {
    at: SlotAt,
    slot: Slot,
    /// Whether the slot's key goes to the child.
    moves: bool,
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Makes room for a key in a subtable whose buckets for it are full.
    pub(super) async fn make_room(&self, subtable: u32, depth: u32) -> Result<(), TableError> {
        self.split_or_finish(subtable, Some(depth)).await
    }

    /// Waits until a split has moved the bucket of a frozen slot. If that takes long, the client that splits may have
    /// died, and this one finishes.
    pub(super) async fn wait_for_split(&self, subtable: u32) -> Result<(), TableError> {
        let now = self.pipeline.now();
        let since = *self.state.borrow_mut().frozen.entry(subtable).or_insert(now);
        if now.since(since) < self.options.hold() {
            self.pipeline.sleep(BUCKET_MOVED_WITHIN).await?;
            return Ok(());
        }
        self.state.borrow_mut().frozen.remove(&subtable);
        self.split_or_finish(subtable, None).await
    }

    /// Finishes a split, if one is under way and its client has died.
    pub(super) async fn finish_dead_split(&self, subtable: u32) -> Result<(), TableError> {
        self.split_or_finish(subtable, None).await
    }

    /// Splits a subtable that has this depth, or finishes a split that another client has left.
    async fn split_or_finish(&self, subtable: u32, depth: Option<u32>) -> Result<(), TableError> {
        if self.state.borrow().splitting.contains_key(&subtable) {
            self.pipeline.anything().await?;
            return Ok(());
        }
        self.state.borrow_mut().splitting.insert(subtable, None);
        let at_end = AtEnd::new(&self.pipeline, || {
            let mut state = self.state.borrow_mut();
            state.splitting.remove(&subtable);
            state.frozen.remove(&subtable);
        });
        let done = Box::pin(self.try_split(subtable, depth)).await;
        drop(at_end);
        // An operation that needs the split tries again.
        match done {
            Ok(()) => Ok(()),
            Err(error) => self.leases.mend(error).await,
        }
    }

    async fn try_split(&self, subtable: u32, depth: Option<u32>) -> Result<(), TableError> {
        let Some((right, progress)) = self.right_to_split(subtable).await? else { return Ok(()) };
        match progress {
            Progress::Unfilled => {
                self.pipeline.end(right);
                let parent = self.index.links(subtable).await?.parent.unwrap_or(0);
                Box::pin(self.split_or_finish(parent, None)).await
            }
            Progress::Whole => match depth {
                Some(depth) => self.begin_split(subtable, depth, right).await,
                None => {
                    self.pipeline.end(right);
                    Ok(())
                }
            },
            Progress::Splitting { .. } if planted!(SplitNotTakenOver) => {
                self.pipeline.end(right);
                Ok(())
            }
            Progress::Splitting { child, depth } => self.take_over(subtable, (child, depth), right).await,
        }
    }

    /// Acquires the right to split a subtable, and reads the progress of its split. `None`: another client has the
    /// right, and lives.
    pub(super) async fn right_to_split(
        &self,
        subtable: u32,
    ) -> Result<Option<(Rc<BarePermission>, Progress)>, TableError> {
        let object = self.index.object_of(subtable).await?;
        let right = match self.pipeline.acquire(self.leases.ask_for_split(object)).await {
            Ok(right) => Rc::new(right),
            Err(error) if TableError::from(error).is_conflict() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let word = word_of(&self.pipeline.read_bytes(&right, 0, 8).await?, 0);
        let progress = Progress::from_word(word).ok_or(TableError::Damaged { subtable, bucket: 0 })?;
        Ok(Some((right, progress)))
    }

    async fn begin_split(
        &self,
        parent: u32,
        depth: u32,
        right: Rc<BarePermission>,
    ) -> Result<(), TableError> {
        if self.index.read_bucket(parent, 0).await?.header.depth() != depth {
            // Another client was quicker.
            self.pipeline.end(right);
            return Ok(());
        }
        if depth >= self.options.depth_max {
            self.pipeline.end(right);
            return Err(TableError::Full);
        }
        // The child is linked under this permission: a child that is not linked a lease from now will never be linked.
        let object = self.index.object_of(parent).await?;
        let ask = self.leases.ask(object, (SHARED_AT, 0), Rights::READ | Rights::ATOMIC);
        let old = Rc::new(self.pipeline.acquire(ask).await?);
        let (child, new) = self.index.make_subtable(depth + 1, Some(parent), self.options.lease).await?;
        let progress = Progress::Splitting { child, depth };
        self.pipeline.write(&right, 0, &progress.word().to_le_bytes()).await?;
        self.finish_split(Split { parent, child, depth, right, old, new }).await
    }

    /// Continues the split of a client that has died, or has been too slow.
    async fn take_over(
        &self,
        parent: u32,
        (child, depth): (u32, u32),
        right: Rc<BarePermission>,
    ) -> Result<(), TableError> {
        let objects = [self.index.object_of(parent).await?, self.index.object_of(child).await?];
        let alone = [(objects[0], (SHARED_AT, 0)), (objects[1], (0, 0))].map(|(object, part)| {
            let ask = self.leases.ask(object, part, Rights::READ);
            self.pipeline.acquire_in_any_case(Acquire { sharing: Sharing::Exclusive, ..ask })
        });
        for permission in alone {
            match permission.await {
                Ok(permission) => drop(self.pipeline.revoke(permission, false)),
                Err(error) if TableError::from(error).is_conflict() => {
                    self.pipeline.end(right);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let old = self.leases.ask(objects[0], (SHARED_AT, 0), Rights::READ | Rights::ATOMIC);
        let new = self.leases.ask(objects[1], (0, 0), Rights::all());
        let [old, new] = [old, new].map(|ask| self.pipeline.acquire(ask));
        let (old, new) = (Rc::new(old.await?), Rc::new(new.await?));
        self.finish_split(Split { parent, child, depth, right, old, new }).await
    }

    async fn finish_split(&self, split: Split) -> Result<(), TableError> {
        let done = self.move_all_in_time(&split).await;
        let Split { right, old, new, .. } = split;
        for permission in [old, new, right] {
            self.pipeline.end(permission);
        }
        done
    }

    async fn move_all(&self, split: &Split) -> Result<(), TableError> {
        let link = child_at(split.depth) - SHARED_AT;
        let child = u64::from(split.child) + 1;
        let before = self.pipeline.compare_and_swap(&split.old, link, 0, child).await?;
        if before != 0 && before != child {
            return Err(TableError::Damaged { subtable: split.parent, bucket: 0 });
        }
        let mut suffix = 0;
        for first in (0..self.options.buckets()).step_by(BUCKETS_AT_ONCE as usize) {
            self.note_moved(split.parent, first);
            suffix = self.move_some(split, first).await?;
            self.pipeline.note_step();
        }
        self.index.enter_split((suffix, split.depth), split.parent, split.child).await?;
        // If this client has taken over, the child may have been split itself since.
        let unfilled =
            word_of(&self.pipeline.read_bytes(&split.new, 0, 8).await?, 0) == Progress::Unfilled.word();
        let whole = Progress::Whole.word().to_le_bytes();
        if unfilled {
            self.pipeline.write(&split.new, 0, &whole).await?;
        }
        Ok(self.pipeline.write(&split.right, 0, &whole).await?)
    }

    fn note_moved(&self, subtable: u32, buckets: u32) {
        if let Some(moved) = self.state.borrow_mut().splitting.get_mut(&subtable) {
            *moved = Some(buckets);
        }
    }

    /// Returns a split that this handle carries out at this moment. A test of a client's death in the middle of a split
    /// learns from this when that moment has come.
    #[must_use]
    pub fn split_under_way(&self) -> Option<SplitUnderWay> {
        let moved = self.state.borrow().splitting.values().find_map(|moved| *moved)?;
        Some(SplitUnderWay { moved, buckets: self.options.buckets() })
    }

    /// Moves all buckets, and meanwhile keeps the permissions of the split from ending: on a slow network each step may
    /// take longer than a permission lives.
    async fn move_all_in_time(&self, split: &Split) -> Result<(), TableError> {
        let mut moving = pin!(self.move_all(split));
        let mut keeping = pin!(async {
            loop {
                if let Err(error) = self.keep_right(split).await {
                    return error;
                }
                self.pipeline.sleep_beside(Lifetime(self.options.hold().0 / 8)).await;
            }
        });
        poll_fn(|context| match moving.as_mut().poll(context) {
            Poll::Pending => keeping.as_mut().poll(context).map(Err),
            done => done,
        })
        .await
    }

    /// Extends the permissions of the split, long before they end.
    async fn keep_right(&self, split: &Split) -> Result<(), TableError> {
        let hold = self.options.hold();
        let soon = self.pipeline.now().after(Lifetime(hold.0 * 3 / 4));
        for permission in [&split.right, &split.old, &split.new] {
            if permission.lease().deadline() < soon {
                match self.pipeline.extend(permission, hold).await {
                    // Another client waits for the permission: its remaining time has to be enough.
                    Ok(()) | Err(Error::Refused(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Moves some buckets. Returns the suffix of the parent's keys.
    async fn move_some(&self, split: &Split, first: u32) -> Result<u32, TableError> {
        let count = (self.options.buckets() - first).min(BUCKETS_AT_ONCE);
        let length = count as usize * BUCKET_BYTES;
        let bytes = self.pipeline.read_bytes(&split.old, bucket_at(first) - SHARED_AT, length).await?;
        let buckets: Vec<Bucket> = Bucket::parse_all(split.parent, first, &bytes).collect();
        let (waiting, moved): (Vec<Bucket>, Vec<Bucket>) =
            buckets.iter().partition(|bucket| bucket.header.depth() == split.depth);
        let mut frozen = self.freeze(split, &waiting).await?;
        self.look_at_keys(split.depth, &mut frozen).await?;
        if !planted!(HeaderBeforeCopy) {
            self.fill(split, &waiting, &frozen).await?;
        }
        let headers = waiting.iter().map(|bucket| {
            let new = BucketHeader::new(split.depth + 1, bucket.header.suffix());
            let at = bucket_at(bucket.number) - SHARED_AT + HEADER_AT;
            self.pipeline.compare_and_swap(&split.old, at, bucket.header.0, new.0)
        });
        all(headers).await?;
        self.publish_headers(split, &buckets).await?;
        if planted!(HeaderBeforeCopy) {
            self.fill(split, &waiting, &frozen).await?;
        }
        let mut left: Vec<Frozen> = moved
            .iter()
            .flat_map(Bucket::slots)
            .filter(|(_, slot)| slot.is_frozen())
            .map(|(at, slot)| Frozen { at, slot, moves: false })
            .collect();
        self.look_at_keys(split.depth, &mut left).await?;
        frozen.extend(left);
        self.unfreeze(split, &frozen).await?;
        Ok(buckets[0].header.suffix() & mask(split.depth))
    }

    /// Freezes all slots of some buckets.
    async fn freeze(&self, split: &Split, buckets: &[Bucket]) -> Result<Vec<Frozen>, TableError> {
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
                    (at, slot, self.pipeline.compare_and_swap(&split.old, at.offset(), old, new))
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
    async fn look_at_keys(&self, depth: u32, frozen: &mut [Frozen]) -> Result<(), TableError> {
        let full = frozen.iter_mut().filter(|place| !place.slot.is_empty());
        // All keys are read at the same time: with a permission for each block, one after another would take longer
        // than the lease of the split.
        for looked in join(full.map(|place| self.look_at_key(depth, place))).await {
            looked?;
        }
        Ok(())
    }

    async fn look_at_key(&self, depth: u32, place: &mut Frozen) -> Result<(), TableError> {
        let Some(Readable { permission, offset, length }) =
            self.blocks.permission_to_read(place.slot).await?
        else {
            place.moves = true;
            return Ok(());
        };
        let read = self.pipeline.read(&permission, offset, length.min(KEY_READ_BYTES));
        let mut bytes = self.pipeline.copied(read.await?);
        // No slot that counts names a block that was used again: its key has moved.
        let Some(length) = block::key_bytes(&bytes, place.slot.version()) else {
            place.moves = true;
            return Ok(());
        };
        let end = HEADER_BYTES + length;
        if end > bytes.len() {
            bytes = self.pipeline.read_bytes(&permission, offset, end).await?;
        }
        let hash = self.index.hash_of(&bytes[HEADER_BYTES..end]);
        place.moves = hash.suffix >> depth & 1 == 1;
        Ok(())
    }

    /// Writes buckets of the child.
    async fn fill(&self, split: &Split, buckets: &[Bucket], frozen: &[Frozen]) -> Result<(), TableError> {
        let mut writes = Vec::new();
        for bucket in buckets {
            let mut words = [0; SLOTS + 1];
            let moving = frozen.iter().filter(|it| it.at.bucket == bucket.number && it.moves);
            for it in moving {
                words[it.at.slot as usize] = it.slot.settled().0;
            }
            let suffix = bucket.header.suffix() | 1 << split.depth;
            let header = BucketHeader::new(split.depth + 1, suffix);
            let too_early = planted!(BucketUsedTooEarly);
            words[SLOTS] = if too_early { header } else { header.unpublished() }.0;
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            writes.push(self.pipeline.write(&split.new, bucket_at(bucket.number), &bytes));
        }
        all(writes).await?;
        Ok(())
    }

    /// Publishes the headers of the child's buckets whose keys the parent has given up.
    async fn publish_headers(&self, split: &Split, buckets: &[Bucket]) -> Result<(), TableError> {
        let swaps = buckets.iter().map(|bucket| {
            let suffix = bucket.header.suffix() & mask(split.depth) | 1 << split.depth;
            let header = BucketHeader::new(split.depth + 1, suffix);
            let at = bucket_at(bucket.number) + HEADER_AT;
            self.pipeline.compare_and_swap(&split.new, at, header.unpublished().0, header.0)
        });
        all(swaps).await?;
        Ok(())
    }

    /// Unfreezes slots whose buckets have their new headers.
    async fn unfreeze(&self, split: &Split, frozen: &[Frozen]) -> Result<(), TableError> {
        let swaps = frozen.iter().map(|it| {
            let new = if it.moves { Slot::EMPTY } else { it.slot.settled() };
            self.pipeline.compare_and_swap(&split.old, it.at.offset(), it.slot.0, new.0)
        });
        all(swaps).await?;
        Ok(())
    }
}
