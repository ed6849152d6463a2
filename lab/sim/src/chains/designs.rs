//! Designs of the chains that do not hold. Each is the real pair of chains with a few rows changed, and the search
//! must find its fault. The first twelve were found before the chains were built (research note on chains). The last
//! five are mistakes that a rebuild of the pool could make.

use super::arena::ArenaMemory;
use portcullis_nic::{Memory, entry};
use portcullis_offload::RebuildSteps;
use portcullis_offload::chain::{
    Chains, Count, Label, Line, Listing, OTHER_WORDS_AT, Operand, Row, RowOperation, Scratch, TOP_AT, Value,
};
use portcullis_offload::record::{Layout, NEXT_AT};

/// A design of the chains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Design {
    /// The design in use.
    Sound,
    /// Free chunks are in a ring. Head and tail move by FETCH_AND_ADD, and no chain checks whether the ring is empty.
    RingWithoutCount,
    /// As `RingWithoutCount`, with a counter of the chunks in the ring. A client that finds none gives its place
    /// back.
    RingWithCount,
    /// As `RingWithCount`, but one client at a time puts chunks into the ring.
    RingOneProducer,
    /// Free chunks are in a stack, whose top is changed by COMPARE_AND_SWAP.
    StackBySwap,
    /// The record names the owner of a chunk before the chunk's windows are bound.
    OwnerBeforeBinds,
    /// The chunk is filled with zeros before its windows are freed.
    ScrubBeforeInvalidation,
    /// The chunk is on the free list before it is filled with zeros.
    PushBeforeScrub,
    /// The owner is read, compared, and then written. Clients have two workers that free.
    OwnerReadThenWritten,
    /// The request is read a second time, after its receive was given back.
    RequestReadTwice,
    /// The next request is processed before the reply to the last has left.
    NoWaitForReply,
    /// The chain is on the client's own queue pair, and stops when the client dies.
    WorkerDies,
    /// The chain in use, on a NIC that fetches requests as soon as they are admitted.
    PatchAfterAdmission,
    /// Control: the lock without its wait.
    LockWithoutWait,
    /// Control: a chain waits for its binds of the first lap only.
    BindsNotAwaited,
    /// A pool is rebuilt from its free list alone: a chunk that is not listed becomes free, even if a client holds
    /// it.
    RebuildFreesHeld,
    /// A rebuild keeps a chunk that was allocated for a client that has had no reply.
    RebuildKeepsUntold,
    /// A rebuild lists chunks with the windows that they had.
    RebuildKeepsWindows,
    /// A rebuild lists chunks with the bytes that they had.
    RebuildKeepsBytes,
    /// A rebuild leaves the tickets of the lock as they are.
    RebuildKeepsTickets,
}

/// The slots of a ring of free chunks, among the pool's words.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingSlots;

const HEAD: u64 = OTHER_WORDS_AT;
const TAIL: u64 = OTHER_WORDS_AT + 8;
const COUNT: u64 = OTHER_WORDS_AT + 16;
/// The slots begin where an address's low byte is zero, so that the low byte of a counter names a slot. There are
/// four slots.
const SLOTS: u64 = 256;
const STRIDE: u64 = 64;
/// Operand of the number that a client adds to the head if it has found a chunk. 255 bytes behind it is the number for
/// a client that has found none.
const STEPS: u64 = 1024;
/// Operand of the numbers, arranged as at `STEPS`, that a client adds to the count to give back what it took.
const RETURNS: u64 = 1536;
/// Operand of the second byte of the slots' address, and of the second byte of the address of a slot that is always
/// empty.
const PAGES: u64 = 2048;
const EMPTY_SLOT: u64 = 2560;
const WORDS_END: u64 = 2816;

impl RingSlots {
    /// Returns the records that wait in the ring.
    #[allow(clippy::unused_self, reason = "it stands for a pool that has such a ring")]
    pub fn waiting(self, words: &ArenaMemory) -> Vec<u64> {
        let (head, tail) = (words.load(HEAD), words.load(TAIL));
        let slot = |count: u64| words.load(SLOTS + (count & 0xff));
        (0..tail.saturating_sub(head) / STRIDE).map(|place| slot(head + place * STRIDE)).collect()
    }
}

