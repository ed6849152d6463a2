//! Subtables and their records: how they are made, found, and linked.

use super::leases::{Leased, Leases, Part};
use super::shape::{
    BIRTH_DEPTH_AT, BUCKET_BYTES, DEPTH_LIMIT, GLOBAL_DEPTH_AT, PARENT_AT, SHARED_AT, SHARED_RECORD_BYTES,
    SLOTS, SUBTABLES_AT, bucket_at, child_at,
};
use super::split::Progress;
use super::words::{BucketHeader, Entry};
use super::{MADE_WITHIN, Table, TableError};
use crate::pipeline::{ZEROS, join, word_of};
use crate::record::Record;
use portcullis::{BarePermission, Clock, Lifetime, ObjectRef, VerbsEndpoint};
use std::rc::Rc;

/// Number of entries of the directory that are read or written at once.
const ENTRIES_AT_ONCE: u32 = 512;

/// The links of a subtable to others.
#[derive(Clone, Debug)]
pub(super) struct Links {
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
pub(super) struct Subtable<'t, E: VerbsEndpoint, C: Clock> {
    table: &'t Table<E, C>,
    number: u32,
}

impl<E: VerbsEndpoint, C: Clock> Leased<E, C> for Subtable<'_, E, C> {
    fn leases(&self) -> &Leases<E, C> {
        &self.table.leases
    }

    fn part(&self) -> Part {
        Part::Subtable(self.number)
    }

    async fn acquire(&self) -> Result<BarePermission, TableError> {
        let object = self.table.subtable_object(self.number).await?;
        let ask = self.table.leases.ask_for_words(object, (SHARED_AT, 0));
        Ok(self.table.pipeline.acquire(ask).await?)
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Returns the part of a subtable that clients share, to access it.
    pub(super) fn subtable(&self, number: u32) -> Subtable<'_, E, C> {
        Subtable { table: self, number }
    }

    /// Returns the object of a subtable.
    pub(super) async fn subtable_object(&self, number: u32) -> Result<ObjectRef, TableError> {
        if let Some(Some(object)) = self.state.borrow().subtables.get(number as usize) {
            return Ok(*object);
        }
        let damaged = TableError::Damaged { subtable: number, bucket: 0 };
        if number >= self.options.subtables_max() {
            return Err(damaged);
        }
        let record = self.head.record_at(self.options.subtable_record_at(number)).await?;
        let object = record.filter(|record| record.is_kept).ok_or(damaged)?.object;
        self.know_subtable(number, object);
        Ok(object)
    }

    fn know_subtable(&self, number: u32, object: ObjectRef) {
        let known = &mut self.state.borrow_mut().subtables;
        if known.len() <= number as usize {
            known.resize(number as usize + 1, None);
        }
        known[number as usize] = Some(object);
    }

    /// Reads the links of a subtable.
    pub(super) async fn links(&self, number: u32) -> Result<Links, TableError> {
        let bytes = self.subtable(number).read(0, SHARED_RECORD_BYTES).await?;
        let word = |at: u64| word_of(&bytes, usize::try_from(at - SHARED_AT).expect("it is small"));
        let children = (0..DEPTH_LIMIT).map(|depth| word(child_at(depth))).collect();
        let birth_depth = u32::try_from(word(BIRTH_DEPTH_AT)).unwrap_or(0);
        Ok(Links { parent: self::number(word(PARENT_AT)), birth_depth, children })
    }

    /// Makes the first subtable, with all its buckets.
    pub(super) async fn make_root(&self) -> Result<(), TableError> {
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
    pub(super) async fn make_subtable(
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
        self.know_subtable(number, permission.object());
        Ok((number, permission))
    }

    /// Reads the shared directory.
    pub(super) async fn load_routes(&self) -> Result<(), TableError> {
        let depth = self.global_depth().await?;
        let entries = 1u32 << depth;
        let mut at = 0;
        while at < entries {
            let count = (entries - at).min(ENTRIES_AT_ONCE);
            let bytes = self.head.read(self.options.entry_at(at), count as usize * 8).await?;
            let mut state = self.state.borrow_mut();
            for (suffix, word) in (at..).zip(bytes.chunks(8)) {
                if let Some((subtable, depth)) = Entry(word_of(word, 0)).get() {
                    state.routes.learn(suffix, depth.min(self.options.depth_max), subtable);
                }
            }
            at += count;
        }
        Ok(())
    }

    async fn global_depth(&self) -> Result<u32, TableError> {
        let depth = self.head.word(GLOBAL_DEPTH_AT).await?;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        Ok(depth.min(self.options.depth_max))
    }

    /// Enters a split in the shared directory, which grows if it has to. Any client may repeat any step, and no step is
    /// needed for finding keys: entries are hints.
    pub(super) async fn enter_split(
        &self,
        (suffix, depth): (u32, u32),
        parent: u32,
        child: u32,
    ) -> Result<(), TableError> {
        let mut global = self.global_depth().await?;
        while global < depth + 1 {
            self.double_directory(global).await?;
            global = self.global_depth().await?;
        }
        let mut changes = Vec::new();
        for index in (suffix..1 << global).step_by(1 << depth) {
            let new = if index >> depth & 1 == 1 { child } else { parent };
            changes.push((self.options.entry_at(index), Entry::new(new, depth + 1)));
        }
        for (at, new) in changes {
            self.deepen(at, new).await?;
        }
        Ok(())
    }

    /// Replaces an entry of the directory by a deeper one.
    async fn deepen(&self, at: u64, new: Entry) -> Result<(), TableError> {
        let mut found = Entry(self.head.word(at).await?);
        let deeper = |old: Entry| old.get().is_none_or(|(_, depth)| Some(depth) < new.get().map(|it| it.1));
        while deeper(found) {
            let before = self.head.swap(at, found.0, new.0).await?;
            if before == found.0 {
                break;
            }
            found = Entry(before);
        }
        Ok(())
    }

    /// Doubles the shared directory: the new half is a copy of the old one.
    async fn double_directory(&self, depth: u32) -> Result<(), TableError> {
        let half = 1u32 << depth;
        let mut at = 0;
        while at < half {
            let count = (half - at).min(ENTRIES_AT_ONCE);
            let old = self.head.read(self.options.entry_at(at), count as usize * 8).await?;
            let copies = (at + half..)
                .zip(old.chunks(8))
                .map(|(index, word)| self.head.swap(self.options.entry_at(index), 0, word_of(word, 0)));
            for copied in join(copies).await {
                copied?;
            }
            at += count;
        }
        let (old, new) = (u64::from(depth), u64::from(depth) + 1);
        self.head.swap(GLOBAL_DEPTH_AT, old, new).await?;
        Ok(())
    }
}
