//! Semantics of memcached's commands, over a [`Store`].
//!
//! A command that depends on the existing item reads it, and stores the new one on the condition that the old one is
//! unchanged. So commands of several threads and gateways are atomic, as those of one memcached are.

mod arithmetic;
mod classic;
mod item;
mod meta;
mod room;
mod store;
mod time;
mod turn;

pub use item::HEADER_BYTES;
pub use store::{Store, StoreError, Takes};
use time::Flushes;
pub use time::{Flush, Now, Stamps};
use turn::Turn;

use crate::age::Age;
use crate::classes::{self, Classes};
use crate::counters::Counters;
use crate::protocol::{Describe, Described, Expiry, Key, Reply, Request};
use item::{Found, Item};
use portcullis::Lifetime;
use portcullis_structures::table::{Condition, Stored};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Maximum number of attempts of a change, which fail when other clients change the same item. Each time, another
/// change has succeeded.
const ATTEMPTS_MAX: u32 = 10_000;
const CROWDED: &str = "too many clients change this item";
/// The key under which gateways share the record of flushes. It is longer than clients' keys can be.
pub const FLUSH_KEY: [u8; 251] = [b'!'; 251];

/// State that all threads of a gateway share.
#[derive(Debug)]
pub struct Shared {
    /// The keys by age.
    pub age: Age,
    /// The counters.
    pub counters: Counters,
    /// The counters of items, by the memory that the items take.
    pub classes: Classes,
    /// Memory limit of the tenant in bytes, as the node has reported it. Zero: the node has not refused memory so far.
    pub limit_bytes: AtomicU64,
    /// A dump is in progress.
    pub dumps: AtomicBool,
    /// The source of stamps.
    pub stamps: Stamps,
    /// The flushes.
    pub flush: Flush,
    /// An item found no room, though the table may have old items that this gateway does not know.
    pub wants_to_learn: AtomicBool,
}

/// A cache, from the view of one thread.
#[derive(Debug)]
pub struct Cache<S> {
    store: S,
    shared: Arc<Shared>,
    /// An operation of this thread is making room.
    making_room: Cell<bool>,
    /// An operation of this thread is reading the flushes.
    reading_flushes: Cell<bool>,
}

/// Change of an item.
enum Change<T> {
    /// The item stays as it is.
    Keep(T),
    /// The item gets these bytes and this expiry time.
    Put(Vec<u8>, Option<u32>, T),
    /// The item is removed.
    Remove(T),
}

impl<S: Store> Cache<S> {
    pub fn new(store: S, shared: Arc<Shared>) -> Self {
        Self { store, shared, making_room: Cell::new(false), reading_flushes: Cell::new(false) }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the store when the cache is no longer needed.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Carries a request out. The reply does not depend on whether the client reads it ([`Request::is_quiet`]).
    ///
    /// # Errors
    /// [`StoreError::Crowded`]: no part of the request was carried out.
    pub async fn perform(&self, request: &mut Request, now: Now) -> Result<Reply, StoreError> {
        match request {
            Request::Get(get) => self.get(get, now).await,
            Request::Store(store) => self.set(store, now).await,
            Request::Arithmetic(arithmetic) => self.arithmetic(arithmetic, now).await,
            Request::Delete { key, .. } => self.delete(key, now).await,
            Request::Touch(touch) => self.touch(touch, now).await,
            Request::MetaGet(get) => self.meta_get(get, now).await,
            Request::MetaSet(set) => self.meta_set(set, now).await,
            Request::MetaDelete(delete) => self.meta_delete(delete, now).await,
            Request::MetaArithmetic(arithmetic) => self.meta_arithmetic(arithmetic, now).await,
            Request::MetaDebug { key, spelling } => self.meta_debug(key, *spelling, now).await,
            Request::Describe(describe) => self.describe(describe, now).await,
            Request::Discard(key) => {
                self.take(key).await?;
                Ok(Reply::Nothing)
            }
        }
    }

    /// Makes all existing items out of date, at once or after `delay`. The table has the record of the flushes of all
    /// gateways: each gateway adds to it.
    ///
    /// # Errors
    /// The store's errors. Then nothing was flushed.
    pub async fn flush(&self, delay: Expiry, now: Now) -> Result<(), StoreError> {
        self.shared.counters.flushes.add();
        let key = Key::from(FLUSH_KEY);
        for _ in 0..ATTEMPTS_MAX {
            let before = self.store.get(&key).await?;
            let known = before.as_deref().and_then(Flushes::parse).unwrap_or_default();
            let flushes = match delay.at(now.seconds()) {
                Some(at) if at > now.seconds() => known.later(at, now),
                _ => known.at_once(self.shared.stamps.next(now), now),
            };
            let condition = before.as_deref().map_or(Condition::Absent, Condition::Equals);
            let bytes = flushes.to_bytes();
            if self.put_with_room(&key, &bytes, condition, None).await? != Stored::Unchanged {
                self.shared.flush.learn(flushes);
                return Ok(());
            }
        }
        Err(StoreError::Failed(CROWDED.to_owned()))
    }

    /// Reads the flushes of other gateways, unless this gateway has done so a moment before `now`. Every command does
    /// this first, so a gateway without clients reads nothing.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn read_flushes_if_due(&self, now: Now) -> Result<(), StoreError> {
        let flush = &self.shared.flush;
        while flush.is_to_be_read(now) {
            let Some(_turn) = Turn::begin(&self.reading_flushes, &self.store) else {
                self.store.anything().await?;
                continue;
            };
            flush.learn(self.flushes().await?);
            flush.note_read(now);
        }
        Ok(())
    }

