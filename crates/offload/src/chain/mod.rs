//! The language in which chains are written: a chain is a [`Listing`] of rows, each of which is a request at a named
//! line.
//!
//! A row names its operands in terms of the pool and of the worker ([`Operand`]), so that a listing is a constant.
//! `Listing::lay` makes the requests of one worker from it. The compiler checks which requests patch which
//! ([`Listing::check`]).

mod alloc;
mod free;
mod layout;

pub use alloc::alloc;
pub use free::free;
pub(crate) use layout::Wiring;

use crate::record::Layout;

/// Name of a row. Rows that do the same for each queue pair of a group share a name, and are numbered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs, reason = "the tables of the two chains say what each does")]
#[repr(u8)]
pub enum Line {
    AwaitRequest,
    AwaitReplySent,
    TakeTicket,
    AwaitTurn,
    ReadTop,
    Pop,
    NameRecord,
    NameOwned,
    ReadRecord,
    CopyImage,
    EnableBinds,
    AwaitBinds,
    Own,
    FindNone,
    NameOwner,
    TakeOwner,
    Allow,
    Find,
    NextKey,
    KeyBind,
    KeyInvalidation,
    NameTail,
    WriteTail,
    CopyZero,
    Zero,
    CopyPushNext,
    CopyPushTop,
    NameNext,
    PushNext,
    PushTop,
    CopyCredit,
    AddCredit,
    ReadCredit,
    EnableRequest,
    EnableReply,
    EnableReceive,
    Bump,
    Rearm,
    /// A row of a chain that this crate does not define, for the examination of another design.
    Other,
}

/// A line's name, and the line's number among those with the same name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Label(pub Line, pub u8);

impl Line {
    /// Returns the label of the only row of this name, or of the first.
    #[must_use]
    pub const fn first(self) -> Label {
        Label(self, 0)
    }
}

impl Label {
    const fn is(self, other: Self) -> bool {
        self.0 as u8 == other.0 as u8 && self.1 == other.1
    }
}

/// Memory that a row of a chain reads or writes. Offsets are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A part of a request of the chain itself ([`portcullis_nic::entry`]).
    Line(Label, u64),
    /// The first byte of a request in the worker's bind queue. That queue has as many requests as the group of a client
    /// can have queue pairs.
    Bind(u8),
    /// The pool's words: the top of the free list, the next ticket.
    Words(u64),
    /// The table.
    Table(u64),
    /// The table, where offset zero is the first record's owner.
    Owners(u64),
    /// The table, where offset zero is the first record's status.
    Tails(u64),
    /// The worker's scratch memory.
    Scratch(u64),
    /// Number of requests for chunks that the client may have made since it was attached.
    Credits,
}

/// A value that a COMPARE_AND_SWAP compares or swaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The owner word of a chunk that the client holds.
    Held,
    /// The owner word of a chunk that the client has freed.
    Freed,
    /// The first word of a row's request, as in the listing.
    FirstWord(Label),
    /// A number.
    Number(u64),
}

/// A counting completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// The client's requests.
    Requests,
    /// Replies that have left.
    Replies,
    /// Releases of the lock.
    Releases,
    /// Requests that the bind queue has executed.
    Binds,
}

/// A send queue whose execution chains enable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queue {
    /// The worker's bind queue.
    Binds,
    /// The queue that contains the reply.
    Reply,
    /// The chain's own send queue.
    Own,
}

