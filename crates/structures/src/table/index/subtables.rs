//! Subtables and their records: how they are made, found, and linked.

use super::{Index, Progress};
use crate::pipeline::{ZEROS, word_of};
use crate::record::Record;
use crate::table::leases::{Leased, Leases, Part};
use crate::table::shape::{
    BIRTH_DEPTH_AT, BUCKET_BYTES, DEPTH_LIMIT, PARENT_AT, SHARED_AT, SHARED_RECORD_BYTES, SLOTS,
    SUBTABLES_AT, bucket_at, child_at,
};
use crate::table::words::BucketHeader;
use crate::table::{MADE_WITHIN, TableError};
use portcullis::{BarePermission, Clock, Lifetime, ObjectRef, VerbsEndpoint};
use std::rc::Rc;

/// The links of a subtable to others.
#[derive(Clone, Debug)]
pub(in crate::table) struct Links {
    pub parent: Option<u32>,
    pub birth_depth: u32,
    children: Vec<u64>,
}

impl Links {
    /// Returns the subtable that took keys at a split at this depth.
    pub fn child(&self, depth: u32) -> Option<u32> {
        number(*self.children.get(depth as usize)?)
    }

    /// Returns all subtables that were split off this one.
    pub fn children(&self) -> impl Iterator<Item = u32> + '_ {
        self.children.iter().filter_map(|&word| number(word))
    }
}

/// Decodes a number that is written plus one, so that zero means none.
fn number(word: u64) -> Option<u32> {
    u32::try_from(word).ok()?.checked_sub(1)
}

/// The part of a subtable that clients share.
pub(in crate::table) struct Subtable<'t, E: VerbsEndpoint, C: Clock> {
    index: &'t Index<E, C>,
    number: u32,
}

impl<E: VerbsEndpoint, C: Clock> Leased<E, C> for Subtable<'_, E, C> {
    fn leases(&self) -> &Leases<E, C> {
        &self.index.leases
    }

    fn part(&self) -> Part {
        Part::Subtable(self.number)
    }

    async fn acquire(&self) -> Result<BarePermission, TableError> {
        let object = self.index.object_of(self.number).await?;
        let ask = self.index.leases.ask_for_words(object, (SHARED_AT, 0));
        Ok(self.index.pipeline.acquire(ask).await?)
    }
}

impl<E: VerbsEndpoint, C: Clock> Index<E, C> {
    /// Returns the part of a subtable that clients share, to access it.
    pub fn subtable(&self, number: u32) -> Subtable<'_, E, C> {
        Subtable { index: self, number }
    }

    /// Number of subtables that were ever begun.
    pub async fn subtables_begun(&self) -> Result<u64, TableError> {
        self.head.word(SUBTABLES_AT).await
    }

    /// Returns the object of a subtable.
    pub async fn object_of(&self, number: u32) -> Result<ObjectRef, TableError> {
        if let Some(Some(object)) = self.objects.borrow().get(number as usize) {
            return Ok(*object);
        }
        let damaged = TableError::Damaged { subtable: number, bucket: 0 };
        if number >= self.options.subtables_max() {
            return Err(damaged);
        }
        let record = self.head.record_at(self.options.subtable_record_at(number)).await?;
        let object = record.filter(|record| record.is_kept).ok_or(damaged)?.object;
        self.know(number, object);
        Ok(object)
    }

    fn know(&self, number: u32, object: ObjectRef) {
        let known = &mut *self.objects.borrow_mut();
        if known.len() <= number as usize {
            known.resize(number as usize + 1, None);
        }
        known[number as usize] = Some(object);
    }

    /// Reads the links of a subtable.
    pub async fn links(&self, number: u32) -> Result<Links, TableError> {
        let bytes = self.subtable(number).read(0, SHARED_RECORD_BYTES).await?;
        let word = |at: u64| word_of(&bytes, usize::try_from(at - SHARED_AT).expect("it is small"));
        let children = (0..DEPTH_LIMIT).map(|depth| word(child_at(depth))).collect();
        let birth_depth = u32::try_from(word(BIRTH_DEPTH_AT)).unwrap_or(0);
        Ok(Links { parent: self::number(word(PARENT_AT)), birth_depth, children })
    }

    /// Makes the first subtable, with all its buckets.
    pub async fn make_root(&self) -> Result<(), TableError> {
        let (number, permission) = self.make_subtable(0, None, MADE_WITHIN).await?;
        let mut buckets = vec![0; self.options.buckets() as usize * BUCKET_BYTES];
        for bucket in buckets.chunks_mut(BUCKET_BYTES) {
            bucket[SLOTS * 8..].copy_from_slice(&BucketHeader::new(0, 0).0.to_le_bytes());
        }
        for (index, piece) in buckets.chunks(ZEROS).enumerate() {
            let at = bucket_at(0) + (index * ZEROS) as u64;
            self.pipeline.write(&permission, at, piece).await?;
        }
        self.pipeline.write(&permission, 0, &Progress::Whole.word().to_le_bytes()).await?;
        self.pipeline.end(permission);
        assert_eq!(number, 0, "the root is the first");
        Ok(())
    }

    /// Makes a subtable without published buckets, and enters it in the head. The returned permission is over all of
    /// it.
    pub async fn make_subtable(
        &self,
        depth: u32,
        parent: Option<u32>,
        lifetime: Lifetime,
    ) -> Result<(u32, Rc<BarePermission>), TableError> {
        let number = self.head.count(SUBTABLES_AT).await?;
        let number = u32::try_from(number).ok().filter(|number| *number < self.options.subtables_max());
        let number = number.ok_or(TableError::Full)?;
        let permission = self.head.allocate(self.options.subtable_bytes(), lifetime).await?;
        self.pipeline.zero(&permission, self.options.subtable_bytes()).await?;
        let mut record = [0; 16];
        record[..8].copy_from_slice(&parent.map_or(0, |parent| u64::from(parent) + 1).to_le_bytes());
        record[8..].copy_from_slice(&u64::from(depth).to_le_bytes());
        self.pipeline.write(&permission, PARENT_AT, &record).await?;
        self.pipeline.write(&permission, 0, &Progress::Unfilled.word().to_le_bytes()).await?;
        let record = Record { object: permission.object(), detail: 0, is_kept: false };
        self.head.enter(self.options.subtable_record_at(number), record).await?;
        self.know(number, permission.object());
        Ok((number, permission))
    }
}
