//! A NIC with an engine, and with a copy unit or without, under random clients, whose turns tear: does a byte move after the confirmation that ended its
//! access?
//!
//! The NIC and its engine are the real ones. A seed decides what clients do, when each thread has a turn, and at which byte
//! of a copy the engine stands still while the NIC's thread goes on. The checkers compare memory with what its present owner
//! wrote:
//!
//! - After a confirmed withdrawal a span belongs to its next owner: no byte of an earlier access arrives in it.
//! - After its completion a client's buffer is the client's.
//! - A read returns what the span held, atomics add up, and each operation ends once.
//! - A queue pair without rights allows nothing, and the node learns of each refusal.

mod bench;
mod torn_memory;

use crate::Dice;
use bench::{Bench, CLIENTS};
use std::cell::RefCell;
use std::rc::Rc;

/// The counts of a run, which show that it did its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Operations that were carried out.
    pub succeeded: u64,
    /// Operations that were refused or flushed.
    pub failed: u64,
    /// Turns of the engine in which it served a client.
    pub on_engine: u64,
    /// Confirmed withdrawals.
    pub withdrawals: u64,
    /// Withdrawals that had to wait for the engine's turn.
    pub awaited: u64,
    /// Withdrawals that had to wait for it and for pieces.
    pub awaited_both: u64,
    /// Pieces that the copy unit has moved.
    pub pieces: u64,
}

/// The weights of the steps of a run.
const WEIGHTS: [u32; 7] = [16, 8, 24, 6, 1, 1, 8];
/// Thousandths of the steps after which the copy unit moves a piece.
const MOVES_PER_MILLE: u64 = 400;
/// Number of steps of a run.
const STEPS: u64 = 2000;

/// Runs a NIC with an engine, as `seed` decides. With an odd seed the NIC has a copy unit too.
///
/// # Errors
/// A promise is broken: the text says which.
pub fn run_engines(seed: u64) -> Result<EngineCounts, String> {
    let mut dice = Dice::new(seed, 1);
    let has_copy_unit = seed % 2 == 1;
    let bench = Rc::new(RefCell::new(Bench::new(has_copy_unit)));
    for _ in 0..STEPS {
        let client = dice.index(CLIENTS);
        let step = dice.weighted(&WEIGHTS);
        match step {
            1 => bench.borrow_mut().turn(),
            2 => Bench::turn_engine(&bench, &mut dice),
            0 => bench.borrow_mut().begin(client, &mut dice),
            3 => bench.borrow_mut().withdraw(client),
            4 => bench.borrow_mut().take_rights(client),
            5 => bench.borrow_mut().begin_other(client, &mut dice),
            _ => Bench::make_busy(&bench, client, &mut dice),
        }
        if has_copy_unit && dice.per_mille(MOVES_PER_MILLE) {
            bench.borrow().move_piece();
        }
        bench.borrow_mut().check()?;
    }
    Bench::finish(&bench, &mut dice)
}
