//! Tests of which outputs depend on which inputs.

use super::super::{Effort, Progress};
use super::{Inputs, OneSidedInputs, onesidedmw};
use crate::report::OutputRow;

fn outputs(inputs: &Inputs) -> Vec<OutputRow> {
    let mut progress = Progress { tell: &mut |_, _, _| {}, done: 0, of: 10 };
    onesidedmw(inputs, Effort::brief(), &mut progress)
}

fn with(change: impl FnOnce(&mut OneSidedInputs)) -> Inputs {
    let mut inputs = Inputs::default();
    change(&mut inputs.one_sided);
    inputs
}

/// Checks that an input changes exactly those outputs for which `rests` is true. Each output has a figure and a name.
fn moves(changed: &Inputs, rests: impl Fn(&str, &str) -> bool) {
    let (before, after) = (outputs(&Inputs::default()), outputs(changed));
    assert_eq!(before.len(), after.len());
    let mut moved = 0;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.figure, &before.what), (after.figure, &after.what));
        let has_moved = before.model.to_bits() != after.model.to_bits();
        let (one, other) = (before.model, after.model);
        assert_eq!(
            has_moved,
            rests(before.figure, &before.what),
            "{}, {}: {one} and {other}",
            before.figure,
            before.what
        );
        moved += usize::from(has_moved);
    }
    assert!(moved > 0, "the input is for nothing");
}

const CHAINS: &str = "OneSidedMW: chains";
const MEMORY: &str = "OneSidedMW: memory";
const INSERTS: &str = "OneSidedMW: inserts";
const SWAP: &str = "OneSidedMW: swap";

/// Whether an output is about RPC-MW, static memory or an insert alone, or not about allocations at all.
fn is_without_chains(what: &str) -> bool {
    ["an insert into", "accesses of", "Static-MR", "CPU for", "a page of static memory"]
        .iter()
        .any(|beginning| what.starts_with(beginning))
}

#[test]
fn a_dearer_fetch_moves_all_times_of_chains_and_no_count() {
    moves(&with(|prices| prices.fetch_ns *= 2), |figure, what| match figure {
        CHAINS => !what.ends_with("requests") && !what.ends_with("of the NIC") && !what.starts_with("READ"),
        // Here the NIC's atomics are the bottleneck.
        INSERTS if what.starts_with("1 for an allocation, 6 pools") => false,
        INSERTS | SWAP => !is_without_chains(what),
        _ => false,
    });
}

#[test]
fn slower_reads_beside_chains_move_what_reads_beside_them() {
    moves(&with(|prices| prices.armed_per_mille *= 2), |figure, what| match figure {
        CHAINS => what.starts_with("READ"),
        // If the workers are the bottleneck, the time of a READ does not matter.
        INSERTS => {
            ["4 for an allocation, 6 pools", "16 for an allocation, 6 pools", "64 for an allocation"]
                .iter()
                .any(|beginning| what.starts_with(beginning))
                || what.contains("least cost of OneSidedMW")
        }
        SWAP => what != "a page of static memory" && what != "an access by on-demand paging",
        _ => false,
    });
}

#[test]
fn the_kernels_time_moves_pages_and_nothing_else() {
    moves(&with(|prices| prices.kernel_ns *= 2), |figure, what| {
        figure == SWAP && !what.starts_with("an access by") && !what.starts_with("if 25.8 %")
            || what == "if 25.8 % over on-demand paging held: computing for each page"
    });
}

#[test]
fn how_applications_give_pages_up_moves_no_time() {
    let keeps_all = ["grows to its end", "fills up at once"];
    moves(&with(|prices| prices.run_pages = 1), |figure, what| {
        figure == MEMORY
            && what.starts_with("swap utilization")
            && !keeps_all.iter().any(|name| what.ends_with(name))
    });
}

#[test]
fn deletions_move_the_memory_that_is_saved_and_no_time() {
    moves(&with(|prices| prices.deleted_percent = 50), |figure, what| {
        // One of a hundred objects in a chunk always remains.
        figure == MEMORY && what.starts_with("saved") && !what.ends_with("64 B")
    });
}

#[test]
fn a_dearer_message_moves_no_chain_and_no_memory() {
    let inputs = Inputs::default();
    let [before, after] = [inputs, Inputs { rpc_ns: 2 * inputs.rpc_ns, ..inputs }].map(|it| outputs(&it));
    for (before, after) in before.iter().zip(&after) {
        let has_moved = before.model.to_bits() != after.model.to_bits();
        match before.figure {
            CHAINS | MEMORY => assert!(!has_moved, "{before:?} {after:?}"),
            SWAP => assert_eq!(has_moved, before.what.contains("over RPC-MW"), "{before:?} {after:?}"),
            // The table itself sends a message now and then.
            _ if before.what.starts_with("CPU for") => assert!(after.model > 1.5 * before.model),
            _ => {}
        }
    }
}

#[test]
fn the_curve_reaches_the_published_gain_only_where_messages_take_much_longer_than_the_nodes_own() {
    let rows = outputs(&Inputs::default());
    let value = |what: &str| rows.iter().find(|row| row.what == what).map(|row| row.model).expect("a row");
    let counted = value("CPU for an allocation by message, counted");
    let needed =
        value("8 for an allocation, as many as fit: RPC-MW's CPU time that the slides' gain needs, 1 pool");
    assert!(needed > 5.0 * counted, "{needed} and {counted}");
    let gains = rows.iter().filter(|row| row.what.contains("over RPC-MW, 64 µs")).map(|row| row.model);
    assert!(gains.fold(0.0, f64::max) > 10.6);
}
