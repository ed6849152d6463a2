//! The pinned seeds: for each planted mistake one seed that finds it.

use crate::extent;
use portcullis_planted::{self as planted, Mistake};
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

/// Asserts that a seed of a bench finds a mistake, among the first `all` seeds, and that it is one of `checks` that finds the
/// mistake. `bench` is the name and the run of the bench.
pub fn is_found_on_bench<T>(
    mistake: Mistake,
    all: u64,
    checks: &[&str],
    bench: (&str, impl Fn(u64) -> Result<T, String>),
) {
    let (name, run) = bench;
    let found = seeds_for(mistake, all).find_map(|seed| {
        planted::plant(Some(mistake));
        let outcome = run(seed);
        planted::plant(None);
        outcome.err().map(|wrong| (seed, wrong))
    });
    let (seed, wrong) = found.unwrap_or_else(|| panic!("{mistake:?} survives"));
    eprintln!("{mistake:?}: {name}, by seed {seed}: {wrong}");
    assert!(
        checks.iter().any(|check| wrong.contains(check)),
        "{mistake:?} is found by another check: seed {seed}: {wrong}"
    );
}
