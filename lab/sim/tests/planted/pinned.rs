//! The pinned seeds: for each planted mistake one seed that finds it.

use crate::extent;
use portcullis_planted::Mistake;
use std::ops::Range;

/// Returns the seeds to run for a mistake. A run of everything searches the first `all` seeds; a sample runs the pinned
/// one only.
pub fn seeds_for(mistake: Mistake, all: u64) -> Range<u64> {
    if extent::is_all() {
        return 0..all;
    }
    let name = format!("{mistake:?}");
    let lines = include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#'));
    let pinned = lines.filter_map(|line| line.split_once(' ')).find(|&(of, _)| of == name);
    let (_, seed) = pinned.unwrap_or_else(|| panic!("seeds.txt has no seed for {name}: see its first lines"));
    let seed: u64 = seed.parse().expect("a seed is a number");
    seed..seed + 1
}
