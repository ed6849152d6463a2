//! The order in which a handle has used blocks: what it evicts first.

use lru::LruCache;

/// Largest number of keys whose order is known. Others count as never used.
pub(crate) const KEYS_MAX: usize = 1 << 20;

/// The blocks that a handle has stored and read, in the order of their last use, and before them those that it has
/// found by a scan.
#[derive(Debug)]
pub(crate) struct Recency {
    keys: LruCache<Box<[u8]>, ()>,
}

impl Default for Recency {
    fn default() -> Self {
        Self { keys: LruCache::unbounded() }
    }
}

impl Recency {
    /// Number of blocks whose order is known.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the handle knows when the block was used.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }

    /// Notes that a block was used now.
    pub fn used(&mut self, key: &[u8]) {
        if self.keys.get(key).is_none() {
            self.keys.put(key.into(), ());
            if self.keys.len() > KEYS_MAX {
                self.keys.pop_lru();
            }
        }
    }

    /// Notes a block that others have stored. It counts as less recently used than all known ones. Returns false if
    /// it was known before, or if too many are known.
    pub fn found(&mut self, key: &[u8]) -> bool {
        let is_new = self.keys.len() < KEYS_MAX && !self.keys.contains(key);
        if is_new {
            self.keys.put(key.into(), ());
            self.keys.demote(key);
        }
        is_new
    }

    /// Forgets a block that is gone.
    pub fn forget(&mut self, key: &[u8]) {
        self.keys.pop(key);
    }

    /// Takes out the keys of up to `most` blocks that were used least recently.
    pub fn take_oldest(&mut self, most: usize) -> Vec<Box<[u8]>> {
        std::iter::from_fn(|| Some(self.keys.pop_lru()?.0)).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scan_has_found_goes_first_and_what_was_used_last_goes_last() {
        let mut recency = Recency::default();
        for key in [b"a", b"b", b"c"] {
            recency.used(key);
        }
        recency.used(b"a");
        // The older of two blocks is found last.
        recency.found(b"e");
        recency.found(b"d");
        recency.found(b"a");
        recency.forget(b"b");
        let order: Vec<_> = recency.take_oldest(10).into_iter().flatten().collect();
        assert_eq!(order, b"deca");
    }
}
