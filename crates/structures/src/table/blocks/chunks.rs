//! Blocks in chunks of the session that made the table (OneSidedMW, «disaggregated KVS»).
//!
//! A chunk's keys work on its holder's queue pairs only. So no other client can read such a block, and no other client
//! can open the table. The handle alone knows which blocks are taken, and remote memory has no record of that: blocks
//! are claimed and freed without a message, and without an access. A slot names a block by a number of this handle, and
//! by its version. A block that a slot names and this handle does not have counts as stale, and is not read. When the
//! session ends, the node frees its chunks, and the values are lost with them: no other handle ever reads the blocks
//! that a slot of the table then names.

use super::claimed::Claimed;
use super::reading::Readable;
use crate::Pipeline;
use crate::held::AtEnd;
use crate::pipeline::all;
use crate::table::words::{BlockId, Claim, Version};
use crate::table::{TableError, TableOptions};
use portcullis::{BarePermission, ChunkTerms, Clock, Occupancy, SmallObjectId, SmallObjects, VerbsEndpoint};
use portcullis_slots::{Reuse, Slots};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Largest number of chunks without blocks that are kept for the next blocks.
const FREE_CHUNKS_MAX: usize = 4;
/// A block's number is not used again before this many others are free: a slot that was read long ago stays stale.
const NUMBERS_RESTING: u32 = 1 << 10;
/// Number of bytes of a chunk that are read to wait for the accesses under way on it.
const READ_BYTES: usize = 8;

/// A block that is taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    object: SmallObjectId,
    bytes: u32,
}

/// Number of operations that wait for chunks of one size class, and number of chunks that were requested.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    waiting: u64,
    asked: u64,
}

/// The blocks of one table in chunks of one session.
#[derive(Debug)]
struct ChunkBlocks {
    objects: SmallObjects<Rc<BarePermission>>,
    taken: Slots<u32, Taken>,
    /// The claim of each number that was ever used, as it would be in an extent.
    claims: Vec<Claim>,
    /// The demand by the number of blocks for which a chunk of the class has room.
    demand: BTreeMap<u32, Demand>,
    /// Chunks that go back to the node once no access is under way on them.
    leaving: VecDeque<Rc<BarePermission>>,
    /// Whether an operation of this pipeline gives those chunks back.
    giving_back: bool,
}

impl ChunkBlocks {
    fn new(terms: ChunkTerms) -> Self {
        Self {
            objects: SmallObjects::new(terms.chunk_bytes, FREE_CHUNKS_MAX),
            taken: Slots::new(Reuse::OldestFirst { resting: NUMBERS_RESTING }, u32::MAX),
            claims: Vec::new(),
            demand: BTreeMap::new(),
            leaving: VecDeque::new(),
            giving_back: false,
        }
    }

    /// Takes a block. `None`: another chunk is needed.
    fn take(&mut self, bytes: u64) -> Result<Option<(BlockId, Version)>, TableError> {
        let Some(object) = self.objects.place(bytes)? else { return Ok(None) };
        let bytes = u32::try_from(bytes).expect("a chunk is far shorter");
        let Ok(number) = self.taken.try_insert(Taken { object, bytes }) else {
            self.objects.free(object)?;
            return Err(TableError::Full);
        };
        if number as usize >= self.claims.len() {
            self.claims.resize(number as usize + 1, Claim(0));
        }
        let claim = &mut self.claims[number as usize];
        *claim = claim.taken();
        Ok(Some((BlockId::of_number(number), claim.version())))
    }

    /// Returns the block that a slot names. `None`: it was freed, or never belonged to this handle.
    fn taken(&self, block_id: BlockId, version: Version) -> Option<Taken> {
        let claim = *self.claims.get(block_id.number() as usize)?;
        let is_it = claim == Claim::of(version);
        self.taken.get(block_id.number()).copied().filter(|_| is_it)
    }

    /// Returns the permission and the range for reading a slot's block. `None`: the block was freed, or never belonged
    /// to this handle.
    fn readable(&self, block_id: BlockId, version: Version) -> Option<Readable> {
        let Taken { object, bytes } = self.taken(block_id, version)?;
        let located = self.objects.locate(object).expect("a taken block is live");
        Some(Readable { permission: Rc::clone(located.chunk), offset: located.offset, length: bytes })
    }

    /// Frees a block, if it still has this version.
    fn free(&mut self, block_id: BlockId, version: Version) {
        let Some(Taken { object, .. }) = self.taken(block_id, version) else { return };
        self.taken.remove(block_id.number());
        let claim = &mut self.claims[block_id.number() as usize];
        *claim = claim.freed();
        self.objects.free(object).expect("a taken block is live until now");
        self.leaving.extend(std::iter::from_fn(|| self.objects.take_surplus()));
    }

    /// Frees all blocks.
    fn free_all(&mut self) {
        self.taken = Slots::new(Reuse::OldestFirst { resting: NUMBERS_RESTING }, u32::MAX);
        self.claims.clear();
        self.leaving.extend(self.objects.take_all());
    }

    /// Takes out the first chunk that is to go back. `None`: an operation has not yet taken the bytes that it has read
    /// of the chunk.
    fn take_leaving(&mut self) -> Option<BarePermission> {
        let chunk = self.leaving.pop_front()?;
        Rc::try_unwrap(chunk).map_err(|chunk| self.leaving.push_front(chunk)).ok()
    }

    fn demand_of(&mut self, blocks_of_a_chunk: u32) -> &mut Demand {
        self.demand.entry(blocks_of_a_chunk).or_default()
    }
}

