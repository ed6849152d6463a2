//! One region or window, as the threads of a NIC share it.
//!
//! The NIC's thread alone changes an entry; engines read it without a lock ([`SharedEntry`]). A reader that meets a change
//! gets no entry, and refuses the access: a change ends all accesses that the entry has allowed, and no client has been given
//! the new key yet.

use portcullis_nic::{Access, PdId, QpId, WindowKind};
use portcullis_planted::planted;
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicU64, Ordering, fence};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Free,
    Region,
    Window(WindowKind),
}

/// A region, a window, or a free index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub base: u64,
    pub length: u64,
    pub offset: u64,
    pub memory: u32,
    pub pd: PdId,
    /// The queue pair of a bound type-2 window.
    pub queue_pair: QpId,
    pub state: State,
}

/// The key, the rights and the kind of an entry, in one word: a check compares several of them at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u32);

impl State {
    const LIVE: u32 = 1 << 8;
    const ACCESS_SHIFT: u32 = 16;
    const REGION: u32 = 1 << 24;
    const WINDOW: u32 = 1 << 25;
    const TWO: u32 = 1 << 26;

    /// The state of an entry with this key. `live`: the entry is a region or a bound window.
    pub fn new(key: u8, live: bool, access: Access, kind: Kind) -> Self {
        let kind = match kind {
            Kind::Free => 0,
            Kind::Region => Self::REGION,
            Kind::Window(WindowKind::One) => Self::WINDOW,
            Kind::Window(WindowKind::Two) => Self::WINDOW | Self::TWO,
        };
        let live = if live { Self::LIVE } else { 0 };
        Self(u32::from(key) | live | u32::from(access.bits()) << Self::ACCESS_SHIFT | kind)
    }

    pub fn key(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    pub fn live(self) -> bool {
        self.0 & Self::LIVE != 0
    }

    pub fn access(self) -> Access {
        Access::from_bits_retain(self.0.to_le_bytes()[2])
    }

    pub fn kind(self) -> Kind {
        match (self.0 & Self::REGION != 0, self.0 & Self::WINDOW != 0, self.is_type_2()) {
            (true, ..) => Kind::Region,
            (_, true, false) => Kind::Window(WindowKind::One),
            (_, true, true) => Kind::Window(WindowKind::Two),
            _ => Kind::Free,
        }
    }

    /// Returns the state of the same window, unbound.
    pub fn unbound(self) -> Self {
        Self(self.0 & !Self::LIVE)
    }

    #[inline]
    pub fn is_type_2(self) -> bool {
        self.0 & Self::TWO != 0
    }

    /// Whether the entry is live under `key`, and has these rights.
    #[inline]
    pub fn opens(self, key: u8, access: Access) -> bool {
        let key_compared = if planted!(KeyNotCompared) { 0 } else { 0xFF };
        let rights = u32::from(access.bits()) << Self::ACCESS_SHIFT;
        self.0 & (key_compared | Self::LIVE | rights) == u32::from(key) & key_compared | Self::LIVE | rights
    }

    /// Whether the entry is a region under `key`, and has these rights.
    #[inline]
    pub fn is_region(self, key: u8, access: Access) -> bool {
        let rights = u32::from(access.bits()) << Self::ACCESS_SHIFT;
        self.0 & (0xFF | Self::REGION | rights) == u32::from(key) | Self::REGION | rights
    }
}

impl Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut state = f.debug_struct("State");
        state.field("key", &self.key()).field("live", &self.live());
        state.field("access", &self.access()).field("kind", &self.kind()).finish()
    }
}

impl Entry {
    /// A free index that no key has had yet.
    pub const FREE: Self =
        Self { base: 0, length: 0, offset: 0, memory: 0, pd: PdId(0), queue_pair: QpId(0), state: State(0) };

    #[inline]
    fn encode(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let places = pair(self.memory, self.pd.0);
        [self.base, self.length, self.offset, places, pair(self.queue_pair.0, self.state.0)]
    }

