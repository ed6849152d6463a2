//! State of each page of a range, and the decisions about it: a state machine without I/O and without a clock.
//!
//! A page is *absent* (its bytes are zeros, or stored on the node), *mapped* (the program uses it), or *held* in a run:
//! a buffer that has the bytes of neighbouring pages, on their way from the node or to it. Input arrives through calls,
//! and output leaves through [`Pages::poll_effect`]. The caller carries each effect out before it requests the next
//! one, and reports the ends of those that take time.
//!
//! Pages are taken out in the order in which they were last mapped or first written (a FIFO), and stay in their run for
//! a while: a page that is touched there is mapped again without the node. Together this is a segmented FIFO, which is
//! close to LRU and needs to see no touches except faults.
//!
//! A page that the kernel refuses to move stays mapped and is tried again later. If no other page can be taken out,
//! more pages are mapped than the limit allows: a thread never waits for a page that is pinned.

mod chunks;
mod eviction;
mod faults;
mod release;
mod runs;
mod saving;
mod snapshots;
mod staying;
mod table;

pub use chunks::ChunkId;
pub use eviction::TakenOut;
pub use runs::RunId;
pub use snapshots::{ChildEffect, SnapshotId};
pub use table::SEGMENT_PAGES;

use chunks::ChunkTable;
use faults::Ahead;
use runs::Runs;
use snapshots::Snapshot;
use staying::Later;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use table::Table;

/// Maximum length of a run and of a window, in pages.
pub const RUN_MAX: u32 = 64;
/// Lower limit of [`Limits::mapped`]. One instruction can need several pages at once.
pub const MAPPED_MIN: u32 = 64;
/// Lower limit of [`Limits::held`], for the same reason as [`MAPPED_MIN`].
pub const HELD_MIN: u32 = 64;

/// Limits of the numbers of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Number of pages of the range.
    pub pages: u64,
    /// Maximum number of mapped pages.
    pub mapped: u32,
    /// Maximum number of pages that runs take, each run rounded up to a power of two.
    pub held: u32,
}

/// Divisor of the mapped pages: one part of this many is kept free, so that a fault need not wait until others are
/// taken out.
const FREE_PART: u32 = 32;
/// Maximum number of pages that are kept free.
const FREE_MAX: u32 = 256;

/// An action for the caller to carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Read the pages from a chunk into a new buffer of the run. Ends with [`Pages::loaded`].
    Load(RunId, Span, ChunkId),
    /// Take mapped pages out into a new buffer of the run: move them, which the kernel refuses for pages that are
    /// pinned. Ends with [`Pages::taken_out`], at once if the program answers at once. No other `TakeOut` is begun
    /// before.
    TakeOut(RunId, Span),
    /// Map pages that a run has.
    Map {
        /// The run.
        run: RunId,
        /// First page of the run's buffer.
        first: u64,
        /// The pages.
        span: Span,
        /// The program may write to them without another fault.
        is_writable: bool,
    },
    /// Map zeros, writable.
    Zero(Span),
    /// Lift the protection of mapped pages.
    Allow(Span),
    /// A thread waits for a page that was mapped. If the page is missing, only the program can have dropped it: map
    /// zeros and report [`Pages::refilled`]. Otherwise wake the thread.
    Refill(u64),
    /// Check whether pages still exist that the program has dropped. Ends at once, with [`Pages::looked`].
    Look(Span),
    /// Write a run's buffer to a chunk. Ends with [`Pages::saved`].
    Save(RunId, Span, ChunkId),
    /// Drop a run's buffer.
    Discard(RunId),
    /// Allocate a chunk. Ends with [`Pages::chunk_allocated`].
    AllocateChunk(ChunkId),
    /// Free a chunk.
    FreeChunk(ChunkId),
    /// An action in a forked child.
    Child(SnapshotId, ChildEffect),
}

impl Effect {
    /// The pages that this effect maps from a run, in the program itself (`None`) or in a child.
    fn mapped_for(&self, process: Option<SnapshotId>) -> Option<(RunId, u64, Span)> {
        match *self {
            Self::Map { run, first, span, .. } if process.is_none() => Some((run, first, span)),
            Self::Child(id, ChildEffect::Map { run, first, span }) if process == Some(id) => {
                Some((run, first, span))
            }
            _ => None,
        }
    }
}

/// Kind of a thread's access to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The thread reads, and the page is missing.
    Read,
    /// The thread writes, and the page is missing.
    Write,
    /// The thread writes, and the page exists and is protected.
    Protected,
}

impl Access {
    fn is_write(self) -> bool {
        self != Self::Read
    }
}

/// Neighbouring pages of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first page.
    pub first: u64,
    /// Number of pages.
    pub count: u32,
}

impl Span {
    /// A page alone.
    #[must_use]
    pub fn one(page: u64) -> Self {
        Self { first: page, count: 1 }
    }