impl Design {
    /// All designs that do not hold.
    pub const FAULTY: [Self; 19] = [
        Self::RingWithoutCount,
        Self::RingWithCount,
        Self::RingOneProducer,
        Self::StackBySwap,
        Self::OwnerBeforeBinds,
        Self::ScrubBeforeInvalidation,
        Self::PushBeforeScrub,
        Self::OwnerReadThenWritten,
        Self::RequestReadTwice,
        Self::NoWaitForReply,
        Self::WorkerDies,
        Self::PatchAfterAdmission,
        Self::LockWithoutWait,
        Self::BindsNotAwaited,
        Self::RebuildFreesHeld,
        Self::RebuildKeepsUntold,
        Self::RebuildKeepsWindows,
        Self::RebuildKeepsBytes,
        Self::RebuildKeepsTickets,
    ];

    /// Returns the steps of a rebuild of the pool.
    pub(super) fn rebuild(self) -> RebuildSteps {
        let all = RebuildSteps::ALL;
        match self {
            Self::RebuildFreesHeld => RebuildSteps { keep_held: false, ..all },
            Self::RebuildKeepsUntold => RebuildSteps { undo_untold: false, ..all },
            Self::RebuildKeepsWindows => RebuildSteps { renew_windows: false, ..all },
            Self::RebuildKeepsBytes => RebuildSteps { zero: false, ..all },
            Self::RebuildKeepsTickets => RebuildSteps { pass_lock: false, ..all },
            _ => all,
        }
    }

    fn has_ring(self) -> bool {
        matches!(self, Self::RingWithoutCount | Self::RingWithCount | Self::RingOneProducer)
    }

    pub(super) fn ring_slots(self) -> Option<RingSlots> {
        self.has_ring().then_some(RingSlots)
    }

    /// Whether the free list is guarded by the lock, so that its state is meaningful while no chain holds the lock.
    pub(super) fn has_the_lock(self) -> bool {
        !self.has_ring() && self != Self::StackBySwap
    }

    /// Whether clients may free only what they hold. The effect of NIL is not part of such a design.
    pub(super) fn needs_honesty(self) -> bool {
        self.has_ring() || self == Self::StackBySwap
    }

    /// Whether a chunk may get lost. A complete design would retry a failed push; this one gives up.
    pub(super) fn may_lose(self) -> bool {
        self == Self::StackBySwap
    }

    /// Whether the place where a worker's record is found is part of the state, for a worker that frees or one that
    /// allocates.
    pub(super) fn uses_found(self, frees: bool) -> bool {
        self.needs_honesty() || (frees && self == Self::OwnerReadThenWritten)
    }

    /// Whether the time at which a chunk is filled with zeros matters.
    pub(super) fn shows_in_scrubs(self) -> bool {
        matches!(self, Self::ScrubBeforeInvalidation | Self::PushBeforeScrub | Self::RebuildKeepsBytes)
    }

    /// Whether a client can change what this row reads, namely its request after the receive was given back.
    pub(super) fn reads_late(self, line: Line) -> bool {
        self == Self::RequestReadTwice && line == Line::Find
    }

    /// Whether rows show the required content of a reply.
    pub(super) fn has_replies_checked(self) -> bool {
        !self.needs_honesty() && !matches!(self, Self::OwnerReadThenWritten | Self::RequestReadTwice)
    }

