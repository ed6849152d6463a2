//! Pages that cannot be taken out for now: either the kernel refuses to move them, because they are pinned or locked;
//! or the program has called `madvise` to drop them, and the kernel may not have done so yet. They are tried again,
//! after longer and longer times.

use super::table::{PageState, SEGMENT_PAGES};
use super::{Effect, Group, Pages, Span};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time after which a page that stayed is tried again for the first time. Most pins last for one transfer.
const FIRST_AFTER: Duration = Duration::from_millis(10);
/// Maximum number of times that this time is doubled.
const DOUBLED_MAX: u8 = 10;

/// Reason for which a mapped page is not taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stay {
    /// The page can be taken out.
    No,
    /// The kernel has refused to move the page, this many more times in a row after the first.
    Refused { times: u8 },
    /// The program has called `madvise` to drop the page. Until the page is known to be dropped, its bytes may be the
    /// former ones.
    Doubtful,
}

/// Pages that are tried or checked again, by time.
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
    /// Tries the pages again whose time has come.
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

    /// Records that the kernel refuses to move mapped pages.
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

    /// Records that the program has called `madvise` to drop mapped pages.
    pub(super) fn doubt(&mut self, span: Span) {
        for page in span.pages() {
            let page = self.table.page_mut(page);
            page.stay = Stay::Doubtful;
            page.state = PageState::Mapped { is_dirty: true };
        }
        let stamp = self.stamp_anew(span);
        self.doubtful.push_back(Group { span, stamp });
    }

    /// Checks doubtful pages if room is needed.
    pub(super) fn look_at_doubtful(&mut self) {
        if self.is_low()
            && let Some(group) = self.doubtful.pop_front()
        {
            self.effects.push_back(Effect::Look(group.span));
        }
    }

    /// Records which pages of a span exist.
    pub fn looked(&mut self, span: Span, is_there: impl Fn(u64) -> bool) {
        let mut again: Vec<Span> = Vec::new();
        for page in span.pages() {
            let it = self.table.page(page);
            if it.stay != Stay::Doubtful || !matches!(it.state, PageState::Mapped { .. }) {
                continue;
            }
            if is_there(page) {
                Span::join(&mut again, page);
            } else {
                self.mapped -= 1;
                let it = self.table.page_mut(page);
                it.stay = Stay::No;
                it.state = PageState::Absent;
                self.superfluous.push(page / SEGMENT_PAGES);
            }
        }
        for span in again {
            let group = Group { span, stamp: self.stamp_anew(span) };
            self.later.add(self.now + FIRST_AFTER, group);
        }
    }

    /// Records that a page that was believed to be mapped was missing, and is zeros now.
    pub fn refilled(&mut self, page: u64) {
        if matches!(self.table.page(page).state, PageState::Mapped { .. }) {
            let it = self.table.page_mut(page);
            it.stay = Stay::No;
            it.state = PageState::Mapped { is_dirty: true };
            self.touch(Span::one(page));
        }
    }

    /// Whether a run's bytes of a mapped page are no longer the page's bytes, because the program has dropped them.
    #[must_use]
    pub fn is_dropped(&self, page: u64) -> bool {
        self.table.page(page).stay == Stay::Doubtful
    }
}
