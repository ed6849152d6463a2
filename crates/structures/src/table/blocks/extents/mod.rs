//! Extents: how they are found and numbered, and how their claims and blocks are reached.
//!
//! A number names an extent in slots. Extents are given back ([`retire`]), and their numbers are used for others, so the
//! head's [`records`] change.
//!
//! The blocks of an extent have later versions than those of the earlier extents under its number. So an old slot, an
//! old name of a piece, and an old COMPARE_AND_SWAP never match a block of the new extent.

mod claiming;
mod free_blocks;
mod in_extent;
mod known;
mod making;
mod records;
mod retire;
mod spent;
mod stock;

pub(in crate::table) use records::{ExtentRecord, RecordState};

use super::reading::Readable;
use super::sizes::ExtentShape;
use crate::Pipeline;
use crate::pipeline::word_of;
use crate::table::head::Head;
use crate::table::leases::{Leased, Leases, Part};
use crate::table::words::{BlockId, Claim, Slot};
use crate::table::{Grain, TableError, TableOptions};
use free_blocks::FreeBlocks;
use in_extent::InExtent;
use known::Known;
use portcullis::{BarePermission, Clock, Error, Lifetime, ObjectRef, Refusal, VerbsEndpoint};
use records::Records;
use retire::Returns;
use spent::Spent;
use std::cell::RefCell;
use std::rc::Rc;

/// Number of extents at the end of the list that may not be kept yet, and are read again.
const UNKNOWN_MAX: u32 = 16;

/// A permission to write a block waits for one in this many parts of a shared permission's life to be ended with others.
const ENDED_AFTER: u64 = 16;

/// The extents of a table.
pub(in crate::table) struct Extents<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    leases: Rc<Leases<E, C>>,
    head: Rc<Head<E, C>>,
    records: Records<E, C>,
    known: RefCell<Known>,
    free: RefCell<FreeBlocks>,
    returns: Returns,
    spent: Spent<E, C>,
}

impl<E: VerbsEndpoint, C: Clock> Extents<E, C> {
    pub fn new(
        pipeline: &Rc<Pipeline<E, C>>,
        options: TableOptions,
        leases: &Rc<Leases<E, C>>,
        head: &Rc<Head<E, C>>,
    ) -> Self {
        Self {
            pipeline: Rc::clone(pipeline),
            options,
            leases: Rc::clone(leases),
            head: Rc::clone(head),
            records: Records::new(pipeline, options, head),
            known: RefCell::default(),
            free: RefCell::default(),
            returns: Returns::default(),
            spent: Spent::new(pipeline, Lifetime(options.hold().0 / ENDED_AFTER)),
        }
    }

    /// Ends a permission to write a block that is in a slot or was freed.
    pub fn end_writing(&self, permission: Rc<BarePermission>) {
        match self.options.grain {
            // Readers of the block wait for the end.
            Grain::Block => self.pipeline.end(permission),
            Grain::Extent => self.spent.end(permission),
        }
    }

    /// Returns the head's records of the extents.
    pub fn records(&self) -> &Records<E, C> {
        &self.records
    }