    /// Returns the chains of this design, and the values of the pool's other words.
    pub(super) fn chains<const G: usize>(self, chunks: u64) -> (Chains, Vec<u64>) {
        let mut chains = Chains::new::<G>();
        let mut words = Vec::new();
        match self {
            Self::Sound
            | Self::WorkerDies
            | Self::PatchAfterAdmission
            | Self::RebuildFreesHeld
            | Self::RebuildKeepsUntold
            | Self::RebuildKeepsWindows
            | Self::RebuildKeepsBytes
            | Self::RebuildKeepsTickets => {}
            Self::RingWithoutCount | Self::RingWithCount | Self::RingOneProducer => {
                chains = Chains { alloc: self.ring_alloc::<G>(), free: self.ring_free::<G>() };
                words = ring_words::<G>(chunks);
            }
            Self::StackBySwap => {
                chains = Chains { alloc: stack_alloc::<G>(), free: stack_free::<G>() };
            }
            Self::OwnerBeforeBinds => {
                chains.alloc = chains.alloc.edited(|rows| move_before(rows, &[Line::Own], Line::CopyImage));
            }
            Self::ScrubBeforeInvalidation => {
                let scrub = [Line::CopyZero, Line::Zero];
                chains.free = chains.free.edited(|rows| move_before(rows, &scrub, Line::CopyImage));
            }
            Self::PushBeforeScrub => {
                let scrub = [Line::CopyZero, Line::Zero];
                chains.free = chains.free.edited(|rows| move_before(rows, &scrub, Line::EnableReply));
            }
            Self::OwnerReadThenWritten => chains.free = chains.free.edited(read_then_write::<G>),
            Self::RequestReadTwice => chains.free = chains.free.edited(read_twice::<G>),
            Self::NoWaitForReply => {
                let edit = |rows: &mut Vec<Row>| {
                    rows.retain(|row| {
                        row.label.0 != Line::AwaitReplySent && !patches(*row, Line::AwaitReplySent)
                    });
                };
                chains = Chains { alloc: chains.alloc.edited(edit), free: chains.free.edited(edit) };
            }
            Self::LockWithoutWait => {
                chains.alloc = chains.alloc.edited(|rows| {
                    rows.retain(|row| !matches!(row.label.0, Line::AwaitTurn | Line::TakeTicket));
                });
            }
            Self::BindsNotAwaited => {
                chains.alloc = chains.alloc.edited(|rows| {
                    rows.retain(|row| !patches(*row, Line::AwaitBinds));
                });
            }
        }
        (chains, words)
    }

    /// Returns a listing in which rows that take a record out of the ring replace the lock and the list.
    fn ring_alloc<const G: usize>(self) -> Listing {
        let found = Operand::Scratch(Scratch::<G>::FOUND);
        let (head, count) = (Operand::Words(HEAD), Operand::Words(COUNT));
        let slot = Operand::Line(other(9), entry::REMOTE_ADDRESS);
        let record = Operand::Line(Line::ReadRecord.first(), entry::REMOTE_ADDRESS);
        let own = Operand::Line(Line::Own.first(), entry::REMOTE_ADDRESS);
        let sink = Operand::Scratch(Scratch::<G>::SINK);
        let part = |label, part| Operand::Line(label, part);
        // The count is kept one too low: the highest byte of its old value is zero if there was a chunk, else 255.
        let sign = Operand::Scratch(Scratch::<G>::FOUND + 7);
        let address = entry::REMOTE_ADDRESS;
        let looking = [
            row(other(0), RowOperation::Add { to: count, add: u64::MAX, old: found }),
            row(other(1), write(sign, 1, part(other(4), address))),
            row(other(2), write(sign, 1, part(other(5), address))),
            row(other(3), write(sign, 1, part(other(6), address))),
            row(other(4), read(Operand::Words(STEPS), 8, part(other(7), entry::VALUE))),
            row(other(5), read(Operand::Words(RETURNS), 8, part(other(10), entry::VALUE))),
            row(other(6), read(Operand::Words(PAGES), 1, part(other(9), address + 1))),
        ];
        let add = if self == Self::RingWithoutCount { STRIDE } else { 0 };
        let taking = [
            row(other(7), RowOperation::Add { to: head, add, old: found }),
            row(other(8), write(found, 1, slot)),
            row(other(9), read(Operand::Words(SLOTS), 8, record)),
        ];
        let giving_back = [row(other(10), RowOperation::Add { to: count, add: 0, old: sink })];
        let naming = [row(other(11), write(record, 8, own))];
        let (looking, giving_back) = match self {
            Self::RingWithoutCount => (&looking[..0], &giving_back[..0]),
            _ => (&looking[..], &giving_back[..]),
        };
        let instead: Vec<_> =
            looking.iter().chain(&taking).chain(giving_back).chain(&naming).copied().collect();
        Chains::new::<G>().alloc.edited(|rows| {
            replace(rows, Line::TakeTicket, Line::NameOwned, &instead);
        })
    }

