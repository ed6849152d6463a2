//! Writing dirty runs to the node, and the segments' chunks there.

use super::runs::State;
use super::table::{Chunk, Place, SEGMENT_PAGES};
use super::{Effect, Pages, RunId};

/// The part of the runs that may be dirty before they are written, oldest first: what is touched again meanwhile is never
/// written.
const DIRTY_PART: u32 = 4;
/// The part of the runs that is written at once.
const SAVING_PART: u32 = 4;

impl Pages {
    /// Begins to write dirty runs while there are many, or while somebody waits for room.
    pub(super) fn save_dirty(&mut self) {
        let mut not_yet = Vec::new();
        while self.is_save_due() {
            let Some(run) = self.runs.take_dirty() else { break };
            if !self.begin_save(run) {
                not_yet.push(run);
            }
        }
        self.runs.put_back(not_yet);
    }

    fn is_save_due(&self) -> bool {
        let is_many = self.runs.dirty_pages() > self.limits.held / DIRTY_PART;
        let has_way = self.runs.saving_pages() < self.limits.held / SAVING_PART;
        has_way && (is_many || !self.stalled.is_empty())
    }

    /// Begins to write a run. `false`: its segment has no chunk yet, or older bytes of its pages are still on their way.
    fn begin_save(&mut self, run: RunId) -> bool {
        let span = self.runs.get(run).span;
        let number = span.first / SEGMENT_PAGES;
        let segment = self.table.segment_mut(number);
        match segment.chunk {
            Chunk::Here => {}
            Chunk::None => {
                segment.chunk = Chunk::Allocating;
                self.effects.push_back(Effect::AllocateChunk(number));
                return false;
            }
            Chunk::Allocating | Chunk::Freeing => return false,
        }
        if span.pages().any(|page| self.table.page(page).is_saving) {
            return false;
        }
        for page in span.pages() {
            self.table.page_mut(page).is_saving = true;
        }
        self.runs.set_state(run, State::Saving);
        self.counters.saved += u64::from(span.count);
        self.counters.saves += 1;
        self.effects.push_back(Effect::Save(run, span));
        true
    }

    /// A run's bytes have arrived on the node.
    pub fn saved(&mut self, run: RunId) {
        let span = self.runs.get(run).span;
        for page in span.pages() {
            self.table.page_mut(page).is_saving = false;
            // Pages that were released meanwhile are zeros.
            if self.table.page(page).place == Place::Held(run) {
                self.table.set_stored(page, true);
            }
        }
        self.runs.set_state(run, State::Clean);
        if self.runs.get(run).left == 0 {
            self.let_go(run, 0);
        } else {
            self.serve_waiting(run);
        }
    }

    /// The chunk of a segment is there.
    pub fn chunk_allocated(&mut self, segment: u64) {
        self.table.segment_mut(segment).chunk = Chunk::Here;
        self.superfluous.push(segment);
    }

    /// The chunk of a segment is gone.
    pub fn chunk_freed(&mut self, segment: u64) {
        self.table.segment_mut(segment).chunk = Chunk::None;
        self.superfluous.push(segment);
    }

    /// Has the chunks freed that hold nothing any more.
    pub(super) fn free_chunks(&mut self) {
        for number in std::mem::take(&mut self.superfluous) {
            if !self.table.is_touched(number) {
                continue;
            }
            let segment = self.table.segment_mut(number);
            if segment.chunk == Chunk::Here && segment.stored == 0 && segment.runs == 0 {
                segment.chunk = Chunk::Freeing;
                self.effects.push_back(Effect::FreeChunk(number));
            } else if segment.chunk == Chunk::None {
                self.table.forget(number);
            }
        }
    }
}
