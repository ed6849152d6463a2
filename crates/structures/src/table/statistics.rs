//! What a table takes and how full it is.

use super::permissions::{Part, is_gone};
use super::shape::{EXTENTS_AT, SLOTS, SUBTABLES_AT, SizeClass};
use super::words::{BucketHeader, Claim, EXTENTS_MAX, Place, Slot};
use super::{Table, TableError, block};
use crate::pipeline::word_of;
use portcullis::{Clock, Effect, Occupancy, VerbsEndpoint};
use std::collections::{HashMap, HashSet};

/// What a table takes and how full it is, as one look has found it. Others may change it meanwhile.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Statistics {
    /// Slots with a key. Keys whose time has come count until somebody removes them.
    pub keys: u64,
    /// Slots of all subtables.
    pub slots: u64,
    /// Subtables that are linked.
    pub subtables: u64,
    /// The depth of the deepest bucket.
    pub depth: u32,
    /// Extents.
    pub extents: u64,
    /// Blocks of all extents, or places for blocks in all chunks that have some.
    pub blocks: u64,
    /// Blocks that are claimed and in no slot: being written, kept ready by clients, or left by dead ones.
    pub unlinked: u64,
    /// Slots that name a block that is free, or was claimed again: more than a few that are just changing are damage.
    pub dangling: u64,
    /// Bytes of the node's memory: head, subtables, and extents or chunks.
    pub bytes: u64,
    /// Bytes of them that are subtables.
    pub subtable_bytes: u64,
    /// Bytes of the extents that are blocks, claimed or not, or all bytes of the chunks that the handle holds.
    pub block_bytes: u64,
    /// Bytes of the extents that say who has claimed which block.
    pub claim_bytes: u64,
}

impl Statistics {
    /// Keys for each slot.
    #[must_use]
    pub fn load_factor(&self) -> f64 {
        // A table with so many slots that this is inexact does not fit into any machine.
        self.keys as f64 / self.slots.max(1) as f64
    }

    fn add_chunks(&mut self, found: &Occupancy) {
        self.blocks += found.classes.iter().map(|class| class.places).sum::<u64>();
        self.bytes += found.bytes_held;
        self.block_bytes += found.bytes_held;
    }

    fn add_extent(&mut self, class: SizeClass) {
        self.extents += 1;
        self.blocks += u64::from(class.blocks());
        self.bytes += class.extent_bytes();
        self.block_bytes += class.extent_bytes() - class.claims_bytes();
        self.claim_bytes += class.claims_bytes();
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// What the table takes and how full it is.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn statistics(&self) -> Result<Statistics, TableError> {
        let operation = async {
            let mut found = Statistics { bytes: self.options.head_bytes(), ..Statistics::default() };
            let mut claimed = HashMap::new();
            if let Some(chunk_blocks) = &self.state.borrow().chunk_blocks {
                found.add_chunks(&chunk_blocks.occupancy());
                claimed.extend(chunk_blocks.claims());
            }
            for (number, class) in self.all_extents().await? {
                let Some(claims) = self.claims_of(number, class).await? else { continue };
                found.add_extent(class);
                claimed.extend(claims);
            }
            let mut visits = vec![self.first_visit()];
            let mut seen = HashSet::new();
            while let Some((subtable, wanted)) = visits.pop() {
                if seen.insert(subtable) {
                    found.subtables += 1;
                    found.slots += u64::from(self.options.buckets()) * SLOTS as u64;
                    found.bytes += self.options.subtable_bytes();
                    found.subtable_bytes += self.options.subtable_bytes();
                }
                for bucket in self.visit(subtable, &wanted, &mut visits).await? {
                    found.depth = found.depth.max(bucket.header.depth());
                    for (_, slot) in bucket.slots().filter(|(_, slot)| !slot.is_empty() && !slot.is_pending())
                    {
                        self.pipeline.note_step();
                        if slot.is_frozen() && !self.is_here(bucket.header, slot).await? {
                            continue;
                        }
                        found.keys += 1;
                        let claim = claimed.remove(&slot.place());
                        found.dangling +=
                            u64::from(claim.is_none_or(|claim| claim.version() != slot.version()));
                    }
                }
            }
            found.unlinked = claimed.len() as u64;
            Ok(found)
        };
        self.pipeline.limited(("a look at a whole table", Effect::Nothing), operation).await
    }

    /// Whether the key of a frozen slot belongs to its bucket. A split that is not finished leaves keys behind that it has
    /// moved.
    async fn is_here(&self, header: BucketHeader, slot: Slot) -> Result<bool, TableError> {
        let bytes = loop {
            match self.read_block(slot).await {
                Ok(Some(bytes)) => break self.pipeline.copied(bytes),
                Ok(None) => return Ok(false),
                Err(error) => self.mend(error).await?,
            }
        };
        let content = block::decode(&bytes, slot.version(), slot.place());
        Ok(content.is_some_and(|it| header.covers(self.hash_of(it.key).suffix)))
    }

    /// All extents, and the classes of their blocks.
    pub(super) async fn all_extents(&self) -> Result<Vec<(u32, SizeClass)>, TableError> {
        let mut extents = Vec::new();
        for number in 0..self.extents_begun().await? {
            if let Some((_, class)) = self.extent_record(number).await? {
                extents.push((number, class));
            }
            self.pipeline.note_step();
        }
        Ok(extents)
    }

    /// The claimed blocks of an extent. `None`: it is gone, and nobody ever used it.
    pub(super) async fn claims_of(
        &self,
        extent: u32,
        class: SizeClass,
    ) -> Result<Option<HashMap<Place, Claim>>, TableError> {
        let bytes = match self.read_in(Part::Claims(extent), 0, class.blocks() as usize * 8).await {
            Ok(bytes) => bytes,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.pipeline.note_step();
        let claims = bytes.chunks_exact(8).map(|word| Claim(word_of(word, 0)));
        let places = (0..).map(|block| Place { extent, block });
        Ok(Some(places.zip(claims).filter(|(_, claim)| claim.is_claimed()).collect()))
    }

    /// How many extents were ever begun.
    pub(super) async fn extents_begun(&self) -> Result<u32, TableError> {
        let count = self.word_in(Part::Head, EXTENTS_AT).await?;
        Ok(u32::try_from(count).unwrap_or(EXTENTS_MAX).min(EXTENTS_MAX))
    }

    /// How many subtables were ever begun.
    pub(super) async fn subtables_begun(&self) -> Result<u64, TableError> {
        self.word_in(Part::Head, SUBTABLES_AT).await
    }
}
