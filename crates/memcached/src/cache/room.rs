//! Making room: what was used longest ago goes.
//!
//! Memory has two forms. What a removed item took is at once there for items of its size. Where the oldest items have another
//! size, one of them goes with all that lies beside it, and the memory around it serves items of any size.

use super::turn::Turn;
use super::{Cache, Store, StoreError};
use crate::age::Oldest;
use crate::protocol::Key;
use portcullis::Lifetime;
use portcullis_structures::table::{Condition, Stored};
use std::sync::atomic::Ordering;

/// How often room is made for one item.
const TRIES_MAX: u32 = 16;
/// Items that go at a time, of the size of a new one. Whoever stores the next ones then finds room at once.
const EVICTED_AT_ONCE: usize = 8;
/// Keys that are tried for that: other gateways may have removed some.
const TRIED_AT_ONCE: usize = 256;
/// Bytes of items of other sizes that go at a time: those for the next items go as well.
const VACATED_AT_ONCE: u64 = 2 << 20;
/// Keys around which memory cannot be freed just now, that are passed over for that.
const PASSED_OVER_MAX: usize = 64;

impl<S: Store> Cache<S> {
    /// Stores bytes. Where there is no room, old items go.
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
            // What one operation of this thread frees is mostly enough for all that wait for it.
            let Some(_turn) = Turn::begin(&self.making_room, &self.store) else {
                while self.making_room.get() {
                    self.store.anything().await?;
                }
                continue;
            };
            tries += 1;
            let Some(oldest) = self.shared.age.oldest(None) else { break };
            // Now and then what is missing is not of the item's own size: a long item has parts of two sizes.
            let of_its_size = self.shared.age.oldest(Some(takes.size)).filter(|_| tries % 2 == 1);
            let found = match of_its_size.filter(|own| self.shared.age.is_about_as_old(own, &oldest)) {
                Some(own) => self.evict(key, own.size, takes.bytes).await?,
                None => self.vacate(key, oldest, takes.bytes.max(VACATED_AT_ONCE)).await?,
            };
            if !found && self.shared.age.oldest(None).is_none() {
                break;
            }
        }
        // Other gateways may have filled the table. The next ones then find what to evict.
        self.shared.wants_to_learn.store(true, Ordering::Relaxed);
        self.shared.counters.store_no_memory.add();
        Err(StoreError::NoRoom)
    }

    /// Removes a few of the oldest items of this size, and more where they do not take so many bytes together. Returns whether
    /// there were any.
    async fn evict(&self, key: &Key, size: u64, bytes: u64) -> Result<bool, StoreError> {
        let (mut any, mut evicted) = (false, 0);
        let enough = EVICTED_AT_ONCE.max(usize::try_from(bytes / size.max(1)).unwrap_or(0) / 2);
        for _ in 0..TRIED_AT_ONCE.max(enough) {
            if evicted >= enough {
                break;
            }
            let Some(oldest) = self.shared.age.take_oldest(size) else { break };
            // It is about to be replaced: its block is free afterwards, and not now.
            if oldest != *key && self.store.remove(&oldest).await? {
                self.shared.counters.evictions.add();
                evicted += 1;
            }
            any = true;
        }
        Ok(any)
    }

    /// Removes the oldest items with all that lies beside them, until so many bytes are free. Returns whether there were any.
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
                // Where nothing can be freed around it, the item goes alone.
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
