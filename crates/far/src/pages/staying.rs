//! Pages that cannot be taken out for now: the kernel refuses to move them, because they are pinned or locked, or the
//! program has asked the kernel to drop them and may not have been served yet. They are tried again, each time later.

use super::table::{Place, SEGMENT_PAGES};
use super::{Effect, Group, Pages, Span};
use std::collections::BTreeMap;
use std::time::Duration;

/// When a page that stayed is tried again for the first time. Most pins last for one transfer.
const FIRST_AFTER: Duration = Duration::from_millis(10);
/// How many times this is doubled.
const DOUBLED_MAX: u8 = 10;

/// Why a mapped page is not taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stay {
    /// It can be.
    No,
    /// The kernel has refused to move it, so many times in a row.
    Refused { times: u8 },
    /// The program has asked the kernel to drop the page. Until the page is seen to be gone, its bytes may be those from
    /// before.
    Doubtful,
}

/// Pages to be looked at again, by when.
#[derive(Debug, Default)]
pub(super) struct Later {
    groups: BTreeMap<(Duration, u64), Group>,
    next: u64,
}

impl Later {
    fn add(&mut self, at: Duration, group: Group) {
        self.groups.insert((at, self.next), group);
        self.next += 1;
    }

    fn due(&mut self, now: Duration) -> Option<Group> {
        let first = self.groups.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

impl Pages {
    /// Has pages tried again whose time has come.
    pub(super) fn try_again(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(group) = self.later.due(now) {
            let is_doubtful = |page| {
                let page = self.table.page(page);
                page.stamp == group.stamp && page.stay == Stay::Doubtful
            };
            if group.span.pages().any(is_doubtful) {
                self.doubtful.push_back(group);
            } else {
                self.ages.push_front(group);
            }
        }
    }

    /// The kernel refuses to move mapped pages.
    pub(super) fn refused(&mut self, span: Span) {
        let mut most = 0;
        for page in span.pages() {
            let page = self.table.page_mut(page);
            let times = if let Stay::Refused { times } = page.stay { times.saturating_add(1) } else { 0 };
            most = most.max(times);
            page.stay = Stay::Refused { times };
            page.lives = 0;
        }
        self.counters.refused += u64::from(span.count);
        let group = Group { span, stamp: self.stamp_anew(span) };
        self.later.add(self.now + FIRST_AFTER * (1 << most.min(DOUBLED_MAX)), group);
    }

    /// The program has asked the kernel to drop mapped pages.
    pub(super) fn doubt(&mut self, span: Span) {
        for page in span.pages() {
            let page = self.table.page_mut(page);
            page.stay = Stay::Doubtful;
            page.place = Place::Mapped { is_dirty: true };
        }
        let stamp = self.stamp_anew(span);
        self.doubtful.push_back(Group { span, stamp });
    }

    /// Has doubtful pages looked at, where room is needed.
    pub(super) fn look_at_doubtful(&mut self) {
        if self.is_low()
            && let Some(group) = self.doubtful.pop_front()
        {
            self.effects.push_back(Effect::Look(group.span));
        }
    }

    /// Which of the pages of a span are there.
    pub fn looked(&mut self, span: Span, is_there: impl Fn(u64) -> bool) {
        let mut again: Vec<Span> = Vec::new();
        for page in span.pages() {
            let it = self.table.page(page);
            if it.stay != Stay::Doubtful || !matches!(it.place, Place::Mapped { .. }) {
                continue;
            }
            if is_there(page) {
                Span::join(&mut again, page);
            } else {
                self.mapped -= 1;
                let it = self.table.page_mut(page);
                it.stay = Stay::No;
                it.place = Place::Absent;
                self.superfluous.push(page / SEGMENT_PAGES);
            }
        }
        for span in again {
            let group = Group { span, stamp: self.stamp_anew(span) };
            self.later.add(self.now + FIRST_AFTER, group);
        }
    }

    /// A page that was believed to be mapped was missing, and is zeros now.
    pub fn refilled(&mut self, page: u64) {
        if matches!(self.table.page(page).place, Place::Mapped { .. }) {
            let it = self.table.page_mut(page);
            it.stay = Stay::No;
            it.place = Place::Mapped { is_dirty: true };
            self.touch(Span::one(page));
        }
    }

    /// Whether the bytes that a run has of a mapped page are not the page's any more: the program has dropped them.
    #[must_use]
    pub fn is_dropped(&self, page: u64) -> bool {
        self.table.page(page).stay == Stay::Doubtful
    }
}
