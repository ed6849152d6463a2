//! Eviction of pages from the program's memory, oldest first, and release of runs.

use super::runs::{Origin, State};
use super::staying::Stay;
use super::table::{PageState, SEGMENT_PAGES};
use super::{Effect, Group, Pages, RunId, Span};
use std::time::Duration;

/// Maximum number of pages that are taken out together. A longer write would delay the reads behind it.
const OUT_MAX: u32 = 32;
/// Divisor of the number of age groups: a page is taken out together with neighbours that are younger by at most this
/// part of the groups.
const ALIKE_PART: usize = 8;

/// Outcome for pages that were to be taken out: a bit for each page of their run. A page with no bit in `moved` or
/// `missing` stays mapped.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TakenOut {
    /// The run's buffer has the page's bytes.
    pub moved: u64,
    /// The page did not exist: its bytes are zeros.
    pub missing: u64,
    /// Moved pages that hold only zeros.
    pub zeros: u64,
    /// The page's protection was lifted, and the program may have written to it since.
    pub unprotected: u64,
    /// The kernel stopped moving at some page, since the program changes its mappings. The pages from there on do not
    /// count as refused.
    pub is_changing: bool,
}

impl Pages {
    /// Makes room for up to `wanted` more pages, if it is possible without waiting. Returns the room. `keep` is a run
    /// that must stay. If nothing can be taken out because all mapped pages stay, there is room for a window all the
    /// same: a program that locks its memory would otherwise wait for each page of it.
    pub(super) fn make_room(&mut self, wanted: u32, keep: Option<RunId>) -> u32 {
        while self.room() < wanted && self.take_out_oldest(keep) {}
        let room = self.room().min(wanted);
        let can_go = self.oldest().is_some() && !self.is_late;
        if room == 0 && !can_go { wanted.clamp(1, OUT_MAX) } else { room }
    }

    /// Takes the oldest mapped pages out. Returns `false` if there is no buffer for them, the program's answer is late,
    /// or no mapped page can be taken out.
    pub(super) fn take_out_oldest(&mut self, keep: Option<RunId>) -> bool {
        if self.under_way.is_some() && self.is_late {
            return false;
        }
        let Some((page, group)) = self.oldest() else { return false };
        let is_dirty = self.table.page(page).state == PageState::Mapped { is_dirty: true };
        let most = OUT_MAX.min(self.window_max());
        let span = self.alike(page, group, is_dirty, most);
        let Some(span) =
            [span, Span::one(page)].into_iter().find(|span| self.hold(span.count.next_power_of_two(), keep))
        else {
            return false;
        };
        let run = self.add_run(span, State::TakingOut, Origin::TakenOut { is_dirty });
        for page in span.pages() {
            self.table.page_mut(page).state = PageState::Held(run);
        }
        self.mapped -= span.count;
        self.effects.push_back(Effect::TakeOut(run, span));
        true
    }

    /// Records that the pages of a run were requested from the program. [`Pages::taken_out`] ends that.
    pub fn asked(&mut self, run: RunId) {
        self.under_way = Some(run);
    }

    /// Records whether the program's answer is late. While it is late, nothing is taken out, and more pages are mapped
    /// than the limit allows.
    pub fn set_late(&mut self, is_late: bool) {
        self.is_late = is_late;
    }

    /// Returns the page that was mapped, or first written, longest ago. Pages that have lives left lose one and count
    /// as new.
    fn oldest(&mut self) -> Option<(u64, Group)> {
        while let Some(&group) = self.ages.front() {
            let is_of = |page: &u64| {
                let page = self.table.page(*page);
                page.stamp == group.stamp && matches!(page.state, PageState::Mapped { .. })
            };
            let Some(page) = group.span.pages().find(is_of) else {
                self.ages.pop_front();
                continue;
            };
            let it = self.table.page_mut(page);
            if it.lives == 0 {
                return Some((page, group));
            }
            it.lives -= 1;
            self.touch(Span::one(page));
        }
        None
    }

