//! The pieces of a copy unit, and the quiescent point for which a withdrawal waits.

use crate::exploration::{Bound, explore};
use crate::memory::LoomMemory;
use crate::orderings::Orderings;
use loom::sync::atomic::AtomicU64;
use portcullis_nic::Memory;
use portcullis_softnic::core::Bytes;
use portcullis_softnic::core::copy_units::{Count, Piece, Pieces};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of pieces: one word each.
const PIECES: u64 = 2;
/// Offset of the words that the pieces write.
const TARGET: u64 = 64;
/// The value that the next owner of the memory writes after the confirmation.
const NEXT_OWNER: u64 = 99;

/// The model's count. `RELAXED`: raised without the ordering that the unit promises.
#[derive(Debug)]
struct LoomCount<const RELAXED: bool>(AtomicU64);

impl<const RELAXED: bool> Default for LoomCount<RELAXED> {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl<const RELAXED: bool> Count for LoomCount<RELAXED> {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn raise(&self, value: u64) {
        self.0.store(value, if RELAXED { Ordering::Relaxed } else { Ordering::Release });
    }
}

/// The NIC posts pieces, withdraws the permission, waits until all but `not_awaited` pieces are finished, and gives the
/// memory to the next owner. All bytes have arrived then, and none arrives later.
pub fn none_moves_after_the_confirmation<const RELAXED: bool>(bound: Bound, not_awaited: u64) -> u64 {
    explore(bound, move || {
        let memory = LoomMemory::new(128, Orderings::OF_MAPPING);
        let pieces = Arc::new(Pieces::<LoomMemory, LoomCount<RELAXED>>::default());
        let unit = {
            let pieces = Arc::clone(&pieces);
            loom::thread::spawn(move || {
                for _ in 0..PIECES {
                    while pieces.move_next().is_none() {
                        loom::thread::yield_now();
                    }
                }
            })
        };
        for number in 0..PIECES {
            memory.store_words(number * 8, [number + 1]);
            let (from, to) = ((memory.clone(), number * 8), (memory.clone(), TARGET + number * 8));
            assert!(pieces.post(|| Piece { from, to, length: 8 }), "there is room");
        }
        while pieces.finished() < PIECES - not_awaited {
            loom::thread::yield_now();
        }
        for number in 0..PIECES {
            let [arrived] = memory.load_words(TARGET + number * 8);
            assert_eq!(arrived, number + 1, "a piece has not arrived at the confirmation");
            memory.store_words(TARGET + number * 8, [NEXT_OWNER]);
        }
        unit.join().expect("the unit ends");
        for number in 0..PIECES {
            assert_eq!(memory.load(TARGET + number * 8), NEXT_OWNER, "a byte arrives after the confirmation");
        }
    })
}

#[test]
fn all_bytes_arrive_before_the_confirmation_and_none_after_it() {
    let runs = none_moves_after_the_confirmation::<false>(Bound::Every, 0);
    assert!(runs > 1, "{runs}");
}
