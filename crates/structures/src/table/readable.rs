//! Blocks as they are read: the permission, and the place under it.

use super::leases::{Leased, Part};
use super::sizes::ExtentShape;
use super::words::{BlockId, Slot};
use super::{BlockMemory, Grain, Table, TableError};
use portcullis::{BarePermission, Clock, VerbsEndpoint};
use std::rc::Rc;

/// A block that may be read: its offset in its permission, and its length.
pub(super) struct Readable {
    pub permission: Rc<BarePermission>,
    pub offset: u64,
    pub length: u32,
}

impl Readable {
    /// Finds a block under a permission. `None`: the extent has no such block.
    #[inline]
    fn new(
        permission: Rc<BarePermission>,
        part: Part,
        block_id: BlockId,
        shape: &ExtentShape,
    ) -> Option<Self> {
        let offset = match part {
            Part::Block(_) => 0,
            _ => shape.block_at(block_id.block) - shape.claims_bytes(),
        };
        let length = shape.block_bytes;
        (block_id.block < shape.blocks).then_some(Self { permission, offset, length })
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Returns the permission to read a slot's block. `None`: the block is gone, so the slot must have changed since.
    pub(super) async fn permission_to_read(&self, slot: Slot) -> Result<Option<Readable>, TableError> {
        if self.options.blocks == BlockMemory::Chunks {
            return Ok(self.readable(slot));
        }
        let block_id = slot.block_id();
        let part = self.part_of_block(block_id);
        loop {
            let permission = match self.in_extent(part, block_id.extent).permission().await {
                Err(error) if error.is_gone() => return Ok(None),
                permission => permission?,
            };
            let (object, shape) = match self.extent(block_id.extent).await {
                Err(error) if error.is_gone() => return Ok(None),
                extent => extent?,
            };
            if permission.object() == object {
                return Ok(Readable::new(permission, part, block_id, &shape));
            }
            // Meanwhile another extent has got the number.
            self.leases.forget(part);
        }
    }

    /// Returns the permission to read a slot's block, if it can be used as it is.
    #[inline]
    pub(super) fn readable(&self, slot: Slot) -> Option<Readable> {
        let state = self.state.borrow();
        let block_id = slot.block_id();
        if self.options.blocks == BlockMemory::Chunks {
            return state.chunk_blocks.as_ref()?.readable(block_id, slot.version());
        }
        let (object, shape) = state.extents.get(block_id.extent as usize)?.as_ref()?;
        let part = self.part_of_block(block_id);
        let permission = self.leases.fresh(part)?;
        if permission.object() != *object {
            return None;
        }
        Readable::new(permission, part, block_id, shape)
    }

    /// Returns the part whose permission covers a block.
    #[inline]
    fn part_of_block(&self, block_id: BlockId) -> Part {
        match self.options.grain {
            Grain::Block => Part::Block(block_id),
            Grain::Extent => Part::Extent(block_id.extent),
        }
    }
}
