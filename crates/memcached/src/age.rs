//! Order of keys by their last use, for each size of their blocks.
//!
//! All threads of a gateway share this. It contains the keys that this gateway has used, and those that were in the
//! table when the gateway opened it. It is only a hint: a key may no longer be in the table, and other gateways may
//! have other keys.

use crate::cache::Takes;
use crate::protocol::Key;
use foldhash::fast::RandomState;
use lru::LruCache;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of shards, each with a lock of its own.
const SHARDS: usize = 64;

/// State of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Time of the last use, as a count of all uses.
    turn: u64,
    /// Time of the last use, in seconds.
    pub used: u32,
    /// A client has read the item since it was stored.
    pub hit: bool,
    /// Bytes that the item takes.
    bytes: u64,
}

/// A candidate for eviction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Oldest {
    /// The size of the key's item.
    pub size: u64,
    /// Time of the last use, as a count of all uses.
    turn: u64,
}

/// The keys of one size, and the bytes that their items take.
struct Keys {
    /// The keys by age, the oldest last.
    by_age: LruCache<Key, Known, RandomState>,
    bytes: u64,
}

impl Default for Keys {
    fn default() -> Self {
        Self { by_age: LruCache::unbounded_with_hasher(RandomState::default()), bytes: 0 }
    }
}

/// The keys of a shard, by the size of their items.
#[derive(Default)]
struct Shard {
    sizes: BTreeMap<u64, Keys>,
}

/// Totals of all keys of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeTotal {
    /// Number of keys.
    pub keys: u64,
    /// Bytes that their items take.
    pub bytes: u64,
    /// Time of the oldest key's last use, in seconds.
    pub used: u32,
}