/// The operation of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOperation {
    /// Does nothing.
    Nop,
    /// Copies bytes by a READ.
    Read {
        /// The source.
        from: Operand,
        /// Number of bytes.
        bytes: u64,
        /// The destination.
        to: Operand,
    },
    /// Copies bytes by a WRITE.
    Write {
        /// The source.
        from: Operand,
        /// Number of bytes.
        bytes: u64,
        /// The destination.
        to: Operand,
    },
    /// Copies the first bytes of an image into a request of the bind queue. If the client's group has no queue pair of
    /// that number, the row does nothing: the bind queue has a NOP there, which stays.
    CopyImage {
        /// The image.
        from: Operand,
        /// Number of bytes of the image.
        bytes: u64,
        /// The number of the request, and of the queue pair.
        to: u8,
    },
    /// Adds to a word.
    Add {
        /// The word.
        to: Operand,
        /// The addend.
        add: u64,
        /// The memory that receives the old value.
        old: Operand,
    },
    /// Compares a word and swaps it.
    Swap {
        /// The word.
        at: Operand,
        /// The value with which the word is compared.
        compare: Value,
        /// The value that replaces it.
        swap: Value,
        /// The memory that receives the old value.
        old: Operand,
    },
    /// Waits for a count.
    Wait {
        /// The counter.
        count: Count,
        /// The count to wait for.
        threshold: u32,
    },
    /// Sets the limit of a send queue.
    Enable {
        /// The queue.
        queue: Queue,
        /// The limit.
        limit: u64,
    },
    /// Sets the limit of the receive queue for this worker's requests.
    EnableReceive {
        /// The limit.
        limit: u64,
    },
    /// Sets the limit of the receive queue for the client's requests for chunks.
    EnableRequest {
        /// The limit.
        limit: u64,
    },
}

/// A row of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The row's name.
    pub label: Label,
    /// Whether its success is counted as a release of the lock.
    pub releases: bool,
    /// The row's operation, before another row has patched it.
    pub operation: RowOperation,
}

/// The most rows of a listing.
pub const ROWS_MAX: usize = 64;

/// A chain: rows in the order of their execution.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    rows: [Row; ROWS_MAX],
    length: usize,
}

impl Listing {
    const NOTHING: Row = Row { label: Line::Other.first(), releases: false, operation: RowOperation::Nop };
    /// The listing without rows.
    pub const EMPTY: Self = Self { rows: [Self::NOTHING; ROWS_MAX], length: 0 };

    /// Returns the listing with one more row.
    ///
    /// # Panics
    /// There are too many rows.
    #[must_use]
    pub const fn with(mut self, row: Row) -> Self {
        self.rows[self.length] = row;
        self.length += 1;
        self
    }

    /// Returns the listing with one more row.
    #[must_use]
    pub const fn row(self, line: Line, operation: RowOperation) -> Self {
        self.numbered(line, 0, operation)
    }

    /// Returns the listing with one more row, numbered among those that share a name.
    #[must_use]
    pub const fn numbered(self, line: Line, number: u8, operation: RowOperation) -> Self {
        self.with(Row { label: Label(line, number), releases: false, operation })
    }

    /// Returns the listing with one more row, whose success releases the lock.
    #[must_use]
    pub const fn releasing(self, line: Line, operation: RowOperation) -> Self {
        self.with(Row { label: Label(line, 0), releases: true, operation })
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows[..self.length]
    }

    /// Returns the listing with its rows changed: another design.
    ///
    /// # Panics
    /// There are too many rows.
    #[must_use]
    pub fn edited(&self, edit: impl FnOnce(&mut Vec<Row>)) -> Self {
        let mut rows = self.rows().to_vec();
        edit(&mut rows);
        rows.into_iter().fold(Self::EMPTY, Self::with)
    }

    /// Number of requests of a lap, including the NOPs behind the last row: a power of two.
    #[must_use]
    pub const fn ring(&self) -> usize {
        self.length.next_power_of_two()
    }

