//! Runs of neighbouring pages, taken and freed by many processes at once, each of which may die at any step.
//!
//! The invariant is: **the pages of kind `Body` behind a first page are exactly those of its run that are taken.** A
//! run is taken from its first page on and freed from its last page on, so at every step the taken pages are the
//! beginning of the run; and no other run can begin with a `Body`. So a process that finds the first page of a dead
//! process's run, in whatever state, walks over the `Body` pages behind it and frees them from the last one on.

use super::pages::{Owner, Page, PageWords};
use portcullis_planted::planted;

/// The runs of a heap, as one process sees them.
#[derive(Debug)]
pub(crate) struct Runs<W> {
    words: W,
    owner: Owner,
}

impl<W: PageWords> Runs<W> {
    pub fn new(words: W, owner: Owner) -> Self {
        Self { words, owner }
    }

    pub fn words(&self) -> &W {
        &self.words
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Takes the first neighbouring free pages from page `from` on, or else from the beginning. `None`: there are no
    /// such pages.
    pub fn take(&self, length: u32, from: u32) -> Option<u32> {
        let count = self.words.count();
        let from = if from < count { from } else { 0 };
        self.take_between(from, count, length).or_else(|| self.take_between(0, count, length))
    }

    /// Takes neighbouring pages from `first` on. Returns whether all of them were free.
    pub fn take_at(&self, first: u32, length: u32) -> bool {
        let is_there = first.checked_add(length).is_some_and(|end| end <= self.words.count());
        is_there && length > 0 && self.try_take(first, length).is_ok()
    }

    fn take_between(&self, from: u32, to: u32, length: u32) -> Option<u32> {
        let mut first = from;
        while length > 0 && first.checked_add(length)? <= to {
            match self.try_take(first, length) {
                Ok(()) => return Some(first),
                Err(obstacle) => first = obstacle + 1,
            }
        }
        None
    }

    /// Takes all of these pages, or none of them.
    ///
    /// # Errors
    /// Returns a page that is not free.
    fn try_take(&self, first: u32, length: u32) -> Result<(), u32> {
        // Pages are checked from the last one on: the search goes on behind the last obstacle.
        if let Some(obstacle) = (first..first + length).rev().find(|&it| !self.is_free(it)) {
            return Err(obstacle);
        }
        let taking = Page::Taking { by: self.owner, length };
        if !self.words.change(first, Page::Free, taking) {
            return Err(first);
        }
        for page in first + 1..first + length {
            if !self.words.change(page, Page::Free, Page::Body) {
                self.give_up(first, page - first);
                return Err(page);
            }
        }
        self.words.store(first, Page::Run { of: self.owner, length });
        Ok(())
    }

    fn is_free(&self, page: u32) -> bool {
        self.words.load(page) == Some(Page::Free)
    }

    /// Takes one page for small pieces. Calls `prepare` when the page is taken, before other processes can use it.
    pub fn take_slab(&self, class: u8, from: u32, prepare: impl FnOnce(u32)) -> Option<u32> {
        let page = self.take(1, from)?;
        prepare(page);
        self.words.store(page, Page::Slab { of: self.owner, class });
        Some(page)
    }

    /// Frees the run that begins with a page. Returns its length; `None`: no run begins there.
    pub fn free(&self, first: u32) -> Option<u32> {
        let page = self.load(first)?;
        let Page::Run { length, .. } = page else { return None };
        self.free_from(first, page, length).map(|_| length)
    }

    /// Frees a page of small pieces, none of which is taken any more.
    pub fn free_slab(&self, page: u32, class: u8) -> bool {
        self.free_from(page, Page::Slab { of: self.owner, class }, 1).is_some()
    }

    fn load(&self, page: u32) -> Option<Page> {
        (page < self.words.count()).then(|| self.words.load(page))?
    }

    /// Frees a run. Returns how many of its pages were taken; `None`: another process has freed it.
    fn free_from(&self, first: u32, before: Page, length: u32) -> Option<u32> {
        let is_ours = self.words.change(first, before, Page::Freeing { by: self.owner, length });
        is_ours.then(|| {
            let taken = self.taken_from(first, length);
            self.give_up(first, taken);
            taken
        })
    }

    /// Number of pages of a run of `length` that are taken.
    fn taken_from(&self, first: u32, length: u32) -> u32 {
        let end = first.saturating_add(length).min(self.words.count());
        let bodies = (first + 1..end).take_while(|&page| self.words.load(page) == Some(Page::Body));
        1 + u32::try_from(bodies.count()).unwrap_or(u32::MAX)
    }

    /// Frees pages from the last one on.
    fn give_up(&self, first: u32, taken: u32) {
        if planted!(FreedFromTheFirst) {
            return (first..first + taken).for_each(|page| self.words.store(page, Page::Free));
        }
        for page in (first..first + taken).rev() {
            self.words.store(page, Page::Free);
        }
    }

    /// Takes over the pages of a dead process. Frees its runs, also those that it was taking or freeing. Returns its
    /// pages of small pieces, which belong to this process from now on.
    pub fn reclaim(&self, dead: Owner) -> Vec<(u32, u8)> {
        let (mut slabs, mut next) = (Vec::new(), 0);
        while next < self.words.count() {
            let first = next;
            next += 1;
            let is_its =
                |page: &Page| page.owner() == Some(dead) || page.owner().is_some() && planted!(AllReclaimed);
            let Some(page) = self.words.load(first).filter(is_its) else { continue };
            match page {
                Page::Taking { .. } if planted!(TakingNotReclaimed) => {}
                Page::Taking { length, .. } | Page::Run { length, .. } | Page::Freeing { length, .. } => {
                    // No page is looked at twice, whatever a peer writes meanwhile.
                    next = first + self.free_from(first, page, length).unwrap_or(1);
                }
                Page::Slab { class, .. } => {
                    if self.words.change(first, page, Page::Slab { of: self.owner, class }) {
                        slabs.push((first, class));
                    }
                }
                Page::Free | Page::Body => {}
            }
        }
        slabs
    }

    /// Number of pages that are free.
    pub fn free_pages(&self) -> u32 {
        let free = (0..self.words.count()).filter(|&page| self.is_free(page));
        u32::try_from(free.count()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests;
