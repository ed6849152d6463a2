//! Peers that write arbitrary data into rings and heaps.

use crate::dice::Dice;
use portcullis_memory::Memory;
use portcullis_rpc::channel::ends::{ReplyLine, RequestLine, Writer};
use portcullis_rpc::{Heap, ScopeRef};

/// Returns a number that a reader might take for an address or a length.
fn number(heap: &Heap, dice: &mut Dice) -> u64 {
    let place = heap.place();
    match dice.of(0..6) {
        0 => dice.any(),
        1 => 0,
        2 => place.start() + dice.of(0..place.length),
        3 => dice.of(0..30_000),
        4 => place.start() + (dice.of(0..place.length) & !4095),
        _ => place.end() - dice.of(0..64),
    }
}

/// Writes an arbitrary word anywhere in a heap, its allocator included.
fn scribble(heap: &Heap, dice: &mut Dice) {
    let at = dice.of(0..heap.place().length - 8) & !7;
    let with = number(heap, dice);
    heap.memory().store(at, with);
}

/// Breaks the rules as a server: answers a call with arbitrary data or not at all, and answers calls that no client
/// has made.
pub(super) fn lie(heap: &Heap, writer: &mut Writer, call: Option<u64>, dice: &mut Dice) {
    if dice.per_mille(200) {
        scribble(heap, dice);
    }
    let is_stray = dice.per_mille(100);
    let Some(call) = call.or(is_stray.then(|| dice.any())).filter(|_| !dice.per_mille(100)) else { return };
    let call = if dice.per_mille(100) { call ^ number(heap, dice) } else { call };
    let status = u32::try_from(dice.of(0..18)).unwrap_or(0);
    let [root, address, length, word] = std::array::from_fn(|_| number(heap, dice));
    let reply = ReplyLine { status, call, root, scope: ScopeRef { address, length }, word };
    writer.write(status, reply.words());
}

/// Breaks the rules as a client: sends a request with arbitrary contents.
pub(super) fn request(heap: &Heap, writer: &mut Writer, dice: &mut Dice) {
    if dice.per_mille(300) {
        scribble(heap, dice);
    }
    let method = u32::try_from(dice.of(0..9)).unwrap_or(0);
    let [call, root, address, length, word] = std::array::from_fn(|_| number(heap, dice));
    let deadline = if dice.per_mille(500) { 0 } else { number(heap, dice) };
    let request = RequestLine { method, call, root, scope: ScopeRef { address, length }, deadline, word };
    writer.write(method, request.words());
}
