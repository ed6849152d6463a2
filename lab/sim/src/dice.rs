//! Randomness. All of it comes from one seed, with a stream for each user, so that users do not affect each other.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::ops::Range;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Dice {
    stream: Pcg64Mcg,
}

impl Dice {
    /// The stream with number `stream` of a seed.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        // Neighbouring seeds and streams must not lead to neighbouring states. The products spread them.
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03);
        Self { stream: Pcg64Mcg::seed_from_u64(mixed) }
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.stream.random()
    }

    /// A number of the range, uniformly distributed. The range must not be empty.
    pub fn of(&mut self, range: Range<u64>) -> u64 {
        self.stream.random_range(range)
    }

    /// An index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.stream.random_range(0..length)
    }

    /// A random element, if there is one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { Some(&from[self.index(from.len())]) }
    }

    /// True with a probability of `times` in a thousand.
    pub fn per_mille(&mut self, times: u64) -> bool {
        self.of(0..1000) < times
    }

    /// A number that is small most of the time and large now and then: its magnitude is drawn first.
    pub fn magnitude(&mut self, range: Range<u64>) -> u64 {
        let (low, high) = (range.start.max(1), range.end.max(2));
        let bits = u64::from(low.ilog2())..u64::from(high.ilog2()) + 1;
        let top = 1u64 << self.of(bits);
        self.of(top..top.saturating_mul(2)).clamp(range.start, range.end - 1)
    }

    /// An index, drawn by weight. At least one weight must not be zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        let mut left = self.of(0..total.max(1));
        for (index, &weight) in weights.iter().enumerate() {
            if left < u64::from(weight) {
                return index;
            }
            left -= u64::from(weight);
        }
        0
    }
}
