//! The chain that allocates: it takes the first record of the free list, and binds its windows for the client.
//!
//! | line | what it does | what it is patched by |
//! | --- | --- | --- |
//! | `AwaitRequest` | waits for a request | `Bump` |
//! | `AwaitReplySent` | waits until the reply of the lap before has left: the only other wait for the client | `Bump` |
//! | `TakeTicket`, `AwaitTurn` | the lock: chains get it in the order of their tickets | `TakeTicket` |
//! | `ReadTop` | copies the first free record's offset into `Pop` | |
//! | `Pop` | makes the record after it the first. The completion releases the lock. NIL stays | `ReadTop` |
//! | `NameRecord`, `NameOwned` | copy the offset into `ReadRecord` and `Own` | |
//! | `ReadRecord` | copies the record into scratch memory | `NameRecord` |
//! | `CopyImage` | copies each image into the bind queue | |
//! | `EnableBinds`, `AwaitBinds` | bind the windows to the client's queue pairs | `Bump` |
//! | `Own` | writes the owner into the record. Not earlier: a free could precede the binds | `NameOwned` |
//! | `EnableReply` | sends the reply | `Bump` |
//! | `CopyCredit` to `EnableRequest` | a client that got NIL may send one more request (see below) | `CopyCredit`, `ReadCredit` |
//! | `Bump` | raises the thresholds and limits for the next lap | |
//! | `Rearm` | admits the next lap | `Bump` |
//!
//! A client that got a chunk has one request fewer until it frees a chunk.

use super::{Count, Label, Queue};
use super::{Line, Listing, OTHER_WORDS_AT, Operand, RowOperation, Scratch, TICKET_AT, TOP_AT};
use crate::record::{Layout, NEXT_AT};
use portcullis_nic::entry;

const _: () = assert!(TOP_AT < OTHER_WORDS_AT && TICKET_AT < OTHER_WORDS_AT);

/// The remote address of a line's request.
pub(super) const fn remote(line: Line) -> Operand {
    Operand::Line(line.first(), entry::REMOTE_ADDRESS)
}

/// The value of a line's request: a threshold, a limit, or an addend.
pub(super) const fn value(line: Line) -> Operand {
    Operand::Line(line.first(), entry::VALUE)
}

pub(super) const fn read(from: Operand, bytes: u64, to: Operand) -> RowOperation {
    RowOperation::Read { from, bytes, to }
}

pub(super) const fn write(from: Operand, bytes: u64, to: Operand) -> RowOperation {
    RowOperation::Write { from, bytes, to }
}

/// The chain that allocates from a pool whose chunks have windows for `GROUP` queue pairs.
#[must_use]
pub const fn alloc<const GROUP: usize>() -> Listing {
    let record = Operand::Scratch(Scratch::<GROUP>::RECORD);
    let owned = Operand::Scratch(Scratch::<GROUP>::OWNED);
    let mut chain = beginning(Listing::EMPTY);
    chain = lock::<GROUP>(chain)
        .row(Line::ReadTop, read(Operand::Words(TOP_AT), 8, remote(Line::Pop)))
        .releasing(Line::Pop, read(Operand::Table(NEXT_AT), 8, Operand::Words(TOP_AT)))
        .row(Line::NameRecord, write(remote(Line::Pop), 8, remote(Line::ReadRecord)))
        .row(Line::NameOwned, write(remote(Line::Pop), 8, remote(Line::Own)))
        .row(Line::ReadRecord, read(Operand::Table(0), Layout::<GROUP>::BYTES, record));
    chain = images::<GROUP>(chain, &Layout::<GROUP>::BIND_AT, entry::BIND_BYTES);
    chain = chain
        .row(Line::Own, write(owned, 16, Operand::Table(NEXT_AT)))
        .row(Line::EnableReply, RowOperation::Enable { queue: Queue::Reply, limit: 1 });
    chain = credit::<GROUP>(chain, Layout::<GROUP>::ALLOC_CREDIT_AT);
    end::<GROUP>(chain, false)
}

/// Waits for a request, and for the scratch memory.
pub(super) const fn beginning(chain: Listing) -> Listing {
    chain
        .row(Line::AwaitRequest, RowOperation::Wait { count: Count::Requests, threshold: 1 })
        .row(Line::AwaitReplySent, RowOperation::Wait { count: Count::Replies, threshold: 0 })
}

