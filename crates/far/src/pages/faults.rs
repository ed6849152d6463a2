//! Faults: the source of a page, and the number of neighbours that are mapped with it.
//!
//! A window of pages grows while faults move along, in either direction. The end of each window is recorded at its last
//! page, so the number of streams that can be told apart is not limited.

use super::runs::{Origin, State};
use super::staying::Stay;
use super::table::{Edge, PageState, SEGMENT_PAGES};
use super::{Access, Effect, Pages, RunId, Span, Waiting};

/// Length from which on a window causes the next one to be read ahead.
const AHEAD_FROM: u32 = 8;
/// Number of times that a page is passed over if it was needed again soon after it was taken out: streams of pages that
/// are used once do not drive it out.
const LIVES: u8 = 10;
/// Number of times that a page that was written is mapped writable for a read.
const WRITES_EXPECTED: u8 = 3;
/// Length from which on a window of writes is mapped writable as a whole.
const WRITABLE_FROM: u32 = 4;

/// Whether pages that are read ahead are used before they are dropped. If most of them are not, hardly any are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    credit: u32,
    /// Number of chances that were passed over.
    passed: u32,
}

impl Ahead {
    const CREDIT_MAX: u32 = 32;
    const CREDIT_LOW: u32 = 8;
    /// While the credit is low, one chance in this many is taken.
    const TRIED: u32 = 16;

    pub(super) fn new() -> Self {
        Self { credit: Self::CREDIT_MAX / 2, passed: 0 }
    }

    fn is_worthwhile(&mut self) -> bool {
        self.passed = self.passed.wrapping_add(1);
        self.credit >= Self::CREDIT_LOW || self.passed.is_multiple_of(Self::TRIED)
    }

    fn was_used(&mut self) {
        self.credit = (self.credit + 2).min(Self::CREDIT_MAX);
    }

    pub(super) fn was_dropped(&mut self) {
        self.credit = self.credit.saturating_sub(2);
    }
}

/// Direction of faults, and number of pages that the next one maps.
#[derive(Clone, Copy, Debug)]
struct Window {
    is_up: bool,
    log: u8,
    length: u32,
}

impl Pages {
    /// Handles a fault: a thread has touched a page that is not mapped, or writes to a page that is protected.
    ///
    /// # Panics
    /// The page lies outside the range.
    pub fn fault(&mut self, page: u64, access: Access) {
        assert!(page < self.table.len(), "page {page} lies outside the range");
        self.counters.faults += 1;
        let waiting = Waiting { page, access };
        let is_mapped = matches!(self.table.page(page).state, PageState::Mapped { .. });
        // No fault overtakes those that wait for room: the room is made for the first one of them.
        if (!is_mapped && !self.stalled.is_empty()) || !self.serve(waiting) {
            self.stall(waiting);
        }
    }

    pub(super) fn stall(&mut self, waiting: Waiting) {
        self.stalled.push_back(waiting);
    }

    /// Serves the faults that waited for room, in order.
    pub(super) fn serve_stalled(&mut self) {
        while let Some(&waiting) = self.stalled.front() {
            if !self.serve(waiting) {
                break;
            }
            self.stalled.pop_front();
        }
    }

    /// Maps a page, or starts the operation that leads to it. Returns `false` if there is no room yet.
    fn serve(&mut self, waiting: Waiting) -> bool {
        let page = self.table.page(waiting.page);
        match page.state {
            PageState::Mapped { .. } if waiting.access == Access::Protected => self.allow(waiting.page),
            // The page was mapped meanwhile, or the program has dropped it.
            PageState::Mapped { .. } => self.effects.push_back(Effect::Refill(waiting.page)),
            PageState::Held(run) => match self.runs.get(run).state {
                State::Clean | State::Dirty => return self.map_from(run, waiting),
                State::Loading | State::TakingOut | State::Saving => {
                    self.runs.get_mut(run).waiting.push(waiting);
                }
            },
            PageState::Absent if page.stored_in.is_some() => return self.load(waiting),
            PageState::Absent => return self.zero(waiting),
        }
        true
    }

    /// Serves the faults that waited for a run, once pages can be mapped from it.
    pub(super) fn serve_waiting(&mut self, run: RunId) {
        for waiting in std::mem::take(&mut self.runs.get_mut(run).waiting) {
            if !self.stalled.is_empty() || !self.serve(waiting) {
                self.stall(waiting);
            }
        }
    }

    fn window(&self, page: u64, edge: impl Fn(u64) -> Edge) -> Window {
        let below = if page > 0 { edge(page - 1) } else { Edge::No };
        let above = if page + 1 < self.table.len() { edge(page + 1) } else { Edge::No };
        let (is_up, log) = match (below, above) {
            (Edge::Up(log), _) => (true, log + 1),
            (_, Edge::Down(log)) => (false, log + 1),
            (Edge::Single, _) => (true, 1),
            (_, Edge::Single) => (false, 1),
            _ => (true, 0),
        };
        let log = log.min(31);
        // Two faults side by side are common among random faults: only the third one maps a neighbour.
        let length = self.window_max().min(1 << log.saturating_sub(1));
        Window { is_up, log, length }
    }

