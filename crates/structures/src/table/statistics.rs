//! The size and the fill of a table.

use super::blocks::{ClaimedBlocks, ExtentShape, block, extent_bytes};
use super::shape::SLOTS;
use super::words::{BucketHeader, Slot};
use super::{Table, TableError};
use portcullis::{Clock, Effect, Occupancy, VerbsEndpoint};
use std::collections::HashSet;

/// The size and the fill of a table, as one look has found them. Other clients may change them meanwhile.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Statistics {
    /// Number of slots with a key. Keys that have expired count until a client removes them.
    pub keys: u64,
    /// Number of slots of all subtables.
    pub slots: u64,
    /// Number of subtables that are linked.
    pub subtables: u64,
    /// The depth of the deepest bucket.
    pub depth: u32,
    /// Number of extents.
    pub extents: u64,
    /// Number of blocks of all extents, or of places for blocks in all chunks that have some.
    pub blocks: u64,
    /// Number of blocks that are claimed and in no slot: being written, kept ready by clients, or left by dead ones.
    pub unlinked: u64,
    /// Number of slots that name a block that is free, or was claimed again: more than a few that are just changing are
    /// damage.
    pub dangling: u64,
    /// Number of bytes of the node's memory: head, subtables, and extents or chunks.
    pub bytes: u64,
    /// Number of bytes of the subtables, which are part of `bytes`.
    pub subtable_bytes: u64,
    /// Number of bytes of blocks in the extents, claimed or not, or of all chunks that the handle holds.
    pub block_bytes: u64,
    /// Number of bytes of claims in the extents, which record the claims of the blocks.
    pub claim_bytes: u64,
}

impl Statistics {
    /// Returns the number of keys for each slot.
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

    fn add_extent(&mut self, number: u32, shape: &ExtentShape) {
        self.extents += 1;
        self.blocks += u64::from(shape.blocks);
        self.bytes += extent_bytes(number);
        self.block_bytes += extent_bytes(number) - shape.claims_bytes();
        self.claim_bytes += shape.claims_bytes();
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Reads the size and the fill of the table.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub async fn statistics(&self) -> Result<Statistics, TableError> {
        let operation = async {
            let mut found = Statistics { bytes: self.options.head_bytes(), ..Statistics::default() };
            let mut claimed = ClaimedBlocks::default();
            if let Some(chunks) = self.blocks.chunks() {
                found.add_chunks(&chunks.occupancy());
                claimed.add(chunks.claims());
            }
            for (number, shape) in self.blocks.extents().all().await? {
                self.pipeline.note_step();
                let Some(claims) = self.blocks.extents().claims_if_any(number).await? else { continue };
                found.add_extent(number, &shape);
                claimed.add_extent(number, &claims);
            }
            let mut visits = vec![self.index.first_visit()];
            let mut seen = HashSet::new();
            while let Some((subtable, wanted)) = visits.pop() {
                if seen.insert(subtable) {
                    found.subtables += 1;
                    found.slots += u64::from(self.options.buckets()) * SLOTS as u64;
                    found.bytes += self.options.subtable_bytes();
                    found.subtable_bytes += self.options.subtable_bytes();
                }
                for bucket in self.index.visit(subtable, &wanted, &mut visits).await? {
                    found.depth = found.depth.max(bucket.header.depth());
                    for (_, slot) in bucket.slots().filter(|(_, slot)| !slot.is_empty() && !slot.is_pending())
                    {
                        self.pipeline.note_step();
                        if slot.is_frozen() && !self.is_here(bucket.header, slot).await? {
                            continue;
                        }
                        found.keys += 1;
                        found.dangling += u64::from(!claimed.link(slot));
                    }
                }
            }
            for (piece, first) in self.blocks.pieces_among(&claimed).await? {
                if claimed.is_linked(first) {
                    claimed.link(piece);
                }
            }
            found.unlinked = claimed.unlinked().count() as u64;
            Ok(found)
        };
        self.pipeline.limited(("a look at a whole table", Effect::Nothing), operation).await
    }

    /// Whether the key of a frozen slot belongs to its bucket. A split that is not finished leaves keys behind that it
    /// has moved.
    async fn is_here(&self, header: BucketHeader, slot: Slot) -> Result<bool, TableError> {
        let bytes = loop {
            match self.blocks.read_block(slot).await {
                Ok(Some(bytes)) => break self.pipeline.copied(bytes),
                Ok(None) => return Ok(false),
                Err(error) => self.leases.mend(error).await?,
            }
        };
        let content = block::decode(&bytes, slot.version(), slot.block_id());
        Ok(content.is_some_and(|it| header.covers(self.index.hash_of(it.key).suffix)))
    }
}