/// Takes a ticket, and waits until every chain with an earlier ticket has released the lock.
pub(super) const fn lock<const GROUP: usize>(chain: Listing) -> Listing {
    let ticket = Operand::Words(TICKET_AT);
    chain
        .row(Line::TakeTicket, RowOperation::Add { to: ticket, add: 1, old: value(Line::AwaitTurn) })
        .row(Line::AwaitTurn, RowOperation::Wait { count: Count::Releases, threshold: 0 })
}

/// Copies images into the bind queue, and lets that queue execute them.
pub(super) const fn images<const GROUP: usize>(
    mut chain: Listing,
    images: &[u64; GROUP],
    bytes: u64,
) -> Listing {
    let mut number = 0;
    while number < small(GROUP) {
        let from = Operand::Scratch(Scratch::<GROUP>::RECORD + images[number as usize]);
        chain = chain.numbered(Line::CopyImage, number, RowOperation::CopyImage { from, bytes, to: number });
        number += 1;
    }
    chain
        .row(Line::EnableBinds, RowOperation::Enable { queue: Queue::Binds, limit: GROUP as u64 })
        .row(Line::AwaitBinds, RowOperation::Wait { count: Count::Binds, threshold: small(GROUP) as u32 })
}

/// Raises the number of chunks that the client may request, by the number in the record at `at`.
pub(super) const fn credit<const GROUP: usize>(chain: Listing, at: u64) -> Listing {
    let said = Operand::Scratch(Scratch::<GROUP>::RECORD + at);
    let sink = Operand::Scratch(Scratch::<GROUP>::SINK);
    chain
        .row(Line::CopyCredit, write(said, 8, value(Line::AddCredit)))
        .row(Line::AddCredit, RowOperation::Add { to: Operand::Credits, add: 0, old: sink })
        .row(Line::ReadCredit, write(Operand::Credits, 8, value(Line::EnableRequest)))
        .row(Line::EnableRequest, RowOperation::EnableRequest { limit: 0 })
}

/// Raises the thresholds and limits for the next lap, and admits that lap. `receives`: whether each lap gives a receive
/// back.
pub(super) const fn end<const GROUP: usize>(mut chain: Listing, receives: bool) -> Listing {
    // Rows that follow: as many bumps as are added here, and the last row.
    let bumps = if receives { 7 } else { 6 };
    let ring = (chain.length + bumps + 1).next_power_of_two() as u64;
    chain = bump::<GROUP>(chain, 0, Line::AwaitReplySent, 1);
    chain = bump::<GROUP>(chain, 1, Line::EnableBinds, GROUP as u64);
    chain = bump::<GROUP>(chain, 2, Line::AwaitBinds, GROUP as u64);
    chain = bump::<GROUP>(chain, 3, Line::EnableReply, 1);
    chain = bump::<GROUP>(chain, 4, Line::Rearm, ring);
    if receives {
        chain = bump::<GROUP>(chain, 5, Line::EnableReceive, 1);
    }
    // This bump is the last: its old value is the number of completed laps, and the rest of this lap has no effect.
    let to = value(Line::AwaitRequest);
    let laps = Operand::Scratch(Scratch::<GROUP>::LAPS);
    chain = chain.numbered(Line::Bump, 6, RowOperation::Add { to, add: 1, old: laps });
    // The start of the worker admitted the first lap. The bump has added the second.
    chain.row(Line::Rearm, RowOperation::Enable { queue: Queue::Own, limit: ring })
}

const fn bump<const GROUP: usize>(chain: Listing, number: u8, line: Line, add: u64) -> Listing {
    let sink = Operand::Scratch(Scratch::<GROUP>::SINK);
    chain.with(super::Row {
        label: Label(Line::Bump, number),
        releases: false,
        operation: RowOperation::Add { to: value(line), add, old: sink },
    })
}

#[allow(clippy::cast_possible_truncation, reason = "a group has at most eight queue pairs")]
pub(super) const fn small(group: usize) -> u8 {
    assert!(group <= 8, "a group has at most eight queue pairs");
    group as u8
}
