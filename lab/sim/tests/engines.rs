//! A NIC with an engine, under checkers of its memory.

use crate::extent;
use portcullis_sim::run_engines;

#[test]
fn no_byte_moves_after_the_confirmation_that_ended_its_access() {
    let (mut withdrawals, mut awaited, mut on_engine, mut succeeded, mut failed) = (0, 0, 0, 0, 0);
    let (mut pieces, mut awaited_both) = (0, 0);
    let seeds = extent::seeds(2000);
    for seed in 0..seeds {
        let counts = run_engines(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        withdrawals += counts.withdrawals;
        awaited += counts.awaited;
        on_engine += counts.on_engine;
        succeeded += counts.succeeded;
        failed += counts.failed;
        pieces += counts.pieces;
        awaited_both += counts.awaited_both;
    }
    eprintln!("{withdrawals} withdrawals, {awaited} waited, {on_engine} turns, {succeeded} and {failed}");
    assert!(withdrawals > 20 * seeds && awaited > 2 * seeds, "{withdrawals} withdrawals, {awaited} waited");
    assert!(on_engine > 30 * seeds, "{on_engine} turns with work of the engine");
    eprintln!("{pieces} pieces, {awaited_both} waited for an engine and pieces");
    assert!(
        seeds < 10 || pieces > 10 * seeds && awaited_both > seeds / 20,
        "{pieces} pieces, {awaited_both} waited for both"
    );
    assert!(succeeded > 30 * seeds && failed > 2 * seeds, "{succeeded} carried out, {failed} failed");
}

#[test]
fn a_run_can_be_had_again() {
    for seed in [1, 2, 3] {
        assert_eq!(run_engines(seed), run_engines(seed), "seed {seed}");
    }
}
