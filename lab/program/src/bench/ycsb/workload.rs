//! The operations of YCSB's clients, and the keys that they use.

use clap::ValueEnum;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;

/// Skew of the choice of keys, as in YCSB and in Patronus §7.3.1.
const SKEW: f64 = 0.99;
/// Number of ranks from which YCSB draws scrambled keys, whatever the number of keys.
const RANKS: f64 = 1e10;
/// Operations that are drawn for each client before the measurement. After them the client begins again with the first:
/// a draw takes about as long as a read.
const DRAWN: u64 = 1 << 20;

/// A mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of what was inserted last, 5 % inserts.
    D,
    /// Half reads, half reads with an update of the same key right after.
    F,
    /// Reads only, as in Patronus, Figure 9 (a).
    Read,
    /// Half reads, half updates, as in Patronus, Figure 9 (b).
    Half,
    /// Updates only, as in Patronus, Figure 9 (c).
    Write,
}

/// The effect of an operation on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Update,
    /// Inserts a key that is not in the table.
    Insert,
    ReadModifyWrite,
}

impl Workload {
    /// The name on the command line.
    pub fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The percentage of reads, and the kind of the other operations.
    fn mix(self) -> (u32, Kind) {
        match self {
            Self::A | Self::Half => (50, Kind::Update),
            Self::B => (95, Kind::Update),
            Self::C | Self::Read => (100, Kind::Read),
            Self::D => (95, Kind::Insert),
            Self::F => (50, Kind::ReadModifyWrite),
            Self::Write => (0, Kind::Update),
        }
    }

    fn reads_the_latest(self) -> bool {
        self == Self::D
    }
}

/// The key of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One of the keys that were loaded.
    Loaded(u32),
    /// The key that was inserted this many keys before the latest.
    BeforeLatest(u32),
}

/// An operation, as it was drawn.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    pub kind: Kind,
    pub choice: Choice,
}

/// Draws a client's operations. The same seed draws the same operations, so that all mechanisms do the same work.
pub fn draw(workload: Workload, keys: u32, operations: u64, seed: u64) -> Vec<Drawn> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let latest = workload.reads_the_latest();
    let ranks = if latest { f64::from(keys) } else { RANKS };
    let zipf = Zipf::new(ranks, SKEW).expect("there is a rank, and the skew is positive");
    let (reads, other) = workload.mix();
    let mut draw = || {
        let kind = if random.random_range(0..100) < reads { Kind::Read } else { other };
        let rank = rank(zipf.sample(&mut random));
        let choice = if latest {
            Choice::BeforeLatest(u32::try_from(rank).unwrap_or(u32::MAX))
        } else {
            Choice::Loaded(scrambled(rank, keys))
        };
        Drawn { kind, choice }
    };
    (0..operations.min(DRAWN)).map(|_| draw()).collect()
}

/// Converts a rank that counts from one into one that counts from zero.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ranks are whole numbers from 1 to RANKS"
)]
fn rank(drawn: f64) -> u64 {
    (drawn as u64).saturating_sub(1)
}

/// The key of a rank: YCSB's FNV-1a hash of the rank, so that frequently used keys do not lie together.
fn scrambled(rank: u64, keys: u32) -> u32 {
    let hash = rank.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u32::try_from(hash % u64::from(keys)).expect("it is less than the number of keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 1000;

    fn drawn(workload: Workload) -> Vec<Drawn> {
        draw(workload, KEYS, 20_000, 7)
    }

    #[test]
    fn the_mix_is_what_the_workload_says() {
        for workload in Workload::value_variants() {
            let drawn = drawn(*workload);
            let reads = drawn.iter().filter(|one| one.kind == Kind::Read).count() * 100 / drawn.len();
            let expected = workload.mix().0 as usize;
            assert!(reads.abs_diff(expected) <= 2, "{workload:?}: {reads} % reads");
        }
    }

    #[test]
    fn some_keys_are_used_much_more_than_others_and_all_are_keys() {
        let mut counts = vec![0u32; KEYS as usize];
        for one in drawn(Workload::C) {
            let Choice::Loaded(key) = one.choice else { panic!("{one:?}") };
            counts[key as usize] += 1;
        }
        counts.sort_unstable();
        let all: u32 = counts.iter().sum();
        let ten: u32 = counts.iter().rev().take(10).sum();
        assert!(ten * 10 > all, "ten of a thousand keys had {ten} of {all} operations");
    }

    #[test]
    fn the_latest_is_read_most() {
        let latest = drawn(Workload::D).iter().filter(|one| one.choice == Choice::BeforeLatest(0)).count();
        assert!(latest > 1000, "{latest} of 20,000");
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let keys = |seed| draw(Workload::A, KEYS, 100, seed).iter().map(|one| one.choice).collect::<Vec<_>>();
        assert_eq!(keys(1), keys(1));
        assert_ne!(keys(1), keys(2));
    }
}
