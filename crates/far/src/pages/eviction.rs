//! Taking pages out of the program's memory, oldest first, and dropping runs.

use super::runs::{Origin, State};
use super::table::{Place, SEGMENT_PAGES};
use super::{Effect, Group, Pages, RunId, Span};

/// The most pages that are taken out together. A longer write would hold up reads behind it.
const OUT_MAX: u32 = 32;
/// Pages are taken out with neighbours that are at most this part of all ages younger.
const ALIKE_PART: usize = 8;

impl Pages {
    /// Room for up to `wanted` more pages, where it can be made without waiting. `keep` is a run that must stay.
    pub(super) fn make_room(&mut self, wanted: u32, keep: Option<RunId>) -> u32 {
        while self.room() < wanted && self.take_out_oldest(keep) {}
        self.room().min(wanted)
    }

    /// Takes the oldest mapped pages out. `false`: there is no place for them, or nothing is mapped.
    pub(super) fn take_out_oldest(&mut self, keep: Option<RunId>) -> bool {
        let Some((page, group)) = self.oldest() else { return false };
        let is_dirty = self.table.page(page).place == Place::Mapped { is_dirty: true };
        let most = OUT_MAX.min(self.window_max());
        let span = self.alike(page, group, is_dirty, most);
        let Some(span) =
            [span, Span::one(page)].into_iter().find(|span| self.hold(span.count.next_power_of_two(), keep))
        else {
            return false;
        };
        let run = self.add_run(span, State::TakingOut, Origin::TakenOut { is_dirty });
        for page in span.pages() {
            self.table.page_mut(page).place = Place::Held(run);
        }
        self.mapped -= span.count;
        self.counters.evicted += u64::from(span.count);
        self.effects.push_back(Effect::TakeOut { run, span, is_dirty });
        true
    }

    /// The page that was mapped, or first written, longest ago. Pages that have lives left lose one and count as new.
    fn oldest(&mut self) -> Option<(u64, Group)> {
        while let Some(&group) = self.ages.front() {
            let is_of = |page: &u64| {
                let page = self.table.page(*page);
                page.stamp == group.stamp && matches!(page.place, Place::Mapped { .. })
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

    /// The neighbours of a page that are as dirty, and not much younger.
    fn alike(&self, page: u64, group: Group, is_dirty: bool, most: u32) -> Span {
        let segment = page / SEGMENT_PAGES;
        let younger_max = u32::try_from(self.ages.len() / ALIKE_PART).unwrap_or(u32::MAX);
        let is_alike = |at: u64| {
            let it = self.table.page(at);
            at / SEGMENT_PAGES == segment
                && it.place == Place::Mapped { is_dirty }
                && it.lives == 0
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

    /// Mapped pages have been taken out into their run. `zeros` has a bit for each of them that holds nothing but zeros:
    /// those need no memory any more, here or on the node.
    pub fn taken_out(&mut self, run: RunId, zeros: u64) {
        let (span, origin) = (self.runs.get(run).span, self.runs.get(run).origin);
        let is_dirty = origin == (Origin::TakenOut { is_dirty: true });
        self.runs.set_state(run, if is_dirty { State::Dirty } else { State::Clean });
        let mut gone = 0;
        for (bit, page) in span.pages().enumerate() {
            let is_here = self.table.page(page).place == Place::Held(run);
            if is_dirty && is_here && zeros >> bit & 1 == 1 {
                self.table.page_mut(page).place = Place::Absent;
                self.table.set_stored(page, false);
                gone += 1;
            }
        }
        let waiting = std::mem::take(&mut self.runs.get_mut(run).waiting);
        self.let_go(run, gone);
        self.stalled.extend(waiting);
    }

    /// Makes place for a buffer of `block` pages among the runs, by dropping what the node has as well. `keep` is a run
    /// that must stay.
    pub(super) fn hold(&mut self, block: u32, keep: Option<RunId>) -> bool {
        while self.runs.taken() + block > self.limits.held {
            let Some(run) = self.runs.oldest_clean(keep) else { return false };
            let it = self.runs.get(run);
            if it.origin == Origin::Prefetched && it.left == it.span.count {
                self.ahead.was_dropped();
            }
            for page in it.span.pages() {
                if self.table.page(page).place == Place::Held(run) {
                    self.table.page_mut(page).place = Place::Absent;
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
        assert!(it.waiting.is_empty(), "who waits for a run waits for pages in it");
        let segment = it.span.first / SEGMENT_PAGES;
        self.table.segment_mut(segment).runs -= 1;
        self.superfluous.push(segment);
        self.effects.push_back(Effect::Discard(run));
    }
}
