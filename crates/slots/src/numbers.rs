//! The numbers in use, and the choice of the next one.

use std::collections::VecDeque;

/// Order in which freed numbers are given again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// The number freed last is given first, before unused numbers: its place is still in the cache.
    LatestFirst,
    /// The number freed first is given first. While there are unused numbers, a freed number is given only if `resting`
    /// numbers are free. So a number is given again as late as possible, and a stale number stays stale for long.
    OldestFirst {
        /// Number of free numbers at which the first of them is given again: at least 1.
        resting: u32,
    },
}

/// Numbers from zero on, each given to one holder at a time.
#[derive(Clone, Debug)]
pub struct Numbers {
    reuse: Reuse,
    limit: u32,
    /// The lowest number that was never given.
    fresh: u32,
    free: VecDeque<u32>,
}

impl Numbers {
    /// Numbers below `limit`.
    #[must_use]
    pub fn new(reuse: Reuse, limit: u32) -> Self {
        Self { reuse, limit, fresh: 0, free: VecDeque::new() }
    }

    /// Returns the number that [`take`](Self::take) would give. `None`: all are given.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        let (freed, resting) = match self.reuse {
            Reuse::LatestFirst => (self.free.back(), 1),
            Reuse::OldestFirst { resting } => (self.free.front(), resting as usize),
        };
        if self.free.len() < resting && self.fresh < self.limit { Some(self.fresh) } else { freed.copied() }
    }

    /// Gives a number. `None`: all are given.
    pub fn take(&mut self) -> Option<u32> {
        let number = self.next()?;
        if number == self.fresh {
            self.fresh += 1;
        } else if self.reuse == Reuse::LatestFirst {
            self.free.pop_back();
        } else {
            self.free.pop_front();
        }
        Some(number)
    }

    /// Frees a number. The holder must free it only once: this type does not know which numbers are given.
    pub fn give_back(&mut self, number: u32) {
        debug_assert!(number < self.fresh, "number {number} was never given");
        self.free.push_back(number);
    }

    /// Number of numbers that are given.
    #[must_use]
    pub fn given(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    /// Upper bound, exclusive, of all numbers ever given.
    #[must_use]
    pub fn reach(&self) -> u32 {
        self.fresh
    }

    /// Starts again, as if no number had ever been given.
    pub fn forget(&mut self) {
        self.fresh = 0;
        self.free.clear();
    }
}
