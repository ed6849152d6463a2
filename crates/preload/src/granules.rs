//! The granules of the range that are in use. A granule is 64 KiB. The lowest free granules are taken first, so that
//! the range stays dense, and with it the node's memory.

/// Bytes of a granule.
pub(crate) const GRANULE: usize = 64 << 10;

/// Granules of a range, over memory that is zero at first.
#[derive(Debug)]
pub(crate) struct Granules {
    /// A bit for each granule that is taken.
    taken: &'static mut [u64],
    /// For the first granule of a large block: the bytes that the program requested.
    sizes: &'static mut [usize],
    /// All words before this one are full.
    from: usize,
}

impl Granules {
    /// The number of words that hold the bits of `count` granules.
    pub(crate) fn words(count: usize) -> usize {
        count.div_ceil(64)
    }

    /// Creates the granules of a range, all free. `taken` has a bit for each of `sizes`.
    pub(crate) fn new(taken: &'static mut [u64], sizes: &'static mut [usize]) -> Self {
        assert_eq!(taken.len(), Self::words(sizes.len()));
        Self { taken, sizes, from: 0 }
    }

    /// The number of granules in the range.
    pub(crate) fn count(&self) -> usize {
        self.sizes.len()
    }

    /// Whether any granule is taken.
    pub(crate) fn has_taken(&self) -> bool {
        self.taken.iter().any(|&word| word != 0)
    }

    fn is_taken(&self, at: usize) -> bool {
        self.taken[at / 64] >> (at % 64) & 1 == 1
    }

    fn mark(&mut self, at: usize, count: usize, is_taken: bool) {
        for at in at..at + count {
            let bit = 1 << (at % 64);
            if is_taken {
                self.taken[at / 64] |= bit;
            } else {
                self.taken[at / 64] &= !bit;
            }
        }
    }

    /// Takes neighbouring granules. Returns the first one.
    pub(crate) fn take(&mut self, count: usize) -> Option<usize> {
        while self.taken.get(self.from) == Some(&u64::MAX) {
            self.from += 1;
        }
        let mut first = self.from * 64;
        let mut at = first;
        while at - first < count {
            if at >= self.sizes.len() {
                return None;
            }
            if at.is_multiple_of(64) && self.taken[at / 64] == u64::MAX {
                at += 64;
                first = at;
                continue;
            }
            at += 1;
            if self.is_taken(at - 1) {
                first = at;
            }
        }
        self.mark(first, count, true);
        Some(first)
    }

    /// Takes the granules right behind others, if they are free. Returns whether they were.
    pub(crate) fn extend(&mut self, at: usize, more: usize) -> bool {
        let is_free = at + more <= self.sizes.len() && (at..at + more).all(|at| !self.is_taken(at));
        if is_free {
            self.mark(at, more, true);
        }
        is_free
    }

    /// Marks granules as free.
    pub(crate) fn give_back(&mut self, at: usize, count: usize) {
        self.mark(at, count, false);
        self.from = self.from.min(at / 64);
    }

    /// Sets the number of bytes that the program requested for a large block. 0: the block does not exist any more.
    pub(crate) fn set_size(&mut self, at: usize, size: usize) {
        self.sizes[at] = size;
    }

    /// Bytes of the large block that begins with this granule. `None`: no large block begins there.
    pub(crate) fn size(&self, at: usize) -> Option<usize> {
        self.sizes.get(at).copied().filter(|&size| size > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::Granules;

    fn granules(count: usize) -> Granules {
        Granules::new(vec![0; Granules::words(count)].leak(), vec![0; count].leak())
    }

    #[test]
    fn the_lowest_gap_that_fits_is_taken() {
        let mut granules = granules(200);
        assert_eq!(granules.take(70), Some(0));
        assert_eq!(granules.take(10), Some(70));
        assert_eq!(granules.take(100), Some(80));
        granules.give_back(70, 10);
        assert_eq!(granules.take(11), Some(180));
        assert_eq!(granules.take(10), Some(70));
        assert_eq!(granules.take(10), None);
        assert_eq!(granules.take(9), Some(191));
        assert_eq!(granules.take(1), None);
        granules.give_back(0, 70);
        assert_eq!(granules.take(64), Some(0));
    }

    #[test]
    fn a_block_grows_where_nothing_follows() {
        let mut granules = granules(20);
        assert_eq!(granules.take(4), Some(0));
        assert!(granules.extend(4, 4));
        assert_eq!(granules.take(2), Some(8));
        assert!(!granules.extend(8, 1));
        assert!(!granules.extend(10, 11));
        assert!(granules.extend(10, 10));
    }
}
