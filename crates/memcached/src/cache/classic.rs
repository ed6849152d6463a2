//! Semantics of the text commands.

use super::item::{Found, HEADER_BYTES};
use super::{Cache, Change, Item, Now, Store, StoreError};
use crate::protocol::{self, Get, Key, Mode, Reply, Returned, Touch};
use portcullis_structures::table::{Condition, Stored};

/// Result of storing a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoreOutcome {
    /// The value was stored. The item has this unique number now.
    Stored(u64),
    NotStored,
    Exists,
    NotFound,
}

/// Options for storing a value, for text commands and meta commands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub mode: Mode,
    pub flags: u32,
    pub expires: Option<u32>,
    /// The unique number that the item must have.
    pub cas: Option<u64>,
    /// An older unique number of the item is accepted too. Then the new item is stale.
    pub invalidate: bool,
}

impl<S: Store> Cache<S> {
    pub(super) async fn get(&self, get: &mut Get, now: Now) -> Result<Reply, StoreError> {
        let mut items = Vec::with_capacity(get.keys.len());
        for key in &get.keys {
            let found = match get.touch {
                None => self.store.get(key).await?.and_then(|bytes| self.live(bytes, now)),
                Some(expiry) => self.give_time(key, expiry.at(now.seconds()), now).await?,
            };
            if let Some(item) = self.hand_out(key, found, get.touch.is_some(), now) {
                items.push((key.clone(), item));
            }
        }
        Ok(Reply::Values { items, with_cas: get.with_cas, ends: get.ends })
    }

    /// Carries out several `get` commands at once. The answers are in the same order.
    ///
    /// # Errors
    /// The store's errors. Then nothing was carried out.
    pub async fn get_all(&self, gets: &mut [&mut Get], now: Now) -> Result<Vec<Reply>, StoreError> {
        let keys: Vec<&[u8]> = gets.iter().flat_map(|get| get.keys.iter().map(|key| &key[..])).collect();
        let mut values = self.store.get_many(&keys).await?.into_iter();
        Ok(gets
            .iter_mut()
            .map(|get| {
                let mut items = Vec::with_capacity(get.keys.len());
                for (key, bytes) in std::mem::take(&mut get.keys).into_iter().zip(&mut values) {
                    let found = bytes.and_then(|bytes| self.live(bytes, now));
                    if let Some(item) = self.hand_out(&key, found, false, now) {
                        items.push((key, item));
                    }
                }
                Reply::Values { items, with_cas: get.with_cas, ends: get.ends }
            })
            .collect())
    }

    /// Counts a read of an item, and makes the item younger.
    fn hand_out(&self, key: &Key, found: Option<Found>, touches: bool, now: Now) -> Option<Returned> {
        let counters = &self.shared.counters;
        let (all, hits, misses) = if touches {
            (&counters.touches, &counters.touch_hits, &counters.touch_misses)
        } else {
            (&counters.gets, &counters.get_hits, &counters.get_misses)
        };
        all.add();
        let Some(found) = found else {
            misses.add();
            return None;
        };
        hits.add();
        self.note_used(key, &found, now);
        Some(found.into_returned())
    }

    /// Gives an item another time to live. Returns the item, if it exists.
    async fn give_time(
        &self,
        key: &Key,
        expires: Option<u32>,
        now: Now,
    ) -> Result<Option<Found>, StoreError> {
        self.change(key, now, |found| match found {
            None => Change::Keep(None),
            Some(mut found) => {
                found.item.expires = expires;
                let bytes = found.item.with(found.value());
                Change::Put(bytes, expires, Some(found))
            }
        })
        .await
    }

    pub(super) async fn touch(&self, touch: &Touch, now: Now) -> Result<Reply, StoreError> {
        let counters = &self.shared.counters;
        counters.touches.add();
        let found = self.give_time(&touch.key, touch.expiry.at(now.seconds()), now).await?;
        let (counter, text) = match found {
            Some(_) => (&counters.touch_hits, "TOUCHED"),
            None => (&counters.touch_misses, "NOT_FOUND"),
        };
        counter.add();
        Ok(Reply::Text(text))
    }

    pub(super) async fn delete(&self, key: &Key, now: Now) -> Result<Reply, StoreError> {
        let counters = &self.shared.counters;
        let deleted = self.delete_live(key, now).await?;
        let (counter, text) = match deleted {
            true => (&counters.delete_hits, "DELETED"),
            false => (&counters.delete_misses, "NOT_FOUND"),
        };
        counter.add();
        Ok(Reply::Text(text))
    }

    /// Removes an item. Returns whether clients could see it.
    pub(super) async fn delete_live(&self, key: &Key, now: Now) -> Result<bool, StoreError> {
        // An item that was flushed, or is expired by this gateway's clock, may still be in the table.
        let taken = self.take(key).await?;
        Ok(taken.and_then(|bytes| self.live(bytes, now)).is_some())
    }

