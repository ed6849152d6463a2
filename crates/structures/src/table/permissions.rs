//! The permissions that a client holds on a table's parts, each shared by many operations (Patronus §6.1).
//!
//! A permission is never extended. A new one replaces it in time, so no permission lives longer than a quarter of the
//! table's lease. Much of what makes a client's death harmless rests on that: each access that a client began under a
//! permission has ended, with or without success, soon after the permission's grant.

use super::shape::{SHARED_AT, SPLIT_BYTES};
use super::sizes::ExtentShape;
use super::words::{BlockId, Slot};
use super::{Access, BlockMemory, Grain, Table, TableError};
use crate::held::{AtEnd, Held};
use crate::pipeline::word_of;
use portcullis::{
    Acquire, BarePermission, Clock, Error, Lifetime, Moment, ObjectRef, Refusal, Rights, VerbsEndpoint,
};
use std::collections::HashMap;
use std::rc::Rc;

/// Largest number of bytes that are read at a time: as many as one operation over UDP carries.
const PIECE_BYTES: usize = 4096;

/// A part of a table for which there are permissions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Part {
    Head,
    /// The part of a subtable that clients share.
    Subtable(u32),
    /// An extent, for reading.
    Extent(u32),
    /// The claims of an extent.
    Claims(u32),
    /// One block, for reading.
    Block(BlockId),
}

impl Part {
    /// Returns the extent that has the part.
    fn extent(self) -> Option<u32> {
        match self {
            Self::Head | Self::Subtable(_) => None,
            Self::Extent(extent) | Self::Claims(extent) => Some(extent),
            Self::Block(block_id) => Some(block_id.extent),
        }
    }
}

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

/// All permissions of a handle.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    head: Held,
    subtables: Vec<Held>,
    extents: Vec<Held>,
    claims: Vec<Held>,
    blocks: HashMap<BlockId, Held>,
}

/// Largest number of permissions over single blocks that a handle keeps.
const BLOCKS_HELD_MAX: usize = 4096;

fn entry(list: &mut Vec<Held>, number: u32) -> &mut Held {
    let number = number as usize;
    if number >= list.len() {
        list.resize_with(number + 1, Held::default);
    }
    &mut list[number]
}

impl Permissions {
    #[inline]
    fn held(&mut self, part: Part) -> &mut Held {
        match part {
            Part::Head => &mut self.head,
            Part::Subtable(number) => entry(&mut self.subtables, number),
            Part::Extent(number) => entry(&mut self.extents, number),
            Part::Claims(number) => entry(&mut self.claims, number),
            Part::Block(block_id) => self.blocks.entry(block_id).or_default(),
        }
    }

    /// Returns a permission that can still be used, and need not be replaced yet.
    #[inline]
    fn fresh(&mut self, part: Part, now: Moment) -> Option<Rc<BarePermission>> {
        self.held(part).fresh(now)
    }

    /// Keeps a permission for further operations.
    pub fn keep(&mut self, part: Part, permission: &Rc<BarePermission>) {
        self.held(part).keep(permission);
    }

    /// Takes the older half of the permissions over single blocks that no operation uses, if there are too many.
    fn take_surplus_blocks(&mut self, now: Moment) -> Vec<Rc<BarePermission>> {
        if self.blocks.len() < BLOCKS_HELD_MAX {
            return Vec::new();
        }
        self.blocks.retain(|_, held| held.acquiring || now < held.useless_at);
        let idle = self.blocks.iter().filter(|(_, held)| held.is_idle());
        let mut ends: Vec<_> = idle.map(|(block_id, held)| (held.useless_at, *block_id)).collect();
        let half = ends.len() / 2;
        if self.blocks.len() < BLOCKS_HELD_MAX / 2 || half == 0 {
            return Vec::new();
        }
        // The order is the same in each run of a test.
        ends.sort_unstable();
        ends.truncate(half);
        ends.iter().filter_map(|(_, block_id)| self.blocks.remove(block_id)?.permission).collect()
    }

