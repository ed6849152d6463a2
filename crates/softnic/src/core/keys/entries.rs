//! The entries of all keys, by index, in memory that stays where it is.

use super::KEYS_MAX;
use super::entry::{Entry, SharedEntry};
use std::sync::OnceLock;

/// Number of entries for which memory is allocated at once.
const CHUNK: usize = 1024;
const FURTHER: usize = KEYS_MAX as usize / CHUNK - 1;

/// All entries that a key can name. The NIC's thread changes them, and engines read them meanwhile.
#[derive(Debug)]
pub(super) struct Entries {
    // Found without an indirection. Most nodes need no more.
    first: Box<[SharedEntry]>,
    further: Box<[OnceLock<Box<[SharedEntry]>>]>,
}

impl Default for Entries {
    fn default() -> Self {
        Self { first: chunk(), further: (0..FURTHER).map(|_| OnceLock::new()).collect() }
    }
}

fn chunk() -> Box<[SharedEntry]> {
    (0..CHUNK).map(|_| SharedEntry::default()).collect()
}

impl Entries {
    /// Returns an entry, after a change that is under way. `None`: no key has had this index.
    #[cold]
    pub fn read_settled(&self, index: u32) -> Option<Entry> {
        let shared = self.shared(index)?;
        loop {
            if let Some(entry) = shared.read() {
                return Some(entry);
            }
            std::hint::spin_loop();
        }
    }

    /// Returns an entry. `None`: no key has had this index, or the entry is being changed.
    #[inline]
    pub fn read(&self, index: u32) -> Option<Entry> {
        self.shared(index)?.read()
    }

    #[inline]
    fn shared(&self, index: u32) -> Option<&SharedEntry> {
        let index = index as usize;
        match self.first.get(index) {
            None => self.further.get(index / CHUNK - 1)?.get()?.get(index % CHUNK),
            entry => entry,
        }
    }

    /// Replaces an entry. Only the NIC's thread calls this.
    #[inline]
    pub fn write(&self, index: u32, entry: &Entry) {
        match self.shared(index) {
            Some(shared) => shared.write(entry),
            None => self.write_first(index as usize, entry),
        }
    }

    /// Writes the first entry of a chunk.
    #[cold]
    fn write_first(&self, index: usize, entry: &Entry) {
        self.further[index / CHUNK - 1].get_or_init(chunk)[index % CHUNK].write(entry);
    }
}
