//! The stock of a class: blocks that are claimed and not used yet, each with a live permission to write it. An
//! operation that takes its block from the stock sends no message.
//!
//! The stock has as many blocks as the operations of the handle use in half a lease, within limits: a claim must not be
//! used after most of a lease, and a block in the stock is of use to no other client.

use super::super::claimed::Claimed;
use crate::pipeline::Task;
use portcullis::{Lifetime, Moment};
use std::collections::VecDeque;

/// Number of blocks that are claimed at once if no more are wanted (Patronus §7.3.1), and of those in a small stock.
pub(super) const CLAIMED_AT_ONCE: usize = 4;
/// Largest number of blocks that are claimed at once and that a stock has, unless a handle has another one: the
/// requests for their permissions share a few messages.
pub(super) const CLAIMED_AT_ONCE_MAX: usize = 64;

/// A block from the stock.
#[derive(Debug)]
pub(super) enum Taken {
    Claimed(Claimed),
    /// A block that was claimed too long ago. The caller gives it back.
    TooOld(Claimed),
}

/// The stock of a class, and the operations that wait for a block of it.
#[derive(Debug)]
pub(super) struct Stock {
    /// The earliest claimed in front.
    ready: VecDeque<Claimed>,
    /// Number of blocks that the stock is to have.
    target: usize,
    /// Time at which the stock was last refilled.
    refilled: Moment,
    /// Time from which the stock is refilled again, after a refill has failed.
    refill_from: Moment,
    /// Whether an operation or a refill is claiming.
    claiming: bool,
    /// Number of operations that want a block and found none.
    wanting: usize,
    /// The tasks that wait for the end of the claiming.
    waiting: Vec<Task>,
}

impl Default for Stock {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            target: CLAIMED_AT_ONCE,
            refilled: Moment(0),
            refill_from: Moment(0),
            claiming: false,
            wanting: 0,
            waiting: Vec::new(),
        }
    }
}

impl Stock {
    /// Takes the block that was claimed first. `None`: the stock is empty.
    pub fn take(&mut self, now: Moment) -> Option<Taken> {
        let claimed = self.ready.pop_front()?;
        if now < claimed.until {
            return Some(Taken::Claimed(claimed));
        }
        self.target = (self.target / 2).max(CLAIMED_AT_ONCE);
        Some(Taken::TooOld(claimed))
    }

    /// Takes the block that was claimed first, if it can be used. `None`: the stock is empty, or the block is too old.
    pub fn take_usable(&mut self, now: Moment) -> Option<Claimed> {
        self.ready.pop_front_if(|claimed| now < claimed.until)
    }

    /// Begins to claim. Returns false if an operation or a refill is claiming already.
    pub fn begin_claiming(&mut self) -> bool {
        !std::mem::replace(&mut self.claiming, true)
    }

    pub fn is_claiming(&self) -> bool {
        self.claiming
    }

    /// Notes that the claiming has ended. Returns the tasks that waited for that.
    pub fn end_claiming(&mut self) -> Vec<Task> {
        self.claiming = false;
        std::mem::take(&mut self.waiting)
    }

    /// Makes a task wait for the end of the claiming.
    pub fn wait(&mut self, task: Task) {
        if !self.waiting.contains(&task) {
            self.waiting.push(task);
        }
    }

    /// Notes that an operation wants a block and found none.
    pub fn begin_wanting(&mut self) {
        self.wanting += 1;
    }

    pub fn end_wanting(&mut self) {
        self.wanting -= 1;
    }

    /// Adds blocks that were claimed just now.
    pub fn add(&mut self, claimed: Vec<Claimed>) {
        self.ready.extend(claimed);
    }

    /// Returns the number of blocks that an operation claims at once now, for itself and for others: up to `most`,
    /// and for the stock up to `stocked`.
    pub fn claimed_at_once(&self, (most, stocked): (usize, usize)) -> usize {
        self.wanting.max(self.target.min(stocked)).min(most)
    }

    /// Whether the stock is to be refilled now: half of it is used up.
    pub fn wants_refill(&self, now: Moment) -> bool {
        !self.claiming && self.ready.len() * 2 <= self.target && now >= self.refill_from
    }

    /// Notes that the stock is refilled, and returns the number of blocks that it and operations want. If the refill
    /// before is less than a quarter of a lease ago, the stock becomes larger, up to `most` blocks.
    pub fn refill(&mut self, now: Moment, lease: Lifetime, most: usize) -> usize {
        if now.since(self.refilled).0 < lease.0 / 4 {
            self.target = (self.target * 2).min(most);
        }
        self.refilled = now;
        (self.target + self.wanting).saturating_sub(self.ready.len()).min(most)
    }

    /// Notes that a refill has brought no block. The stock is not refilled until `from`.
    pub fn note_failed(&mut self, from: Moment) {
        self.refill_from = from;
    }

    /// Notes that there was no room for the permissions of a refill. The stock is small then, and is not refilled until
    /// `from`.
    pub fn note_no_room(&mut self, from: Moment) {
        self.target = CLAIMED_AT_ONCE;
        self.refill_from = from;
    }

    /// Takes all blocks.
    pub fn take_all(&mut self) -> impl Iterator<Item = Claimed> + '_ {
        self.ready.drain(..)
    }

    /// Takes the blocks of an extent, and those that were claimed too long ago to be used.
    pub fn take_idle(&mut self, extent: Option<u32>, now: Moment) -> Vec<Claimed> {
        let idle = |claimed: &Claimed| claimed.until <= now || Some(claimed.block_id.extent) == extent;
        let (taken, left) = self.ready.drain(..).partition(idle);
        self.ready = left;
        Vec::from(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lifetime = Lifetime(1_000);

    #[test]
    fn a_stock_grows_while_it_is_used_up_quickly() {
        let mut stock = Stock::default();
        let refills = [(2_000, 4), (2_249, 8), (2_400, 16), (2_649, 32), (2_700, 32), (2_950, 32)];
        for (at, wanted) in refills {
            assert!(stock.wants_refill(Moment(at)));
            assert_eq!(stock.refill(Moment(at), LEASE, 32), wanted, "at {at}");
        }
    }

    #[test]
    fn a_stock_is_refilled_by_one_at_a_time_and_not_without_room() {
        let mut stock = Stock::default();
        assert!(stock.begin_claiming() && !stock.begin_claiming());
        assert!(!stock.wants_refill(Moment(1)));
        stock.wait(7);
        stock.wait(7);
        assert_eq!(stock.end_claiming(), [7]);
        stock.note_no_room(Moment(100));
        assert!(!stock.wants_refill(Moment(99)) && stock.wants_refill(Moment(100)));
    }

    #[test]
    fn as_many_blocks_are_claimed_at_once_as_operations_want() {
        let mut stock = Stock::default();
        (0..9).for_each(|_| stock.begin_wanting());
        assert_eq!((stock.claimed_at_once((32, 32)), stock.claimed_at_once((6, 6))), (9, 6));
        (0..8).for_each(|_| stock.end_wanting());
        assert_eq!(stock.claimed_at_once((32, 4)), CLAIMED_AT_ONCE);
    }
}
