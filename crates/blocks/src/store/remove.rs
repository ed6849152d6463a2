//! Removals of blocks, and pins.

use super::{Store, each, is_gone};
use crate::entry::Entry;
use crate::error::BlockError;
use portcullis::{Clock, Error, Moment, ObjectRef, VerbsEndpoint};
use portcullis_structures::join;

/// Largest number of blocks that are removed in one step.
const STEP_BLOCKS: usize = 32;

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Removes blocks. Returns for each key whether it was in the table. A block of which a client has a lease is
    /// freed when the lease ends, and no client finds it any more.
    ///
    /// # Errors
    /// The table failed, or the session is over.
    pub async fn remove_many(&self, keys: &[&[u8]]) -> Result<Vec<bool>, BlockError> {
        let mut removed = Vec::with_capacity(keys.len());
        for step in keys.chunks(STEP_BLOCKS) {
            let entries = self.entries(step).await?;
            removed.extend(entries.iter().map(Option::is_some));
            let found: Vec<_> =
                step.iter().zip(entries).filter_map(|(key, entry)| Some((*key, entry?))).collect();
            let held: Vec<_> =
                found.iter().filter_map(|(key, _)| self.held.borrow_mut().let_go(key)).collect();
            self.revoke(held).await;
            self.count(|counters| counters.removed += found.len() as u64);
            self.free_and_remove(found).await?;
            self.in_vain_until.set(Moment(0));
        }
        Ok(removed)
    }

    /// Removes a block. Returns whether there was one.
    ///
    /// # Errors
    /// As [`Store::remove_many`].
    pub async fn remove(&self, key: &[u8]) -> Result<bool, BlockError> {
        Ok(self.remove_many(&[key]).await?.remove(0))
    }

    /// Pins a block, so that no client evicts it, or ends that. Returns whether there is such a block. A pin has no
    /// owner, and stays until it is ended or the block is removed.
    ///
    /// # Errors
    /// The table failed, the session is over, or another client holds the block exclusively: it stores or evicts it
    /// now.
    pub async fn pin(&self, key: &[u8], is_pinned: bool) -> Result<bool, BlockError> {
        loop {
            let Some(entry) = self.entries(&[key]).await?.remove(0) else { return Ok(false) };
            // While this permission lives, no client evicts the block.
            let permission = match self.acquire([entry].into_iter(), self.read_lifetime).await.remove(0) {
                Ok(permission) => permission,
                Err(error) if is_gone(&error) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let wanted = Entry { is_pinned, ..entry };
            let is_set = wanted == entry
                || self.table.compare_and_set(key, &entry.to_bytes(), &wanted.to_bytes()).await?;
            self.revoke([permission]).await;
            if is_set {
                self.in_vain_until.set(Moment(0));
                return Ok(true);
            }
        }
    }

    /// Frees objects, and returns the end of each. One that is gone was freed before.
    pub(super) async fn free_each(
        &self,
        objects: impl Iterator<Item = ObjectRef>,
    ) -> Vec<Result<(), BlockError>> {
        let freed = each(objects.map(|object| self.pipeline.free(object))).await;
        let end = |freed: Result<(), Error>| match freed {
            Err(error) if !is_gone(&error) => Err(error.into()),
            _ => Ok(()),
        };
        freed.into_iter().map(end).collect()
    }

    /// Frees blocks, and then removes their keys if they still have these entries. Else a client that dies in between
    /// would leave an object that no key leads to.
    pub(super) async fn free_and_remove(&self, entries: Vec<(&[u8], Entry)>) -> Result<(), BlockError> {
        let freed = self.free_each(entries.iter().map(|(_, entry)| entry.object)).await;
        let is_freed = entries.into_iter().zip(&freed).filter(|(_, freed)| freed.is_ok());
        let removed = self.remove_entries(is_freed.map(|(entry, _)| entry).collect()).await;
        freed.into_iter().collect::<Result<(), _>>().and(removed)
    }

    /// Removes keys that still have these entries, whose objects are freed or are no blocks.
    pub(super) async fn remove_entries(&self, entries: Vec<(&[u8], Entry)>) -> Result<(), BlockError> {
        let removals = entries.iter().map(|(key, entry)| {
            self.recency.borrow_mut().forget(key);
            self.remove_entry(key, *entry)
        });
        join(removals).await.into_iter().collect()
    }

    async fn remove_entry(&self, key: &[u8], entry: Entry) -> Result<(), BlockError> {
        let removed = self.table.remove_if(key, &entry.to_bytes()).await?;
        if !removed {
            // The pin may have changed meanwhile. Any other entry is that of another block.
            let other = Entry { is_pinned: !entry.is_pinned, ..entry };
            self.table.remove_if(key, &other.to_bytes()).await?;
        }
        Ok(())
    }
}
