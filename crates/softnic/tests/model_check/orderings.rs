//! With which memory orderings a memory is accessed.

use std::sync::atomic::Ordering;

/// The orderings of the accesses that rings make.
#[derive(Clone, Copy, Debug)]
pub struct Orderings {
    /// Of a single word that is read: an entry's lap, or how far a polling end came.
    pub load: Ordering,
    /// Of a single word that is written.
    pub store: Ordering,
    /// Of each word of an entry that is read.
    pub load_words: Ordering,
    /// Of each word of an entry that is written.
    pub store_words: Ordering,
}

impl Orderings {
    /// Those of `Mapping` in `memory/src/access.rs`.
    pub const OF_MAPPING: Self = Self {
        load: Ordering::Acquire,
        store: Ordering::Release,
        load_words: Ordering::Relaxed,
        store_words: Ordering::Relaxed,
    };
    /// Of a word that is compared and swapped, when it succeeds and when it fails.
    pub const OF_COMPARE_EXCHANGE: [Ordering; 2] = [Ordering::AcqRel, Ordering::Acquire];
    /// Of a word that is added to.
    pub const OF_FETCH_ADD: Ordering = Ordering::AcqRel;
}