    /// The page after the last one.
    #[must_use]
    pub fn end(self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// Returns an iterator over the pages.
    pub(crate) fn pages(self) -> std::ops::Range<u64> {
        self.first..self.end()
    }

    /// Whether the two spans have a page in common.
    fn overlaps(self, other: Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// Adds a page to spans in ascending order.
    fn join(spans: &mut Vec<Self>, page: u64) {
        match spans.last_mut() {
            Some(last) if last.end() == page && last.first / SEGMENT_PAGES == page / SEGMENT_PAGES => {
                last.count += 1
            }
            _ => spans.push(Self::one(page)),
        }
    }
}

/// Counters of events. The unit is pages unless something else is stated.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Faults, of all kinds.
    pub faults: u64,
    /// Faults that were first writes to mapped pages.
    pub first_writes: u64,
    /// Pages mapped as zeros.
    pub zeroed: u64,
    /// Pages read from the node for a fault.
    pub fetched: u64,
    /// Pages read from the node ahead of any fault.
    pub prefetched: u64,
    /// Prefetched pages that were mapped before they were dropped.
    pub prefetched_used: u64,
    /// Pages taken out of the program's memory.
    pub evicted: u64,
    /// Pages not taken out because the kernel refused to move them. Each refusal is counted.
    pub refused: u64,
    /// Pages mapped again from the run that they were taken out into.
    pub second_chances: u64,
    /// Pages written to the node.
    pub saved: u64,
    /// Accesses that wrote pages to the node.
    pub saves: u64,
    /// Faults of forked children.
    pub child_faults: u64,
    /// Pages read from the node for forked children.
    pub inherited: u64,
    /// Maximum number of pages that were mapped at once.
    pub mapped_max: u32,
    /// Maximum number of pages that runs took at once.
    pub held_max: u32,
}

/// A fault that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    page: u64,
    access: Access,
}

/// Pages that were mapped together, or first written together.
#[derive(Clone, Copy, Debug)]
struct Group {
    span: Span,
    stamp: u32,
}

/// State of the pages of a range.
#[derive(Debug)]
pub struct Pages {
    limits: Limits,
    table: Table,
    runs: Runs,
    effects: VecDeque<Effect>,
    /// Faults that found no room, in order.
    stalled: VecDeque<Waiting>,
    /// Mapped pages, oldest first. A group does not apply to pages that have another stamp by now.
    ages: VecDeque<Group>,
    stamp: u32,
    mapped: u32,
    ahead: Ahead,
    chunks: ChunkTable,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    next_snapshot: u64,
    /// The latest time that the caller has passed.
    now: Duration,
    /// Pages that stay, until they are tried again.
    later: Later,
    /// Pages that the program has dropped, which are to be checked.
    doubtful: VecDeque<Group>,
    /// The run whose pages were requested from the program, until the program answers.
    under_way: Option<RunId>,
    /// The program's answer is late.
    is_late: bool,
    /// Segments whose chunk may have become superfluous.
    superfluous: Vec<u64>,
    counters: Counters,
}

impl Pages {
    /// Creates the state of a range whose pages are all zeros.
    ///
    /// # Panics
    /// The limits are below [`MAPPED_MIN`] or [`HELD_MIN`].
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        assert!(limits.mapped >= MAPPED_MIN && limits.held >= HELD_MIN, "too few pages: {limits:?}");
        Self {
            limits,
            table: Table::new(limits.pages),
            runs: Runs::default(),
            effects: VecDeque::new(),
            stalled: VecDeque::new(),
            ages: VecDeque::new(),
            stamp: 0,
            mapped: 0,
            ahead: Ahead::new(),
            chunks: ChunkTable::default(),
            snapshots: BTreeMap::new(),
            next_snapshot: 0,
            now: Duration::ZERO,
            later: Later::default(),
            doubtful: VecDeque::new(),
            under_way: None,
            is_late: false,
            superfluous: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the next effect. `None`: the caller waits for a fault, a release, or the end of an operation in
    /// progress.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if self.effects.is_empty() {
            self.plan();
        }
        self.effects.pop_front()
    }

    /// Adds the effects that follow from the present state alone.
    fn plan(&mut self) {
        self.serve_stalled();
        self.serve_stalled_children();
        self.look_at_doubtful();
        // A fork can happen while pages are mapped, and waits for pages that are being written to the node: so no write
        // is started before the mapping effects are done.
        if self.effects.is_empty() {
            self.save_dirty();
        }
        self.free_chunks();
    }

    /// Takes some of the oldest pages out before the room is needed, if little is free, and tries those again that
    /// stayed. The caller must have reported all waiting faults. `now` is the time since some fixed moment. Returns
    /// whether there is an effect to carry out now.
    pub fn prepare(&mut self, now: Duration) -> bool {
        self.try_again(now);
        self.is_low() && self.take_out_oldest(None)
    }

    fn is_low(&self) -> bool {
        self.room() < (self.limits.mapped / FREE_PART).clamp(1, FREE_MAX)
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of mapped pages, and number of pages that runs take.
    #[must_use]
    pub fn local(&self) -> (u32, u32) {
        (self.mapped, self.runs.taken())
    }

    /// Whether neither a fault nor an effect waits.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.effects.is_empty()
            && self.stalled.is_empty()
            && !self.runs.has_waiting()
            && !self.has_stalled_children()
    }

    /// Records that pages were mapped, or first written, just now.
    fn touch(&mut self, span: Span) {
        let stamp = self.stamp_anew(span);
        self.ages.push_back(Group { span, stamp });
    }

    /// Assigns to pages a stamp that no group has. The pages belong to no other group from here on.
    fn stamp_anew(&mut self, span: Span) -> u32 {
        self.stamp = self.stamp.wrapping_add(1);
        for page in span.pages() {
            self.table.page_mut(page).stamp = self.stamp;
        }
        self.stamp
    }

    fn count_mapped(&mut self, more: u32) {
        self.mapped += more;
        self.counters.mapped_max = self.counters.mapped_max.max(self.mapped);
    }

    /// Number of pages that may still be mapped. It is zero if pages that stay exceed the limit.
    fn room(&self) -> u32 {
        self.limits.mapped.saturating_sub(self.mapped)
    }

    /// Maximum length of a window: a fraction of the pages that may be local.
    fn window_max(&self) -> u32 {
        let part = (self.limits.mapped.min(self.limits.held) / 8).max(1);
        RUN_MAX.min(1 << part.ilog2())
    }
}
