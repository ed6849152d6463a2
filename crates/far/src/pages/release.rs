//! Release of pages that the program does not need any more.

use super::runs::State;
use super::staying::Stay;
use super::table::{PageState, SEGMENT_PAGES};
use super::{Pages, Span};

impl Pages {
    /// Records that the program has called `madvise` to drop pages: they are zeros from here on. The kernel drops them
    /// after this is reported, so mapped pages may still exist for a while.
    ///
    /// # Panics
    /// The pages lie outside the range.
    pub fn removed(&mut self, span: Span) {
        let mut doubtful = Vec::new();
        self.each_touched(span, |pages, page| {
            if pages.release_page(page) {
                Span::join(&mut doubtful, page);
            }
        });
        for span in doubtful {
            self.doubt(span);
        }
    }

    /// Records that pages are not in the program's memory any more.
    ///
    /// # Panics
    /// The pages lie outside the range.
    pub fn unmapped(&mut self, span: Span) {
        self.each_touched(span, |pages, page| {
            if pages.release_page(page) {
                pages.mapped -= 1;
                let it = pages.table.page_mut(page);
                it.state = PageState::Absent;
                it.stay = Stay::No;
            }
        });
    }

    fn each_touched(&mut self, span: Span, mut act: impl FnMut(&mut Self, u64)) {
        assert!(span.end() <= self.table.len(), "{span:?} lies outside the range");
        let segments = span.first / SEGMENT_PAGES..span.end().div_ceil(SEGMENT_PAGES);
        for segment in segments.filter(|&segment| self.table.is_touched(segment)).collect::<Vec<_>>() {
            let from = span.first.max(segment * SEGMENT_PAGES);
            let to = span.end().min((segment + 1) * SEGMENT_PAGES);
            for page in from..to {
                act(self, page);
            }
            self.superfluous.push(segment);
        }
    }

    /// Forgets the stored bytes and the run of a page. Returns whether the page is mapped.
    fn release_page(&mut self, page: u64) -> bool {
        self.set_stored(page, None);
        match self.table.page(page).state {
            PageState::Absent => false,
            PageState::Mapped { .. } => true,
            // It is unknown whether the page is still mapped until the program answers.
            PageState::Held(run) if self.runs.get(run).state == State::TakingOut => {
                let it = self.runs.get_mut(run);
                it.dropped |= 1 << (page - it.span.first);
                false
            }
            PageState::Held(run) => {
                self.table.page_mut(page).state = PageState::Absent;
                // A thread that touches a page while it is dropped sees zeros, or the former bytes.
                let it = self.runs.get_mut(run);
                let (here, others) = it.waiting.iter().partition(|waiting| waiting.page == page);
                it.waiting = others;
                let here: Vec<_> = here;
                self.stalled.extend(here);
                self.let_go(run, 1);
                false
            }
        }
    }
}
