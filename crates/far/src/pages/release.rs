//! Pages that the program does not need any more.

use super::table::{Place, SEGMENT_PAGES};
use super::{Effect, Pages, Span};

impl Pages {
    /// The program needs the bytes of these pages no more: they are zeros from here on.
    ///
    /// # Panics
    /// The pages lie outside the range.
    pub fn release(&mut self, span: Span) {
        assert!(span.end() <= self.table.len(), "{span:?} lies outside the range");
        let segments = span.first / SEGMENT_PAGES..span.end().div_ceil(SEGMENT_PAGES);
        for segment in segments.filter(|&segment| self.table.is_touched(segment)).collect::<Vec<_>>() {
            let from = span.first.max(segment * SEGMENT_PAGES);
            let to = span.end().min((segment + 1) * SEGMENT_PAGES);
            for page in from..to {
                self.release_page(page);
            }
            self.superfluous.push(segment);
        }
        self.effects.push_back(Effect::Forget(span));
    }

    fn release_page(&mut self, page: u64) {
        self.table.set_stored(page, false);
        let place = std::mem::replace(&mut self.table.page_mut(page).place, Place::Absent);
        match place {
            Place::Absent => {}
            Place::Mapped { .. } => self.mapped -= 1,
            Place::Held(run) => {
                // Who touches a page while it is released sees zeros, or what was there before.
                let it = self.runs.get_mut(run);
                let (here, others) = it.waiting.iter().partition(|waiting| waiting.page == page);
                it.waiting = others;
                let here: Vec<_> = here;
                self.stalled.extend(here);
                self.let_go(run, 1);
            }
        }
    }
}
