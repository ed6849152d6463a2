//! Mistakes of copy units.

use super::pinned;
use portcullis_planted::Mistake;
use portcullis_sim::run_copy_units;

/// Seeds within which a mistake must be found.
const SEEDS: u64 = 50;

fn is_found(mistake: Mistake, checks: &[&str]) {
    pinned::is_found_on_bench(mistake, SEEDS, checks, ("Copies", run_copy_units));
}

const IN_MEMORY: &str = "a byte arrives in memory after the confirmed withdrawal";
/// The byte arrives while the next owner's own operation is under way.
const IN_OPERATION: &str = "an operation has moved other bytes";
const IN_BUFFER: &str = "a byte arrives in a buffer after the completion";
const OF_QUEUE_PAIR: &str = "a piece moves after the end of its queue pair";

#[test]
fn confirmed_while_pieces_move() {
    is_found(Mistake::ConfirmedWhilePiecesMove, &[IN_MEMORY, OF_QUEUE_PAIR]);
}

#[test]
fn sleeping_unit_not_awaited() {
    is_found(Mistake::SleepingUnitNotAwaited, &[IN_MEMORY, OF_QUEUE_PAIR]);
}

#[test]
fn last_piece_not_awaited() {
    is_found(Mistake::LastPieceNotAwaited, &[IN_MEMORY, IN_OPERATION, OF_QUEUE_PAIR]);
}

#[test]
fn refused_while_pieces_move() {
    is_found(Mistake::RefusedWhilePiecesMove, &[IN_BUFFER]);
}

#[test]
fn chain_goes_on_while_pieces_move() {
    is_found(Mistake::ChainGoesOnWhilePiecesMove, &[IN_MEMORY]);
}

#[test]
fn every_mistake_has_its_test() {
    let tried = [
        Mistake::ConfirmedWhilePiecesMove,
        Mistake::SleepingUnitNotAwaited,
        Mistake::LastPieceNotAwaited,
        Mistake::RefusedWhilePiecesMove,
        Mistake::ChainGoesOnWhilePiecesMove,
    ];
    assert_eq!(tried, Mistake::OF_COPY_UNITS);
}
