//! Small pieces of pages. Each process takes pieces only of its own pages; any process frees any piece.

use super::pages::{Page, PageWords, SharedWords};
use super::runs::Runs;
use super::{PAGE_BYTES, layout::DATA_ALIGN};
use std::collections::{BTreeSet, HashSet};

/// Bytes of the smallest piece: one cache line.
const SMALLEST: u64 = DATA_ALIGN;
/// Number of classes. Each class has pieces of twice the size of the one before.
const CLASSES: u8 = 6;
/// Bytes of the largest piece. Larger values have pages of their own.
pub(crate) const LARGEST: u64 = SMALLEST << (CLASSES - 1);

/// The class of the smallest pieces that have room for `bytes`.
fn class_of(bytes: u64) -> Option<u8> {
    (0..CLASSES).find(|&class| bytes <= SMALLEST << class)
}

/// The map of a page whose pieces are all free. The bits of pieces that the class does not have are always set.
fn empty(class: u8) -> u64 {
    let pieces = (PAGE_BYTES / SMALLEST) >> class;
    u64::MAX.checked_shl(u32::try_from(pieces).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// This process's pages of pieces.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// The pages of each class.
    classes: [ClassPages; CLASSES as usize],
}

/// The pages of one class.
#[derive(Debug, Default)]
struct ClassPages {
    all: BTreeSet<u32>,
    /// Pages that can have a free piece, as far as this process knows: other processes free pieces too.
    open: BTreeSet<u32>,
    /// Number of pieces that were requested since all pages were searched.
    since: usize,
}

impl ClassPages {
    /// Takes a piece of one of the pages. If `must` is true, all pages are searched before the result is `None`.
    /// Otherwise all pages are searched so rarely that, on average, each piece pays for a look at one page.
    fn take(&mut self, words: &SharedWords, class: u8, must: bool) -> Option<(u32, u64)> {
        self.since += 1;
        if let Some(piece) = self.take_open(words, class) {
            return Some(piece);
        }
        if !must && self.since < self.all.len() {
            return None;
        }
        self.since = 0;
        self.open.clone_from(&self.all);
        self.take_open(words, class)
    }

    fn take_open(&mut self, words: &SharedWords, class: u8) -> Option<(u32, u64)> {
        while let Some(&page) = self.open.last() {
            if let Some(piece) = take_piece(words, page, class) {
                return Some((page, piece * (SMALLEST << class)));
            }
            self.open.pop_last();
        }
        None
    }
}

impl Slabs {
    /// Takes over pages of a dead process.
    pub fn adopt(&mut self, pages: Vec<(u32, u8)>) {
        let known: HashSet<u32> = self.classes.iter().flat_map(|it| &it.all).copied().collect();
        for (page, class) in pages {
            if let Some(its) = self.classes.get_mut(usize::from(class))
                && !known.contains(&page)
            {
                its.all.insert(page);
                its.open.insert(page);
            }
        }
    }

    /// Takes a piece. Returns its page and its offset in the page. `None`: there is no room.
    pub fn take(&mut self, runs: &Runs<SharedWords>, bytes: u64, from: u32) -> Option<(u32, u64)> {
        let class = class_of(bytes)?;
        let pages = &mut self.classes[usize::from(class)];
        let words = runs.words();
        if let Some(piece) = pages.take(words, class, false) {
            return Some(piece);
        }
        let page = runs.take_slab(class, from, |page| words.store_map(page, empty(class)));
        let Some(page) = page else { return pages.take(words, class, true) };
        // A peer may have freed a page of this process: then the page is in the sets already.
        pages.all.insert(page);
        pages.open.insert(page);
        take_piece(words, page, class).map(|piece| (page, piece * (SMALLEST << class)))
    }

    /// Frees a piece. Returns whether it was taken.
    pub fn free(&mut self, runs: &Runs<SharedWords>, page: u32, offset: u64) -> bool {
        let words = runs.words();
        let Some(Page::Slab { of, class }) = words.load(page) else { return false };
        if class >= CLASSES || !offset.is_multiple_of(SMALLEST << class) {
            return false;
        }
        let bit = 1 << (offset / (SMALLEST << class));
        if empty(class) & bit != 0 || !clear(words, page, bit) {
            return false;
        }
        if of == runs.owner() {
            self.classes[usize::from(class)].open.insert(page);
            self.let_go(runs, page, class);
        }
        true
    }

    /// Frees a page without taken pieces, unless it is the last one of its class: the next piece would need a page
    /// again.
    fn let_go(&mut self, runs: &Runs<SharedWords>, page: u32, class: u8) {
        let words = runs.words();
        let pages = &mut self.classes[usize::from(class)];
        if pages.all.len() < 2 || words.map(page) != empty(class) {
            return;
        }
        // Only this process takes pieces of this page, and it holds the lock of its pages.
        if runs.free_slab(page, class) {
            pages.all.remove(&page);
            pages.open.remove(&page);
        }
    }
}

/// Takes the first free piece of a page, among the pieces that its class has.
fn take_piece(words: &SharedWords, page: u32, class: u8) -> Option<u64> {
    loop {
        let map = words.map(page);
        let taken = map | empty(class);
        let piece = (taken != u64::MAX).then_some(u64::from(taken.trailing_ones()))?;
        if words.change_map(page, map, map | 1 << piece) {
            return Some(piece);
        }
    }
}

/// Marks a piece as free. Returns whether it was taken.
fn clear(words: &SharedWords, page: u32, bit: u64) -> bool {
    loop {
        let map = words.map(page);
        if map & bit == 0 {
            return false;
        }
        if words.change_map(page, map, map & !bit) {
            return true;
        }
    }
}