    /// Takes the permissions over an extent's single blocks that no operation uses, or over all such blocks if the extent
    /// has none.
    fn take_idle_blocks(&mut self, extent: u32) -> Vec<(BlockId, Rc<BarePermission>)> {
        let of_extent = |block_id: &BlockId| block_id.extent == extent;
        let any = self.blocks.iter().any(|(block_id, held)| of_extent(block_id) && held.is_idle());
        let idle = self.blocks.extract_if(|block_id, held| (of_extent(block_id) || !any) && held.is_idle());
        idle.filter_map(|(block_id, held)| Some((block_id, held.permission?))).collect()
    }

    /// Takes the permissions over an extent that is gone, and over its parts. Permissions that operations still use end
    /// with those operations.
    pub fn take_extent(&mut self, extent: u32) -> Vec<Rc<BarePermission>> {
        let number = extent as usize;
        let listed = [self.extents.get_mut(number), self.claims.get_mut(number)];
        let mut held: Vec<_> =
            listed.into_iter().flatten().filter_map(|held| held.permission.take()).collect();
        if self.blocks.is_empty() {
            return held;
        }
        let blocks = self.blocks.iter_mut().filter(|(block_id, _)| block_id.extent == extent);
        let mut blocks: Vec<_> =
            blocks.filter_map(|(block_id, held)| Some((*block_id, held.permission.take()?))).collect();
        // The order is the same in each run of a test.
        blocks.sort_unstable_by_key(|(block_id, _)| *block_id);
        held.extend(blocks.into_iter().map(|(_, permission)| permission));
        held
    }

    /// Takes the permission over a block, if no operation uses it.
    fn take_idle_block(&mut self, block_id: BlockId) -> Option<Rc<BarePermission>> {
        self.blocks.get(&block_id).filter(|held| held.is_idle())?;
        self.blocks.remove(&block_id)?.permission
    }

    /// Forgets all permissions: the node has ended one of them before its time.
    pub fn forget(&mut self) {
        let lists = [&mut self.subtables, &mut self.extents, &mut self.claims];
        let listed = lists.into_iter().flatten();
        for held in listed.chain(self.blocks.values_mut()).chain([&mut self.head]) {
            held.permission = None;
        }
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Returns the permission over a part, if it can be used as it is.
    #[inline]
    pub(super) fn fresh(&self, part: Part) -> Option<Rc<BarePermission>> {
        self.state.borrow_mut().permissions.fresh(part, self.pipeline.now())
    }

    /// Returns a permission over a part of the table, from those that the handle has or a new one.
    pub(super) async fn permission(&self, part: Part) -> Result<Rc<BarePermission>, TableError> {
        loop {
            let now = self.pipeline.now();
            {
                let mut state = self.state.borrow_mut();
                if let Some(permission) = state.permissions.fresh(part, now) {
                    return Ok(permission);
                }
                if !state.permissions.held(part).acquiring {
                    state.permissions.held(part).acquiring = true;
                    break;
                }
            }
            // Another operation of this pipeline is acquiring the permission.
            self.pipeline.anything().await?;
        }
        let done =
            AtEnd::new(&self.pipeline, || self.state.borrow_mut().permissions.held(part).acquiring = false);
        let permission = loop {
            match (self.acquire_part(part).await, part.extent()) {
                (Err(error), Some(extent)) if error.needs_room() => self.make_way(extent).await?,
                (acquired, _) => break Rc::new(acquired?),
            }
        };
        drop(done);
        if matches!(part, Part::Block(_)) {
            let surplus = self.state.borrow_mut().permissions.take_surplus_blocks(self.pipeline.now());
            surplus.into_iter().for_each(|permission| self.pipeline.end(permission));
        }
        self.state.borrow_mut().permissions.keep(part, &permission);
        Ok(permission)
    }

    /// Calls `act` under a permission over a part, and again under a new one if the permission has ended: then the
    /// first call had no effect.
    pub(super) async fn under<T>(
        &self,
        part: Part,
        act: impl AsyncFn(&Rc<BarePermission>) -> Result<T, TableError>,
    ) -> Result<T, TableError> {
        loop {
            let permission = self.permission(part).await?;
            match act(&permission).await {
                Err(error) if error.wants_permission() && self.is_replaced(part, &permission) => {}
                Err(error) => self.mend(error).await?,
                done => return done,
            }
        }
    }

    /// Whether the handle has another permission over a part by now. If many operations fail under one permission, the
    /// first of them acquires a new one, and the others must not replace that one too.
    fn is_replaced(&self, part: Part, permission: &Rc<BarePermission>) -> bool {
        let mut state = self.state.borrow_mut();
        state.permissions.held(part).permission.as_ref().is_some_and(|held| !Rc::ptr_eq(held, permission))
    }

    /// Reads bytes of a part. Long spans are read in pieces, each of which may be read under a permission of its own:
    /// if the network is slow or loses packets, one permission might not last for all, and an operation that began
    /// again with the first piece would do so for ever.
    pub(super) async fn read_in(&self, part: Part, at: u64, length: usize) -> Result<Vec<u8>, TableError> {
        let piece = async |at: u64, length: usize| {
            self.under(part, async |permission| Ok(self.pipeline.read_bytes(permission, at, length).await?))
                .await
        };
        if length <= PIECE_BYTES {
            return piece(at, length).await;
        }
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let next = PIECE_BYTES.min(length - bytes.len());
            bytes.extend(piece(at + bytes.len() as u64, next).await?);
        }
        Ok(bytes)
    }