    /// Returns the neighbours of a page that are equally dirty, and not much younger.
    fn alike(&self, page: u64, group: Group, is_dirty: bool, most: u32) -> Span {
        let segment = page / SEGMENT_PAGES;
        let younger_max = u32::try_from(self.ages.len() / ALIKE_PART).unwrap_or(u32::MAX);
        let is_alike = |at: u64| {
            let it = self.table.page(at);
            at / SEGMENT_PAGES == segment
                && it.state == PageState::Mapped { is_dirty }
                && it.lives == 0
                && (it.stay == Stay::No || it.stamp == group.stamp)
                && it.stamp.wrapping_sub(group.stamp) <= younger_max
        };
        let mut span = Span::one(page);
        while span.count < most && span.end() < self.table.len() && is_alike(span.end()) {
            span.count += 1;
        }
        while span.count < most && span.first > 0 && is_alike(span.first - 1) {
            span = Span { first: span.first - 1, count: span.count + 1 };
        }
        span
    }

    /// Records that mapped pages have been taken out into their run, or stay. `now` is as for [`Pages::prepare`].
    pub fn taken_out(&mut self, run: RunId, taken: TakenOut, now: Duration) {
        self.now = self.now.max(now);
        self.under_way = self.under_way.filter(|&asked| asked != run);
        let (span, origin, dropped) = {
            let it = self.runs.get(run);
            (it.span, it.origin, it.dropped)
        };
        let was_dirty = origin == (Origin::TakenOut { is_dirty: true });
        let is_dirty = was_dirty || taken.unprotected & taken.moved != 0;
        self.runs.set_state(run, if is_dirty { State::Dirty } else { State::Clean });
        let (mut gone, mut refused, mut dropped_here) = (0, Vec::new(), Vec::new());
        for (bit, page) in span.pages().enumerate() {
            let has = |mask: u64| mask >> bit & 1 == 1;
            let is_zero = has(taken.missing) || has(dropped) || (is_dirty && has(taken.zeros));
            if has(taken.moved | taken.missing) {
                self.table.page_mut(page).stay = Stay::No;
                self.counters.evicted += u64::from(has(taken.moved));
                if is_zero {
                    self.table.page_mut(page).state = PageState::Absent;
                    self.set_stored(page, None);
                    gone += 1;
                }
                continue;
            }
            gone += 1;
            self.mapped += 1;
            // A run that is written has no bytes of the pages that stay, so these are dirty whatever bytes the node had
            // of them before.
            let is_dirty = is_dirty || has(taken.unprotected);
            self.table.page_mut(page).state = PageState::Mapped { is_dirty };
            match (has(dropped), taken.is_changing) {
                (true, _) => Span::join(&mut dropped_here, page),
                (false, false) => Span::join(&mut refused, page),
                (false, true) => {
                    let stamp = self.stamp_anew(Span::one(page));
                    self.ages.push_front(Group { span: Span::one(page), stamp });
                }
            }
        }
        self.counters.mapped_max = self.counters.mapped_max.max(self.mapped);
        refused.into_iter().for_each(|span| self.refused(span));
        dropped_here.into_iter().for_each(|span| self.doubt(span));
        let waiting = std::mem::take(&mut self.runs.get_mut(run).waiting);
        self.let_go(run, gone);
        self.stalled.extend(waiting);
    }

    /// Makes room for a buffer of `block` pages among the runs, by dropping runs that the node also has. `keep` is a
    /// run that must stay.
    pub(super) fn hold(&mut self, block: u32, keep: Option<RunId>) -> bool {
        while self.runs.taken() + block > self.limits.held {
            let Some(run) = self.runs.oldest_clean(keep) else { return false };
            let it = self.runs.get(run);
            if it.origin == Origin::Prefetched && it.left == it.span.count {
                self.ahead.was_dropped();
            }
            for page in it.span.pages() {
                if self.table.page(page).state == PageState::Held(run) {
                    self.table.page_mut(page).state = PageState::Absent;
                }
            }
            self.discard(run);
        }
        true
    }

    pub(super) fn add_run(&mut self, span: Span, state: State, origin: Origin) -> RunId {
        self.table.segment_mut(span.first / SEGMENT_PAGES).runs += 1;
        let run = self.runs.add(span, state, origin);
        self.counters.held_max = self.counters.held_max.max(self.runs.taken());
        run
    }

    /// Drops a run whose pages are elsewhere.
    pub(super) fn discard(&mut self, run: RunId) {
        let it = self.runs.remove(run);
        assert!(it.waiting.is_empty(), "a fault that waits for a run waits for a page in it");
        let segment = it.span.first / SEGMENT_PAGES;
        self.table.segment_mut(segment).runs -= 1;
        self.superfluous.push(segment);
        self.effects.push_back(Effect::Discard(run));
    }
}
