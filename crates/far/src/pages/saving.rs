//! Writes of dirty runs to the node, into the segments' chunks.

use super::runs::State;
use super::table::{PageState, SEGMENT_PAGES};
use super::{Effect, Pages, RunId, Span};

/// Divisor of the runs' pages: one part of this many may be dirty before runs are written, oldest first. A page that is
/// touched again before then is never written.
const DIRTY_PART: u32 = 4;
/// Divisor of the runs' pages: one part of this many is written at once.
const SAVING_PART: u32 = 4;

impl Pages {
    /// Begins to write dirty runs while there are many, or while a fault waits for room.
    pub(super) fn save_dirty(&mut self) {
        let mut not_yet: Vec<RunId> = Vec::new();
        while self.is_save_due() {
            let Some(run) = self.runs.take_dirty() else { break };
            let span = self.runs.get(run).span;
            // A run is written as a whole, with older bytes of pages that have left the run since. So no run may
            // overtake another one that has bytes of the same pages.
            let would_overtake = not_yet.iter().any(|&older| self.runs.get(older).span.overlaps(span));
            if would_overtake || !self.begin_save(run, span) {
                not_yet.push(run);
            }
        }
        self.runs.put_back(not_yet);
    }

    fn is_save_due(&self) -> bool {
        let is_many = self.runs.dirty_pages() > self.limits.held / DIRTY_PART;
        let has_way = self.runs.saving_pages() < self.limits.held / SAVING_PART;
        has_way && (is_many || !self.stalled.is_empty() || self.has_stalled_children())
    }

    /// Begins to write a run. Returns `false` if its segment has no chunk yet, or older bytes of its pages are still on
    /// their way.
    fn begin_save(&mut self, run: RunId, span: Span) -> bool {
        let Some(chunk) = self.chunk_to_write(span.first / SEGMENT_PAGES) else { return false };
        if span.pages().any(|page| self.table.page(page).is_saving) {
            return false;
        }
        for page in span.pages() {
            self.table.page_mut(page).is_saving = true;
        }
        self.runs.get_mut(run).chunk = Some(chunk);
        self.runs.set_state(run, State::Saving);
        self.counters.saved += u64::from(span.count);
        self.counters.saves += 1;
        self.effects.push_back(Effect::Save(run, span, chunk));
        true
    }

    /// Records that a run's bytes have arrived on the node.
    pub fn saved(&mut self, run: RunId) {
        let (span, chunk) = (self.runs.get(run).span, self.runs.get_mut(run).chunk.take());
        for page in span.pages() {
            self.table.page_mut(page).is_saving = false;
            // Pages that were released meanwhile are zeros.
            if self.table.page(page).state == PageState::Held(run) {
                self.set_stored(page, chunk);
            }
        }
        self.runs.set_state(run, State::Clean);
        if self.runs.get(run).left == 0 {
            self.let_go(run, 0);
        } else {
            self.serve_waiting(run);
        }
    }
}