    /// The window of a page that is about to be mapped.
    fn mapping_window(&self, page: u64) -> Window {
        self.window(page, |at| {
            let page = self.table.page(at);
            if matches!(page.state, PageState::Mapped { .. }) { page.edge } else { Edge::No }
        })
    }

    /// The pages of a window from `page` on that satisfy `is_alike`, at most `length`, in one segment.
    fn reach(&self, page: u64, window: Window, length: u32, is_alike: impl Fn(u64) -> bool) -> Span {
        let segment = page / SEGMENT_PAGES;
        let mut span = Span::one(page);
        while span.count < length {
            let next = if window.is_up { Some(span.end()) } else { span.first.checked_sub(1) };
            let Some(next) = next.filter(|&next| next < self.table.len() && next / SEGMENT_PAGES == segment)
            else {
                break;
            };
            if !is_alike(next) {
                break;
            }
            span = Span { first: span.first.min(next), count: span.count + 1 };
        }
        span
    }

    /// Records the end of a window, and that its pages were touched just now.
    fn mapped_window(&mut self, span: Span, window: Window) {
        self.touch(span);
        for page in span.pages() {
            self.table.page_mut(page).edge = Edge::No;
        }
        let (at, edge) = edge_of(span, window);
        self.table.page_mut(at).edge = edge;
    }

    /// Lifts the protection of a page that is written for the first time, and of the next ones if writes move along.
    fn allow(&mut self, page: u64) {
        let is_clean = |pages: &Self, at| pages.table.page(at).state == PageState::Mapped { is_dirty: false };
        let window = self.window(page, |at| match self.table.page(at) {
            page if page.state == (PageState::Mapped { is_dirty: true }) => page.write_edge,
            _ => Edge::No,
        });
        let span = self.reach(page, window, window.length, |at| is_clean(self, at));
        // A page that stays keeps its turn to be tried again.
        if span.pages().all(|page| self.table.page(page).stay == Stay::No) {
            self.touch(span);
        }
        for page in span.pages() {
            let page = self.table.page_mut(page);
            page.state = PageState::Mapped { is_dirty: true };
            page.write_edge = Edge::No;
            page.writes_expected = WRITES_EXPECTED;
        }
        let (at, edge) = edge_of(span, window);
        self.table.page_mut(at).write_edge = edge;
        self.counters.first_writes += 1;
        self.effects.push_back(Effect::Allow(span));
    }

    fn zero(&mut self, waiting: Waiting) -> bool {
        let window = self.mapping_window(waiting.page);
        let room = self.make_room(window.length, None);
        if room == 0 {
            return false;
        }
        let is_zeros = |at| {
            let page = self.table.page(at);
            page.state == PageState::Absent && page.stored_in.is_none()
        };
        let span = self.reach(waiting.page, window, room, is_zeros);
        for page in span.pages() {
            // A page that stays zero is noticed when it is taken out.
            let page = self.table.page_mut(page);
            page.state = PageState::Mapped { is_dirty: true };
            page.stay = Stay::No;
        }
        self.count_mapped(span.count);
        self.mapped_window(span, window);
        self.counters.zeroed += u64::from(span.count);
        self.effects.push_back(Effect::Zero(span));
        true
    }

    fn load(&mut self, waiting: Waiting) -> bool {
        let window = self.mapping_window(waiting.page);
        let Some((run, span)) = self.begin_load(waiting.page, window, window.length, Origin::Fetched) else {
            return false;
        };
        self.runs.get_mut(run).waiting.push(waiting);
        self.counters.fetched += u64::from(span.count);
        self.read_ahead(span, window);
        true
    }

    /// Starts to read pages that only the node has.
    fn begin_load(
        &mut self,
        page: u64,
        window: Window,
        length: u32,
        origin: Origin,
    ) -> Option<(RunId, Span)> {
        let chunk = self.table.page(page).stored_in?;
        let is_stored = |pages: &Self, at| {
            let page = pages.table.page(at);
            page.state == PageState::Absent && page.stored_in == Some(chunk)
        };
        let span = self.reach(page, window, length, |at| is_stored(self, at));
        let block = span.count.next_power_of_two();
        // Reads leave room for the pages that must be taken out to map the read ones.
        let has_place = self.runs.loading() + block <= self.limits.held / 2 && self.hold(block, None);
        if !has_place {
            return if length > 1 && origin == Origin::Fetched {
                self.begin_load(page, window, 1, origin)
            } else {
                None
            };
        }
        let run = self.add_run(span, State::Loading, origin);
        for page in span.pages() {
            let page = self.table.page_mut(page);
            assert!(!page.is_saving, "a page that is being written is not read");
            page.state = PageState::Held(run);
        }
        self.effects.push_back(Effect::Load(run, span, chunk));
        Some((run, span))
    }

