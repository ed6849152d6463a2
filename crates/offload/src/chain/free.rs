//! The chain that frees: it proves that the client holds a chunk, frees the chunk's windows, fills it with zeros, and
//! puts its record on the free list.
//!
//! | line | what it does | what it is patched by |
//! | --- | --- | --- |
//! | `AwaitRequest`, `AwaitReplySent` | as in the chain that allocates | `Bump` |
//! | `FindNone` | sets the record found to NIL, which stays unless the request is proved right | |
//! | `NameOwner` | makes two bytes of the request the address of an owner word. Any two bytes name a line | |
//! | `TakeOwner` | COMPARE_AND_SWAP: the client's own constant becomes «freed» (see below) | `NameOwner` |
//! | `Allow` | COMPARE_AND_SWAP on `Find`'s first word: the client's constant becomes a WRITE. Any other value stays a NOP | |
//! | `Find` | sets the record found to the one that the request names, or leaves NIL | `TakeOwner`, `Allow` |
//! | `NameRecord`, `ReadRecord` | copy the record: from here on it decides what is executed | `NameRecord` |
//! | `CopyImage`, `EnableBinds`, `AwaitBinds` | free the windows: no client can reach the chunk from here on | `Bump` |
//! | `NextKey`, `KeyBind`, `KeyInvalidation` | write the next key's low byte into all images | |
//! | `NameTail`, `WriteTail` | write the next key into the record, and leave its next and its owner | `NameTail` |
//! | `CopyZero`, `Zero` | fill the chunk with zeros, after the invalidation | `CopyZero` |
//! | `CopyPushNext`, `CopyPushTop`, `NameNext` | copy the images of `PushNext` and `PushTop` | |
//! | `TakeTicket`, `AwaitTurn`, `PushNext`, `PushTop` | make the record the first of the free list (see below) | see below |
//! | `EnableReply` to `Rearm` | as in the chain that allocates (see below) | `CopyCredit`, `ReadCredit`, `Bump` |
//!
//! - `TakeOwner` writes the old value of the owner word into `Find`, as its first word. The swap is one atomic step, so
//!   a second free of the chunk fails.
//! - `AwaitTurn`, `PushNext` and `PushTop` are patched by `TakeTicket`, `CopyPushNext`, `CopyPushTop` and `NameNext`.
//!   The completion of `PushTop` releases the lock.
//! - A freed chunk allows the client one more request for a chunk.

use super::alloc::{beginning, credit, end, images, lock, read, remote, small, write};
use super::{Line, Listing, Operand, Queue, RowOperation, Scratch, TOP_AT, Value};
use crate::record::{KEY_AT, KEY_WORD_AT, Layout, NEXT_AT, NEXT_KEY, STATUS_AT};
use portcullis_nic::entry;

/// The byte of `NameOwner`'s address at which a handle begins: a handle counts lines of 256 bytes.
const HANDLE_AT: u64 = entry::REMOTE_ADDRESS + 1;
const HANDLE_BYTES: u64 = 2;

/// The first word of a line's request: the operation, and the key of the local span.
const fn first_word(line: Line) -> Operand {
    Operand::Line(line.first(), entry::OPERATION)
}

/// The chain that frees chunks of a pool whose chunks have windows for `GROUP` queue pairs.
#[must_use]
pub const fn free<const GROUP: usize>() -> Listing {
    let chain = find::<GROUP>(beginning(Listing::EMPTY));
    let chain = images::<GROUP>(chain, &Layout::<GROUP>::INVALIDATE_AT, entry::INVALIDATE_BYTES);
    let chain = scrub::<GROUP>(renew::<GROUP>(chain));
    let chain =
        push::<GROUP>(chain).row(Line::EnableReply, RowOperation::Enable { queue: Queue::Reply, limit: 1 });
    let chain = credit::<GROUP>(chain, Layout::<GROUP>::FREE_CREDIT_AT)
        .row(Line::EnableReceive, RowOperation::EnableReceive { limit: 2 });
    end::<GROUP>(chain, true)
}

const fn record<const GROUP: usize>(at: u64) -> Operand {
    Operand::Scratch(Scratch::<GROUP>::RECORD + at)
}

