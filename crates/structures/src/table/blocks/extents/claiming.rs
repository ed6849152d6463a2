//! Blocks as they are claimed from extents, and freed.
//!
//! A client claims a block with one COMPARE_AND_SWAP on the block's claim, and then acquires a permission to write this
//! one block. It claims several at a time (Patronus §7.3.1). A claim that its client has not used within a lease must not
//! be used any more: see [`Table::sweep`](crate::table::Table::sweep).

use super::super::claimed::Claimed;
use super::super::sizes::{ExtentShape, SizeClass};
use super::Extents;
use super::free_blocks::FreeBlocks;
use super::stock::Taken;
use crate::pipeline::join;
use crate::table::leases::Leased;
use crate::table::words::{BlockId, Claim, Version};
use crate::table::{Grain, TableError};
use portcullis::{Acquire, Clock, Lifetime, ObjectRef, Rights, Sharing, VerbsEndpoint};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::task::Poll;

/// An extent with fewer free blocks than one in this many counts as full.
const FREE_ONE_IN: usize = 16;

/// 2^64 divided by the golden ratio: multiples of it lie far from each other.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// An operation that wants a block and has found none, until it has one or is dropped.
struct Wanting<'e> {
    free: &'e RefCell<FreeBlocks>,
    class: SizeClass,
}

impl<'e> Wanting<'e> {
    fn new(free: &'e RefCell<FreeBlocks>, class: SizeClass) -> Self {
        free.borrow_mut().stock(class).begin_wanting();
        Self { free, class }
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.free.borrow_mut().stock(self.class).end_wanting();
    }
}

/// The right of an operation or a refill to claim blocks of a class. When it ends, those that wait for that go on.
struct Claiming<'e, E: VerbsEndpoint, C: Clock> {
    extents: &'e Extents<E, C>,
    class: SizeClass,
}

impl<'e, E: VerbsEndpoint, C: Clock> Claiming<'e, E, C> {
    /// `None`: another operation or a refill is claiming.
    fn begin(extents: &'e Extents<E, C>, class: SizeClass) -> Option<Self> {
        let begins = extents.free.borrow_mut().stock(class).begin_claiming();
        begins.then(|| Self { extents, class })
    }
}

impl<E: VerbsEndpoint, C: Clock> Drop for Claiming<'_, E, C> {
    fn drop(&mut self) {
        let waiting = self.extents.free.borrow_mut().stock(self.class).end_claiming();
        waiting.into_iter().for_each(|task| self.extents.pipeline.wake(task));
    }
}

/// The blocks whose claims were swapped.
struct Swapped {
    taken: Vec<(BlockId, Version)>,
    /// An extent of which other clients have claimed blocks since this client looked at it.
    outdated: Option<u32>,
}

/// The result of trying to claim some blocks.
#[derive(Default)]
struct Tried {
    claimed: Vec<Claimed>,
    /// Whether there was no room for a permission to write a block.
    is_full: bool,
    /// An extent of which other clients have claimed blocks since this client looked at it.
    outdated: Option<u32>,
}

impl<E: VerbsEndpoint, C: Clock> Extents<E, C> {
    /// Sets the largest number of blocks that are claimed at once: see
    /// [`Table::claim_up_to`](crate::table::Table::claim_up_to).
    pub fn claim_up_to(&self, blocks: usize) {
        self.free.borrow_mut().claim_up_to(blocks);
    }

    /// Leaves it to the caller to make room: see
    /// [`Table::let_caller_make_room`](crate::table::Table::let_caller_make_room).
    pub fn let_caller_make_room(&self) {
        self.returns.caller_makes_room.set(true);
    }

    /// Claims a block of a class: takes it from the stock, or claims some if the stock is empty.
    pub async fn claim(&self, class: SizeClass) -> Result<Claimed, TableError> {
        if let Some(claimed) = self.take_from_stock(class).await? {
            return Ok(claimed);
        }
        let _wanting = Wanting::new(&self.free, class);
        let claiming = loop {
            if let Some(claiming) = Claiming::begin(self, class) {
                break claiming;
            }
            self.end_of_claiming(class).await?;
            if let Some(claimed) = self.take_from_stock(class).await? {
                return Ok(claimed);
            }
        };
        let mut claimed = self.claim_some(class).await?;
        let own = claimed.remove(0);
        self.free.borrow_mut().stock(class).add(claimed);
        drop(claiming);
        Ok(own)
    }

    /// Takes a block from the stock without a request. `None`: the stock is empty, or its first block is too old.
    pub fn take_usable(&self, class: SizeClass) -> Option<Claimed> {
        self.free.borrow_mut().stock(class).take_usable(self.pipeline.now())
    }

