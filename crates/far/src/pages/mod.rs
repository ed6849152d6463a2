//! Which page of a range is where, and what is to be done about it: a state machine without I/O and without a clock.
//!
//! A page is *absent* (its bytes are zeros, or stored on the node), *mapped* (the program uses it), or *held* in a run: a
//! buffer that has the bytes of neighbouring pages, on their way from the node or to it. Input goes in through calls,
//! output comes out of [`Pages::poll_effect`]. The caller carries each effect out before it asks for the next, and reports
//! the ends of those that take time.
//!
//! Pages are taken out in the order in which they were last mapped or first written (a FIFO), and stay in their run for a
//! while: a page that is touched there goes back without the node. Together this is a segmented FIFO, which is close to
//! LRU and needs to know of no touch but faults.
//!
//! A page that the kernel refuses to move stays mapped and is tried again later. Where nothing else can go, more pages are
//! mapped than may be: a thread never waits for a page that is pinned.

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

use chunks::Chunks;
use faults::Ahead;
use runs::Runs;
use snapshots::Snapshot;
use staying::Later;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use table::Table;

/// The longest run and window, in pages.
pub const RUN_MAX: u32 = 64;
/// The fewest pages that may be mapped, and held. One instruction can need several pages at once.
pub const MAPPED_MIN: u32 = 64;
/// As [`MAPPED_MIN`].
pub const HELD_MIN: u32 = 64;

/// How many pages may be where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Pages of the range.
    pub pages: u64,
    /// The most that are mapped.
    pub mapped: u32,
    /// The most that runs take, each rounded up to a power of two.
    pub held: u32,
}

/// The part of the mapped pages that is kept free, so that a fault need not wait until others are out.
const FREE_PART: u32 = 32;
/// The most that is kept free.
const FREE_MAX: u32 = 256;

/// Something to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Read the pages from a chunk into a new buffer, which is the run's. Ends with [`Pages::loaded`].
    Load(RunId, Span, ChunkId),
    /// Take mapped pages out into a new buffer, which is the run's: move them, which the kernel refuses for pages that are
    /// pinned. Ends with [`Pages::taken_out`], at once where the program answers at once. No other is begun before.
    TakeOut(RunId, Span),
    /// Map pages that a run has.
    Map {
        /// The run.
        run: RunId,
        /// Where its buffer begins.
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
    /// A thread waits for a page that was mapped. Map zeros if the page is missing, since only the program can have
    /// dropped it, and report [`Pages::refilled`]. Otherwise wake the thread.
    Refill(u64),
    /// Look whether pages are there that the program has dropped. Ends at once, with [`Pages::looked`].
    Look(Span),
    /// Write a run's buffer to a chunk. Ends with [`Pages::saved`].
    Save(RunId, Span, ChunkId),
    /// Drop a run's buffer.
    Discard(RunId),
    /// Allocate a chunk. Ends with [`Pages::chunk_allocated`].
    AllocateChunk(ChunkId),
    /// Free a chunk.
    FreeChunk(ChunkId),
    /// Something for a forked child.
    Child(SnapshotId, ChildEffect),
}

impl Effect {
    /// The pages that this maps from a run, in the program itself (`None`) or in a child.
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

/// How a thread has touched a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It reads, and the page is missing.
    Read,
    /// It writes, and the page is missing.
    Write,
    /// It writes, and the page is there and protected.
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
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u32,
}

impl Span {
    /// A page alone.
    #[must_use]
    pub fn one(page: u64) -> Self {
        Self { first: page, count: 1 }
    }

