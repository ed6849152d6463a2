//! A NIC with copy units, under checkers of its memory.

use crate::extent;
use portcullis_sim::run_copy_units;

#[test]
fn no_byte_moves_after_the_confirmation_that_ended_its_access() {
    let (mut withdrawals, mut awaited, mut chains, mut succeeded, mut failed) = (0, 0, 0, 0, 0);
    let seeds = extent::seeds(2000);
    for seed in 0..seeds {
        let counts = run_copy_units(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        withdrawals += counts.withdrawals;
        awaited += counts.awaited;
        chains += counts.chains_awaited;
        succeeded += counts.succeeded;
        failed += counts.failed;
    }
    assert!(withdrawals > 20 * seeds && awaited > 5 * seeds, "{withdrawals} withdrawals, {awaited} waited");
    assert!(chains > 2 * seeds, "{chains} chains waited");
    assert!(succeeded > 30 * seeds && failed > 5 * seeds, "{succeeded} carried out, {failed} failed");
}

#[test]
fn a_run_can_be_had_again() {
    for seed in [1, 2, 3] {
        assert_eq!(run_copy_units(seed), run_copy_units(seed), "seed {seed}");
    }
}
