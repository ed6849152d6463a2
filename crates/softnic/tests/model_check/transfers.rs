//! Transfers that one thread of a NIC carries out one after the other, as the requests of a queue pair.
//!
//! The words of a copy have no order among each other, but two copies have. Programs rely on this, as they do with a NIC
//! of silicon: a client writes bytes, then the word that announces them; a reader of a table reads a block, then the word
//! that names it.

use crate::exploration::{Bound, Tally, explore};
use crate::memory::LoomMemory;
use crate::orderings::Orderings;
use loom::sync::atomic::{Ordering, fence};
use portcullis_nic::Memory;
use portcullis_softnic::core::Bytes;

/// The node's memory: a word of data, and the word that announces or names it.
const DATA: u64 = 0;
const FLAG: u64 = 8;
/// Arenas of clients, with as much.
const ARENA: u64 = 16;
const OTHER_ARENA: u64 = 32;
const BYTES: u64 = 48;

/// Runs `nic` beside `reads`, which returns the data and the flag that it sees. Data that is older than its flag says is
/// an error with the message `wrong`.
fn agree(
    (orderings, bound, wrong): (Orderings, Bound, &'static str),
    nic: fn(&LoomMemory),
    reads: fn(&LoomMemory) -> [u64; 2],
    is_right: fn([u64; 2]) -> bool,
) {
    let seen = Tally::default();
    let saw = seen.clone();
    let runs = explore(bound, move || {
        let memory = LoomMemory::new(BYTES, orderings);
        memory.store_words(ARENA, [1, 1]);
        let theirs = memory.clone();
        let nic = loom::thread::spawn(move || nic(&theirs));
        let read = reads(&memory);
        assert!(is_right(read), "{wrong}");
        if read == [1, 1] {
            saw.add();
        }
        nic.join().expect("the NIC ends");
    });
    println!("{runs} runs");
    assert!(seen.value() > 0, "no run has seen both");
}

/// An engine writes the data and then the flag, for one client.
fn write_both(memory: &LoomMemory) {
    memory.copy(ARENA, memory, DATA, 8);
    memory.copy(ARENA + 8, memory, FLAG, 8);
}

/// Checks that the owner of the memory sees the data of a WRITE if it sees a later WRITE. It acquires as the mailbox of
/// `portcullis-rpc` does.
pub fn writes_arrive_in_order(orderings: Orderings, bound: Bound) {
    let reads = |memory: &LoomMemory| {
        let [flag] = memory.load_words(FLAG);
        fence(Ordering::Acquire);
        let [data] = memory.load_words(DATA);
        [data, flag]
    };
    let wrong = "a WRITE arrives before an earlier one";
    agree((orderings, bound, wrong), write_both, reads, |[data, flag]| flag == 0 || data == 1);
}

/// Checks that a READ sees what the owner of the memory has stored before it published what an earlier READ saw.
pub fn reads_look_in_order(orderings: Orderings, bound: Bound) {
    let owner = |memory: &LoomMemory| {
        memory.store_words(DATA, [1]);
        memory.store(FLAG, 1);
    };
    let reads = |memory: &LoomMemory| {
        memory.copy(FLAG, memory, OTHER_ARENA + 8, 8);
        memory.copy(DATA, memory, OTHER_ARENA, 8);
        memory.load_words(OTHER_ARENA)
    };
    let wrong = "a READ sees less than an earlier one";
    agree((orderings, bound, wrong), owner, reads, |[data, flag]| flag == 0 || data == 1);
}

/// Checks that a block with new bytes is not found under its old name: the writer renames it first, by an atomic, and
/// the reader reads the name last.
pub fn new_bytes_have_their_new_name(orderings: Orderings, bound: Bound) {
    let writes = |memory: &LoomMemory| {
        assert_eq!(memory.compare_exchange(FLAG, 0, 1), 0);
        memory.copy(ARENA, memory, DATA, 8);
    };
    let reads = |memory: &LoomMemory| {
        memory.copy(DATA, memory, OTHER_ARENA, 8);
        memory.copy(FLAG, memory, OTHER_ARENA + 8, 8);
        memory.load_words(OTHER_ARENA)
    };
    let wrong = "new bytes have an old name";
    agree((orderings, bound, wrong), writes, reads, |[data, flag]| data == 0 || flag == 1);
}

#[test]
fn writes_of_one_thread_arrive_in_order() {
    writes_arrive_in_order(Orderings::OF_MAPPING, Bound::Every);
}

#[test]
fn reads_of_one_thread_look_in_order() {
    reads_look_in_order(Orderings::OF_MAPPING, Bound::Every);
}

#[test]
fn a_block_with_new_bytes_has_its_new_name() {
    new_bytes_have_their_new_name(Orderings::OF_MAPPING, Bound::Every);
}
