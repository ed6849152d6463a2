//! The free pages of the pool, as runs. Pages are numbers here: their memory is never accessed.

use std::collections::{BTreeMap, BTreeSet};

/// The free pages of a pool. Taking is best fit, the lowest run first among equals, which keeps long runs long. Giving
/// back joins neighbouring runs at once.
pub(crate) struct PageRuns {
    /// Number of pages of each free run, by its first page.
    by_start: BTreeMap<u32, u32>,
    /// The free runs as (pages, first page).
    by_pages: BTreeSet<(u32, u32)>,
    free: u32,
}

impl PageRuns {
    /// Creates `pages` free pages, numbered from zero.
    pub(crate) fn new(pages: u32) -> Self {
        let mut runs = Self { by_start: BTreeMap::new(), by_pages: BTreeSet::new(), free: 0 };
        if pages > 0 {
            runs.give(0, pages);
        }
        runs
    }

    /// Takes `pages` pages in one piece and returns the first. `None`: no run is that long.
    pub(crate) fn take(&mut self, pages: u32) -> Option<u32> {
        let &(found, start) = self.by_pages.range((pages, 0)..).next()?;
        self.remove(start, found);
        if found > pages {
            self.insert(start + pages, found - pages);
        }
        self.free -= pages;
        Some(start)
    }

    /// Gives back `pages` pages from `start` on. All of them must have been taken, by any calls.
    pub(crate) fn give(&mut self, start: u32, pages: u32) {
        self.free += pages;
        let (mut first, mut joined) = (start, pages);
        if let Some((&before, &length)) = self.by_start.range(..start).next_back() {
            debug_assert!(before + length <= start, "pages given back twice");
            if before + length == start {
                self.remove(before, length);
                (first, joined) = (before, length + pages);
            }
        }
        if let Some(&length) = self.by_start.get(&(start + pages)) {
            self.remove(start + pages, length);
            joined += length;
        }
        self.insert(first, joined);
    }

    /// Returns the number of free pages, in any number of pieces.
    #[cfg(test)]
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    fn insert(&mut self, start: u32, pages: u32) {
        self.by_start.insert(start, pages);
        self.by_pages.insert((pages, start));
    }

    fn remove(&mut self, start: u32, pages: u32) {
        self.by_start.remove(&start);
        self.by_pages.remove(&(pages, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shortest_run_that_fits_is_taken() {
        let mut runs = PageRuns::new(20);
        let taken: Vec<_> = [4, 1, 2, 1].into_iter().map(|pages| runs.take(pages)).collect();
        assert_eq!(taken, [Some(0), Some(4), Some(5), Some(7)]);
        runs.give(0, 4);
        runs.give(5, 2);
        assert_eq!(runs.take(2), Some(5));
        assert_eq!(runs.take(3), Some(0));
        assert_eq!(runs.take(13), None);
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_all_come_back_as_one(
            pages in 1u32..200,
            steps in prop::collection::vec((any::<bool>(), 1u32..40, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut runs = PageRuns::new(pages);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (take, length, which) in steps {
                if take {
                    if let Some(start) = runs.take(length) {
                        prop_assert!(start + length <= pages);
                        prop_assert!(held.iter().all(|&(s, l)| start + length <= s || s + l <= start));
                        held.push((start, length));
                    }
                } else if !held.is_empty() {
                    let (start, length) = held.swap_remove(which.index(held.len()));
                    runs.give(start, length);
                }
                prop_assert_eq!(runs.free() + held.iter().map(|run| run.1).sum::<u32>(), pages);
            }
            for (start, length) in held {
                runs.give(start, length);
            }
            prop_assert_eq!(runs.take(pages), Some(0));
        }
    }
}