    fn ring_free<const G: usize>(self) -> Listing {
        let place = Operand::Scratch(Scratch::<G>::OWNED);
        let found = Operand::Scratch(Scratch::<G>::FOUND);
        let sink = Operand::Scratch(Scratch::<G>::SINK);
        let slot = Operand::Line(other(2), entry::REMOTE_ADDRESS);
        let put = [
            row(other(0), RowOperation::Add { to: Operand::Words(TAIL), add: STRIDE, old: place }),
            row(other(1), write(place, 1, slot)),
            row(other(2), write(found, 8, Operand::Words(SLOTS))),
        ];
        let count = row(other(3), RowOperation::Add { to: Operand::Words(COUNT), add: 1, old: sink });
        let ticket = Operand::Words(portcullis_offload::chain::TICKET_AT);
        let turn = Operand::Line(Line::AwaitTurn.first(), entry::VALUE);
        let lock = [
            row(Line::TakeTicket.first(), RowOperation::Add { to: ticket, add: 1, old: turn }),
            row(Line::AwaitTurn.first(), RowOperation::Wait { count: Count::Releases, threshold: 0 }),
        ];
        let instead = match self {
            Self::RingWithoutCount => put.to_vec(),
            Self::RingWithCount => [&put[..], &[count]].concat(),
            _ => [&lock[..], &put, &[Row { releases: true, ..count }]].concat(),
        };
        Chains::new::<G>().free.edited(|rows| replace(rows, Line::CopyPushNext, Line::PushTop, &instead))
    }
}

/// Returns the pool's other words for a ring that contains all chunks.
fn ring_words<const G: usize>(chunks: u64) -> Vec<u64> {
    assert!(chunks * STRIDE < 256, "the ring has room for all chunks");
    let mut words = vec![0; usize::try_from((WORDS_END - OTHER_WORDS_AT) / 8).unwrap_or(0)];
    let mut set = |at: u64, value: u64| {
        let word = usize::try_from((at - OTHER_WORDS_AT) / 8).unwrap_or(usize::MAX);
        let shift = at % 8 * 8;
        words[word] |= value << shift;
        if shift > 0 && word + 1 < words.len() {
            words[word + 1] |= value >> (64 - shift);
        }
    };
    set(TAIL, chunks * STRIDE);
    set(COUNT, chunks - 1);
    for chunk in 0..chunks {
        set(SLOTS + chunk * STRIDE, Layout::<G>::record_of(chunk));
    }
    set(STEPS, STRIDE);
    set(RETURNS + 255, 1);
    set(PAGES, SLOTS >> 8);
    set(PAGES + 255, EMPTY_SLOT >> 8);
    words
}

/// Returns a listing that pops by COMPARE_AND_SWAP. If the swap fails, the client gets NIL.
fn stack_alloc<const G: usize>() -> Listing {
    let found = Operand::Scratch(Scratch::<G>::FOUND);
    let nothing = Operand::Scratch(Scratch::<G>::NOTHING);
    let sink = Operand::Scratch(Scratch::<G>::SINK);
    let record = Operand::Line(Line::ReadRecord.first(), entry::REMOTE_ADDRESS);
    let own = Operand::Line(Line::Own.first(), entry::REMOTE_ADDRESS);
    let part = |number, part| Operand::Line(other(number), part);
    let swapped = entry::VALUE + 8;
    let instead = [
        row(other(0), write(nothing, 8, record)),
        row(other(1), read(Operand::Words(TOP_AT), 8, found)),
        row(other(2), write(found, 8, part(5, entry::REMOTE_ADDRESS))),
        row(other(3), write(found, 8, part(6, entry::VALUE))),
        row(other(4), write(found, 8, part(7, entry::VALUE))),
        row(other(5), read(Operand::Table(NEXT_AT), 8, part(6, swapped))),
        row(
            other(6),
            RowOperation::Swap {
                at: Operand::Words(TOP_AT),
                compare: Value::Number(0),
                swap: Value::Number(0),
                old: part(8, entry::OPERATION),
            },
        ),
        row(
            other(7),
            RowOperation::Swap {
                at: part(8, entry::OPERATION),
                compare: Value::Number(0),
                swap: Value::FirstWord(other(8)),
                old: sink,
            },
        ),
        row(other(8), write(found, 8, record)),
        row(other(9), write(record, 8, own)),
    ];
    Chains::new::<G>().alloc.edited(|rows| replace(rows, Line::TakeTicket, Line::NameOwned, &instead))
}

