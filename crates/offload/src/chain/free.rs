//! The chain that frees: it proves that a chunk is the client's, frees its windows, fills it with zeros, and puts its
//! record on the free list.
//!
//! | line | what it does | what it is patched by |
//! | --- | --- | --- |
//! | `AwaitRequest`, `AwaitReplySent` | as in the chain that allocates | `Bump` |
//! | `FindNone` | the record found is NIL, unless it is proved otherwise | |
//! | `NameOwner` | two bytes of the request become the address of an owner word. Any two bytes name a line | |
//! | `TakeOwner` | COMPARE_AND_SWAP: the client's own constant becomes «freed». What was there goes to `Find`, as its first word. One atomic step, so a second free fails | `NameOwner` |
//! | `Allow` | COMPARE_AND_SWAP on that word: the client's constant becomes a WRITE. Anything else stays a NOP | |
//! | `Find` | the record found is the one that the request names, or still NIL | `TakeOwner`, `Allow` |
//! | `NameRecord`, `ReadRecord` | from here on the record decides | `NameRecord` |
//! | `CopyImage`, `EnableBinds`, `AwaitBinds` | the windows are free: nobody can reach the chunk from here on | `Bump` |
//! | `NextKey`, `KeyBind`, `KeyInvalidation` | the next key's low byte, in all images | |
//! | `NameTail`, `WriteTail` | the record has the next key. Next and owner are not touched | `NameTail` |
//! | `CopyZero`, `Zero` | the chunk is zero, after the invalidation | `CopyZero` |
//! | `CopyPushNext`, `CopyPushTop`, `NameNext` | the images of `PushNext` and `PushTop` | |
//! | `TakeTicket`, `AwaitTurn`, `PushNext`, `PushTop` | the record is the first of the free list. The last one's completion releases the lock | `TakeTicket`, `CopyPushNext`, `CopyPushTop`, `NameNext` |
//! | `EnableReply` to `Rearm` | as in the chain that allocates. A chunk that was freed is one request more | `CopyCredit`, `ReadCredit`, `Bump` |

use super::alloc::{beginning, credit, end, images, lock, read, remote, small, write};
use super::{Line, Listing, Place, Queue, Scratch, Step, TOP_AT, Value};
use crate::record::{KEY_AT, KEY_WORD_AT, Layout, NEXT_AT, NEXT_KEY, STATUS_AT};
use portcullis_nic::entry;

/// The byte of `NameOwner`'s address that a handle begins at: it counts lines of 256 bytes.
const HANDLE_AT: u64 = entry::REMOTE_ADDRESS + 1;
const HANDLE_BYTES: u64 = 2;

/// A request's first word: what it does, and the key of its local span.
const fn first_word(line: Line) -> Place {
    Place::Line(line.first(), entry::OPERATION)
}

/// The chain that frees chunks of a pool whose chunks have windows for `GROUP` queue pairs.
#[must_use]
pub const fn free<const GROUP: usize>() -> Listing {
    let chain = find::<GROUP>(beginning(Listing::EMPTY));
    let chain = images::<GROUP>(chain, &Layout::<GROUP>::INVALIDATE_AT, entry::INVALIDATE_BYTES);
    let chain = scrub::<GROUP>(renew::<GROUP>(chain));
    let chain = push::<GROUP>(chain).row(Line::EnableReply, Step::Enable { queue: Queue::Reply, limit: 1 });
    let chain = credit::<GROUP>(chain, Layout::<GROUP>::FREE_CREDIT_AT)
        .row(Line::EnableReceive, Step::EnableReceive { limit: 2 });
    end::<GROUP>(chain, true)
}

const fn record<const GROUP: usize>(at: u64) -> Place {
    Place::Scratch(Scratch::<GROUP>::RECORD + at)
}

const fn found<const GROUP: usize>() -> Place {
    Place::Scratch(Scratch::<GROUP>::FOUND)
}

/// The record that the client has freed, or NIL.
const fn find<const GROUP: usize>(chain: Listing) -> Listing {
    let handle = Place::Scratch(Scratch::<GROUP>::REQUEST);
    let named = Place::Line(Line::TakeOwner.first(), HANDLE_AT);
    let take = Step::Swap {
        at: Place::Owners(0),
        compare: Value::Held,
        swap: Value::Freed,
        old: first_word(Line::Find),
    };
    let allow = Step::Swap {
        at: first_word(Line::Find),
        compare: Value::Held,
        swap: Value::FirstWord(Line::Find.first()),
        old: Place::Scratch(Scratch::<GROUP>::SINK),
    };
    chain
        .row(Line::FindNone, write(Place::Scratch(Scratch::<GROUP>::NOTHING), 8, found::<GROUP>()))
        .row(Line::NameOwner, write(handle, HANDLE_BYTES, named))
        .row(Line::TakeOwner, take)
        .row(Line::Allow, allow)
        .row(Line::Find, write(remote(Line::TakeOwner), 8, found::<GROUP>()))
        .row(Line::NameRecord, write(found::<GROUP>(), 8, remote(Line::ReadRecord)))
        .row(Line::ReadRecord, read(Place::Table(0), Layout::<GROUP>::BYTES, record::<GROUP>(0)))
}

/// The next key, in all images of the record.
const fn renew<const GROUP: usize>(chain: Listing) -> Listing {
    let sink = Place::Scratch(Scratch::<GROUP>::SINK);
    let next = Step::Add { to: record::<GROUP>(KEY_WORD_AT), add: NEXT_KEY, old: sink };
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
        .row(Line::WriteTail, write(record::<GROUP>(STATUS_AT), tail, Place::Tails(0)))
}

const fn scrub<const GROUP: usize>(chain: Listing) -> Listing {
    let zero = record::<GROUP>(Layout::<GROUP>::ZERO_AT);
    chain
        .row(Line::CopyZero, write(zero, entry::TRANSFER_BYTES, first_word(Line::Zero)))
        .row(Line::Zero, Step::Nop)
}

/// The record becomes the first of the free list.
const fn push<const GROUP: usize>(chain: Listing) -> Listing {
    let images = Layout::<GROUP>::PUSH_AT;
    let next = Place::Line(Line::PushNext.first(), entry::LOCAL_ADDRESS);
    let chain = chain
        .row(Line::CopyPushNext, write(record::<GROUP>(images), 8, first_word(Line::PushNext)))
        .row(Line::CopyPushTop, write(record::<GROUP>(images + 8), 8, first_word(Line::PushTop)))
        .row(Line::NameNext, write(found::<GROUP>(), 8, next));
    lock::<GROUP>(chain)
        .row(Line::PushNext, read(Place::Words(TOP_AT), 8, Place::Table(NEXT_AT)))
        .releasing(Line::PushTop, write(found::<GROUP>(), 8, Place::Words(TOP_AT)))
}
