//! Making room: the items that were used longest ago are evicted.
//!
//! The memory of a removed item is available at once for items of the same size. If the oldest items have another size,
//! one of them is evicted together with all items beside it, and the memory around it becomes available for items of
//! any size.

use super::turn::Turn;
use super::{Cache, Store, StoreError};
use crate::age::Oldest;
use crate::protocol::Key;
use portcullis::Lifetime;
use portcullis_structures::table::{Condition, Stored};
use std::sync::atomic::Ordering;

/// Maximum number of times that room is made for one item.
const TRIES_MAX: u32 = 16;
/// Number of items of the new item's size that are evicted at a time. The next items of that size then find room at
/// once.
const EVICTED_AT_ONCE: usize = 8;
/// Maximum number of keys that are tried for that: other gateways may have removed some.
const TRIED_AT_ONCE: usize = 256;
/// Bytes of items of other sizes that are evicted at a time, to make room for the next items as well.
const VACATED_AT_ONCE: u64 = 2 << 20;
/// Maximum number of keys that are passed over because the memory around them cannot be freed at present.
const PASSED_OVER_MAX: usize = 64;

impl<S: Store> Cache<S> {
    /// Stores bytes. If there is no room, it evicts old items.
    pub(super) async fn put_with_room(
        &self,
        key: &Key,
        bytes: &[u8],
        condition: Condition<'_>,
        live: Option<Lifetime>,
    ) -> Result<Stored, StoreError> {
        let takes = self.store.takes(key.len(), bytes.len());
        let mut tries = 0;
        while tries < TRIES_MAX {
            match self.store.put(key, bytes, condition, live).await {
                Err(StoreError::NoRoom) => {}
                done => return done,
            }
            // One operation of this thread mostly frees enough memory for all operations that wait for it.
            let Some(_turn) = Turn::begin(&self.making_room, &self.store) else {
                while self.making_room.get() {
                    self.store.anything().await?;
                }
                continue;
            };
            tries += 1;
            let Some(oldest) = self.shared.age.oldest(None) else { break };
            // Only on every other attempt: the missing memory may be of another size than the item, because a long item
            // has parts of two sizes.
            let of_its_size = self.shared.age.oldest(Some(takes.size)).filter(|_| tries % 2 == 1);
            let found = match of_its_size.filter(|own| self.shared.age.is_about_as_old(own, &oldest)) {
                Some(own) => self.evict(key, own.size, takes.bytes).await?,
                None => self.vacate(key, oldest, takes.bytes.max(VACATED_AT_ONCE)).await?,
            };
            if !found && self.shared.age.oldest(None).is_none() {
                break;
            }
        }
        // Other gateways may have filled the table. The next operations then find keys to evict.
        self.shared.wants_to_learn.store(true, Ordering::Relaxed);
        self.shared.counters.store_no_memory.add();
        Err(StoreError::NoRoom)
    }

    /// Removes a few of the oldest items of this size, and more if they take fewer than `bytes` together. Returns
    /// whether there were any.
    async fn evict(&self, key: &Key, size: u64, bytes: u64) -> Result<bool, StoreError> {
        let (mut any, mut evicted) = (false, 0);
        let enough = EVICTED_AT_ONCE.max(usize::try_from(bytes / size.max(1)).unwrap_or(0) / 2);
        for _ in 0..TRIED_AT_ONCE.max(enough) {
            if evicted >= enough {
                break;
            }
            let Some(oldest) = self.shared.age.take_oldest(size) else { break };
            // The key itself is about to be replaced: its block becomes free after that, and not now.
            if oldest != *key && self.store.remove(&oldest).await? {
                self.shared.counters.evictions.add();
                evicted += 1;
            }
            any = true;
        }
        Ok(any)
    }

    /// Removes the oldest items with all items beside them, until `bytes` bytes are free. Returns whether there were
    /// any.
    async fn vacate(&self, key: &Key, mut oldest: Oldest, bytes: u64) -> Result<bool, StoreError> {
        let (mut free, mut passed_over) = (0, 0);
        let shared = &self.shared;
        let removed = |removed: &[u8]| {
            shared.age.forget(removed);
            shared.counters.evictions.add();
        };
        while free < bytes && passed_over < PASSED_OVER_MAX {
            let Some(oldest_key) = shared.age.take_oldest(oldest.size) else { break };
            if oldest_key != *key {
                let freed = self.store.vacate(&oldest_key, removed).await?;
                free += freed;
                // If no memory around the item can be freed, only the item is removed.
                if freed == 0 && self.store.remove(&oldest_key).await? {
                    shared.counters.evictions.add();
                }
                passed_over += usize::from(freed == 0);
            }
            let Some(next) = shared.age.oldest(None) else { break };
            oldest = next;
        }
        Ok(free > 0 || passed_over > 0)
    }
}
