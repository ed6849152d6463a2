//! Which numbers are given, and which comes next.

use std::collections::VecDeque;

/// In which order freed numbers are given again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// The one freed last, before any that was never given: its place is still in the cache.
    LatestFirst,
    /// The one freed first, and while there are numbers that were never given, none before so many are free: a number
    /// comes back as late as possible, so that a stale one stays stale for long.
    OldestFirst {
        /// At least one.
        resting: u32,
    },
}

/// Numbers from zero on, each given to one holder at a time.
#[derive(Clone, Debug)]
pub struct Numbers {
    reuse: Reuse,
    limit: u32,
    /// The lowest that was never given.
    fresh: u32,
    free: VecDeque<u32>,
}

impl Numbers {
    /// Numbers below `limit`.
    #[must_use]
    pub fn new(reuse: Reuse, limit: u32) -> Self {
        Self { reuse, limit, fresh: 0, free: VecDeque::new() }
    }

    /// The number that [`take`](Self::take) would give. None: all are given.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        let (freed, resting) = match self.reuse {
            Reuse::LatestFirst => (self.free.back(), 1),
            Reuse::OldestFirst { resting } => (self.free.front(), resting as usize),
        };
        if self.free.len() < resting && self.fresh < self.limit { Some(self.fresh) } else { freed.copied() }
    }

    /// Gives a number. None: all are given.
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

    /// A number is free again. Its holder gives it back once: nobody else knows whether it was given.
    pub fn give_back(&mut self, number: u32) {
        debug_assert!(number < self.fresh, "number {number} was never given");
        self.free.push_back(number);
    }

    /// How many are given.
    #[must_use]
    pub fn given(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    /// All that were ever given are below this one.
    #[must_use]
    pub fn reach(&self) -> u32 {
        self.fresh
    }

    /// None was ever given.
    pub fn forget(&mut self) {
        self.fresh = 0;
        self.free.clear();
    }
}
