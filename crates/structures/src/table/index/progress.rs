//! The progress of the split of a subtable, as its first word contains it.

/// The progress of the split of a subtable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::table) enum Progress {
    /// No split is under way.
    Whole,
    /// The subtable is new, and the split of its parent has yet to fill it.
    Unfilled,
    /// Keys move to this subtable, which was made at this depth.
    Splitting { child: u32, depth: u32 },
}

impl Progress {
    pub fn word(self) -> u64 {
        match self {
            Self::Whole => 1,
            Self::Unfilled => 2,
            Self::Splitting { child, depth } => 3 | u64::from(depth) << 8 | u64::from(child) << 32,
        }
    }

    pub fn from_word(word: u64) -> Option<Self> {
        let (depth, child) = (u32::try_from(word >> 8 & 0xFF).ok()?, u32::try_from(word >> 32).ok()?);
        match word & 0xFF {
            1 => Some(Self::Whole),
            2 => Some(Self::Unfilled),
            3 => Some(Self::Splitting { child, depth }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn progress_reads_back(child: u32, depth in 0u32..=24) {
            for progress in [Progress::Whole, Progress::Unfilled, Progress::Splitting { child, depth }] {
                prop_assert_eq!(Progress::from_word(progress.word()), Some(progress));
            }
        }
    }

    #[test]
    fn a_word_that_nobody_has_written_says_nothing() {
        assert_eq!(Progress::from_word(0), None);
    }
}
