//! Blocks: how they are claimed from extents, written, and freed.
//!
//! A client claims a block with one COMPARE_AND_SWAP on the block's claim, and then acquires a permission to write this
//! one block. It claims several at a time (Patronus §7.3.1). A claim that its client has not used within a lease must not
//! be used any more: see [`Table::sweep`].

use super::leases::Leased;
use super::sizes::{ExtentShape, SizeClass};
use super::words::{BlockId, Claim, Slot, Version};
use super::{BlockMemory, Grain, Table, TableError};
use crate::held::AtEnd;
use crate::pipeline::{join, word_of};
use portcullis::{
    Acquire, BarePermission, Clock, Lifetime, Moment, ObjectRef, Rights, Sharing, VerbsEndpoint,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Number of blocks that are claimed at once (Patronus §7.3.1).
const CLAIMED_AT_ONCE: usize = 4;
/// Largest number of free blocks of a class that a client remembers. A client that frees and never claims would
/// remember ever more.
const FREE_KNOWN_MAX: usize = 1 << 16;
/// Number of extents whose claims are read for free blocks before another extent is made.
const LOOKED_AT_MAX: usize = 8;
/// An extent with fewer free blocks than one in this many counts as full.
const FREE_ONE_IN: usize = 16;

/// 2^64 divided by the golden ratio: multiples of it lie far from each other.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// A block that this client has claimed and no other client can have.
#[derive(Debug)]
pub(super) struct Claimed {
    pub block_id: BlockId,
    pub version: Version,
    pub permission: Rc<BarePermission>,
    /// Offset of the block in the permission.
    pub at: u64,
    /// Time from which the block must not get into a slot: on the session's clock.
    pub until: Moment,
    /// Number of times that the claim was renewed.
    pub renewals: u8,
    /// The pieces of the value whose first block this is. They were claimed and written for this block.
    pub pieces: Vec<Slot>,
}

impl Claimed {
    pub fn claim(&self) -> Claim {
        Claim::renewed(self.version, self.renewals)
    }

    pub fn slot(&self, fingerprint: u8) -> Slot {
        Slot::new(fingerprint, self.version, self.block_id)
    }
}

/// The result of trying to claim some blocks.
struct Tried {
    claimed: Vec<Claimed>,
    /// Whether there was no room for a permission to write a block.
    is_full: bool,
    /// An extent of which other clients have claimed blocks since this client looked at it.
    outdated: Option<u32>,
}

/// The blocks of one class, as far as a client knows them.
#[derive(Debug, Default)]
struct Class {
    /// Blocks that are claimed and not used yet.
    ready: VecDeque<Claimed>,
    /// Blocks that were free when this client last read or wrote their claims.
    free: VecDeque<(BlockId, Claim)>,
    /// Free blocks that readers still held when this client claimed them, and the times until which they may be held:
    /// the earliest first.
    resting: VecDeque<(Moment, BlockId, Claim)>,
    /// The class's extents, in the order in which their claims are looked at next.
    extents: VecDeque<u32>,
    /// Number of extents that were looked at since one had free blocks.
    looked_at: usize,
    /// Whether an operation of this pipeline is claiming.
    claiming: bool,
    /// Number of operations of this pipeline that want a block: the one that is claiming, and those that wait for it.
    wanting: usize,
}

impl Class {
    /// Number of blocks that are claimed at once now: as many as are wanted, up to `most`.
    fn claimed_at_once(&self, most: usize) -> usize {
        self.wanting.min(most).max(CLAIMED_AT_ONCE).min(self.free.len())
    }

    /// Forgets which blocks of an extent were free.
    fn forget_free(&mut self, extent: u32) {
        self.free.retain(|(block_id, _)| block_id.extent != extent);
    }

    /// Forgets an extent that is gone.
    fn forget_extent(&mut self, extent: u32) {
        self.forget_free(extent);
        self.resting.retain(|(_, block_id, _)| block_id.extent != extent);
        self.extents.retain(|&other| other != extent);
    }

    /// Makes the blocks claimable again whose readers must have ended.
    fn end_rests(&mut self, now: Moment) {
        while let Some((_, block_id, claim)) = self.resting.pop_front_if(|(until, ..)| *until <= now) {
            self.free.push_back((block_id, claim));
        }
    }

    /// Adds an extent to those from which blocks are claimed. Returns whether it is new.
    fn add_extent(&mut self, extent: u32) -> bool {
        let is_new = !self.extents.contains(&extent);
        if is_new {
            self.extents.push_front(extent);
            self.looked_at = 0;
        }
        is_new
    }
}

/// The blocks of a table, as far as a client knows them.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    classes: BTreeMap<SizeClass, Class>,
    /// Number of the extent up to which all extents are known.
    pub extents_known: u32,
    /// Number of extents that had been given back, or made in the place of such ones, when they were last read.
    pub changes_heard: u64,
    /// Numbers whose extents were given back, as far as this client knows.
    pub vacant: BTreeSet<u32>,
    /// Extents in which this client has freed blocks since it last searched them for unused ones.
    pub freed_in: BTreeSet<u32>,
    /// Time at which all extents are searched again for unused ones.
    pub looks_again_at: Moment,
    /// Time until which memory of extents that were given back may still be on its way.
    pub comes_back_until: Moment,
    /// Largest number of blocks that are claimed at once.
    claimed_at_once_max: usize,
    /// Whether the caller makes room if there is none.
    caller_makes_room: bool,
}

