//! The keys that engines read while the NIC's thread changes them, and the turns for which a withdrawal waits.

use crate::exploration::{Bound, explore};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use portcullis_softnic::core::engines::presence::{Generation, Presence};
use portcullis_softnic::core::{KEY_WORDS, SharedWords, Word};
use std::sync::atomic::Ordering;

/// The value that the next owner of the memory writes after the confirmation.
const NEXT_OWNER: u64 = 99;
/// The words of an entry that allows the access, and of one that does not.
const OPEN: [u64; KEY_WORDS] = [1; KEY_WORDS];
const CLOSED: [u64; KEY_WORDS] = [2; KEY_WORDS];

/// The model's word. `FENCES`: the fences of an entry and of a turn, or those of entries only, or of turns only.
#[derive(Debug)]
pub struct LoomWord<const FENCES: u8>(AtomicU64);

pub const ALL: u8 = 3;
pub const OF_ENTRIES: u8 = 1;
pub const OF_TURNS: u8 = 2;

impl<const FENCES: u8> Word for LoomWord<FENCES> {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    fn load(&self, ordering: Ordering) -> u64 {
        self.0.load(ordering)
    }

    fn store(&self, value: u64, ordering: Ordering) {
        self.0.store(value, ordering);
    }

    fn fence(ordering: Ordering) {
        let kind = if ordering == Ordering::SeqCst { OF_TURNS } else { OF_ENTRIES };
        if FENCES & kind != 0 {
            fence(ordering);
        }
    }
}

/// The NIC's thread changes an entry while an engine reads it. The engine gets the words of one moment, or none.
pub fn an_entry_is_read_whole<const FENCES: u8>(bound: Bound) -> u64 {
    explore(bound, || {
        let entry = Arc::new(SharedWords::<LoomWord<FENCES>>::new(OPEN));
        let engine = {
            let entry = Arc::clone(&entry);
            loom::thread::spawn(move || entry.read())
        };
        entry.write(CLOSED);
        let read = engine.join().expect("the engine ends");
        assert!(
            read.is_none_or(|words| words == OPEN || words == CLOSED),
            "an entry is read in parts: {read:?}"
        );
        assert_eq!(entry.read(), Some(CLOSED));
    })
}

/// An engine takes turns in which it accesses memory if a key allows it. The NIC's thread ends the key, waits for the turn
/// (unless `is_awaited` is false), and gives the memory to the next owner. No access comes later.
pub fn no_access_follows_the_confirmation<const FENCES: u8>(bound: Bound, is_awaited: bool) -> u64 {
    explore(bound, move || {
        let entry = Arc::new(SharedWords::<LoomWord<FENCES>>::new(OPEN));
        let turns =
            Arc::new((Generation::<LoomWord<FENCES>>::default(), Presence::<LoomWord<FENCES>>::default()));
        let memory = Arc::new(AtomicU64::new(0));
        let engine = {
            let (entry, turns, memory) = (Arc::clone(&entry), Arc::clone(&turns), Arc::clone(&memory));
            loom::thread::spawn(move || {
                let (generation, presence) = &*turns;
                presence.enter(generation);
                if entry.read() == Some(OPEN) {
                    memory.store(1, Ordering::Relaxed);
                }
                presence.leave();
            })
        };
        entry.write(CLOSED);
        let ended = turns.0.begin_next();
        while is_awaited && !turns.1.has_left(ended) {
            loom::thread::yield_now();
        }
        memory.store(NEXT_OWNER, Ordering::Relaxed);
        engine.join().expect("the engine ends");
        let found = memory.load(Ordering::Relaxed);
        assert_eq!(found, NEXT_OWNER, "an access follows the confirmation");
    })
}

#[test]
fn engines_read_a_key_whole_or_not_at_all() {
    assert!(an_entry_is_read_whole::<ALL>(Bound::Every) > 1);
}

#[test]
fn no_access_of_an_engine_follows_the_confirmation() {
    assert!(no_access_follows_the_confirmation::<ALL>(Bound::Interruptions(3), true) > 1);
}