    /// Takes a block from the stock. `None`: the stock is empty.
    async fn take_from_stock(&self, class: SizeClass) -> Result<Option<Claimed>, TableError> {
        loop {
            let taken = self.free.borrow_mut().stock(class).take(self.pipeline.now());
            match taken {
                Some(Taken::Claimed(claimed)) => return Ok(Some(claimed)),
                Some(Taken::TooOld(claimed)) => self.give_back(claimed).await?,
                None => return Ok(None),
            }
        }
    }

    /// Waits for the end of the claiming that is under way.
    async fn end_of_claiming(&self, class: SizeClass) -> Result<(), TableError> {
        std::future::poll_fn(|_| {
            let mut free = self.free.borrow_mut();
            let stock = free.stock(class);
            if !stock.is_claiming() {
                return Poll::Ready(Ok(()));
            }
            match self.pipeline.over() {
                Some(error) => Poll::Ready(Err(error.into())),
                None => {
                    stock.wait(self.pipeline.present_task());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Whether the stock of a class is to be refilled now.
    pub fn wants_refill(&self, class: SizeClass) -> bool {
        self.free.borrow_mut().wants_refill(class, self.pipeline.now())
    }

    /// Refills the stock of a class with blocks that this handle knows to be free. Makes one attempt, and no extent: an
    /// operation that finds the stock empty does the rest, and learns why it fails.
    pub async fn refill(&self, class: SizeClass) {
        if self.free.borrow().has_ended_refills() {
            return;
        }
        let Some(_claiming) = Claiming::begin(self, class) else { return };
        let now = self.pipeline.now();
        let wanted = {
            let mut free = self.free.borrow_mut();
            let most = free.stocked_max(class);
            let count = free.stock(class).refill(now, self.options.lease, most);
            free.take_some(class, count, now)
        };
        let extents: BTreeSet<u32> = wanted.iter().map(|(block_id, _)| block_id.extent).collect();
        if wanted.is_empty() {
            return;
        }
        let tried = self.try_claims(wanted).await;
        if tried.as_ref().is_err_and(TableError::is_gone) {
            extents.into_iter().for_each(|extent| self.forget(extent));
        }
        let Tried { claimed, is_full, outdated } = tried.unwrap_or_default();
        if self.free.borrow().has_ended_refills() {
            for unused in claimed {
                // If this fails, a sweep finds the block.
                let _ = self.give_back(unused).await;
            }
            return;
        }
        let mut free = self.free.borrow_mut();
        if let Some(extent) = outdated.filter(|_| claimed.is_empty()) {
            free.class(class).forget_free(extent);
        }
        let from = self.pipeline.now().after(self.options.hold());
        let stock = free.stock(class);
        if is_full {
            stock.note_no_room(from);
        } else if claimed.is_empty() {
            stock.note_failed(from);
        }
        stock.add(claimed);
    }

    async fn claim_some(&self, class: SizeClass) -> Result<Vec<Claimed>, TableError> {
        let mut pause = 1;
        loop {
            let wanted = self.some_free(class).await?;
            let extents: BTreeSet<u32> = wanted.iter().map(|(block_id, _)| block_id.extent).collect();
            let Tried { claimed, is_full, outdated } = match self.try_claims(wanted).await {
                Ok(tried) => tried,
                Err(error) if error.is_gone() => {
                    extents.into_iter().for_each(|extent| self.forget(extent));
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
                self.free.borrow_mut().class(class).forget_free(extent);
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
                let mut free = self.free.borrow_mut();
                let most = (free.claimed_at_once_max(), free.stocked_max(class));
                let count = free.stock(class).claimed_at_once(most);
                let some = free.take_some(class, count, self.pipeline.now());
                if !some.is_empty() {
                    return Ok(some);
                }
                free.class(class).next_extent()
            };
            match unread {
                Some(extent) => match self.read_claims(extent, class).await {
                    Err(error) if error.is_gone() => self.forget(extent),
                    done => done?,
                },
                None if self.learn().await? => {}
                None => match self.make(class).await {
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
        if now < self.returns.come_until.get() {
            self.pipeline.sleep(Lifetime(self.options.hold().0 / 32)).await?;
            return Ok(());
        }
        if self.returns.caller_makes_room.get() {
            return Err(error);
        }
        if self.give_back_unused().await? {
            return Ok(());
        }
        let until = self.free.borrow_mut().first_rest_ends(class).ok_or(error)?;
        self.pipeline.sleep(Lifetime(until.0.saturating_sub(self.pipeline.now().0))).await?;
        Ok(())
    }

    /// Notes the free blocks of an extent, beginning at a place that depends on the client: so clients seldom want the
    /// same blocks. Clients have numbers in sequence, and their places must be far from each other.
    async fn read_claims(&self, extent: u32, class: SizeClass) -> Result<(), TableError> {
        let claims = self.claims(extent).await?;
        let shape = self.find(extent).await?.1;
        if shape.class != class {
            self.free.borrow_mut().class(class).forget_extent(extent);
            return Ok(());
        }
        let is_going = !claims.is_empty() && claims.iter().all(|claim| claim.is_retired());
        let claims = (0..).zip(claims);
        let resting: BTreeSet<BlockId> = {
            let mut free = self.free.borrow_mut();
            free.class(class).resting.iter().map(|(_, block_id, _)| *block_id).collect()
        };
        let mut free: Vec<_> = claims
            .filter(|(_, claim)| claim.is_free())
            .map(|(block, claim)| (BlockId { extent, block }, claim))
            .filter(|(block_id, _)| !resting.contains(block_id))
            .collect();
        if is_going {
            self.forget(extent);
            return Ok(());
        }
        if free.len() * FREE_ONE_IN >= shape.blocks as usize {
            self.free.borrow_mut().class(class).looked_at = 0;
        }
        if !free.is_empty() {
            let start = (self.pipeline.number().wrapping_mul(SPREAD) >> 32) % free.len() as u64;
            free.rotate_left(usize::try_from(start).expect("less than a length"));
        }
        self.free.borrow_mut().class(class).free.extend(free);
        Ok(())
    }

    /// Claims the wanted blocks that are still free, and acquires a permission to write each.
    async fn try_claims(&self, wanted: Vec<(BlockId, Claim)>) -> Result<Tried, TableError> {
        // A claim is as old as the first swap may be: this task may stand still at any step.
        let now = self.pipeline.now();
        let Swapped { taken, outdated } = self.swap_claims(wanted).await?;
        let (mut grants, mut failed) = (Vec::new(), None);
        for (block_id, version) in taken {
            let (object, shape) = match self.find(block_id.extent).await {
                Ok(found) => found,
                Err(error) => {
                    failed = failed.or(Some(error));
                    continue;
                }
            };
            let ask = self.ask_to_write(object, &shape, block_id);
            grants.push((block_id, version, self.pipeline.acquire(ask)));
        }
        let mut claimed = Vec::new();
        let mut is_full = false;
        // All grants are awaited, also after one that fails: a claim that is left here stays until a sweep.
        for (block_id, version, grant) in grants {
            let permission = match grant.await {
                Ok(permission) => Rc::new(permission),
                Err(error) if TableError::from(error).is_conflict() => {
                    failed = failed.or(self.let_rest(block_id, version).await.err());
                    continue;
                }
                Err(error) if TableError::from(error).needs_room() => {
                    is_full = true;
                    self.leases.let_go(block_id.extent);
                    self.spent.end_all();
                    failed = failed.or(self.free(block_id, Claim::of(version)).await.err());
                    continue;
                }
                Err(error) => {
                    // If this fails as well, a sweep finds the block.
                    let _ = self.free(block_id, Claim::of(version)).await;
                    failed = failed.or(Some(error.into()));
                    continue;
                }
            };
            let until = self.options.claimed_until(now);
            let block =
                Claimed { block_id, version, permission, at: 0, until, renewals: 0, pieces: Vec::new() };
            // The completion or the grant arrived late: a sweep may have freed the claim, and another client may have
            // written the block since. A grant that arrived in time ends before a sweep frees the claim.
            if self.pipeline.now() >= until {
                failed = failed.or(self.give_back(block).await.err());
                continue;
            }
            claimed.push(block);
        }
        match failed {
            Some(error) if claimed.is_empty() => Err(error),
            _ => Ok(Tried { claimed, is_full, outdated }),
        }
    }

    /// Swaps the claims of the wanted blocks that are still free.
    ///
    /// # Errors
    /// No block was taken.
    async fn swap_claims(&self, wanted: Vec<(BlockId, Claim)>) -> Result<Swapped, TableError> {
        let (mut swaps, mut failed) = (Vec::new(), None);
        for (block_id, free) in wanted {
            let permission = match self.claims_of(block_id.extent).permission().await {
                Ok(permission) => permission,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            };
            let at = u64::from(block_id.block) * 8;
            let swap = self.pipeline.compare_and_swap(&permission, at, free.0, free.taken().0);
            swaps.push((block_id, free, swap));
        }
        let mut swapped = Swapped { taken: Vec::new(), outdated: None };
        // All swaps are awaited, also after one that fails. A swap that was posted and that no task awaits would still
        // be executed before the next attempt. Each attempt would add some more, until no request is executed before
        // its permission has ended.
        for (block_id, free, swap) in swaps {
            match swap.await {
                Ok(before) if before == free.0 => swapped.taken.push((block_id, free.taken().version())),
                Ok(_) => swapped.outdated = Some(block_id.extent),
                Err(error) => failed = failed.or(Some(error.into())),
            }
        }
        match failed {
            Some(error) if swapped.taken.is_empty() => Err(error),
            _ => Ok(swapped),
        }
    }

    /// Makes a request for a permission to write a block.
    pub fn ask_to_write(&self, object: ObjectRef, shape: &ExtentShape, block_id: BlockId) -> Acquire {
        let part = (shape.block_at(block_id.block), u64::from(shape.block_bytes));
        let ask = self.leases.ask(object, part, Rights::WRITE).lifetime(self.options.lease);
        match self.options.grain {
            // Readers that still hold the block are late: no client waits for them here.
            Grain::Block => Acquire { sharing: Sharing::Exclusive, wait: Lifetime(0), ..ask },
            Grain::Extent => ask,
        }
    }

    /// Frees a block that was claimed and in which nothing was written.
    async fn give_back(&self, claimed: Claimed) -> Result<(), TableError> {
        let (block_id, claim) = (claimed.block_id, claimed.claim());
        self.end_writing(claimed.permission);
        match self.free(block_id, claim).await {
            // A sweep has freed the claim, and the extent has gone back.
            Err(error) if error.is_gone() => Ok(()),
            done => done,
        }
    }

    /// Gives back the blocks of an extent that are claimed and not used yet, and those of all extents that were claimed
    /// too long ago to be used.
    pub async fn give_back_idle(&self, extent: Option<u32>) -> Result<(), TableError> {
        let idle = self.free.borrow_mut().take_idle(extent, self.pipeline.now());
        for claimed in idle {
            self.give_back(claimed).await?;
        }
        Ok(())
    }

    /// Gives the stocks back. Does not wait for the result.
    pub(super) async fn give_back_stocks(&self) -> Result<(), TableError> {
        let stocks = self.free.borrow_mut().take_stocks();
        for claimed in stocks {
            self.give_back(claimed).await?;
        }
        Ok(())
    }

    /// Gives the stocks back for good, and waits for that.
    pub async fn settle_stocks(&self) -> Result<(), TableError> {
        self.free.borrow_mut().end_refills();
        loop {
            let claiming = self.free.borrow().claiming();
            match claiming {
                Some(class) => self.end_of_claiming(class).await?,
                None => break,
            }
        }
        let stocks = self.free.borrow_mut().take_stocks();
        let freed = stocks.into_iter().map(|claimed| {
            let (block_id, claim) = (claimed.block_id, claimed.claim());
            self.end_writing(claimed.permission);
            let at = u64::from(block_id.block) * 8;
            async move { self.claims_of(block_id.extent).swap(at, claim.0, claim.freed().0).await }
        });
        let freed = join(freed).await;
        self.spent.end_all();
        for freed in freed {
            match freed {
                // A sweep has freed the claim, and the extent has gone back.
                Err(error) if error.is_gone() => {}
                done => drop(done?),
            }
        }
        Ok(())
    }

    /// Ends the permissions of the stocks for good, and those that have served: the table's memory goes.
    pub fn end_stocks(&self) {
        self.free.borrow_mut().end_refills();
        let stocks = self.free.borrow_mut().take_stocks();
        stocks.into_iter().for_each(|claimed| self.spent.end(claimed.permission));
        self.spent.end_all();
    }

    /// Frees a block whose slot this client has just changed. Does not wait for the result.
    pub async fn free(&self, block_id: BlockId, claim: Claim) -> Result<(), TableError> {
        let class = self.end_claim(block_id, claim).await?;
        self.free.borrow_mut().note_free(class, block_id, claim.freed());
        Ok(())
    }

    /// Frees a block that no client uses, and waits for that: after a sweep it must be free. Returns false if another
    /// client was quicker.
    pub async fn free_orphan(&self, block_id: BlockId, claim: Claim) -> Result<bool, TableError> {
        let swap = async {
            let class = self.find(block_id.extent).await?.1.class;
            let at = u64::from(block_id.block) * 8;
            let before = self.claims_of(block_id.extent).swap(at, claim.0, claim.freed().0).await?;
            if before == claim.0 {
                self.free.borrow_mut().note_free(class, block_id, claim.freed());
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
        self.free.borrow_mut().class(class).resting.push_back((until, block_id, claim.freed()));
        Ok(())
    }

    /// Ends the claim of a block. Returns the block's class. Does not wait for the result.
    async fn end_claim(&self, block_id: BlockId, claim: Claim) -> Result<SizeClass, TableError> {
        let permission = self.claims_of(block_id.extent).permission().await?;
        let class = self.find(block_id.extent).await?.1.class;
        let at = u64::from(block_id.block) * 8;
        drop(self.pipeline.compare_and_swap(&permission, at, claim.0, claim.freed().0));
        Ok(class)
    }
}
