//! The state of a heap's pages, in the heap's own memory.
//!
//! Each page has a word with its state. All processes of the heap change these words with compare-and-swap. A process
//! that dies leaves words from which another process can tell what it was doing
//! ([`Runs::reclaim`](super::runs::Runs::reclaim)). A hostile process can write any state there, and harms only the
//! users of that heap.

use super::steps::Life;
use portcullis_memory::{Bytes, Mapping, Memory};

/// A process that takes pages of a heap, as a number that the heap's maker gives to each process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner(pub u16);

/// State of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Page {
    Free,
    /// The first page of a run that is being taken: the pages behind it are taken one after another.
    Taking {
        by: Owner,
        length: u32,
    },
    /// The first page of a run of `length` pages.
    Run {
        of: Owner,
        length: u32,
    },
    /// The first page of a run that is being freed, from its end on.
    Freeing {
        by: Owner,
        length: u32,
    },
    /// A further page of the run before it.
    Body,
    /// A page of small pieces that are all of one class.
    Slab {
        of: Owner,
        class: u8,
    },
}

impl Page {
    /// Encodes the state as a word.
    pub fn word(self) -> u64 {
        let (kind, class, owner, length) = match self {
            Self::Free => (0, 0, 0, 0),
            Self::Taking { by, length } => (1, 0, by.0, length),
            Self::Run { of, length } => (2, 0, of.0, length),
            Self::Freeing { by, length } => (3, 0, by.0, length),
            Self::Body => (4, 0, 0, 0),
            Self::Slab { of, class } => (5, class, of.0, 0),
        };
        kind | u64::from(class) << 8 | u64::from(owner) << 16 | u64::from(length) << 32
    }

    /// Decodes a word. `None`: the word encodes no state, and the page is lost until its heap ends.
    pub fn read(word: u64) -> Option<Self> {
        let [kind, class, low, high, ..] = word.to_le_bytes();
        let owner = Owner(u16::from_le_bytes([low, high]));
        let length = u32::try_from(word >> 32).ok()?;
        let page = match kind {
            0 => Self::Free,
            1 => Self::Taking { by: owner, length },
            2 => Self::Run { of: owner, length },
            3 => Self::Freeing { by: owner, length },
            4 => Self::Body,
            5 => Self::Slab { of: owner, class },
            _ => return None,
        };
        (page.word() == word).then_some(page)
    }

    /// The owner of the page, if it is the first page of an allocation.
    pub fn owner(self) -> Option<Owner> {
        match self {
            Self::Free | Self::Body => None,
            Self::Taking { by: owner, .. }
            | Self::Run { of: owner, .. }
            | Self::Freeing { by: owner, .. }
            | Self::Slab { of: owner, .. } => Some(owner),
        }
    }
}

/// The words of a heap's pages. In tests another implementation can stand between the allocator and the memory.
pub(crate) trait PageWords {
    /// The number of pages.
    fn count(&self) -> u32;

    /// Reads the state of a page.
    fn load(&self, page: u32) -> Option<Page>;

    /// Changes the state of a page, if it is still `before`. Returns whether it was.
    fn change(&self, page: u32, before: Page, after: Page) -> bool;

    /// Stores the state of a page that belongs to the caller.
    fn store(&self, page: u32, is: Page);
}

/// The words in the memory of the heap.
#[derive(Clone, Debug)]
pub(crate) struct SharedWords {
    pub memory: Mapping,
    /// Offset of the first word.
    pub offset: u64,
    pub count: u32,
    pub life: Life,
}

/// Bytes of a page's entry: its word, and the map of its pieces.
pub(crate) const ENTRY_BYTES: u64 = 16;

impl SharedWords {
    fn word(&self, page: u32) -> u64 {
        self.offset + u64::from(page) * ENTRY_BYTES
    }

    /// The map of a page's pieces.
    pub fn map(&self, page: u32) -> u64 {
        self.memory.load(self.word(page) + 8)
    }

    /// Changes the map of a page's pieces, if it is still as before. Returns whether it was.
    pub fn change_map(&self, page: u32, before: u64, after: u64) -> bool {
        !self.life.goes_on() || self.memory.compare_exchange(self.word(page) + 8, before, after) == before
    }

    /// Stores the map of a page that belongs to the caller.
    pub fn store_map(&self, page: u32, map: u64) {
        if self.life.goes_on() {
            self.memory.store(self.word(page) + 8, map);
        }
    }
}

impl PageWords for SharedWords {
    fn count(&self) -> u32 {
        self.count
    }

    fn load(&self, page: u32) -> Option<Page> {
        Page::read(self.memory.load(self.word(page)))
    }

    fn change(&self, page: u32, before: Page, after: Page) -> bool {
        self.life.goes_on()
            && self.memory.compare_exchange(self.word(page), before.word(), after.word()) == before.word()
    }

    fn store(&self, page: u32, is: Page) {
        if self.life.goes_on() {
            self.memory.store(self.word(page), is.word());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_word_says_one_thing_or_nothing(word: u64) {
            if let Some(page) = Page::read(word) {
                prop_assert_eq!(page.word(), word);
            }
        }

        #[test]
        fn what_is_written_is_read(owner: u16, length: u32, class: u8) {
            let owner = Owner(owner);
            let pages = [
                Page::Free,
                Page::Taking { by: owner, length },
                Page::Run { of: owner, length },
                Page::Freeing { by: owner, length },
                Page::Body,
                Page::Slab { of: owner, class },
            ];
            for page in pages {
                prop_assert_eq!(Page::read(page.word()), Some(page));
            }
        }
    }
}