impl Blocks {
    fn class(&mut self, class: SizeClass) -> &mut Class {
        self.classes.entry(class).or_default()
    }

    /// Takes the blocks that are claimed and not used yet.
    pub fn take_ready(&mut self) -> Vec<Claimed> {
        self.classes.values_mut().flat_map(|class| class.ready.drain(..)).collect()
    }

    /// Takes the blocks of an extent that are not used yet, and those of all extents that were claimed too long ago to
    /// be used.
    pub fn take_idle(&mut self, extent: Option<u32>, now: Moment) -> Vec<Claimed> {
        let idle = |claimed: &Claimed| claimed.until <= now || Some(claimed.block_id.extent) == extent;
        let mut taken = Vec::new();
        for class in self.classes.values_mut() {
            let (of_use, rest): (Vec<_>, Vec<_>) = class.ready.drain(..).partition(|it| !idle(it));
            class.ready.extend(of_use);
            taken.extend(rest);
        }
        taken
    }

    /// Adds an extent to those from which blocks of a class are claimed. Returns whether it is new.
    pub fn add_extent(&mut self, class: SizeClass, extent: u32) -> bool {
        self.class(class).add_extent(extent)
    }

    /// Forgets an extent that is gone.
    pub fn forget_extent(&mut self, extent: u32) {
        self.freed_in.remove(&extent);
        self.classes.values_mut().for_each(|class| class.forget_extent(extent));
    }

    /// Notes that a block is free again.
    pub fn note_free(&mut self, class: SizeClass, block_id: BlockId, claim: Claim) {
        self.freed_in.insert(block_id.extent);
        let known = self.class(class);
        if known.free.len() < FREE_KNOWN_MAX {
            known.free.push_back((block_id, claim));
        } else {
            // The block is found again when its extent's claims are read.
            known.looked_at = 0;
        }
    }