    pub(super) async fn set(&self, store: &mut protocol::Store, now: Now) -> Result<Reply, StoreError> {
        let cas = match store.mode {
            Mode::Cas(cas) => Some(cas),
            _ => None,
        };
        let expires = store.expiry.at(now.seconds());
        let way = Way { mode: store.mode, flags: store.flags, expires, cas, invalidate: false };
        let text = match self.store_value(&store.key, &mut store.data.bytes, way, now).await? {
            StoreOutcome::Stored(_) => "STORED",
            StoreOutcome::NotStored => "NOT_STORED",
            StoreOutcome::Exists => "EXISTS",
            StoreOutcome::NotFound => "NOT_FOUND",
        };
        Ok(Reply::Text(text))
    }

    /// Stores a value. `bytes` has room for a header in front of the value.
    pub(super) async fn store_value(
        &self,
        key: &Key,
        bytes: &mut [u8],
        way: Way,
        now: Now,
    ) -> Result<StoreOutcome, StoreError> {
        self.shared.counters.sets.add();
        let condition = match way.mode {
            Mode::Set if way.cas.is_none() => Condition::Always,
            Mode::Add => Condition::Absent,
            _ => return self.store_depending(key, bytes, way, now).await,
        };
        let item = self.new_item(way.flags, way.expires, now);
        item.write_to(bytes);
        let stored = self.put(key, bytes, condition, way.expires, now).await;
        match stored {
            Ok(Stored::Inserted | Stored::Replaced) => Ok(StoreOutcome::Stored(item.cas)),
            // An item that was flushed, or is expired by this gateway's clock, may still be in the table.
            Ok(Stored::Unchanged) => self.store_depending(key, bytes, way, now).await,
            Err(error) => {
                // Otherwise clients would go on reading the former value, which is out of date for the client that has
                // stored this one. Memcached does the same.
                if error == StoreError::NoRoom && way.mode == Mode::Set {
                    self.take(key).await?;
                }
                Err(error)
            }
        }
    }

    /// Stores a value depending on the existing item.
    async fn store_depending(
        &self,
        key: &Key,
        bytes: &[u8],
        way: Way,
        now: Now,
    ) -> Result<StoreOutcome, StoreError> {
        let value = &bytes[HEADER_BYTES..];
        let outcome = self
            .change(key, now, |found| {
                let item = self.new_item(way.flags, way.expires, now);
                let store = |item: Item, value: &[u8]| {
                    Change::Put(item.with(value), item.expires, StoreOutcome::Stored(item.cas))
                };
                let Some(found) = found else {
                    return match way.mode {
                        Mode::Add => store(item, value),
                        Mode::Set if way.cas.is_none() => store(item, value),
                        Mode::Cas(_) | Mode::Set => Change::Keep(StoreOutcome::NotFound),
                        Mode::Replace if way.cas.is_some() => Change::Keep(StoreOutcome::NotFound),
                        Mode::Replace | Mode::Append | Mode::Prepend => Change::Keep(StoreOutcome::NotStored),
                    };
                };
                let fits = way.cas.is_none_or(|cas| cas == found.item.cas);
                match way.mode {
                    Mode::Add => Change::Keep(StoreOutcome::NotStored),
                    Mode::Append | Mode::Prepend if fits => {
                        let parts = match way.mode {
                            Mode::Append => [found.value(), value],
                            _ => [value, found.value()],
                        };
                        // In memcached the longer item is a new one: it is not stale, even if the old one was.
                        store(
                            Item { flags: found.item.flags, expires: found.item.expires, ..item },
                            &parts.concat(),
                        )
                    }
                    Mode::Cas(_) | Mode::Set | Mode::Replace if fits => store(item, value),
                    Mode::Cas(_) | Mode::Set | Mode::Replace
                        if way.invalidate && way.cas.is_some_and(|cas| cas < found.item.cas) =>
                    {
                        let (expires, told) = (found.item.expires, found.item.told);
                        store(Item { expires, told, stale: true, ..item }, value)
                    }
                    _ => Change::Keep(StoreOutcome::Exists),
                }
            })
            .await?;
        let takes = self.store.takes(key.len(), bytes.len());
        self.count_cas(way, outcome, takes.size);
        Ok(outcome)
    }

    fn count_cas(&self, way: Way, outcome: StoreOutcome, size: u64) {
        if way.cas.is_none() || matches!(way.mode, Mode::Append | Mode::Prepend | Mode::Add) {
            return;
        }
        let (counters, class) = (&self.shared.counters, self.shared.classes.of(size));
        match outcome {
            StoreOutcome::Stored(_) => {
                counters.cas_hits.add();
                class.cas_hits.add();
            }
            StoreOutcome::NotFound => counters.cas_misses.add(),
            StoreOutcome::Exists | StoreOutcome::NotStored => {
                counters.cas_badval.add();
                class.cas_badval.add();
            }
        }
    }
}