    /// Reads a word of a part.
    pub(super) async fn word_in(&self, part: Part, at: u64) -> Result<u64, TableError> {
        Ok(word_of(&self.read_in(part, at, 8).await?, 0))
    }

    /// Writes bytes of a part.
    pub(super) async fn write_in(&self, part: Part, at: u64, bytes: &[u8]) -> Result<(), TableError> {
        self.under(part, async |permission| Ok(self.pipeline.write(permission, at, bytes).await?)).await
    }

    /// Writes `new` to a word of a part if it holds `old`. Returns the word's old value.
    pub(super) async fn swap_in(&self, part: Part, at: u64, old: u64, new: u64) -> Result<u64, TableError> {
        let act = async |permission: &_| Ok(self.pipeline.compare_and_swap(permission, at, old, new).await?);
        self.under(part, act).await
    }

    /// Adds one to a word of a part. Returns the word's old value.
    pub(super) async fn count_in(&self, part: Part, at: u64) -> Result<u64, TableError> {
        self.under(part, async |permission| Ok(self.pipeline.fetch_and_add(permission, at, 1).await?)).await
    }

    /// Makes room for permissions. An object has a limited number of holders, and a tenant of permissions, and this
    /// client may be or have most of them: it ends the permissions over blocks that none of its operations uses, and
    /// waits a little for other clients to do the same.
    async fn make_way(&self, extent: u32) -> Result<(), TableError> {
        self.let_go(extent);
        Ok(self.pipeline.sleep(Lifetime(self.options.hold().0 / 16)).await?)
    }

    /// Ends the permission to read a block, if no operation uses it: the next client that gets the block waits for its
    /// readers.
    pub(super) fn let_go_of_block(&self, block_id: BlockId) {
        let idle = self.state.borrow_mut().permissions.take_idle_block(block_id);
        idle.into_iter().for_each(|permission| self.pipeline.end(permission));
    }

    /// Ends the permissions over an extent's single blocks that no operation uses, or over all such blocks if the extent
    /// has none.
    pub(super) fn let_go(&self, extent: u32) {
        let mut idle = self.state.borrow_mut().permissions.take_idle_blocks(extent);
        // The order is the same in each run of a test.
        idle.sort_unstable_by_key(|(block_id, _)| *block_id);
        idle.into_iter().for_each(|(_, permission)| self.pipeline.end(permission));
    }

    async fn acquire_part(&self, part: Part) -> Result<BarePermission, TableError> {
        let Some(number) = part.extent() else {
            let ask = match part {
                Part::Subtable(number) => {
                    let object = self.subtable_object(number).await?;
                    self.ask(object, (SHARED_AT, 0), self.access.rights_on_words())
                }
                _ => self.ask(self.head, (0, 0), self.access.rights_on_head()),
            };
            return Ok(self.pipeline.acquire(ask).await?);
        };
        let (mut object, mut shape) = self.extent(number).await?;
        loop {
            let acquired = self.pipeline.acquire(self.ask_in_extent(part, object, &shape)?).await;
            let error = match acquired.map_err(TableError::from) {
                Err(error) if error.is_gone() => error,
                acquired => return acquired,
            };
            // The extent was given back. Another extent may have its number.
            let anew = self.extent_anew(number).await?;
            if anew.0 == object {
                self.forget_extent(number);
                return Err(error);
            }
            (object, shape) = anew;
        }
    }

