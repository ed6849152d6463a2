//! Which keys were used longest ago, for each size of their blocks.
//!
//! All threads of a gateway share this. It knows the keys that went through this gateway, and those that were in the table
//! when the gateway opened it. It is a hint: a key of it may be gone, and other gateways may have others.

use crate::protocol::Key;
use foldhash::fast::RandomState;
use lru::LruCache;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Parts, each with a lock of its own.
const SHARDS: usize = 64;

/// What is known of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// When it was last used: a count of all uses.
    turn: u64,
    /// When it was last used, in seconds.
    pub used: u32,
    /// It was asked for since it was stored.
    pub hit: bool,
}

/// The keys of one size, the oldest last.
type Keys = LruCache<Key, Known, RandomState>;

/// The keys of a shard, by what their items take.
#[derive(Default)]
struct Shard(BTreeMap<u64, Keys>);

/// See the module's documentation.
pub struct Age {
    shards: [Mutex<Shard>; SHARDS],
    /// Clients choose the keys, and do not know this.
    hasher: RandomState,
    turns: AtomicU64,
}

impl std::fmt::Debug for Age {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Age").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

impl Default for Age {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
            turns: AtomicU64::new(0),
        }
    }
}

impl Age {
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        // The maps of a shard use the same hash, and what they look at first are other bits of it.
        let shard = usize::try_from(self.hasher.hash_one(key) >> 20).unwrap_or(0) % SHARDS;
        lock(&self.shards[shard])
    }

    /// A value of this size was stored.
    pub fn stored(&self, key: &[u8], takes: u64, now: u32) {
        let known = Known { turn: self.turn(), used: now, hit: false };
        let mut shard = self.shard(key);
        if let Some(place) = shard.0.get_mut(&takes).and_then(|keys| keys.get_mut(key)) {
            *place = known;
            return;
        }
        shard.forget(key);
        shard.keys(takes).put(Box::from(key), known);
    }

    /// A value of this size was read. Returns what was known before.
    pub fn used(&self, key: &[u8], takes: u64, now: u32) -> Option<Known> {
        let turn = self.turn();
        let mut shard = self.shard(key);
        match shard.0.get_mut(&takes).and_then(|keys| keys.get_mut(key)) {
            Some(known) => Some(std::mem::replace(known, Known { turn, used: now, hit: true })),
            None => {
                // Another gateway has stored it.
                shard.forget(key);
                shard.keys(takes).put(Box::from(key), Known { turn, used: now, hit: true });
                None
            }
        }
    }

    /// What is known of a key, which does not become younger by this.
    pub fn known(&self, key: &[u8], takes: u64) -> Option<Known> {
        self.shard(key).0.get(&takes).and_then(|keys| keys.peek(key)).copied()
    }

    /// A key was in the table before. It is older than all that were used since.
    pub fn found(&self, key: &[u8], takes: u64, now: u32) {
        let mut shard = self.shard(key);
        // A client may have stored it meanwhile, with another size.
        if !shard.0.values().any(|keys| keys.contains(key)) {
            let keys = shard.keys(takes);
            keys.put(Box::from(key), Known { turn: 0, used: now, hit: false });
            keys.demote(key);
        }
    }

    /// A key is gone.
    pub fn forget(&self, key: &[u8]) {
        self.shard(key).forget(key);
    }

    /// All keys are gone, as far as anybody knows.
    pub fn forget_all(&self) {
        self.shards.iter().for_each(|shard| lock(shard).0.clear());
    }

    /// Takes out the key of this size that was used longest ago.
    pub fn take_oldest(&self, takes: u64) -> Option<Key> {
        loop {
            let oldest = |shard: &Mutex<Shard>| {
                let shard = lock(shard);
                shard.0.get(&takes).and_then(LruCache::peek_lru).map(|(_, known)| known.turn)
            };
            let ages = (0..).zip(&self.shards).filter_map(|(at, shard)| Some((oldest(shard)?, at)));
            let (_, at): (_, usize) = ages.min()?;
            // Another thread may have been quicker.
            if let Some((key, _)) = lock(&self.shards[at]).keys(takes).pop_lru() {
                return Some(key);
            }
        }
    }

    /// The next larger size, no larger than `most`, of which there are keys.
    pub fn larger(&self, takes: u64, most: u64) -> Option<u64> {
        let larger = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            shard.0.range(takes + 1..=most).find(|(_, keys)| !keys.is_empty()).map(|(takes, _)| *takes)
        };
        self.shards.iter().filter_map(larger).min()
    }

    /// The keys of a part of all that are known. `None`: there are no more parts.
    pub fn keys_of_part(&self, part: usize) -> Option<Vec<Key>> {
        let shard = lock(self.shards.get(part)?);
        Some(shard.0.values().flat_map(|keys| keys.iter().map(|(key, _)| key.clone())).collect())
    }

    /// Whether there are no parts from this one on.
    pub fn is_last_part(&self, part: usize) -> bool {
        part >= self.shards.len()
    }

    /// What is known of keys by what their items take: how many there are, and when the oldest was last used.
    pub fn by_size(&self) -> BTreeMap<u64, (u64, u32)> {
        let mut sizes = BTreeMap::new();
        for shard in &self.shards {
            for (takes, keys) in &lock(shard).0 {
                let Some((_, oldest)) = keys.peek_lru() else { continue };
                let (count, used) = sizes.entry(*takes).or_insert((0, u32::MAX));
                *count += keys.len() as u64;
                *used = oldest.used.min(*used);
            }
        }
        sizes
    }

    /// How many keys there are, and what their items take.
    pub fn total(&self) -> (u64, u64) {
        let mut total = (0, 0);
        for shard in &self.shards {
            for (takes, keys) in &lock(shard).0 {
                total = (total.0 + keys.len() as u64, total.1 + keys.len() as u64 * takes);
            }
        }
        total
    }

    fn keys(&self) -> u64 {
        self.total().0
    }

    fn turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Shard {
    fn keys(&mut self, takes: u64) -> &mut Keys {
        self.0.entry(takes).or_insert_with(|| LruCache::unbounded_with_hasher(RandomState::default()))
    }

    fn forget(&mut self, key: &[u8]) {
        for keys in self.0.values_mut() {
            if keys.pop(key).is_some() {
                return;
            }
        }
    }
}