    #[inline]
    fn decode([base, length, offset, places, last]: [u64; WORDS]) -> Self {
        Self {
            base,
            length,
            offset,
            memory: low(places),
            pd: PdId(high(places)),
            queue_pair: QpId(low(last)),
            state: State(high(last)),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
#[inline]
fn low(word: u64) -> u32 {
    word as u32
}

#[inline]
fn high(word: u64) -> u32 {
    low(word >> 32)
}

/// Number of words of an entry.
pub const WORDS: usize = 5;

/// A word that one thread writes and others read. A model checker has its own.
pub trait Word: Debug {
    /// Makes a word.
    fn new(value: u64) -> Self;
    /// Reads the word.
    fn load(&self, ordering: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, ordering: Ordering);
    /// Orders the accesses to words before it and after it.
    fn fence(ordering: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, ordering: Ordering) -> u64 {
        self.load(ordering)
    }

    #[inline]
    fn store(&self, value: u64, ordering: Ordering) {
        self.store(value, ordering);
    }

    #[inline]
    fn fence(ordering: Ordering) {
        fence(ordering);
    }
}

/// The words of an entry, which one thread changes and others read.
///
/// `changes` is odd during a change. A reader that finds the same even number before and after it has read the words has
/// read those of one moment.
#[derive(Debug)]
#[repr(align(64))]
pub struct SharedWords<W = AtomicU64> {
    changes: W,
    words: [W; WORDS],
}

impl<W: Word> SharedWords<W> {
    /// Makes an entry of these words.
    #[must_use]
    pub fn new(words: [u64; WORDS]) -> Self {
        Self { changes: W::new(0), words: words.map(W::new) }
    }

    /// Returns the words. `None`: they are being changed.
    #[inline]
    #[must_use]
    pub fn read(&self) -> Option<[u64; WORDS]> {
        let before = self.changes.load(Ordering::Acquire);
        let words = std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed));
        W::fence(Ordering::Acquire);
        let is_one_moment = before.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == before;
        is_one_moment.then_some(words)
    }

    /// Changes the words. Only one thread calls this.
    #[inline]
    pub fn write(&self, words: [u64; WORDS]) {
        let before = self.changes.load(Ordering::Relaxed);
        self.changes.store(before + 1, Ordering::Relaxed);
        W::fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.changes.store(before + 2, Ordering::Release);
    }
}

/// An entry that the NIC's thread changes and engines read.
#[derive(Debug)]
pub(super) struct SharedEntry(SharedWords);

impl Default for SharedEntry {
    fn default() -> Self {
        Self::new(&Entry::FREE)
    }
}

impl SharedEntry {
    fn new(entry: &Entry) -> Self {
        Self(SharedWords::new(entry.encode()))
    }

    /// Returns the entry. `None`: it is being changed.
    #[inline]
    pub fn read(&self) -> Option<Entry> {
        self.0.read().map(Entry::decode)
    }

    /// Replaces the entry. Only the NIC's thread calls this.
    #[inline]
    pub fn write(&self, entry: &Entry) {
        self.0.write(entry.encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let shared = SharedEntry::default();
        assert_eq!(shared.read(), Some(Entry::FREE));
        for kind in [Kind::Region, Kind::Window(WindowKind::One), Kind::Window(WindowKind::Two), Kind::Free] {
            let access = Access::REMOTE_READ | Access::WINDOW_BIND;
            let entry = Entry {
                base: u64::MAX,
                length: 1,
                offset: 2,
                memory: u32::MAX,
                pd: PdId(3),
                queue_pair: QpId(0xFEDC_BA98),
                state: State::new(0xAB, kind != Kind::Free, access, kind),
            };
            shared.write(&entry);
            assert_eq!(shared.read(), Some(entry));
            let state = entry.state;
            assert_eq!((state.key(), state.access(), state.kind()), (0xAB, access, kind));
            let is_live = kind != Kind::Free;
            assert_eq!((state.live(), state.opens(0xAB, Access::REMOTE_READ)), (is_live, is_live));
            assert!(!state.opens(0xAA, Access::REMOTE_READ) && !state.opens(0xAB, Access::REMOTE_WRITE));
            assert_eq!(state.is_region(0xAB, Access::empty()), kind == Kind::Region);
            assert!(!state.is_region(0xAB, Access::LOCAL_WRITE) && !state.is_region(0xAC, Access::empty()));
        }
    }
}
