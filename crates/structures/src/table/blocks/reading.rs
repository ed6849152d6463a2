//! Blocks as they are read.

use super::Blocks;
use super::block::{self, HEADER_BYTES};
use super::pieces::Value;
use super::sizes::ExtentShape;
use crate::pipeline::Awaited;
use crate::table::TableError;
use crate::table::leases::Part;
use crate::table::words::{BlockId, Slot};
use portcullis::{BarePermission, Buffer, Clock, Moment, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// Number of bytes of a block that are read to learn its key; longer keys take a second read.
const KEY_READ_BYTES: u32 = 128;

/// A block that may be read: its offset in its permission, and its length.
pub(in crate::table) struct Readable {
    pub permission: Rc<BarePermission>,
    pub offset: u64,
    pub length: u32,
}

impl Readable {
    /// Finds a block under a permission. `None`: the extent has no such block.
    #[inline]
    pub fn new(
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

/// The block that a slot names, compared with a key.
pub(in crate::table) enum Named {
    /// The block of this key.
    Same {
        value: Value,
        expires: Option<Moment>,
    },
    Other,
    /// The block has been used again, so the slot must have changed meanwhile.
    Stale,
}

impl<E: VerbsEndpoint, C: Clock> Blocks<E, C> {
    /// Compares the block that a slot names with a key.
    #[inline]
    pub async fn named(&self, slot: Slot, key: &[u8]) -> Result<Named, TableError> {
        let block = match self.ask_block(slot) {
            Some(asked) => Some(asked.await?),
            None => Box::pin(self.read_block(slot)).await?,
        };
        Ok(block.map_or(Named::Stale, |block| self.name(block, slot, key)))
    }

    /// Compares a slot's block that was read with a key.
    #[inline]
    pub fn name(&self, block: Buffer<E::Memory>, slot: Slot, key: &[u8]) -> Named {
        self.pipeline.look(block, |bytes| match block::decode(bytes, slot.version(), slot.block_id()) {
            None => Named::Stale,
            Some(content) if content.key == key || planted!(FingerprintTrusted) => {
                Named::Same { value: Value::of(&content), expires: content.expires }
            }
            Some(_) => Named::Other,
        })
    }

    /// Requests the bytes of a slot's block, if the handle has the permission for that.
    #[inline]
    pub fn ask_block(&self, slot: Slot) -> Option<Awaited<'_, E, C, Buffer<E::Memory>>> {
        let Readable { permission, offset, length } = self.readable(slot)?;
        Some(self.pipeline.read(&permission, offset, length))
    }

    /// Reads the bytes of a slot's block. `None`: the block is gone, so the slot must have changed since.
    pub async fn read_block(&self, slot: Slot) -> Result<Option<Buffer<E::Memory>>, TableError> {
        let Some(readable) = self.permission_to_read(slot).await? else { return Ok(None) };
        let Readable { permission, offset, length } = readable;
        Ok(Some(self.pipeline.read(&permission, offset, length).await?))
    }

    /// Passes the key of a slot's block to `look`. `None`: the block is gone, or was used again.
    pub async fn look_at_key<T>(
        &self,
        slot: Slot,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, TableError> {
        let Some(Readable { permission, offset, length }) = self.permission_to_read(slot).await? else {
            return Ok(None);
        };
        let read = self.pipeline.read(&permission, offset, length.min(KEY_READ_BYTES));
        let mut bytes = self.pipeline.copied(read.await?);
        let Some(length) = block::key_bytes(&bytes, slot.version()) else { return Ok(None) };
        let end = HEADER_BYTES + length;
        if end > bytes.len() {
            bytes = self.pipeline.read_bytes(&permission, offset, end).await?;
        }
        Ok(Some(look(&bytes[HEADER_BYTES..end])))
    }

    /// Reads the key in a block. `Ok(Err(…))`: the block is a piece of the value with this first block. `Ok(Ok(None))`:
    /// the block is neither.
    pub async fn key_of(&self, name: Slot) -> Result<Result<Option<Vec<u8>>, Slot>, TableError> {
        loop {
            match self.read_block(name).await {
                Ok(None) => return Ok(Ok(None)),
                Ok(Some(block)) => {
                    return Ok(self.pipeline.look(block, |bytes| {
                        match block::decode(bytes, name.version(), name.block_id()) {
                            Some(content) => Ok(Some(content.key.to_vec())),
                            None => match block::first_of_piece(bytes, name.version()) {
                                Some(first) if first != name => Err(first),
                                _ => Ok(None),
                            },
                        }
                    }));
                }
                Err(error) => self.leases.mend(error).await?,
            }
        }
    }

    /// Returns the permission to read a slot's block. `None`: the block is gone, so the slot must have changed since.
    pub(super) async fn permission_to_read(&self, slot: Slot) -> Result<Option<Readable>, TableError> {
        match &self.chunks {
            Some(_) => Ok(self.readable(slot)),
            None => self.extents.permission_to_read(slot).await,
        }
    }

    /// Returns the permission to read a slot's block, if it can be used as it is.
    #[inline]
    fn readable(&self, slot: Slot) -> Option<Readable> {
        match &self.chunks {
            Some(chunks) => chunks.readable(slot.block_id(), slot.version()),
            None => self.extents.readable(slot),
        }
    }

    /// Learns whether a block's extent is another one now: see [`Extents::look_anew`](super::Extents::look_anew).
    pub async fn look_anew(&self, block_id: BlockId) -> Result<(), TableError> {
        match &self.chunks {
            Some(_) => Ok(()),
            None => self.extents.look_anew(block_id.extent).await,
        }
    }
}