    /// Starts to read the window after `span` before a thread touches it.
    fn read_ahead(&mut self, span: Span, window: Window) {
        let next = if window.is_up { Some(span.end()) } else { span.first.checked_sub(1) };
        let Some(next) = next.filter(|&next| next < self.table.len()) else { return };
        let page = self.table.page(next);
        let is_due = window.length >= AHEAD_FROM && self.stalled.is_empty() && self.ahead.is_worthwhile();
        if is_due
            && page.state == PageState::Absent
            && page.stored_in.is_some()
            && let Some((_, span)) = self.begin_load(next, window, window.length, Origin::Prefetched)
        {
            self.counters.prefetched += u64::from(span.count);
        }
    }

    /// Maps a page that a run has, and the following pages of the window.
    fn map_from(&mut self, run: RunId, waiting: Waiting) -> bool {
        let window = self.mapping_window(waiting.page);
        let (state, origin) = (self.runs.get(run).state, self.runs.get(run).origin);
        let room = self.make_room(window.length, Some(run));
        if room == 0 {
            return false;
        }
        let is_here = |at| self.table.page(at).state == PageState::Held(run);
        let span = self.reach(waiting.page, window, room, is_here);
        let is_dirty = state == State::Dirty;
        let are_writable = is_dirty || (waiting.access.is_write() && window.length >= WRITABLE_FROM);
        self.map_span(run, span, waiting, are_writable);
        self.mapped_window(span, window);
        let count = u64::from(span.count);
        match origin {
            Origin::Fetched | Origin::Inherited(_) => {}
            Origin::Prefetched => {
                self.ahead.was_used();
                self.counters.prefetched_used += count;
            }
            Origin::TakenOut { .. } => {
                self.table.page_mut(waiting.page).lives = LIVES;
                self.counters.second_chances += count;
            }
        }
        self.let_go(run, span.count);
        if origin != (Origin::TakenOut { is_dirty: true }) {
            self.read_ahead(span, window);
        }
        true
    }

    /// Maps pages: either all writable, or only the pages that are or will probably be written.
    fn map_span(&mut self, run: RunId, span: Span, waiting: Waiting, are_writable: bool) {
        let first = self.runs.get(run).span.first;
        let expected: Vec<_> = span.pages().map(|page| self.table.page(page).writes_expected > 0).collect();
        let is_expected = |page: u64| expected[usize::try_from(page - span.first).unwrap_or(usize::MAX)];
        let is_writable =
            |page| are_writable || (waiting.access.is_write() && page == waiting.page) || is_expected(page);
        let mut from = span.first;
        while from < span.end() {
            let like = is_writable(from);
            let end = (from..span.end()).find(|&page| is_writable(page) != like).unwrap_or(span.end());
            let count = u32::try_from(end - from).expect("a part of a run");
            let part = Span { first: from, count };
            self.effects.push_back(Effect::Map { run, first, span: part, is_writable: like });
            from = end;
        }
        for page in span.pages() {
            let is_written = waiting.access.is_write() && page == waiting.page;
            let it = self.table.page_mut(page);
            it.state = PageState::Mapped { is_dirty: is_writable(page) };
            it.stay = Stay::No;
            it.writes_expected =
                if is_written { WRITES_EXPECTED } else { it.writes_expected.saturating_sub(1) };
        }
        self.count_mapped(span.count);
    }

    /// Records that pages have left a run. An empty run without an operation in progress is dropped.
    pub(super) fn let_go(&mut self, run: RunId, pages: u32) {
        let it = self.runs.get_mut(run);
        it.left -= pages;
        if it.left == 0 && matches!(it.state, State::Clean | State::Dirty) {
            self.discard(run);
        }
    }

    /// Records that a run's bytes have arrived from the node.
    pub fn loaded(&mut self, run: RunId) {
        self.runs.set_state(run, State::Clean);
        if let Origin::Inherited(child) = self.runs.get(run).origin {
            self.loaded_for_child(run, child);
        } else if self.runs.get(run).left == 0 {
            self.let_go(run, 0);
        } else {
            self.serve_waiting(run);
        }
    }
}

/// The page at which a window's end is recorded, and the recorded value.
fn edge_of(span: Span, window: Window) -> (u64, Edge) {
    match (window.log, window.is_up) {
        (0, _) => (span.first, Edge::Single),
        (log, true) => (span.end() - 1, Edge::Up(log)),
        (log, false) => (span.first, Edge::Down(log)),
    }
}