/// See the module's documentation.
pub struct Age {
    shards: [Mutex<Shard>; SHARDS],
    /// Randomly seeded: clients choose the keys, and do not know this.
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
        // The maps of a shard use the same hash, but first use other bits of it.
        let shard = usize::try_from(self.hasher.hash_one(key) >> 20).unwrap_or(0) % SHARDS;
        lock(&self.shards[shard])
    }

    /// Records that a value of this size was stored.
    pub fn stored(&self, key: &[u8], takes: Takes, now: u32) {
        let known = Known { turn: self.turn(), used: now, hit: false, bytes: takes.bytes };
        let mut shard = self.shard(key);
        if shard.renew(key, takes.size, known).is_none() {
            shard.add(key, takes.size, known);
        }
    }

    /// Records that a value of this size was read. Returns the key's former state.
    pub fn used(&self, key: &[u8], takes: Takes, now: u32) -> Option<Known> {
        let known = Known { turn: self.turn(), used: now, hit: true, bytes: takes.bytes };
        let mut shard = self.shard(key);
        let before = shard.renew(key, takes.size, known);
        if before.is_none() {
            // Another gateway has stored it.
            shard.add(key, takes.size, known);
        }
        before
    }

    /// Returns the state of a key. The key does not become younger.
    pub fn known(&self, key: &[u8], takes: Takes) -> Option<Known> {
        self.shard(key).sizes.get(&takes.size).and_then(|keys| keys.by_age.peek(key)).copied()
    }

    /// Returns the bytes that the item of a key takes. `None`: the key is not known.
    pub fn bytes_of(&self, key: &[u8]) -> Option<u64> {
        let shard = self.shard(key);
        shard.sizes.values().find_map(|keys| keys.by_age.peek(key)).map(|known| known.bytes)
    }

    /// Adds a key that was in the table before. It is older than all keys that were used since.
    pub fn found(&self, key: &[u8], takes: Takes, now: u32) {
        let mut shard = self.shard(key);
        // A client may have stored it meanwhile, with another size.
        if !shard.sizes.values().any(|keys| keys.by_age.contains(key)) {
            shard.add(key, takes.size, Known { turn: 0, used: now, hit: false, bytes: takes.bytes });
            shard.keys(takes.size).by_age.demote(key);
        }
    }

    /// Removes a key.
    pub fn forget(&self, key: &[u8]) {
        self.shard(key).forget(key);
    }

    /// Removes all keys.
    pub fn forget_all(&self) {
        self.shards.iter().for_each(|shard| *lock(shard) = Shard::default());
    }

    /// Returns the key that was used longest ago, of all sizes or of this one.
    pub fn oldest(&self, size: Option<u64>) -> Option<Oldest> {
        let of = |shard: &Mutex<Shard>| lock(shard).oldest(size);
        self.shards.iter().filter_map(of).min_by_key(|oldest| oldest.turn)
    }

    /// Whether a key is about as old as the oldest one: it has not been used for at least half as long.
    pub fn is_about_as_old(&self, key: &Oldest, oldest: &Oldest) -> bool {
        let now = self.turns.load(Ordering::Relaxed);
        let age = |it: &Oldest| now.saturating_sub(it.turn);
        age(key) >= age(oldest) / 2
    }

    /// Removes and returns the key of this size that was used longest ago.
    pub fn take_oldest(&self, size: u64) -> Option<Key> {
        loop {
            let turn = |shard: &Mutex<Shard>| Some(lock(shard).oldest(Some(size))?.turn);
            let ages = (0..).zip(&self.shards).filter_map(|(at, shard)| Some((turn(shard)?, at)));
            let (_, at): (_, usize) = ages.min()?;
            // Another thread may have taken the key first.
            if let Some(key) = lock(&self.shards[at]).take_oldest(size) {
                return Some(key);
            }
        }
    }

    /// Returns the keys of one part. `None`: there are no more parts.
    pub fn keys_of_part(&self, part: usize) -> Option<Vec<Key>> {
        let shard = lock(self.shards.get(part)?);
        let keys = shard.sizes.values().flat_map(|keys| keys.by_age.iter());
        Some(keys.map(|(key, _)| key.clone()).collect())
    }

    /// Whether there is no part with this number or a greater one.
    pub fn is_last_part(&self, part: usize) -> bool {
        part >= self.shards.len()
    }

    /// Returns the totals of keys by the size of their items.
    pub fn by_size(&self) -> BTreeMap<u64, SizeTotal> {
        let mut sizes = BTreeMap::new();
        for shard in &self.shards {
            for (size, keys) in &lock(shard).sizes {
                let Some((_, oldest)) = keys.by_age.peek_lru() else { continue };
                let none = SizeTotal { keys: 0, bytes: 0, used: u32::MAX };
                let total = sizes.entry(*size).or_insert(none);
                total.keys += keys.by_age.len() as u64;
                total.bytes += keys.bytes;
                total.used = oldest.used.min(total.used);
            }
        }
        sizes
    }

    /// Returns the number of keys, and the bytes that their items take.
    pub fn total(&self) -> (u64, u64) {
        let mut total = (0, 0);
        for shard in &self.shards {
            for keys in lock(shard).sizes.values() {
                total = (total.0 + keys.by_age.len() as u64, total.1 + keys.bytes);
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
    /// Returns the key that was used longest ago, of all sizes or of this one.
    fn oldest(&self, size: Option<u64>) -> Option<Oldest> {
        let (from, to) = size.map_or((0, u64::MAX), |size| (size, size));
        let of = |(size, keys): (&u64, &Keys)| {
            let (_, known) = keys.by_age.peek_lru()?;
            Some(Oldest { size: *size, turn: known.turn })
        };
        self.sizes.range(from..=to).filter_map(of).min_by_key(|oldest| oldest.turn)
    }

    fn keys(&mut self, size: u64) -> &mut Keys {
        self.sizes.entry(size).or_default()
    }

    /// Makes a key of this size the youngest. Returns its former state, if it had this size.
    fn renew(&mut self, key: &[u8], size: u64, known: Known) -> Option<Known> {
        let keys = self.sizes.get_mut(&size)?;
        let before = std::mem::replace(keys.by_age.get_mut(key)?, known);
        keys.bytes = keys.bytes - before.bytes + known.bytes;
        Some(before)
    }

    /// Adds a key, which may have had another size.
    fn add(&mut self, key: &[u8], size: u64, known: Known) {
        self.forget(key);
        let keys = self.keys(size);
        keys.by_age.put(Box::from(key), known);
        keys.bytes += known.bytes;
    }

    fn take_oldest(&mut self, size: u64) -> Option<Key> {
        let keys = self.sizes.get_mut(&size)?;
        let (key, known) = keys.by_age.pop_lru()?;
        keys.bytes -= known.bytes;
        Some(key)
    }

    fn forget(&mut self, key: &[u8]) {
        for keys in self.sizes.values_mut() {
            if let Some(known) = keys.by_age.pop(key) {
                keys.bytes -= known.bytes;
                return;
            }
        }
    }
}

/// A thread that has panicked has left a hint that is as good as any other.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Box::from(number.to_le_bytes())
    }

    fn takes(size: u64) -> Takes {
        Takes { size, bytes: size }
    }

    #[test]
    fn the_oldest_of_a_size_goes_first_whichever_shard_it_is_in() {
        let age = Age::default();
        for number in 0..500 {
            age.stored(&key(number), takes(64), 1);
            age.stored(&key(1_000 + number), takes(80), 1);
        }
        assert_eq!(age.used(&key(0), takes(64), 2).map(|known| known.hit), Some(false));
        age.found(&key(2_000), takes(64), 3);
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
        age.stored(&key(1), takes(64), 1);
        age.stored(&key(1), Takes { size: 80, bytes: 240 }, 1);
        assert_eq!(age.take_oldest(64), None);
        assert_eq!((age.total(), age.bytes_of(&key(1)), age.bytes_of(&key(2))), ((1, 240), Some(240), None));
        assert_eq!(age.oldest(None).map(|oldest| oldest.size), Some(80));
        age.forget(&key(1));
        assert_eq!((age.total(), age.oldest(None)), ((0, 0), None));
    }

    #[test]
    fn a_look_at_a_key_makes_it_no_younger() {
        let age = Age::default();
        age.stored(&key(1), takes(64), 1);
        age.stored(&key(2), takes(64), 1);
        assert_eq!(age.known(&key(1), takes(64)).map(|known| known.used), Some(1));
        assert_eq!(age.take_oldest(64), Some(key(1)));
    }

    #[test]
    fn the_oldest_of_all_sizes_is_found_and_others_are_about_as_old_or_not() {
        let age = Age::default();
        for number in 0..10 {
            age.stored(&key(number), takes(64), 1);
        }
        for number in 10..110 {
            age.stored(&key(number), takes(80), 1);
        }
        let (oldest, other) = (age.oldest(None).expect("a key"), age.oldest(Some(80)).expect("a key"));
        assert_eq!(oldest.size, 64);
        assert!(age.is_about_as_old(&other, &oldest));
        for number in 10..110 {
            age.used(&key(number), takes(80), 1);
        }
        for number in 110..180 {
            age.stored(&key(number), takes(96), 1);
        }
        let young = age.oldest(Some(96)).expect("a key");
        assert!(!age.is_about_as_old(&young, &oldest));
    }
}