    /// Returns the claims of an extent, to access them.
    pub fn claims_of(&self, extent: u32) -> InExtent<'_, E, C> {
        InExtent::new(self, Part::Claims(extent), extent)
    }

    /// Returns the object of an extent, and its division into blocks.
    ///
    /// # Errors
    /// The error of an object that is gone, if this extent does not exist any more: see [`TableError::is_gone`].
    #[inline]
    pub async fn find(&self, number: u32) -> Result<(ObjectRef, ExtentShape), TableError> {
        if let Some(known) = self.known.borrow().get(number) {
            return Ok(*known);
        }
        self.find_anew(number).await
    }

    /// Reads the object and the division of an extent from the head, and learns them.
    async fn find_anew(&self, number: u32) -> Result<(ObjectRef, ExtentShape), TableError> {
        match self.records.read(number).await?.kept(number) {
            Some((object, shape)) => {
                self.know(number, object, shape);
                Ok((object, shape))
            }
            None => {
                self.forget(number);
                Err(Error::Refused(Refusal::Gone).into())
            }
        }
    }

    /// Learns whether another extent has this number now. While a client holds a permission over an extent that was
    /// given back, it reads blocks there that no slot names.
    pub async fn look_anew(&self, number: u32) -> Result<(), TableError> {
        match self.find_anew(number).await {
            Err(error) if !error.is_gone() => self.leases.mend(error).await,
            _ => Ok(()),
        }
    }

    /// Returns the division of an extent into blocks, if it is known.
    pub fn known_shape(&self, number: u32) -> Option<ExtentShape> {
        self.known.borrow().get(number).map(|(_, shape)| *shape)
    }

    /// Learns the object and the division of an extent.
    pub fn know(&self, number: u32, object: ObjectRef, shape: ExtentShape) {
        let known = self.known.borrow().get(number).copied();
        if known.is_some_and(|(before, _)| before != object) {
            self.forget(number);
        }
        self.known.borrow_mut().insert(number, object, shape);
    }

    /// Forgets an extent that is gone, and ends the permissions over it that no operation uses.
    fn forget(&self, number: u32) {
        if self.known.borrow_mut().remove(number) {
            self.free.borrow_mut().forget_extent(number);
            self.leases.end_extent(number);
        }
    }

    /// Learns of the extents that other clients have made or given back. Returns whether there are new ones.
    async fn learn(&self) -> Result<bool, TableError> {
        // This word is read before the records: changes made meanwhile are read again.
        let changes = self.records.changes().await?;
        let count = self.records.begun().await?;
        let known = self.known.borrow_mut().first_to_read(changes);
        let (mut all_known, mut found) = (known, false);
        for (number, record) in self.records.read_all(known, count).await? {
            // An extent that is not kept yet may be kept by the next time.
            if record.state != RecordState::Changing && all_known == number {
                all_known = number + 1;
            }
            match record.kept(number) {
                Some((object, shape)) => {
                    self.know(number, object, shape);
                    found |= self.free.borrow_mut().add_extent(shape.class, number);
                }
                None => self.forget(number),
            }
            if record.state == RecordState::Vacant {
                self.known.borrow_mut().vacant.insert(number);
            }
        }
        // Some records are never completed. They are read again until others behind them are known.
        self.known.borrow_mut().up_to = all_known.max(count.saturating_sub(UNKNOWN_MAX));
        Ok(found)
    }

    /// Returns all extents, and their division into blocks.
    pub async fn all(&self) -> Result<Vec<(u32, ExtentShape)>, TableError> {
        let records = self.records.read_all(0, self.records.begun().await?).await?;
        Ok(records
            .into_iter()
            .filter_map(|(number, record)| {
                let (object, shape) = record.kept(number)?;
                self.know(number, object, shape);
                Some((number, shape))
            })
            .collect())
    }

    /// Reads the claims of all blocks of an extent.
    pub async fn claims(&self, extent: u32) -> Result<Vec<Claim>, TableError> {
        loop {
            let (object, shape) = self.find(extent).await?;
            let bytes = self.claims_of(extent).read(0, shape.blocks as usize * 8).await?;
            // Meanwhile another extent may have got the number.
            if self.find(extent).await?.0 == object {
                return Ok(bytes.chunks_exact(8).map(|word| Claim(word_of(word, 0))).collect());
            }
        }
    }

    /// Reads the claims of an extent. `None`: the extent is gone.
    pub async fn claims_if_any(&self, extent: u32) -> Result<Option<Vec<Claim>>, TableError> {
        match self.claims(extent).await {
            Ok(claims) => Ok(Some(claims)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the permission to read a slot's block. `None`: the block is gone, so the slot must have changed since.
    pub async fn permission_to_read(&self, slot: Slot) -> Result<Option<Readable>, TableError> {
        let block_id = slot.block_id();
        let part = self.part_of_block(block_id);
        let in_extent = InExtent::new(self, part, block_id.extent);
        loop {
            let permission = match in_extent.permission().await {
                Err(error) if error.is_gone() => return Ok(None),
                permission => permission?,
            };
            let (object, shape) = match self.find(block_id.extent).await {
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
    pub fn readable(&self, slot: Slot) -> Option<Readable> {
        let block_id = slot.block_id();
        let known = self.known.borrow();
        let (object, shape) = known.get(block_id.extent)?;
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