    /// Makes a request for a permission over a part of an extent.
    ///
    /// # Errors
    /// The error of an extent that is gone, if the extent has no such block.
    fn ask_in_extent(
        &self,
        part: Part,
        object: ObjectRef,
        shape: &ExtentShape,
    ) -> Result<Acquire, TableError> {
        Ok(match part {
            Part::Claims(_) => self.ask(object, (0, shape.claims_bytes()), self.access.rights_on_words()),
            Part::Block(block_id) if block_id.block >= shape.blocks => {
                return Err(Error::Refused(Refusal::Gone).into());
            }
            Part::Block(block_id) => {
                self.ask(object, (shape.block_at(block_id.block), shape.block_bytes.into()), Rights::READ)
            }
            Part::Extent(_) | Part::Head | Part::Subtable(_) => {
                self.ask(object, (shape.claims_bytes(), 0), Rights::READ)
            }
        })
    }

    /// Makes a request for a shared permission over a part of an object.
    pub(super) fn ask(&self, object: ObjectRef, (offset, length): (u64, u64), rights: Rights) -> Acquire {
        let wait = Lifetime(self.options.lease.0 * 3);
        let ask = Acquire::object(object).part(offset, length).rights(rights);
        ask.shared().lifetime(self.options.hold()).wait(wait)
    }

    /// Makes a request for the right to split a subtable.
    pub(super) fn ask_for_split(&self, object: ObjectRef) -> Acquire {
        let lease = self.options.lease;
        Acquire::object(object)
            .part(0, SPLIT_BYTES)
            .rights(Rights::READ | Rights::WRITE)
            .lifetime(lease)
            .wait(Lifetime(lease.0 * 3))
    }

    /// Returns the permission to read a slot's block. `None`: the block is gone, so the slot must have changed since.
    pub(super) async fn permission_to_read(&self, slot: Slot) -> Result<Option<Readable>, TableError> {
        if self.options.blocks == BlockMemory::Chunks {
            return Ok(self.readable(slot));
        }
        let block_id = slot.block_id();
        let part = self.part_of_block(block_id);
        loop {
            let permission = match self.permission(part).await {
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
            self.state.borrow_mut().permissions.held(part).permission = None;
        }
    }

    /// Returns the permission to read a slot's block, if it can be used as it is.
    #[inline]
    pub(super) fn readable(&self, slot: Slot) -> Option<Readable> {
        let state = &mut *self.state.borrow_mut();
        let block_id = slot.block_id();
        if self.options.blocks == BlockMemory::Chunks {
            return state.chunk_blocks.as_ref()?.readable(block_id, slot.version());
        }
        let (object, shape) = state.extents.get(block_id.extent as usize)?.as_ref()?;
        let part = self.part_of_block(block_id);
        let permission = state.permissions.fresh(part, self.pipeline.now())?;
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

    /// Returns if the caller can try again: after an error that new permissions mend, or at the end of a pause of the
    /// tenant.
    ///
    /// # Errors
    /// Any other error.
    pub(super) async fn mend(&self, error: TableError) -> Result<(), TableError> {
        if let TableError::Session(Error::Paused { wait }) = error {
            self.pipeline.sit_out(wait).await?;
            return Ok(());
        }
        if !error.wants_permission() {
            return Err(error);
        }
        // A permission that has expired is not used again. The handle's other permissions are as good as before.
        if error == TableError::Session(Error::Revoked) {
            self.state.borrow_mut().permissions.forget();
        }
        Ok(())
    }
}

impl Access {
    fn rights_on_head(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::all(),
        }
    }

    fn rights_on_words(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::READ | Rights::ATOMIC,
        }
    }
}
