//! The claimed blocks of a table, and those among them to which a key leads, as one look at the table finds them.

use super::Blocks;
use super::block;
use super::sizes::PIECE_BLOCKS;
use crate::pipeline::join;
use crate::table::TableError;
use crate::table::words::{BlockId, Claim, Slot};
use portcullis::{Clock, VerbsEndpoint};
use portcullis_planted::planted;
use std::collections::BTreeMap;

/// Number of blocks that are checked at a time for being pieces.
const LOOKED_UP_AT_ONCE: usize = 16;

/// The claimed blocks of a table.
#[derive(Default)]
pub(in crate::table) struct ClaimedBlocks {
    /// The claim of each block, and whether a key leads to the block.
    blocks: BTreeMap<BlockId, (Claim, bool)>,
}

impl ClaimedBlocks {
    pub fn add(&mut self, claims: impl IntoIterator<Item = (BlockId, Claim)>) {
        self.blocks.extend(claims.into_iter().map(|(block_id, claim)| (block_id, (claim, false))));
    }

    /// Adds the claimed blocks of an extent.
    pub fn add_extent(&mut self, extent: u32, claims: &[Claim]) {
        let block_ids = (0..).map(|block| BlockId { extent, block });
        self.add(block_ids.zip(claims.iter().copied()).filter(|(_, claim)| claim.is_claimed()));
    }

    /// Notes that a key leads to this block. Returns whether the block is claimed under the same version.
    pub fn link(&mut self, name: Slot) -> bool {
        let found =
            self.blocks.get_mut(&name.block_id()).filter(|(claim, _)| claim.version() == name.version());
        found.map(|(_, is_linked)| *is_linked = true).is_some()
    }

    /// Whether a key leads to the block with this name.
    pub fn is_linked(&self, name: Slot) -> bool {
        self.claim_of(name).is_some_and(|(_, is_linked)| is_linked)
    }

    /// Returns the claim of the block with this name, if it is claimed.
    pub fn claim_of(&self, name: Slot) -> Option<(Claim, bool)> {
        self.blocks.get(&name.block_id()).copied().filter(|(claim, _)| claim.version() == name.version())
    }

    /// Returns the blocks to which no key leads.
    pub fn unlinked(&self) -> impl Iterator<Item = (BlockId, Claim)> + '_ {
        self.blocks
            .iter()
            .filter(|(_, (_, is_linked))| !is_linked)
            .map(|(block_id, (claim, _))| (*block_id, *claim))
    }
}

impl<E: VerbsEndpoint, C: Clock> Blocks<E, C> {
    /// Finds the pieces of values among the blocks that no slot names. Returns the name of each, and the name of its
    /// first block.
    pub async fn pieces_among(&self, claimed: &ClaimedBlocks) -> Result<Vec<(Slot, Slot)>, TableError> {
        let unlinked: Vec<_> =
            claimed.unlinked().filter(|(block_id, _)| self.may_be_piece(*block_id)).collect();
        let mut pieces = Vec::new();
        if planted!(PiecesNotSpared) {
            return Ok(pieces);
        }
        for some in unlinked.chunks(LOOKED_UP_AT_ONCE) {
            self.pipeline.note_step();
            let names = some.iter().map(|(block_id, claim)| Slot::new(0, claim.version(), *block_id));
            for (name, first) in names.clone().zip(join(names.map(|name| self.first_of(name))).await) {
                pieces.extend(first?.map(|first| (name, first)));
            }
        }
        Ok(pieces)
    }

    /// Whether a block has the size of a piece. Other blocks are not read: if each block has a permission of its own, a
    /// client that writes a block waits for its readers.
    fn may_be_piece(&self, block_id: BlockId) -> bool {
        let known = self.extents.known_shape(block_id.extent);
        known.is_none_or(|shape| PIECE_BLOCKS.contains(&u64::from(shape.block_bytes)))
    }

    /// Reads the name of the first block of the value that a block is a piece of. `None`: the block is not a piece.
    async fn first_of(&self, name: Slot) -> Result<Option<Slot>, TableError> {
        loop {
            let asked = async {
                let Some(readable) = self.permission_to_read(name).await? else { return Ok(None) };
                let bytes =
                    self.pipeline.read_bytes(&readable.permission, readable.offset, block::HEADER_BYTES);
                Ok(block::first_of_piece(&bytes.await?, name.version()))
            };
            match asked.await {
                Err(error) => self.leases.mend(error).await?,
                done => {
                    self.leases.let_go_of_block(name.block_id());
                    return done;
                }
            }
        }
    }
}