    /// The page after the last.
    #[must_use]
    pub fn end(self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// Each page.
    pub(crate) fn pages(self) -> std::ops::Range<u64> {
        self.first..self.end()
    }

    /// Whether both have a page in common.
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

/// What has happened so far, in pages where nothing else is said.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Faults, of all kinds.
    pub faults: u64,
    /// Faults that were first writes to mapped pages.
    pub first_writes: u64,
    /// Mapped as zeros.
    pub zeroed: u64,
    /// Read from the node for a fault.
    pub fetched: u64,
    /// Read from the node ahead of any fault.
    pub prefetched: u64,
    /// Of these, mapped before they were dropped.
    pub prefetched_used: u64,
    /// Taken out of the program's memory.
    pub evicted: u64,
    /// Not taken out because the kernel refused to move them, each time counted.
    pub refused: u64,
    /// Mapped again out of the run that they were taken out into.
    pub second_chances: u64,
    /// Written to the node.
    pub saved: u64,
    /// Accesses that wrote them.
    pub saves: u64,
    /// Faults of forked children.
    pub child_faults: u64,
    /// Read from the node for forked children.
    pub inherited: u64,
    /// The most that were mapped at once.
    pub mapped_max: u32,
    /// The most that runs took at once.
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

/// Where the pages of a range are.
#[derive(Debug)]
pub struct Pages {
    limits: Limits,
    table: Table,
    runs: Runs,
    effects: VecDeque<Effect>,
    /// Faults that found no room, in order.
    stalled: VecDeque<Waiting>,
    /// What is mapped, oldest first. A group whose pages have another stamp by now says nothing of them.
    ages: VecDeque<Group>,
    stamp: u32,
    mapped: u32,
    ahead: Ahead,
    chunks: Chunks,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    next_snapshot: u64,
    /// The latest time that was told.
    now: Duration,
    /// Pages that stay, until they are tried again.
    later: Later,
    /// Pages that the program has dropped, to be looked at.
    doubtful: VecDeque<Group>,
    /// The run whose pages the program has been asked for and not answered.
    under_way: Option<RunId>,
    /// The program has not answered for long.
    is_late: bool,
    /// Segments whose chunk may have become superfluous.
    superfluous: Vec<u64>,
    counters: Counters,
}

impl Pages {
    /// All pages are zeros.
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
            chunks: Chunks::default(),
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

    /// The next thing to do. `None`: wait for a fault, a release, or the end of what is under way.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if self.effects.is_empty() {
            self.plan();
        }
        self.effects.pop_front()
    }

    /// What comes of the present state alone.
    fn plan(&mut self) {
        self.serve_stalled();
        self.serve_stalled_children();
        self.look_at_doubtful();
        // A fork can come while pages are mapped, and waits for what is written to the node: no write waits behind that.
        if self.effects.is_empty() {
            self.save_dirty();
        }
        self.free_chunks();
    }

    /// Takes some of the oldest pages out before the room is needed, if little is free, and tries those again that stayed.
    /// To be called while no fault waits to be reported. `now` is the time since some moment. Returns whether there is
    /// something to do now.
    pub fn prepare(&mut self, now: Duration) -> bool {
        self.try_again(now);
        self.is_low() && self.take_out_oldest(None)
    }

    fn is_low(&self) -> bool {
        self.room() < (self.limits.mapped / FREE_PART).clamp(1, FREE_MAX)
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Pages that are mapped, and pages that runs take.
    #[must_use]
    pub fn local(&self) -> (u32, u32) {
        (self.mapped, self.runs.taken())
    }

    /// Whether nothing waits: neither a fault nor an effect.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.effects.is_empty()
            && self.stalled.is_empty()
            && !self.runs.has_waiting()
            && !self.has_stalled_children()
    }

    /// Notes that pages were mapped, or first written, just now.
    fn touch(&mut self, span: Span) {
        let stamp = self.stamp_anew(span);
        self.ages.push_back(Group { span, stamp });
    }

    /// Gives pages a stamp that no group has. They belong to no other group from here on.
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

    /// Pages that may still be mapped. Pages that stay can be more than may be mapped.
    fn room(&self) -> u32 {
        self.limits.mapped.saturating_sub(self.mapped)
    }

    /// The longest window: no more than a part of what may be local.
    fn window_max(&self) -> u32 {
        let part = (self.limits.mapped.min(self.limits.held) / 8).max(1);
        RUN_MAX.min(1 << part.ilog2())
    }
}
