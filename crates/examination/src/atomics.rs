//! Atomics through a window over one word, as for extending leases, and the accesses to which they are atomic.

use super::attempt::works;
use super::probe::Said;
use super::setback::Setback;
use crate::bench::{Bench, HELD, HELD_OFFSET, Holder, LOCAL_OFFSET};
use portcullis_nic::{Access, AtomicScope, Memory, Nic, Operation, WindowKind};

/// Number of additions, one after another, so that each must see the result of the previous one.
const ADDITIONS: u64 = 16;

pub(super) fn count<N: Nic>(bench: &mut Bench<N>) -> Said {
    bench.require_atomics()?;
    let (holder, what) = if bench.capabilities.window_type_1 {
        (Holder::Window(WindowKind::One), "a window of type 1")
    } else if bench.capabilities.window_type_2 {
        (Holder::Window(WindowKind::Two), "a window of type 2")
    } else {
        (Holder::Region, "a region")
    };
    let pair = bench.pair()?;
    let held = bench.key_over(pair, holder, Access::REMOTE_ATOMIC, 8)?;
    let start = u64::MAX - ADDITIONS / 2;
    bench.pool_memory.store(HELD_OFFSET, start);
    for step in 0..ADDITIONS {
        let add = bench.fetch_and_add(HELD, 1, held.rkey);
        works(bench, pair, add, "a FETCH_AND_ADD")?;
        expect(bench, ("FETCH_AND_ADD", start.wrapping_add(step)), start.wrapping_add(step + 1))?;
    }
    let word = bench.held_word();
    let steps: [(Operation, u64, u64); 2] = [
        (bench.compare_and_swap(HELD, !word, 1, held.rkey), word, word),
        (bench.compare_and_swap(HELD, word, !word, held.rkey), word, !word),
    ];
    for (swap, before, after) in steps {
        works(bench, pair, swap, "a COMPARE_AND_SWAP")?;
        expect(bench, ("COMPARE_AND_SWAP", before), after)?;
    }
    let scope = match bench.capabilities.atomics {
        AtomicScope::Nic => "atomic to each other and not to the processor's, as the device reports",
        AtomicScope::System => "atomic to the processor's too, as the device reports",
        AtomicScope::None => "there are none, as the device reports",
    };
    Ok(format!("tried through {what} of 8 bytes; {scope}"))
}

/// Checks the value that was returned, and the value that is in memory now.
fn expect<N: Nic>(bench: &Bench<N>, (what, before): (&str, u64), after: u64) -> Result<(), Setback> {
    let (came, there) = (bench.local_memory.load(LOCAL_OFFSET), bench.held_word());
    if (came, there) == (before, after) {
        return Ok(());
    }
    Err(Setback::Broken(format!(
        "a {what} of {before:#x} gave {came:#x} and left {there:#x}, not {after:#x}"
    )))
}
