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

mod eviction;
mod faults;
mod release;
mod runs;
mod saving;
mod table;

pub use runs::RunId;
pub use table::SEGMENT_PAGES;

use faults::Ahead;
use runs::Runs;
use std::collections::VecDeque;
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
    /// Read the pages from the node into a new buffer, which is the run's. Ends with [`Pages::loaded`].
    Load(RunId, Span),
    /// Take mapped pages out: protect them if they are dirty, copy them into a new buffer, which is the run's, and punch
    /// them out of the file. Ends at once, with [`Pages::taken_out`].
    TakeOut {
        /// The run.
        run: RunId,
        /// Its pages.
        span: Span,
        /// The program may write to them.
        is_dirty: bool,
    },
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
    /// Wake who waits for a page that is there already.
    Wake(Span),
    /// Punch pages out of the file: they are zeros from here on.
    Forget(Span),
    /// Write a run's buffer to the node. Ends with [`Pages::saved`].
    Save(RunId, Span),
    /// Drop a run's buffer.
    Discard(RunId),
    /// Allocate a chunk for a segment. Ends with [`Pages::chunk_allocated`].
    AllocateChunk(u64),
    /// Free a segment's chunk. Ends with [`Pages::chunk_freed`].
    FreeChunk(u64),
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

    fn pages(self) -> std::ops::Range<u64> {
        self.first..self.end()
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
    /// Mapped again out of the run that they were taken out into.
    pub second_chances: u64,
    /// Written to the node.
    pub saved: u64,
    /// Accesses that wrote them.
    pub saves: u64,
    /// The most that were mapped at once.
    pub mapped_max: u32,
    /// The most that runs took at once.
    pub held_max: u32,
}

/// A fault that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    page: u64,
    is_write: bool,
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
        self.save_dirty();
        self.free_chunks();
    }

    /// Takes some of the oldest pages out before anybody needs the room, if little is free. To be called while no fault
    /// waits to be told. Returns whether there is something to do now.
    pub fn prepare(&mut self) -> bool {
        let is_low = self.room() < (self.limits.mapped / FREE_PART).clamp(1, FREE_MAX);
        is_low && self.take_out_oldest(None)
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
        self.effects.is_empty() && self.stalled.is_empty() && !self.runs.has_waiting()
    }

    /// Notes that pages were mapped, or first written, just now.
    fn touch(&mut self, span: Span) {
        self.stamp = self.stamp.wrapping_add(1);
        for page in span.pages() {
            self.table.page_mut(page).stamp = self.stamp;
        }
        self.ages.push_back(Group { span, stamp: self.stamp });
    }

    fn count_mapped(&mut self, more: u32) {
        self.mapped += more;
        assert!(self.mapped <= self.limits.mapped, "more pages are mapped than may be");
        self.counters.mapped_max = self.counters.mapped_max.max(self.mapped);
    }

    fn room(&self) -> u32 {
        self.limits.mapped - self.mapped
    }

    /// The longest window: no more than a part of what may be local.
    fn window_max(&self) -> u32 {
        let part = (self.limits.mapped.min(self.limits.held) / 8).max(1);
        RUN_MAX.min(1 << part.ilog2())
    }
}
