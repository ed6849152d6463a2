//! The split of a subtable: half of its keys move to a new subtable, bucket by bucket, while all clients go on.
//!
//! The right to split is an exclusive permission over the first bytes of the subtable, where its progress is written.
//! If its holder dies, the next client that needs the split gets that permission when the lease has ended, and finishes
//! (Patronus §7.2.3, Figure 8a). Before that it makes sure that no request of the dead client is still under way: it
//! acquires both subtables exclusively once, which ends every permission that the dead client can have had on them.

mod moving;

use super::blocks::Blocks;
use super::index::{Index, Progress};
use super::leases::Leases;
use super::shape::SHARED_AT;
use super::{TableError, TableOptions};
use crate::Pipeline;
use crate::held::AtEnd;
use crate::pipeline::word_of;
use moving::Split;
use portcullis::{Acquire, BarePermission, Clock, Lifetime, Moment, Rights, Sharing, VerbsEndpoint};
use portcullis_planted::planted;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Time after which a client looks again whether a frozen slot has moved.
const BUCKET_MOVED_WITHIN: Lifetime = Lifetime::micros(20);

/// The progress of a split that a handle carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitUnderWay {
    /// Number of buckets whose keys are where they belong after the split.
    pub moved: u32,
    /// Number of buckets of the subtable.
    pub buckets: u32,
}

/// The splits of a table.
pub(super) struct Splits<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    leases: Rc<Leases<E, C>>,
    index: Rc<Index<E, C>>,
    blocks: Rc<Blocks<E, C>>,
    /// Subtables that this pipeline is splitting, and the number of buckets of each that it has moved. `None`: it has
    /// not begun to move them.
    under_way: RefCell<HashMap<u32, Option<u32>>>,
    /// Subtables in which slots were found frozen, and the times since when.
    frozen: RefCell<HashMap<u32, Moment>>,
}

impl<E: VerbsEndpoint, C: Clock> Splits<E, C> {
    pub fn new(
        pipeline: &Rc<Pipeline<E, C>>,
        options: TableOptions,
        leases: &Rc<Leases<E, C>>,
        index: &Rc<Index<E, C>>,
        blocks: &Rc<Blocks<E, C>>,
    ) -> Self {
        Self {
            pipeline: Rc::clone(pipeline),
            options,
            leases: Rc::clone(leases),
            index: Rc::clone(index),
            blocks: Rc::clone(blocks),
            under_way: RefCell::default(),
            frozen: RefCell::default(),
        }
    }

    /// Makes room for a key in a subtable whose buckets for it are full.
    pub async fn make_room(&self, subtable: u32, depth: u32) -> Result<(), TableError> {
        self.split_or_finish(subtable, Some(depth)).await
    }

    /// Waits until a split has moved the bucket of a frozen slot. If that takes long, the client that splits may have
    /// died, and this one finishes.
    pub async fn wait_for(&self, subtable: u32) -> Result<(), TableError> {
        let now = self.pipeline.now();
        let since = *self.frozen.borrow_mut().entry(subtable).or_insert(now);
        if now.since(since) < self.options.hold() {
            self.pipeline.sleep(BUCKET_MOVED_WITHIN).await?;
            return Ok(());
        }
        self.frozen.borrow_mut().remove(&subtable);
        self.split_or_finish(subtable, None).await
    }

    /// Finishes a split, if one is under way and its client has died.
    pub async fn finish_dead(&self, subtable: u32) -> Result<(), TableError> {
        self.split_or_finish(subtable, None).await
    }

    /// Splits a subtable that has this depth, or finishes a split that another client has left.
    async fn split_or_finish(&self, subtable: u32, depth: Option<u32>) -> Result<(), TableError> {
        if self.under_way.borrow().contains_key(&subtable) {
            self.pipeline.anything().await?;
            return Ok(());
        }
        self.under_way.borrow_mut().insert(subtable, None);
        let at_end = AtEnd::new(&self.pipeline, || {
            self.under_way.borrow_mut().remove(&subtable);
            self.frozen.borrow_mut().remove(&subtable);
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
    pub async fn right_to_split(
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
        Split { splits: self, parent, child, depth, right, old, new }.finish().await
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
        Split { splits: self, parent, child, depth, right, old, new }.finish().await
    }

    fn note_moved(&self, subtable: u32, buckets: u32) {
        if let Some(moved) = self.under_way.borrow_mut().get_mut(&subtable) {
            *moved = Some(buckets);
        }
    }

    /// Returns a split that this handle carries out at this moment.
    pub fn under_way(&self) -> Option<SplitUnderWay> {
        let moved = self.under_way.borrow().values().find_map(|moved| *moved)?;
        Some(SplitUnderWay { moved, buckets: self.options.buckets() })
    }
}