    /// Reads the flushes of a table that was opened just now. The state of a former table is forgotten.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn begin(&self, now: Now) -> Result<(), StoreError> {
        self.shared.flush.begin(self.flushes().await?);
        self.shared.flush.note_read(now);
        self.shared.age.forget_all();
        Ok(())
    }

    async fn flushes(&self) -> Result<Flushes, StoreError> {
        let bytes = self.store.get(&FLUSH_KEY).await?;
        Ok(bytes.as_deref().and_then(Flushes::parse).unwrap_or_default())
    }

    /// Returns the item in bytes of the table, if clients can see it.
    fn live(&self, bytes: Vec<u8>, now: Now) -> Option<Found> {
        let found = Found::parse(bytes)?;
        let counters = &self.shared.counters;
        if found.item.expires.is_some_and(|at| at <= now.seconds()) {
            counters.get_expired.add();
            return None;
        }
        if self.shared.flush.has(found.item.stamp, now) {
            counters.get_flushed.add();
            return None;
        }
        Some(found)
    }

    /// Records that an item was used. Returns the seconds since its former use, and whether a client had read it since
    /// it was stored.
    fn note_used(&self, key: &[u8], found: &Found, now: Now) -> (u32, bool) {
        let takes = self.store.takes(key.len(), found.bytes.len());
        self.shared.classes.of(takes.size).get_hits.add();
        let known = self.shared.age.used(key, takes, now.seconds());
        seen(known, found, now)
    }

    /// Returns the same as [`Self::note_used`] without making the item younger.
    fn look_up_use(&self, key: &[u8], found: &Found, now: Now) -> (u32, bool) {
        let takes = self.store.takes(key.len(), found.bytes.len());
        seen(self.shared.age.known(key, takes), found, now)
    }

    /// Returns an item that is stored now.
    fn new_item(&self, flags: u32, expires: Option<u32>, now: Now) -> Item {
        let stamp = self.shared.stamps.next(now);
        let cas = self.shared.stamps.cas(stamp);
        Item { flags, expires, cas, stamp, stale: false, told: false }
    }

    /// Returns an item that is changed now.
    fn changed(&self, item: Item, now: Now) -> Item {
        let Item { cas, stamp, .. } = self.new_item(item.flags, item.expires, now);
        Item { cas, stamp, ..item }
    }

    /// Replaces an item by the result of `decide` on the existing one. `decide` is called again if other clients change
    /// the item meanwhile.
    async fn change<T>(
        &self,
        key: &Key,
        now: Now,
        mut decide: impl FnMut(Option<Found>) -> Change<T>,
    ) -> Result<T, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let before = self.store.get(key).await?;
            let live = before.clone().and_then(|bytes| self.live(bytes, now));
            let (bytes, expires, result) = match decide(live) {
                Change::Keep(result) => return Ok(result),
                Change::Put(bytes, expires, result) => (bytes, expires, result),
                // The item expires at once: so it is removed only if no client has changed it.
                Change::Remove(result) => (Item::default().with(b""), Some(1), result),
            };
            let condition = before.as_deref().map_or(Condition::Absent, Condition::Equals);
            if self.put(key, &bytes, condition, expires, now).await? != Stored::Unchanged {
                return Ok(result);
            }
        }
        Err(StoreError::Failed(CROWDED.to_owned()))
    }

    /// Stores an item's bytes. If there is no room for them, it makes room.
    async fn put(
        &self,
        key: &Key,
        bytes: &[u8],
        condition: Condition<'_>,
        expires: Option<u32>,
        now: Now,
    ) -> Result<Stored, StoreError> {
        let live = expires.map(|at| Lifetime(now.until(at)));
        let stored = self.put_with_room(key, bytes, condition, live).await?;
        if stored != Stored::Unchanged {
            self.shared.counters.total_items.add();
            let takes = self.store.takes(key.len(), bytes.len());
            self.shared.classes.of(takes.size).sets.add();
            self.shared.age.stored(key, takes, now.seconds());
        }
        Ok(stored)
    }

    /// Describes items for a dump.
    async fn describe(&self, ask: &Describe, now: Now) -> Result<Reply, StoreError> {
        let keys: Vec<&[u8]> = ask.keys.iter().map(|key| &key[..]).collect();
        let values = self.store.get_many(&keys).await?;
        let items = ask.keys.iter().zip(values).filter_map(|(key, bytes)| {
            let found = Found::parse(bytes?)?;
            if !self.is_live(&found, now) {
                return None;
            }
            let (idle, hit) = self.look_up_use(key, &found, now);
            let takes = self.store.takes(key.len(), found.bytes.len());
            Some(Described {
                key: key.clone(),
                expires: found.item.expires,
                used: now.seconds().saturating_sub(idle),
                cas: found.item.cas,
                hit,
                class: classes::number_of(takes.size),
                takes: takes.bytes,
            })
        });
        Ok(Reply::Dump { items: items.collect(), form: ask.form, ends: ask.ends })
    }

    fn is_live(&self, found: &Found, now: Now) -> bool {
        let is_over = found.item.expires.is_some_and(|at| at <= now.seconds());
        !is_over && !self.shared.flush.has(found.item.stamp, now)
    }

    /// Removes a key. Returns the removed value.
    async fn take(&self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        let taken = self.store.take(key).await?;
        self.shared.age.forget(key);
        Ok(taken)
    }
}

fn seen(known: Option<crate::age::Known>, found: &Found, now: Now) -> (u32, bool) {
    let stored = Now { micros: found.item.stamp }.seconds();
    let used = known.map_or(stored, |known| known.used);
    (now.seconds().saturating_sub(used), known.is_some_and(|known| known.hit))
}

#[cfg(test)]
mod tests;
