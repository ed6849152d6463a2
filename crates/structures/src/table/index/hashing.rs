//! The hash of a key, and the choices that depend on it.

use twox_hash::XxHash3_128;

/// The parts of a key's hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::table) struct KeyHash {
    /// The bits whose low part selects the subtable.
    pub suffix: u32,
    /// The two combined buckets. They differ unless there is only one pair of them.
    pub choices: [u32; 2],
    pub fingerprint: u8,
}

impl KeyHash {
    /// Computes the hash of a key in a table with this seed, whose subtables have `choices` combined buckets.
    #[inline]
    pub fn new(key: &[u8], seed: u64, choices: u32) -> Self {
        let hash = XxHash3_128::oneshot_with_seed(seed, key);
        let [suffix, first, second, rest]: [u32; 4] = zerocopy::transmute!(hash.to_le_bytes());
        let first = first % choices;
        let second = (first + 1 + second % (choices - 1)) % choices;
        Self { suffix, choices: [first, second], fingerprint: rest.to_le_bytes()[0] }
    }
}
