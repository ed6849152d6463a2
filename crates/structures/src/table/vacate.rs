//! Emptying of an extent, so that its memory serves blocks of other sizes: the keys in it are removed.

use super::blocks::extent_bytes;
use super::leases::Leased;
use super::store::Wanted;
use super::words::{BlockId, Claim, Slot};
use super::{BlockMemory, Table, TableError};
use crate::pipeline::join;
use portcullis::{Clock, Effect, VerbsEndpoint};

/// Number of blocks that are read, and of keys that are removed, at a time.
const AT_ONCE: usize = 16;

/// The result of emptying an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vacated {
    /// The extent has gone back to the node.
    GivenBack {
        /// Number of bytes of the extent.
        bytes: u64,
    },
    /// Clients have claimed blocks of the extent and not used them yet. Or dead clients have, and a sweep finds those
    /// blocks.
    InUse,
    /// The key is not in the table.
    Missing,
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Gives the extent in which a key's value lies back to the node. All keys with a block in it are removed, and
    /// handed to `removed`. A cache uses this to make room for values of any size. If other clients have claimed blocks
    /// of the extent, no key is removed.
    ///
    /// # Errors
    /// As [`Table::insert`]. Keys that were removed before stay removed.
    pub async fn vacate(&self, key: &[u8], mut removed: impl FnMut(&[u8])) -> Result<Vacated, TableError> {
        self.leases.check_writable()?;
        let operation = self.vacate_now(key, &mut removed);
        self.pipeline.limited(("a change of a table", Effect::Perhaps), operation).await
    }

    async fn vacate_now(&self, key: &[u8], removed: &mut impl FnMut(&[u8])) -> Result<Vacated, TableError> {
        if self.options.blocks == BlockMemory::Chunks {
            return Ok(Vacated::Missing);
        }
        let hash = self.index.hash_of(key);
        let Some(found) = self.find(key, hash).await? else { return Ok(Vacated::Missing) };
        // Most memory of a long value is in its pieces.
        let extent = found.value.pieces.first().unwrap_or(&found.slot).block_id().extent;
        self.blocks.extents().give_back_idle(Some(extent)).await?;
        let keys = match self.keys_in(extent).await {
            Ok(Some(keys)) => keys,
            Ok(None) => return Ok(Vacated::InUse),
            Err(error) if error.is_gone() => return Ok(Vacated::Missing),
            Err(error) => return Err(error),
        };
        for some in keys.chunks(AT_ONCE) {
            self.pipeline.note_step();
            let takes = some.iter().map(|(key, slot)| self.take_wanted(key, Wanted::At(*slot), false));
            for ((key, _), taken) in some.iter().zip(join(takes).await) {
                if taken?.is_some() {
                    removed(key);
                }
            }
        }
        // Blocks are freed without waiting for the result: all changes of the claims that were begun are done after this.
        match self.blocks.extents().claims_of(extent).settle().await {
            Err(error) if error.is_gone() => return Ok(Vacated::Missing),
            done => done?,
        }
        let given_back = self.blocks.extents().retire(extent).await?;
        let bytes = extent_bytes(extent);
        Ok(if given_back { Vacated::GivenBack { bytes } } else { Vacated::InUse })
    }

    /// Returns the keys with a block in an extent, and the names of their first blocks. `None`: there are blocks to
    /// which no key leads.
    async fn keys_in(&self, extent: u32) -> Result<Option<Vec<(Vec<u8>, Slot)>>, TableError> {
        let claims = self.blocks.extents().claims(extent).await?;
        let claimed: Vec<(BlockId, Claim)> = (0..)
            .map(|block| BlockId { extent, block })
            .zip(claims)
            .filter(|(_, claim)| !claim.is_free())
            .collect();
        if claimed.iter().any(|(_, claim)| claim.is_retired()) {
            return Ok(None);
        }
        let mut keys: Vec<(Vec<u8>, Slot)> = Vec::with_capacity(claimed.len());
        for some in claimed.chunks(AT_ONCE) {
            self.pipeline.note_step();
            let names = some.iter().map(|(block_id, claim)| Slot::new(0, claim.version(), *block_id));
            for found in join(names.map(|name| self.key_with(name))).await {
                let Some(found) = found? else { return Ok(None) };
                keys.push(found);
            }
        }
        keys.sort_unstable_by_key(|(_, slot)| *slot);
        keys.dedup_by_key(|(_, slot)| *slot);
        Ok(Some(keys))
    }

    /// Returns the key whose value has a block, and the name of the value's first block. `None`: no key leads to the
    /// block.
    async fn key_with(&self, name: Slot) -> Result<Option<(Vec<u8>, Slot)>, TableError> {
        let mut first = name;
        let mut key = self.blocks.key_of(first).await?;
        if let Ok(None) = key {
            return Ok(None);
        }
        if let Err(of) = key {
            first = of;
            key = self.blocks.key_of(first).await?;
        }
        let Ok(Some(key)) = key else { return Ok(None) };
        let found = self.find(&key, self.index.hash_of(&key)).await?;
        let is_linked = found.is_some_and(|found| {
            found.slot.name() == first && (name == first || found.value.pieces.contains(&name))
        });
        Ok(is_linked.then_some((key, first)))
    }
}