const fn found<const GROUP: usize>() -> Operand {
    Operand::Scratch(Scratch::<GROUP>::FOUND)
}

/// Finds the record of the chunk that the client frees, or NIL.
const fn find<const GROUP: usize>(chain: Listing) -> Listing {
    let handle = Operand::Scratch(Scratch::<GROUP>::REQUEST);
    let named = Operand::Line(Line::TakeOwner.first(), HANDLE_AT);
    let take = RowOperation::Swap {
        at: Operand::Owners(0),
        compare: Value::Held,
        swap: Value::Freed,
        old: first_word(Line::Find),
    };
    let allow = RowOperation::Swap {
        at: first_word(Line::Find),
        compare: Value::Held,
        swap: Value::FirstWord(Line::Find.first()),
        old: Operand::Scratch(Scratch::<GROUP>::SINK),
    };
    chain
        .row(Line::FindNone, write(Operand::Scratch(Scratch::<GROUP>::NOTHING), 8, found::<GROUP>()))
        .row(Line::NameOwner, write(handle, HANDLE_BYTES, named))
        .row(Line::TakeOwner, take)
        .row(Line::Allow, allow)
        .row(Line::Find, write(remote(Line::TakeOwner), 8, found::<GROUP>()))
        .row(Line::NameRecord, write(found::<GROUP>(), 8, remote(Line::ReadRecord)))
        .row(Line::ReadRecord, read(Operand::Table(0), Layout::<GROUP>::BYTES, record::<GROUP>(0)))
}

/// Writes the next key into all images of the record.
const fn renew<const GROUP: usize>(chain: Listing) -> Listing {
    let sink = Operand::Scratch(Scratch::<GROUP>::SINK);
    let next = RowOperation::Add { to: record::<GROUP>(KEY_WORD_AT), add: NEXT_KEY, old: sink };
    let mut chain = chain.row(Line::NextKey, next);
    let key = record::<GROUP>(KEY_AT);
    let mut number = 0;
    while number < small(GROUP) {
        let (bind, invalidation) =
            (Layout::<GROUP>::BIND_AT[number as usize], Layout::<GROUP>::INVALIDATE_AT[number as usize]);
        let (bind, invalidation) =
            (record::<GROUP>(bind + entry::RKEY), record::<GROUP>(invalidation + entry::RKEY));
        chain = chain.numbered(Line::KeyBind, number, write(key, 1, bind));
        chain = chain.numbered(Line::KeyInvalidation, number, write(key, 1, invalidation));
        number += 1;
    }
    let tail = Layout::<GROUP>::BYTES - STATUS_AT;
    chain
        .row(Line::NameTail, write(found::<GROUP>(), 8, remote(Line::WriteTail)))
        .row(Line::WriteTail, write(record::<GROUP>(STATUS_AT), tail, Operand::Tails(0)))
}

const fn scrub<const GROUP: usize>(chain: Listing) -> Listing {
    let zero = record::<GROUP>(Layout::<GROUP>::ZERO_AT);
    chain
        .row(Line::CopyZero, write(zero, entry::TRANSFER_BYTES, first_word(Line::Zero)))
        .row(Line::Zero, RowOperation::Nop)
}

/// Makes the record the first of the free list.
const fn push<const GROUP: usize>(chain: Listing) -> Listing {
    let images = Layout::<GROUP>::PUSH_AT;
    let next = Operand::Line(Line::PushNext.first(), entry::LOCAL_ADDRESS);
    let chain = chain
        .row(Line::CopyPushNext, write(record::<GROUP>(images), 8, first_word(Line::PushNext)))
        .row(Line::CopyPushTop, write(record::<GROUP>(images + 8), 8, first_word(Line::PushTop)))
        .row(Line::NameNext, write(found::<GROUP>(), 8, next));
    lock::<GROUP>(chain)
        .row(Line::PushNext, read(Operand::Words(TOP_AT), 8, Operand::Table(NEXT_AT)))
        .releasing(Line::PushTop, write(found::<GROUP>(), 8, Operand::Words(TOP_AT)))
}
