//! A NIC with copy units under random clients: does a byte move after the confirmation that ended its access?
//!
//! The NIC is the real one, and so are its units' queues. A seed decides the sizes, the number of units, what clients do,
//! when a unit moves a piece, and when it stands still. The checkers compare memory with what its present owner wrote:
//!
//! - After a confirmed withdrawal a span belongs to its next owner: no byte of an earlier access arrives in it. A withdrawal
//!   by a chain is confirmed when the chain goes on.
//! - After its completion, refused or not, a client's buffer is the client's: no byte of the operation arrives in it.
//! - A read returns what the span held, and each operation ends.

mod bench;

use crate::Dice;
use bench::{Bench, CLIENTS};

/// The counts of a run, which show that it did its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Operations that were carried out.
    pub succeeded: u64,
    /// Operations that were refused or flushed.
    pub failed: u64,
    /// Confirmed withdrawals.
    pub withdrawals: u64,
    /// Withdrawals that had to wait for a piece.
    pub awaited: u64,
    /// Withdrawals by a chain that had to wait for a piece.
    pub chains_awaited: u64,
}

/// The weights of the steps of a run, in the order of `Step`.
const WEIGHTS: [u32; 5] = [6, 12, 12, 2, 1];
/// Number of steps of a run.
const STEPS: u64 = 3000;

/// Runs a NIC with copy units, as `seed` decides.
///
/// # Errors
/// A promise is broken: the text says which.
pub fn run_copy_units(seed: u64) -> Result<CopyCounts, String> {
    let mut dice = Dice::new(seed, 1);
    let mut bench = Bench::new(&mut dice);
    for _ in 0..STEPS {
        let client = dice.index(CLIENTS);
        match dice.weighted(&WEIGHTS) {
            0 => bench.begin(client, &mut dice),
            1 => bench.turn(),
            2 => bench.move_piece(&mut dice),
            3 => bench.withdraw(client, &mut dice),
            _ => bench.rest(&mut dice),
        }
        bench.check()?;
    }
    bench.finish(&mut dice)
}
