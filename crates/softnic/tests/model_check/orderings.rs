//! The memory orderings with which a memory is accessed.

use std::sync::atomic::Ordering;

/// The orderings of the accesses of rings.
#[derive(Clone, Copy, Debug)]
pub struct Orderings {
    /// The ordering for reading a single word: an entry's lap, or a polling end's progress.
    pub load: Ordering,
    /// The ordering for writing a single word.
    pub store: Ordering,
    /// The ordering for reading each word of an entry.
    pub load_words: Ordering,
    /// The ordering for writing each word of an entry.
    pub store_words: Ordering,
    /// The fences of a copy, whose words have no order among each other.
    pub copy: CopyFences,
}

/// The fences that a copy has.
#[derive(Clone, Copy, Debug)]
pub struct CopyFences {
    /// A release before the copy.
    pub before: bool,
    /// An acquire after the copy.
    pub after: bool,
}

impl Orderings {
    /// The orderings of `Mapping` in `memory/src/access.rs`.
    pub const OF_MAPPING: Self = Self {
        load: Ordering::Acquire,
        store: Ordering::Release,
        load_words: Ordering::Relaxed,
        store_words: Ordering::Relaxed,
        copy: CopyFences { before: true, after: true },
    };
    /// The orderings of a compare and exchange: the first if it succeeds, the second if it fails.
    pub const OF_COMPARE_EXCHANGE: [Ordering; 2] = [Ordering::AcqRel, Ordering::Acquire];
    /// The ordering of a fetch and add.
    pub const OF_FETCH_ADD: Ordering = Ordering::AcqRel;
}