    /// Returns the time at which the first resting block of a class can be claimed again.
    fn first_rest_ends(&mut self, class: SizeClass) -> Option<Moment> {
        self.class(class).resting.front().map(|(until, ..)| *until)
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// From now on this handle claims up to `blocks` blocks at once if as many of its operations want one. Without this
    /// call it claims four (Patronus §7.3.1): each block comes with a permission, for which other clients then wait.
    pub fn claim_up_to(&self, blocks: usize) {
        self.state.borrow_mut().blocks.claimed_at_once_max = blocks;
    }

    /// From now on this handle does not search for unused extents if there is no room for a value: it only waits for
    /// memory that was given back and is on its way. So a cache gets its result soon, and makes room with
    /// [`Table::vacate`].
    pub fn let_caller_make_room(&self) {
        self.state.borrow_mut().blocks.caller_makes_room = true;
    }

    /// Claims a block of `bytes` bytes.
    pub(super) async fn claim(&self, bytes: u64) -> Result<Claimed, TableError> {
        match self.options.blocks {
            BlockMemory::Objects => self.claim_in_extent(SizeClass::of(bytes)).await,
            BlockMemory::Chunks => self.claim_in_chunk(bytes).await,
        }
    }

    /// Claims a block of a class.
    async fn claim_in_extent(&self, class: SizeClass) -> Result<Claimed, TableError> {
        self.state.borrow_mut().blocks.class(class).wanting += 1;
        let _done = AtEnd::new(&self.pipeline, || self.state.borrow_mut().blocks.class(class).wanting -= 1);
        loop {
            let now = self.pipeline.now();
            let too_old = {
                let mut state = self.state.borrow_mut();
                let known = state.blocks.class(class);
                match known.ready.pop_front() {
                    Some(claimed) if now < claimed.until => return Ok(claimed),
                    Some(claimed) => Some(claimed),
                    None if !known.claiming => {
                        known.claiming = true;
                        break;
                    }
                    None => None,
                }
            };
            match too_old {
                Some(claimed) => self.give_back(claimed).await?,
                None => self.pipeline.anything().await?,
            }
        }
        let done =
            AtEnd::new(&self.pipeline, || self.state.borrow_mut().blocks.class(class).claiming = false);
        let claimed = self.claim_some(class).await?;
        drop(done);
        let mut state = self.state.borrow_mut();
        let known = state.blocks.class(class);
        known.ready.extend(claimed);
        Ok(known.ready.pop_front().expect("at least one was claimed"))
    }

    async fn claim_some(&self, class: SizeClass) -> Result<Vec<Claimed>, TableError> {
        let mut pause = 1;
        loop {
            let wanted = self.some_free(class).await?;
            let extents: BTreeSet<u32> = wanted.iter().map(|(block_id, _)| block_id.extent).collect();
            let Tried { claimed, is_full, outdated } = match self.try_claims(wanted).await {
                Ok(tried) => tried,
                Err(error) if error.is_gone() => {
                    extents.into_iter().for_each(|extent| self.forget_extent(extent));
                    continue;
                }
                Err(error) => {
                    self.leases.mend(error).await?;
                    continue;
                }
            };
            if !claimed.is_empty() {
                return Ok(claimed);
            }
            if let Some(extent) = outdated {
                // Other clients have been quicker. They may have taken hundreds of the blocks that this client still
                // believes to be free, so it reads the claims again and does not try one after another.
                self.state.borrow_mut().blocks.class(class).forget_free(extent);
                continue;
            }
            if !is_full {
                // Late readers hold those blocks. There are others, or there is another extent.
                continue;
            }
            // The client, its tenant or the node has as many permissions as it can have.
            pause = (pause * 2).min(self.options.hold().0 / 4);
            self.pipeline.sleep(Lifetime(pause)).await?;
        }
    }

    /// Returns a few blocks that may be free, and at least one.
    async fn some_free(&self, class: SizeClass) -> Result<Vec<(BlockId, Claim)>, TableError> {
        loop {
            let unread = {
                let mut state = self.state.borrow_mut();
                let most = state.blocks.claimed_at_once_max;
                let known = state.blocks.class(class);
                known.end_rests(self.pipeline.now());
                if !known.free.is_empty() {
                    let count = known.claimed_at_once(most);
                    return Ok(known.free.drain(..count).collect());
                }
                let tired = known.looked_at >= known.extents.len().min(LOOKED_AT_MAX);
                let next = known.extents.front().copied().filter(|_| !tired);
                if next.is_some() {
                    known.extents.rotate_left(1);
                    known.looked_at += 1;
                }
                next
            };
            match unread {
                Some(extent) => match self.read_claims(extent, class).await {
                    Err(error) if error.is_gone() => self.forget_extent(extent),
                    done => done?,
                },
                None if self.hear_of_extents().await? => {}
                None => match self.make_extent(class).await {
                    Err(error) if error.is_no_room() => self.find_room(class, error).await?,
                    Err(error) => self.leases.mend(error).await?,
                    Ok(()) => {}
                },
            }
        }
    }

    /// Finds room if there is none for another extent: gives unused extents back, or waits until a resting block can be
    /// claimed again.
    ///
    /// # Errors
    /// The given error, if all extents are in use and no block of the class rests.
    async fn find_room(&self, class: SizeClass, error: TableError) -> Result<(), TableError> {
        let now = self.pipeline.now();
        if now < self.state.borrow().blocks.comes_back_until {
            self.pipeline.sleep(Lifetime(self.options.hold().0 / 32)).await?;
            return Ok(());
        }
        if self.state.borrow().blocks.caller_makes_room {
            return Err(error);
        }
        if self.give_back_unused().await? {
            return Ok(());
        }
        let until = self.state.borrow_mut().blocks.first_rest_ends(class).ok_or(error)?;
        self.pipeline.sleep(Lifetime(until.0.saturating_sub(self.pipeline.now().0))).await?;
        Ok(())
    }

    /// Notes the free blocks of an extent, beginning at a place that depends on the client: so clients seldom want the
    /// same blocks. Clients have numbers in sequence, and their places must be far from each other.
    async fn read_claims(&self, extent: u32, class: SizeClass) -> Result<(), TableError> {
        let claims = self.claims(extent).await?;
        let shape = self.extent(extent).await?.1;
        if shape.class != class {
            self.state.borrow_mut().blocks.class(class).forget_extent(extent);
            return Ok(());
        }
        let is_going = !claims.is_empty() && claims.iter().all(|claim| claim.is_retired());
        let claims = (0..).zip(claims);
        let resting: BTreeSet<BlockId> = {
            let mut state = self.state.borrow_mut();
            state.blocks.class(class).resting.iter().map(|(_, block_id, _)| *block_id).collect()
        };
        let mut free: Vec<_> = claims
            .filter(|(_, claim)| claim.is_free())
            .map(|(block, claim)| (BlockId { extent, block }, claim))
            .filter(|(block_id, _)| !resting.contains(block_id))
            .collect();
        if is_going {
            self.forget_extent(extent);
            return Ok(());
        }
        if free.len() * FREE_ONE_IN >= shape.blocks as usize {
            self.state.borrow_mut().blocks.class(class).looked_at = 0;
        }
        if !free.is_empty() {
            let start = (self.pipeline.number().wrapping_mul(SPREAD) >> 32) % free.len() as u64;
            free.rotate_left(usize::try_from(start).expect("less than a length"));
        }
        self.state.borrow_mut().blocks.class(class).free.extend(free);
        Ok(())
    }

    /// Reads the claims of all blocks of an extent.
    pub(super) async fn claims(&self, extent: u32) -> Result<Vec<Claim>, TableError> {
        loop {
            let (object, shape) = self.extent(extent).await?;
            let bytes = self.claims_of(extent).read(0, shape.blocks as usize * 8).await?;
            // Meanwhile another extent may have got the number.
            if self.extent(extent).await?.0 == object {
                return Ok(bytes.chunks_exact(8).map(|word| Claim(word_of(word, 0))).collect());
            }
        }
    }

    /// Claims the wanted blocks that are still free, and acquires a permission to write each.
    async fn try_claims(&self, wanted: Vec<(BlockId, Claim)>) -> Result<Tried, TableError> {
        let mut swaps = Vec::new();
        for (block_id, free) in wanted {
            let permission = self.claims_of(block_id.extent).permission().await?;
            let taken = free.taken();
            let at = u64::from(block_id.block) * 8;
            swaps.push((
                block_id,
                free,
                taken,
                self.pipeline.compare_and_swap(&permission, at, free.0, taken.0),
            ));
        }
        let now = self.pipeline.now();
        let mut taken = Vec::new();
        let (mut outdated, mut failed) = (None, None);
        // All swaps are awaited, also after one that fails. A swap that was posted and that no task awaits would still
        // be executed before the next attempt. Each attempt would add some more, until no request is executed before
        // its permission has ended.
        for (block_id, free, claim, swap) in swaps {
            match swap.await {
                Ok(before) if before == free.0 => taken.push((block_id, claim.version())),
                Ok(_) => outdated = Some(block_id.extent),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed.filter(|_| taken.is_empty()) {
            return Err(error.into());
        }
        let mut grants = Vec::new();
        for (block_id, version) in taken {
            let (object, shape) = self.extent(block_id.extent).await?;
            let ask = self.ask_to_write(object, &shape, block_id);
            grants.push((block_id, version, self.pipeline.acquire(ask)));
        }
        let mut claimed = Vec::new();
        let mut is_full = false;
        for (block_id, version, grant) in grants {
            let permission = match grant.await {
                Ok(permission) => Rc::new(permission),
                Err(error) if TableError::from(error).is_conflict() => {
                    self.let_rest(block_id, version).await?;
                    continue;
                }
                Err(error) if TableError::from(error).needs_room() => {
                    is_full = true;
                    self.leases.let_go(block_id.extent);
                    self.free_block(block_id, version).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let until = self.options.claimed_until(now);
            let block =
                Claimed { block_id, version, permission, at: 0, until, renewals: 0, pieces: Vec::new() };
            // The completion or the grant arrived late: a sweep may have freed the claim, and another client may have
            // written the block since. A grant that arrived in time ends before a sweep frees the claim.
            if self.pipeline.now() >= until {
                self.give_back(block).await?;
                continue;
            }
            claimed.push(block);
        }
        Ok(Tried { claimed, is_full, outdated })
    }

    pub(super) fn ask_to_write(&self, object: ObjectRef, shape: &ExtentShape, block_id: BlockId) -> Acquire {
        let part = (shape.block_at(block_id.block), u64::from(shape.block_bytes));
        let ask = self.leases.ask(object, part, Rights::WRITE).lifetime(self.options.lease);
        match self.options.grain {
            // Readers that still hold the block are late: no client waits for them here.
            Grain::Block => Acquire { sharing: Sharing::Exclusive, wait: Lifetime(0), ..ask },
            Grain::Extent => ask,
        }
    }

    /// Frees a block that was claimed and is in no slot, and its pieces.
    pub(super) async fn give_back(&self, mut claimed: Claimed) -> Result<(), TableError> {
        let (block_id, claim) = (claimed.block_id, claimed.claim());
        let pieces = std::mem::take(&mut claimed.pieces);
        self.end_writing(claimed);
        self.free_claimed(block_id, claim).await?;
        self.free_pieces(&pieces).await
    }

    /// Gives back the blocks that are claimed and not used yet, and waits for that.
    pub(super) async fn give_back_ready(&self) -> Result<(), TableError> {
        let ready = self.state.borrow_mut().blocks.take_ready();
        let freed = ready.into_iter().map(|claimed| {
            let (block_id, claim) = (claimed.block_id, claimed.claim());
            self.pipeline.end(claimed.permission);
            let at = u64::from(block_id.block) * 8;
            async move { self.claims_of(block_id.extent).swap(at, claim.0, claim.freed().0).await }
        });
        for freed in join(freed).await {
            freed?;
        }
        Ok(())
    }

    /// Ends the permission to write a block.
    pub(super) fn end_writing(&self, claimed: Claimed) {
        match self.options.blocks {
            BlockMemory::Objects => self.pipeline.end(claimed.permission),
            // The permission is the chunk's, in which there are other blocks.
            BlockMemory::Chunks => {}
        }
    }

    /// Frees a block whose claim was never renewed.
    async fn free_block(&self, block_id: BlockId, version: Version) -> Result<(), TableError> {
        self.free_claimed(block_id, Claim::of(version)).await
    }

    /// Frees a block whose slot this client has just changed. Does not wait for the result.
    pub(super) async fn free_claimed(&self, block_id: BlockId, claim: Claim) -> Result<(), TableError> {
        if self.options.blocks == BlockMemory::Chunks {
            return self.free_in_chunk(block_id, claim.version()).await;
        }
        let class = self.end_claim(block_id, claim).await?;
        self.state.borrow_mut().blocks.note_free(class, block_id, claim.freed());
        Ok(())
    }

    /// Frees a block that no client uses, and waits for that: after a sweep it must be free. Returns false if another
    /// client was quicker.
    pub(super) async fn free_orphan(&self, block_id: BlockId, claim: Claim) -> Result<bool, TableError> {
        if self.options.blocks == BlockMemory::Chunks {
            return self.free_in_chunk(block_id, claim.version()).await.map(|()| true);
        }
        let swap = async {
            let class = self.extent(block_id.extent).await?.1.class;
            let at = u64::from(block_id.block) * 8;
            let before = self.claims_of(block_id.extent).swap(at, claim.0, claim.freed().0).await?;
            if before == claim.0 {
                self.state.borrow_mut().blocks.note_free(class, block_id, claim.freed());
            }
            Ok::<_, TableError>(before == claim.0)
        };
        match swap.await {
            // In this case the block was free before.
            Err(error) if error.is_gone() => Ok(false),
            done => done,
        }
    }

    /// Frees a block that late readers hold, and leaves it alone for as long as they can hold it.
    async fn let_rest(&self, block_id: BlockId, version: Version) -> Result<(), TableError> {
        let claim = Claim::of(version);
        let class = self.end_claim(block_id, claim).await?;
        let until = self.pipeline.now().after(self.options.hold());
        self.state.borrow_mut().blocks.class(class).resting.push_back((until, block_id, claim.freed()));
        Ok(())
    }

    /// Ends the claim of a block. Returns the block's class. Does not wait for the result.
    async fn end_claim(&self, block_id: BlockId, claim: Claim) -> Result<SizeClass, TableError> {
        let permission = self.claims_of(block_id.extent).permission().await?;
        let class = self.extent(block_id.extent).await?.1.class;
        let at = u64::from(block_id.block) * 8;
        drop(self.pipeline.compare_and_swap(&permission, at, claim.0, claim.freed().0));
        Ok(class)
    }
}
