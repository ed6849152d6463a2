//! The free blocks of a table's extents, as far as a client knows them.

use super::super::claimed::Claimed;
use super::super::sizes::SizeClass;
use super::stock::{CLAIMED_AT_ONCE, CLAIMED_AT_ONCE_MAX, Stock};
use crate::table::words::{BlockId, Claim};
use portcullis::Moment;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Largest number of bytes of a stock, unless it has [`CLAIMED_AT_ONCE`] blocks only. Large blocks are few in an extent, and
/// an extent with a claimed block cannot go back.
const STOCK_BYTES_MAX: u64 = 64 << 10;
/// Largest number of free blocks of a class that a client remembers. A client that frees and never claims would
/// remember ever more.
const FREE_KNOWN_MAX: usize = 1 << 16;
/// Number of extents whose claims are read for free blocks before another extent is made.
const LOOKED_AT_MAX: usize = 8;

/// The blocks of one class, as far as a client knows them.
#[derive(Debug, Default)]
pub(super) struct Class {
    pub stock: Stock,
    /// Blocks that were free when this client last read or wrote their claims.
    pub free: VecDeque<(BlockId, Claim)>,
    /// Free blocks that readers still held when this client claimed them, and the times until which they may be held:
    /// the earliest first.
    pub resting: VecDeque<(Moment, BlockId, Claim)>,
    /// The class's extents, in the order in which their claims are looked at next.
    pub extents: VecDeque<u32>,
    /// Number of extents that were looked at since one had free blocks.
    pub looked_at: usize,
}

impl Class {
    /// Forgets which blocks of an extent were free.
    pub fn forget_free(&mut self, extent: u32) {
        self.free.retain(|(block_id, _)| block_id.extent != extent);
    }

    /// Forgets an extent that is gone.
    pub fn forget_extent(&mut self, extent: u32) {
        self.forget_free(extent);
        self.resting.retain(|(_, block_id, _)| block_id.extent != extent);
        self.extents.retain(|&other| other != extent);
    }

    /// Returns the extent whose claims are to be read next. `None`: enough were read.
    pub fn next_extent(&mut self) -> Option<u32> {
        let tired = self.looked_at >= self.extents.len().min(LOOKED_AT_MAX);
        let next = self.extents.front().copied().filter(|_| !tired)?;
        self.extents.rotate_left(1);
        self.looked_at += 1;
        Some(next)
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

/// The free blocks of a table, as far as a client knows them.
#[derive(Debug, Default)]
pub(super) struct FreeBlocks {
    classes: BTreeMap<SizeClass, Class>,
    /// Extents in which this client has freed blocks since it last searched them for unused ones.
    pub freed_in: BTreeSet<u32>,
    /// Largest number of blocks that are claimed at once. `None`: [`CLAIMED_AT_ONCE_MAX`].
    claimed_at_once_max: Option<usize>,
    /// Whether stocks are refilled no more.
    refills_ended: bool,
}

impl FreeBlocks {
    pub fn class(&mut self, class: SizeClass) -> &mut Class {
        self.classes.entry(class).or_default()
    }

    pub fn stock(&mut self, class: SizeClass) -> &mut Stock {
        &mut self.class(class).stock
    }

    /// Sets the largest number of blocks of a class that are claimed at once and that its stock has.
    pub fn claim_up_to(&mut self, blocks: usize) {
        self.claimed_at_once_max = Some(blocks.max(CLAIMED_AT_ONCE));
    }

    /// Returns the largest number of blocks of a class that are claimed at once.
    pub fn claimed_at_once_max(&self) -> usize {
        self.claimed_at_once_max.unwrap_or(CLAIMED_AT_ONCE_MAX)
    }

    /// Takes up to `count` blocks of a class that may be free. Returns none if no block is known to be free.
    pub fn take_some(&mut self, class: SizeClass, count: usize, now: Moment) -> Vec<(BlockId, Claim)> {
        let known = self.class(class);
        known.end_rests(now);
        known.free.drain(..count.min(known.free.len())).collect()
    }

    /// Takes the stocks.
    pub fn take_stocks(&mut self) -> Vec<Claimed> {
        self.classes.values_mut().flat_map(|class| class.stock.take_all()).collect()
    }

    /// Takes the blocks of an extent that are not used yet, and those of all extents that were claimed too long ago to
    /// be used.
    pub fn take_idle(&mut self, extent: Option<u32>, now: Moment) -> Vec<Claimed> {
        self.classes.values_mut().flat_map(|class| class.stock.take_idle(extent, now)).collect()
    }

    /// Returns a class of which blocks are being claimed, if there is one.
    pub fn claiming(&self) -> Option<SizeClass> {
        self.classes.iter().find(|(_, class)| class.stock.is_claiming()).map(|(class, _)| *class)
    }

    /// Returns the largest number of blocks that the stock of a class has.
    pub fn stocked_max(&self, class: SizeClass) -> usize {
        let by_bytes = usize::try_from(STOCK_BYTES_MAX / class.bytes()).unwrap_or(usize::MAX);
        self.claimed_at_once_max().min(by_bytes).max(CLAIMED_AT_ONCE)
    }

    /// Whether the stock of a class is to be refilled now.
    pub fn wants_refill(&mut self, class: SizeClass, now: Moment) -> bool {
        !self.refills_ended && self.stock(class).wants_refill(now)
    }

    /// Whether the stocks are refilled no more.
    pub fn has_ended_refills(&self) -> bool {
        self.refills_ended
    }

    /// Makes the stocks end: they are refilled no more.
    pub fn end_refills(&mut self) {
        self.refills_ended = true;
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
    pub fn first_rest_ends(&mut self, class: SizeClass) -> Option<Moment> {
        self.class(class).resting.front().map(|(until, ..)| *until)
    }
}