/// Returns a listing that pushes by COMPARE_AND_SWAP. If the swap fails, it is not tried again.
fn stack_free<const G: usize>() -> Listing {
    let found = Operand::Scratch(Scratch::<G>::FOUND);
    let top = Operand::Scratch(Scratch::<G>::OWNED);
    let sink = Operand::Scratch(Scratch::<G>::SINK);
    let part = |number, part| Operand::Line(other(number), part);
    let instead = [
        row(other(0), read(Operand::Words(TOP_AT), 8, top)),
        row(other(1), write(found, 8, part(4, entry::REMOTE_ADDRESS))),
        row(other(2), write(top, 8, part(5, entry::VALUE))),
        row(other(3), write(found, 8, part(5, entry::VALUE + 8))),
        row(other(4), write(top, 8, Operand::Table(NEXT_AT))),
        row(
            other(5),
            RowOperation::Swap {
                at: Operand::Words(TOP_AT),
                compare: Value::Number(0),
                swap: Value::Number(0),
                old: sink,
            },
        ),
    ];
    Chains::new::<G>().free.edited(|rows| replace(rows, Line::CopyPushNext, Line::PushTop, &instead))
}

/// Reads the owner into the place where COMPARE_AND_SWAP would leave it, and writes it once the record is found.
fn read_then_write<const G: usize>(rows: &mut Vec<Row>) {
    let found = Operand::Scratch(Scratch::<G>::FOUND);
    let sink = Operand::Scratch(Scratch::<G>::SINK);
    for row in rows.iter_mut().filter(|row| row.label.0 == Line::TakeOwner) {
        row.operation = read(Operand::Owners(0), 8, Operand::Line(Line::Find.first(), entry::OPERATION));
    }
    let late = [
        row(other(0), write(found, 8, Operand::Line(other(1), entry::REMOTE_ADDRESS))),
        row(
            other(1),
            RowOperation::Swap {
                at: Operand::Owners(0),
                compare: Value::Held,
                swap: Value::Freed,
                old: sink,
            },
        ),
    ];
    let at = position(rows, Line::NameRecord);
    rows.splice(at..at, late);
}

/// Gives the receive back as soon as the request is checked. The record found is the one that the request names at
/// that time.
fn read_twice<const G: usize>(rows: &mut Vec<Row>) {
    move_before(rows, &[Line::EnableReceive], Line::Find);
    let request = Operand::Scratch(Scratch::<G>::REQUEST);
    for row in rows.iter_mut().filter(|row| row.label.0 == Line::Find) {
        row.operation = write(request, 2, Operand::Scratch(Scratch::<G>::FOUND + 1));
    }
}

fn other(number: u8) -> Label {
    Label(Line::Other, number)
}

fn row(label: Label, operation: RowOperation) -> Row {
    Row { label, releases: false, operation }
}

fn read(from: Operand, bytes: u64, to: Operand) -> RowOperation {
    RowOperation::Read { from, bytes, to }
}

fn write(from: Operand, bytes: u64, to: Operand) -> RowOperation {
    RowOperation::Write { from, bytes, to }
}

fn position(rows: &[Row], line: Line) -> usize {
    rows.iter().position(|row| row.label.0 == line).expect("the chain has such a row")
}

/// Whether a row changes a request.
fn patches(row: Row, line: Line) -> bool {
    matches!(row.operation, RowOperation::Add { to: Operand::Line(Label(target, _), _), .. } if target == line)
}

/// Moves rows in front of another one, in their order.
fn move_before(rows: &mut Vec<Row>, lines: &[Line], before: Line) {
    let moved: Vec<_> = rows.iter().copied().filter(|row| lines.contains(&row.label.0)).collect();
    rows.retain(|row| !lines.contains(&row.label.0));
    let at = position(rows, before);
    rows.splice(at..at, moved);
}

/// Replaces the rows from one to another.
fn replace(rows: &mut Vec<Row>, first: Line, last: Line, by: &[Row]) {
    let span = position(rows, first)..=position(rows, last);
    rows.splice(span, by.iter().copied());
}

const _: () = assert!(SLOTS.is_multiple_of(256) && EMPTY_SLOT.is_multiple_of(256));
