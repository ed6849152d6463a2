//! Small pieces of pages. Each process takes pieces of its own pages only; any process frees any piece.

use super::pages::{Page, PageWords, SharedWords};
use super::runs::Runs;
use super::{PAGE_BYTES, layout::DATA_ALIGN};
use portcullis_memory::{Bytes, Memory};

/// Bytes of the smallest piece: a line of a cache.
const SMALLEST: u64 = DATA_ALIGN;
/// Classes: each has pieces of twice the size of the one before.
const CLASSES: u8 = 6;
/// Bytes of the largest piece. What is larger has pages of its own.
pub(crate) const LARGEST: u64 = SMALLEST << (CLASSES - 1);

/// The class of pieces for so many bytes.
fn class_of(bytes: u64) -> Option<u8> {
    (0..CLASSES).find(|&class| bytes <= SMALLEST << class)
}

/// The map of a page whose pieces are all free: those that there are not are taken for ever.
fn empty(class: u8) -> u64 {
    let pieces = (PAGE_BYTES / SMALLEST) >> class;
    u64::MAX.checked_shl(u32::try_from(pieces).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// This process's pages of pieces.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// By class.
    pages: [Vec<u32>; CLASSES as usize],
}

impl Slabs {
    /// Takes over pages of a dead process.
    pub fn adopt(&mut self, pages: Vec<(u32, u8)>) {
        for (page, class) in pages {
            if let Some(its) = self.pages.get_mut(usize::from(class))
                && !its.contains(&page)
            {
                its.push(page);
            }
        }
    }

    /// Takes a piece. Returns its page and its offset there. `None`: there is no room.
    pub fn take(&mut self, runs: &Runs<SharedWords>, bytes: u64, from: u32) -> Option<(u32, u64)> {
        let class = class_of(bytes)?;
        let pages = &mut self.pages[usize::from(class)];
        // From the newest on: the others are probably full.
        for &page in pages.iter().rev() {
            if let Some(piece) = take_piece(runs.words(), page, class) {
                return Some((page, piece * (SMALLEST << class)));
            }
        }
        let words = runs.words();
        let page =
            runs.take_slab(class, from, |page| words.memory.store(words.pieces(page), empty(class)))?;
        // A peer may have freed a page of this process.
        if !pages.contains(&page) {
            pages.push(page);
        }
        take_piece(words, page, class).map(|piece| (page, piece * (SMALLEST << class)))
    }

    /// Frees a piece. Returns whether there was one.
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
            self.let_go(runs, page, class);
        }
        true
    }

    /// Frees a page that has no pieces any more, but for the last one of its class: the next piece would want it.
    fn let_go(&mut self, runs: &Runs<SharedWords>, page: u32, class: u8) {
        let words = runs.words();
        let pages = &mut self.pages[usize::from(class)];
        if pages.len() < 2 || words.memory.load(words.pieces(page)) != empty(class) {
            return;
        }
        // Only this process takes pieces here, and it holds the lock of its pages.
        if runs.free_slab(page, class) {
            pages.retain(|&it| it != page);
        }
    }
}

/// Takes the first free piece of a page, of those that there are in its class.
fn take_piece(words: &SharedWords, page: u32, class: u8) -> Option<u64> {
    loop {
        let map = words.memory.load(words.pieces(page));
        let taken = map | empty(class);
        let piece = (taken != u64::MAX).then_some(u64::from(taken.trailing_ones()))?;
        if words.memory.compare_exchange(words.pieces(page), map, map | 1 << piece) == map {
            return Some(piece);
        }
    }
}

/// Marks a piece as free. Returns whether it was taken.
fn clear(words: &SharedWords, page: u32, bit: u64) -> bool {
    loop {
        let map = words.memory.load(words.pieces(page));
        if map & bit == 0 {
            return false;
        }
        if words.memory.compare_exchange(words.pieces(page), map, map & !bit) == map {
            return true;
        }
    }
}