/// A thread that has panicked has left a hint that is as good as any.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Box::from(number.to_le_bytes())
    }

    #[test]
    fn the_oldest_of_a_size_goes_first_whichever_shard_it_is_in() {
        let age = Age::default();
        for number in 0..500 {
            age.stored(&key(number), 64, 1);
            age.stored(&key(1_000 + number), 80, 1);
        }
        assert_eq!(age.used(&key(0), 64, 2).map(|known| known.hit), Some(false));
        age.found(&key(2_000), 64, 3);
        assert_eq!(age.take_oldest(64), Some(key(2_000)), "it was there before all others");
        for number in (1..500).chain([0]) {
            assert_eq!(age.take_oldest(64), Some(key(number)));
        }
        assert_eq!(age.take_oldest(64), None);
        assert_eq!(age.total(), (500, 500 * 80));
    }

    #[test]
    fn a_key_has_one_size_at_a_time() {
        let age = Age::default();
        age.stored(&key(1), 64, 1);
        age.stored(&key(1), 80, 1);
        assert_eq!(age.take_oldest(64), None);
        assert_eq!((age.larger(64, 100), age.larger(80, 100), age.larger(64, 70)), (Some(80), None, None));
        age.forget(&key(1));
        assert_eq!(age.total(), (0, 0));
    }

    #[test]
    fn a_look_at_a_key_makes_it_no_younger() {
        let age = Age::default();
        age.stored(&key(1), 64, 1);
        age.stored(&key(2), 64, 1);
        assert_eq!(age.known(&key(1), 64).map(|known| known.used), Some(1));
        assert_eq!(age.take_oldest(64), Some(key(1)));
    }
}
