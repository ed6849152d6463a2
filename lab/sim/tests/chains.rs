//! The chains that allocate and free chunks, in every state of small systems. The design in use holds, and the search
//! finds the fault of each design that was not built.

use crate::extent;
use portcullis_sim::{Case, Design, SearchLimits, search_chains};

/// Searches that `make test-all` completes. `portcullis-lab sim --explore chains` completes the others too.
const SEARCHED: usize = 6;
/// Searches with the node's part that `make test-all` completes.
const SEARCHED_WITH_NODE: usize = 7;

/// Returns how many searches to complete: all of them, or the first two as a sample.
fn searched(all: usize) -> usize {
    if extent::is_all() { all } else { 2 }
}

#[test]
fn nothing_that_clients_do_breaks_the_chains_that_are_built() {
    for (name, case) in &Case::SOUND[..searched(SEARCHED)] {
        let seen = search_chains(*case, SearchLimits::default(), |_| {});
        eprintln!("{name}: {seen}");
        assert!(seen.exhausted && seen.broken.is_none(), "{name}: {seen}");
        assert!(seen.quiet > 0, "{name}: somebody is always at work");
    }
}

#[test]
fn nothing_breaks_while_the_node_rebuilds_the_pool_and_changes_its_size() {
    for (name, case) in &Case::WITH_NODE[..searched(SEARCHED_WITH_NODE)] {
        let seen = search_chains(*case, SearchLimits::default(), |_| {});
        eprintln!("{name}: {seen}");
        assert!(seen.exhausted && seen.broken.is_none(), "{name}: {seen}");
        assert!(seen.quiet > 0, "{name}: somebody is always at work");
    }
}

#[test]
fn what_is_wrong_with_each_other_design_is_found() {
    // The search for this fault takes longer than all others together: 600,000 states.
    let is_sampled = |design: &Design| extent::is_all() || *design != Design::RingOneProducer;
    for design in Design::FAULTY.into_iter().filter(is_sampled) {
        let seen = search_chains(Case::breaking(design), SearchLimits::default(), |_| {});
        eprintln!("{design:?}: {seen}");
        assert!(seen.broken.is_some(), "{design:?}: {seen}");
    }
}

#[test]
fn a_search_that_gives_up_says_so() {
    let (_, case) = Case::SOUND[1];
    let seen = search_chains(case, SearchLimits { states_max: 100 }, |_| {});
    assert!(!seen.exhausted && seen.broken.is_none());
}
