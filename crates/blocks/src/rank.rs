//! The places of keys on several nodes: rendezvous hashing, weighted by memory.
//!
//! Each client ranks the nodes for a key by itself, from the nodes' names and weights alone. If a node joins or goes,
//! the other nodes keep their order. So a key's copy is at most one rank further down after a node has joined, and of
//! N nodes one that goes moves only the keys that were its own.
//!
//! The arithmetic is on integers: two machines that know the same nodes rank them alike.

use twox_hash::XxHash3_64;

/// A node among which keys are spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The hash of the name.
    seed: u64,
    /// The part of the keys that the node should have, in any unit that all nodes share, for example MiB of memory.
    weight: u32,
}

impl Candidate {
    /// Makes a candidate. A node of weight 0 gets no key unless all others have been ranked before it.
    #[must_use]
    pub fn new(name: &str, weight: u32) -> Self {
        Self { seed: XxHash3_64::oneshot(name.as_bytes()), weight }
    }
}

/// Bits behind the point of a logarithm.
const FRACTION_BITS: u32 = 24;

/// Returns −log₂ of `hash` / 2⁶⁴, in units of 2⁻²⁴: the time after which an event that happens with rate 1 has
/// happened.
fn waiting_time(hash: u64) -> u64 {
    let hash = hash.max(1);
    let zeros = hash.leading_zeros();
    // The hash is `mantissa` × 2^(−1 − zeros), and the mantissa is in [1, 2), with 63 bits behind the point.
    let mut mantissa = u128::from(hash << zeros);
    let mut fraction = 0_u64;
    for _ in 0..FRACTION_BITS {
        mantissa = (mantissa * mantissa) >> 63;
        fraction <<= 1;
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            fraction |= 1;
        }
    }
    ((u64::from(zeros) + 1) << FRACTION_BITS) - fraction
}

/// Ranks the candidates for a key. Returns the indexes of the first `most` of them, the best one first.
///
/// The candidate with weight w has rank 0 for w / Σw of all keys. Candidates of one name are ranked in their order.
#[must_use]
pub fn ranked(candidates: &[Candidate], key: &[u8], most: usize) -> Vec<usize> {
    // The event with the greatest rate happens first most often: the times are compared as fractions time / weight.
    let mut places: Vec<(u64, u32, usize)> = candidates
        .iter()
        .enumerate()
        .map(|(index, it)| (waiting_time(XxHash3_64::oneshot_with_seed(it.seed, key)), it.weight, index))
        .collect();
    places.sort_unstable_by(|one, other| {
        let (of_one, of_other) =
            (u128::from(one.0) * u128::from(other.1), u128::from(other.0) * u128::from(one.1));
        // A weight of 0 is an infinite time.
        (one.1 == 0).cmp(&(other.1 == 0)).then(of_one.cmp(&of_other)).then(one.2.cmp(&other.2))
    });
    places.truncate(most);
    places.into_iter().map(|(_, _, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(weights: &[u32]) -> Vec<Candidate> {
        (0..)
            .zip(weights)
            .map(|(number, weight)| Candidate::new(&format!("bank/{number}"), *weight))
            .collect()
    }

    #[test]
    fn a_waiting_time_is_a_logarithm() {
        for (hash, bits) in
            [(u64::MAX, 0.0), (1 << 63, 1.0), (1 << 62, 2.0), (3 << 62, 0.415_037_5), (1, 64.0)]
        {
            #[expect(clippy::cast_precision_loss, reason = "the number is below 2^53")]
            let time = waiting_time(hash) as f64 / f64::from(1 << FRACTION_BITS);
            assert!((time - bits).abs() < 1e-6, "{hash}: {time}");
        }
    }

    #[test]
    fn each_node_gets_its_part_of_the_keys() {
        let nodes = nodes(&[1, 2, 5, 0]);
        let mut counts = [0_u32; 4];
        for key in 0..80_000_u32 {
            counts[ranked(&nodes, &key.to_le_bytes(), 1)[0]] += 1;
        }
        for (count, expected) in counts.into_iter().zip([10_000, 20_000, 50_000, 0]) {
            assert!(count.abs_diff(expected) <= 500, "{counts:?}");
        }
    }

    #[test]
    fn ranks_are_those_of_every_other_machine() {
        let nodes = nodes(&[8, 8, 8, 8]);
        let ranks: Vec<_> = (0..4_u8).map(|key| ranked(&nodes, &[key], 4)).collect();
        // The ranks of the first version. Other ranks would make all blocks of other clients misses.
        assert_eq!(ranks, [[2, 3, 0, 1], [2, 3, 1, 0], [1, 2, 0, 3], [2, 0, 3, 1]]);
    }

    proptest! {
        #[test]
        fn a_node_that_joins_or_goes_leaves_the_order_of_the_others(
            weights in prop::collection::vec(0_u32..1_000, 1..12),
            key in any::<[u8; 16]>(),
        ) {
            let all = nodes(&weights);
            let ranks = ranked(&all, &key, usize::MAX);
            let (gone, rest) = all.split_last().expect("there is one");
            let of_rest: Vec<_> = ranks.iter().copied().filter(|index| *index < rest.len()).collect();
            prop_assert_eq!(ranked(rest, &key, usize::MAX), of_rest);
            let joined = [rest, std::slice::from_ref(gone)].concat();
            prop_assert_eq!(ranked(&joined, &key, usize::MAX), ranks.clone());
            for most in 0..=ranks.len() {
                prop_assert_eq!(&ranked(&all, &key, most), &ranks[..most]);
            }
        }
    }
}