/// An operation that waits for a chunk, until it goes on or is dropped. No task waits for that. So, other than with
/// [`AtEnd`], no task is woken, and operations that wait do not wake each other for ever.
struct Waiting<'t, E: VerbsEndpoint, C: Clock> {
    chunks: &'t Chunks<E, C>,
    class: u32,
}

impl<E: VerbsEndpoint, C: Clock> Drop for Waiting<'_, E, C> {
    fn drop(&mut self) {
        self.chunks.with(|blocks| blocks.demand_of(self.class).waiting -= 1);
    }
}

/// The blocks of a table in chunks, of the handle that has made the table.
pub(in crate::table) struct Chunks<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    blocks: RefCell<ChunkBlocks>,
}

impl<E: VerbsEndpoint, C: Clock> Chunks<E, C> {
    pub fn new(pipeline: &Rc<Pipeline<E, C>>, options: TableOptions, terms: ChunkTerms) -> Self {
        Self { pipeline: Rc::clone(pipeline), options, blocks: RefCell::new(ChunkBlocks::new(terms)) }
    }

    fn with<T>(&self, act: impl FnOnce(&mut ChunkBlocks) -> T) -> T {
        act(&mut self.blocks.borrow_mut())
    }

    /// Returns the largest number of bytes of a block.
    pub fn longest(&self) -> u64 {
        self.blocks.borrow().objects.chunk_bytes()
    }

    /// Returns the permission and the range for reading a slot's block. `None`: the block was freed, or never belonged
    /// to this handle.
    #[inline]
    pub fn readable(&self, block_id: BlockId, version: Version) -> Option<Readable> {
        self.blocks.borrow().readable(block_id, version)
    }

    /// Returns all blocks that are taken, with their claims.
    pub fn claims(&self) -> Vec<(BlockId, Claim)> {
        let blocks = self.blocks.borrow();
        let taken = blocks.taken.iter();
        taken.map(|(number, _)| (BlockId::of_number(number), blocks.claims[number as usize])).collect()
    }

    /// Returns the use of the chunks.
    pub fn occupancy(&self) -> Occupancy {
        self.blocks.borrow().objects.occupancy()
    }

    /// Claims a block in a chunk.
    pub async fn claim(&self, bytes: u64) -> Result<Claimed, TableError> {
        loop {
            if let Some((block_id, version)) = self.with(|blocks| blocks.take(bytes))? {
                let readable = self.with(|blocks| blocks.readable(block_id, version));
                let Readable { permission, offset, .. } = readable.expect("it was taken just now");
                let until = self.options.claimed_until(self.pipeline.now());
                return Ok(Claimed {
                    block_id,
                    version,
                    permission,
                    at: offset,
                    until,
                    renewals: 0,
                    pieces: Vec::new(),
                });
            }
            self.wait_for_chunk(bytes).await?;
        }
    }

    /// Requests a chunk. If other operations have requested enough chunks, waits for them instead.
    async fn wait_for_chunk(&self, bytes: u64) -> Result<(), TableError> {
        let class = self.with(|blocks| blocks.objects.objects_of_a_chunk(bytes))?;
        let asks = self.with(|blocks| {
            let demand = blocks.demand_of(class);
            demand.waiting += 1;
            let asks = demand.asked * u64::from(class) < demand.waiting;
            demand.asked += u64::from(asks);
            asks
        });
        let _waiting = Waiting { chunks: self, class };
        if !asks {
            self.pipeline.anything().await?;
            return Ok(());
        }
        let _asked = AtEnd::new(&self.pipeline, || {
            self.with(|blocks| blocks.demand_of(class).asked -= 1);
        });
        let chunk = Rc::new(self.pipeline.allocate_chunk().await?);
        self.with(|blocks| blocks.objects.add(chunk));
        Ok(())
    }

    /// Frees a block in a chunk.
    pub async fn free(&self, block_id: BlockId, version: Version) -> Result<(), TableError> {
        self.with(|blocks| blocks.free(block_id, version));
        self.give_back().await
    }

    /// Gives back the chunks that are to go, unless another operation does so.
    ///
    /// Blocks of such a chunk may still be read, for slots that have changed since. Accesses are executed in their
    /// order: those that were under way on the chunk are done when one more read is done. Without this read, the NIC
    /// would refuse them.
    async fn give_back(&self) -> Result<(), TableError> {
        if self.with(|blocks| blocks.leaving.is_empty() || blocks.giving_back) {
            return Ok(());
        }
        self.with(|blocks| blocks.giving_back = true);
        let _done = AtEnd::new(&self.pipeline, || self.with(|blocks| blocks.giving_back = false));
        // Other operations leave their chunks to this one, also while it waits for the last chunks to be free.
        while !self.with(|blocks| blocks.leaving.is_empty()) {
            self.give_back_those_that_leave().await?;
        }
        Ok(())
    }

    async fn give_back_those_that_leave(&self) -> Result<(), TableError> {
        let mut going = Vec::new();
        while let Some(chunk) = self.with(|blocks| blocks.leaving.front().map(Rc::clone)) {
            self.pipeline.read_bytes(&chunk, 0, READ_BYTES).await?;
            drop(chunk);
            let chunk = self.with(ChunkBlocks::take_leaving);
            going.extend(chunk.map(|chunk| self.pipeline.free_chunk(chunk)));
        }
        all(going).await?;
        Ok(())
    }

    /// Gives back all chunks that the handle has. The values are lost with them.
    pub async fn give_all_back(&self) -> Result<(), TableError> {
        self.with(ChunkBlocks::free_all);
        self.give_back().await
    }
}
