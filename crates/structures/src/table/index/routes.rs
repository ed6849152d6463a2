//! A client's copy of the directory: the subtables at which its searches begin.
//!
//! The copy may be out of date. Each bucket's header shows whether a key is there, and links lead on from a bucket that
//! does not have it.

use crate::table::words::mask;

/// A directory of the client's own.
#[derive(Debug)]
pub(super) struct Routes {
    depth: u32,
    /// The subtable of each suffix of `depth` bits, and the number of these bits that chose it.
    entries: Vec<(u32, u32)>,
}

impl Default for Routes {
    fn default() -> Self {
        Self { depth: 0, entries: vec![(0, 0)] }
    }
}

impl Routes {
    /// Returns the subtable at which a search begins.
    #[inline]
    pub fn of(&self, suffix: u32) -> u32 {
        self.entries[(suffix & mask(self.depth)) as usize].0
    }

    /// Learns that keys whose hashes end with these `depth` bits are in `subtable`, or in one that was split off it.
    pub fn learn(&mut self, suffix: u32, depth: u32, subtable: u32) {
        while self.depth < depth {
            self.entries.extend_from_within(..);
            self.depth += 1;
        }
        let first = (suffix & mask(depth)) as usize;
        for entry in self.entries.iter_mut().skip(first).step_by(1 << depth) {
            if entry.1 <= depth {
                *entry = (subtable, depth);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_deepest_of_what_was_learnt_counts(
            learnt in prop::collection::vec((any::<u32>(), 0u32..8), 0..40),
            asked: u32,
        ) {
            let mut routes = Routes::default();
            let mut best = (0, 0);
            for (number, &(suffix, depth)) in (1u32..).zip(&learnt) {
                routes.learn(suffix, depth, number);
                if (suffix ^ asked) & mask(depth) == 0 && depth >= best.1 {
                    best = (number, depth);
                }
            }
            prop_assert_eq!(routes.of(asked), best.0);
        }
    }
}
