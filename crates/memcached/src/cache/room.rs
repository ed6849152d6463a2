//! Making room: what was used longest ago goes.

use super::{Cache, Store, StoreError};
use crate::protocol::Key;
use portcullis::Lifetime;
use portcullis_structures::table::{Condition, Stored};
use std::sync::atomic::Ordering;

/// How often room is made for one item.
const TRIES_MAX: u32 = 8;
/// Items that go at a time. Whoever stores the next ones then finds room at once.
const EVICTED_AT_ONCE: usize = 8;
/// Keys that are tried for that: other gateways may have removed some.
const TRIED_AT_ONCE: usize = 256;
/// An item gets a block that is too large for it, where there are no others: at most so many times too large.
const LARGER_MAX: u64 = 4;

impl<S: Store> Cache<S> {
    /// Stores bytes. Where there is no room, the oldest items of the same size go. Where there are none of this size, the
    /// item is given the size of larger ones: blocks of one size never become blocks of another.
    pub(super) async fn put_with_room(
        &self,
        key: &Key,
        bytes: &mut Vec<u8>,
        condition: Condition<'_>,
        live: Option<Lifetime>,
    ) -> Result<Stored, StoreError> {
        let least = self.store.takes(key.len(), bytes.len());
        for _ in 0..TRIES_MAX {
            match self.store.put(key, bytes, condition, live).await {
                Err(StoreError::NoRoom) => {}
                done => return done,
            }
            let takes = self.store.takes(key.len(), bytes.len());
            if self.evict(key, takes).await? {
                continue;
            }
            let Some(larger) = self.shared.age.larger(takes, least.saturating_mul(LARGER_MAX)) else {
                // Other gateways may have filled the table. The next ones then find what to evict.
                self.shared.wants_to_learn.store(true, Ordering::Relaxed);
                break;
            };
            self.fill(key, bytes, larger);
            self.evict(key, larger).await?;
        }
        self.shared.counters.store_no_memory.add();
        Err(StoreError::NoRoom)
    }

    /// Lengthens the bytes until they take as much as a larger item.
    fn fill(&self, key: &Key, bytes: &mut Vec<u8>, takes: u64) {
        let longest = bytes.len() + usize::try_from(takes).unwrap_or(0);
        let (mut least, mut enough) = (bytes.len(), longest);
        while least < enough {
            let middle = least.midpoint(enough);
            if self.store.takes(key.len(), middle) < takes {
                least = middle + 1;
            } else {
                enough = middle;
            }
        }
        bytes.resize(enough, 0);
    }

    /// Removes a few of the oldest items of this size. Returns whether there were any.
    async fn evict(&self, key: &Key, takes: u64) -> Result<bool, StoreError> {
        let (mut any, mut evicted) = (false, 0);
        for _ in 0..TRIED_AT_ONCE {
            if evicted == EVICTED_AT_ONCE {
                break;
            }
            let Some(oldest) = self.shared.age.take_oldest(takes) else { break };
            // It is about to be replaced: its block is free afterwards, and not now.
            if oldest != *key && self.store.take(&oldest).await?.is_some() {
                self.shared.counters.evictions.add();
                evicted += 1;
            }
            any = true;
        }
        Ok(any)
    }
}
