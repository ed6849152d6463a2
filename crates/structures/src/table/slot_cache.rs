//! The slots in which a handle has last stored keys. The next change of such a key needs no look at the table.
//!
//! A remembered slot is a guess, since any client may have changed the key meanwhile. Only a COMPARE_AND_SWAP may rest on
//! the guess: it succeeds if the slot still names the block that this handle has put there. A word of a slot stays
//! unique for longer than any permission lives, and no slot is remembered for longer than that.

use super::blocks::Value;
use super::find::Found;
use super::index::SlotAt;
use super::words::Slot;
use portcullis::{Lifetime, Moment};
use std::collections::HashMap;
use std::rc::Rc;

/// Number of keys after which the cache begins a new generation. It has two, and so up to twice as many keys.
const GENERATION: usize = 1 << 13;
/// Number of bytes of the longest key that is remembered: the cache has a few MiB at most.
const KEY_BYTES: usize = 256;

/// A slot with a key that this handle has stored, and the rest of what a change needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoredIn {
    pub at: SlotAt,
    pub slot: Slot,
    pub renewals: u8,
    pub expires: Option<Moment>,
}

/// The slots that a handle remembers, by their keys.
#[derive(Debug, Default)]
pub(super) struct SlotCache {
    recent: HashMap<Rc<[u8]>, (StoredIn, Moment)>,
    /// The generation before.
    earlier: HashMap<Rc<[u8]>, (StoredIn, Moment)>,
}

impl SlotCache {
    /// Remembers the slot in which a key was stored just now.
    pub fn remember(&mut self, key: &Rc<[u8]>, stored: StoredIn, now: Moment) {
        if key.len() > KEY_BYTES {
            return;
        }
        if self.recent.len() >= GENERATION && !self.recent.contains_key(key) {
            self.earlier = std::mem::take(&mut self.recent);
        }
        self.recent.insert(Rc::clone(key), (stored, now));
    }

    /// Takes out the slot in which a key was stored less than `lease` ago. The bytes of the value are left out.
    pub fn take(&mut self, key: &[u8], now: Moment, lease: Lifetime) -> Option<Found> {
        let earlier = self.earlier.remove(key);
        let (stored, since) = self.recent.remove(key).or(earlier)?;
        let StoredIn { at, slot, renewals, expires } = stored;
        let value = Value { pieces: Vec::new(), rest: Vec::new(), renewals };
        (now.since(since) < lease).then_some(Found { at, slot, value, expires })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lifetime = Lifetime(1_000);

    fn key(number: usize) -> Rc<[u8]> {
        Rc::from(number.to_le_bytes())
    }

    fn stored(word: u64) -> StoredIn {
        let at = SlotAt { subtable: 0, bucket: 0, slot: 0 };
        StoredIn { at, slot: Slot(word), renewals: 0, expires: None }
    }

    #[test]
    fn a_slot_is_remembered_for_a_lease_and_used_once() {
        let mut cache = SlotCache::default();
        cache.remember(&key(1), stored(5), Moment(100));
        assert_eq!(cache.take(&key(2), Moment(100), LEASE), None);
        assert_eq!(cache.take(&key(1), Moment(1_099), LEASE).map(|found| found.slot), Some(Slot(5)));
        assert_eq!(cache.take(&key(1), Moment(1_099), LEASE), None);
        cache.remember(&key(1), stored(5), Moment(100));
        assert_eq!(cache.take(&key(1), Moment(1_100), LEASE), None);
    }

    #[test]
    fn the_cache_has_two_generations_and_the_latest_slot_of_a_key() {
        let mut cache = SlotCache::default();
        cache.remember(&key(0), stored(1), Moment(0));
        (1..=GENERATION).for_each(|number| cache.remember(&key(number), stored(2), Moment(0)));
        assert_eq!((cache.recent.len(), cache.earlier.len()), (1, GENERATION));
        cache.remember(&key(0), stored(3), Moment(1));
        assert_eq!(cache.take(&key(0), Moment(1), LEASE).map(|found| found.slot), Some(Slot(3)));
        assert_eq!(cache.take(&key(0), Moment(1), LEASE), None, "an older slot of the key is gone as well");
        (0..2 * GENERATION).for_each(|number| cache.remember(&key(9_000_000 + number), stored(2), Moment(1)));
        assert!(cache.recent.len() + cache.earlier.len() <= 2 * GENERATION);
    }
}
