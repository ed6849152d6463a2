//! The results that the clients of a table get fit one order of all operations on a key, also if clients die or stand
//! still.

use crate::concurrency::{explore, explore_on};
use crate::rig::node_with_engines;
use portcullis_structures::table::Grain;

/// The seeds of a run: a few new ones each time, or the one that failed (`PORTCULLIS_SEED`).
fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("PORTCULLIS_SEED") {
        return vec![seed.parse().expect("PORTCULLIS_SEED is a number")];
    }
    let first = rand::random_range(0..1 << 40);
    (first..first + 3).collect()
}

#[test]
fn what_clients_are_told_fits_one_order_also_where_some_of_them_die() {
    for seed in seeds() {
        explore(seed, Grain::Extent);
    }
}

#[test]
fn the_same_where_each_block_has_a_permission_of_its_own() {
    for seed in seeds() {
        explore(seed, Grain::Block);
    }
}

#[test]
fn the_same_where_engines_serve_the_clients() {
    for seed in seeds() {
        let node = node_with_engines(2);
        explore_on(&node, seed, Grain::Extent);
        let engines = node.admin().counted().expect("the node is there").engines;
        assert!(
            engines.iter().any(|engine| engine.requests > 0),
            "seed {seed}: no engine has served a client"
        );
    }
}