    /// Returns the position of a row.
    #[must_use]
    pub const fn position(&self, label: Label) -> Option<usize> {
        let mut at = 0;
        while at < self.length {
            if self.rows[at].label.is(label) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    /// Checks that rows patch only what they may. A row patches only requests behind it in the same lap. A bump patches
    /// a request that this lap has executed, for the next lap, or the request that admits the next lap. No two rows
    /// have one name.
    ///
    /// # Panics
    /// The listing breaks one of these rules.
    pub const fn check(&self) {
        let mut at = 0;
        while at < self.length {
            let row = self.rows[at];
            let own = self.position(row.label);
            assert!(matches!(own, Some(first) if first == at), "two rows have one name");
            let targets = row.operation.targets();
            let mut number = 0;
            while number < targets.len() {
                if let Some(Operand::Line(label, _)) = targets[number] {
                    let Some(target) = self.position(label) else {
                        panic!("a row patches one that is not there")
                    };
                    let is_bump = matches!(row.label.0, Line::Bump);
                    let is_behind = target > at && (!is_bump || matches!(label.0, Line::Rearm));
                    assert!(is_behind || (is_bump && target < at), "a row patches one that was executed");
                }
                number += 1;
            }
            at += 1;
        }
    }
}

impl RowOperation {
    /// Returns the operands that the row writes.
    const fn targets(self) -> [Option<Operand>; 2] {
        match self {
            Self::Read { to, .. } | Self::Write { to, .. } => [Some(to), None],
            Self::CopyImage { to, .. } => [Some(Operand::Bind(to)), None],
            Self::Add { to, old, .. } => [Some(to), Some(old)],
            Self::Swap { at, old, .. } => [Some(at), Some(old)],
            Self::Nop
            | Self::Wait { .. }
            | Self::Enable { .. }
            | Self::EnableReceive { .. }
            | Self::EnableRequest { .. } => [None, None],
        }
    }
}

/// Offsets in a worker's scratch memory.
#[derive(Debug)]
pub struct Scratch<const GROUP: usize>;

impl<const GROUP: usize> Scratch<GROUP> {
    /// A copy of the record that a request is about. The reply is a part of it.
    pub const RECORD: u64 = 0;
    /// The request that was received.
    pub const REQUEST: u64 = Layout::<GROUP>::BYTES;
    /// The record that a free is about: NIL, unless it was proved to be the client's.
    pub const FOUND: u64 = Self::REQUEST + REQUEST_BYTES;
    /// The first words of a chunk's record once the client owns it: no next record, and the owner.
    pub const OWNED: u64 = Self::FOUND + 8;
    /// A zero.
    pub const NOTHING: u64 = Self::OWNED + 16;
    /// Number of completed laps.
    pub const LAPS: u64 = Self::NOTHING + 8;
    /// Number of requests for chunks that the client may make. It is used only in the scratch memory of the worker that
    /// allocates.
    pub const CREDITS: u64 = Self::LAPS + 8;
    /// Destination of values that no request reads.
    pub const SINK: u64 = Self::CREDITS + 8;
    /// Number of bytes of a worker's scratch memory.
    pub const BYTES: u64 = Self::SINK + 8;
    /// Where the reply begins.
    pub const REPLY: u64 = Self::RECORD + crate::record::STATUS_AT;
    /// Bytes of a reply: status, key word, binds.
    pub const REPLY_BYTES: u64 = Layout::<GROUP>::BINDS_END - crate::record::STATUS_AT;
}

/// Bytes of a request: a handle.
pub const REQUEST_BYTES: u64 = 8;

/// Offset, among the pool's words, of the first free record's offset.
pub const TOP_AT: u64 = 0;
/// Offset, among the pool's words, of the next ticket's number.
pub const TICKET_AT: u64 = 8;
/// The first of the words that chains of other designs may use.
pub const OTHER_WORDS_AT: u64 = 16;

/// The two chains of a client.
#[derive(Clone, Copy, Debug)]
pub struct Chains {
    /// The chain that allocates.
    pub alloc: Listing,
    /// The chain that frees.
    pub free: Listing,
}

impl Chains {
    /// Returns the chains of a pool whose chunks have windows for `GROUP` queue pairs.
    #[must_use]
    pub const fn new<const GROUP: usize>() -> Self {
        let chains = Self { alloc: alloc::<GROUP>(), free: free::<GROUP>() };
        chains.alloc.check();
        chains.free.check();
        chains
    }
}

const _: () = {
    let (one, four, eight) = (Chains::new::<1>(), Chains::new::<4>(), Chains::new::<8>());
    assert!(one.alloc.ring() == 32 && four.alloc.ring() == 32 && eight.alloc.ring() == 32);
    assert!(one.free.ring() == 64 && four.free.ring() == 64 && eight.free.ring() == 64);
};
