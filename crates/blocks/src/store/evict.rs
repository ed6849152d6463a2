//! Evictions: what was not used for longest goes first.
//!
//! A handle knows when it has used a block itself. Blocks that others have stored count as older, in the order of
//! their birth: a scan of the table finds them when the handle begins to evict, and again after it has evicted half
//! of what it knew. A block of which some client has a permission is never evicted, since only an exclusive
//! permission shows that no client has one, and the block is freed by that permission.

use super::{Store, each, end_of_session, is_gone};
use crate::entry::Entry;
use crate::error::{BlockError, is_no_room};
use crate::recency::KEYS_MAX;
use portcullis::{Acquire, BarePermission, Clock, Error, Lifetime, Refusal, VerbsEndpoint};

/// Number of blocks that are looked at together.
const LOOK_AT: usize = 32;

/// Time after a vain eviction in which the handle does not try another one, if that one was not longer.
const VAIN_FOR: Lifetime = Lifetime::millis(250);

/// Time after an eviction until its room counts: the node keeps windows bound for up to a millisecond, to unbind
/// several at once, and their blocks count until then.
const SETTLES_IN: Lifetime = Lifetime::millis(2);

/// The room that is missing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Need {
    pub bytes: u64,
    /// Number of objects or permissions, if these are limited and not the bytes.
    pub blocks: u64,
}

impl Need {
    /// Returns the room that blocks with these lengths need after a refusal.
    pub fn after(reason: &Error, lengths: impl Iterator<Item = u64>) -> Self {
        let (mut bytes, mut blocks) = (0_u64, 0);
        for length in lengths {
            bytes = bytes.saturating_add(length);
            blocks += 1;
        }
        match *reason {
            // A limit of objects or permissions is always used up exactly, one of bytes hardly ever.
            Error::Quota { used, limit } if used >= limit => Self { bytes: 0, blocks },
            Error::Quota { used, limit } => Self { bytes: bytes.saturating_sub(limit - used), blocks: 0 },
            Error::Refused(Refusal::NodeFull { .. }) => Self { bytes: 0, blocks },
            // The table may want more for its own objects.
            Error::Refused(Refusal::OutOfMemory { size }) => Self { bytes: bytes.max(size), blocks: 0 },
            _ => Self { bytes, blocks: 0 },
        }
    }

    fn is_met_by(&self, freed: &Self) -> bool {
        freed.bytes >= self.bytes && freed.blocks >= self.blocks
    }

    fn less(&self, freed: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(freed.bytes),
            blocks: self.blocks.saturating_sub(freed.blocks),
        }
    }

    fn add(&mut self, more: Self) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.blocks += more.blocks;
    }
}

/// The end of an eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// This operation has removed blocks.
    Made,
    /// Another operation of the handle has evicted meanwhile: there may be room.
    Perhaps,
    /// No block can be evicted now.
    None,
}

/// The end of one step of an eviction.
struct Evicted {
    freed: Need,
    /// Number of keys that were removed, with or without a block.
    removed: usize,
    /// Number of blocks that were not looked at.
    put_back: usize,
}

/// A block that may be evicted.
type Victim = (Box<[u8]>, Entry);

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Evicts as many blocks as are needed, if there are so many.
    pub(super) async fn make_room(&self, need: Need) -> Result<Room, BlockError> {
        if !self.options.evicts || self.pipeline.now() < self.in_vain_until.get() {
            return Ok(Room::None);
        }
        if self.evicting.get() {
            let mut waiting = self.waiting_need.get();
            waiting.add(need);
            self.waiting_need.set(waiting);
            return self.room_of_another().await;
        }
        let unsettled = self.settled_at.get().since(self.pipeline.now());
        if unsettled.0 > 0 {
            self.pipeline.sleep(unsettled).await?;
            return Ok(Room::Perhaps);
        }
        let _end = Evicting::begin(self);
        let begun = self.pipeline.now();
        if self.evict_for(need).await? {
            self.settled_at.set(self.pipeline.now().after(SETTLES_IN));
            return Ok(Room::Made);
        }
        let (now, took) = (self.pipeline.now(), self.pipeline.now().since(begun));
        self.in_vain_until.set(now.after(took.max(VAIN_FOR)));
        Ok(Room::None)
    }

    /// Evicts as many blocks as an object of the table needs. The operations that change the table want the same
    /// object.
    pub(super) async fn make_room_for_table(&self, need: Need) -> Result<Room, BlockError> {
        if self.evicting.get() { self.room_of_another().await } else { self.make_room(need).await }
    }

    /// Waits until another operation has evicted blocks.
    async fn room_of_another(&self) -> Result<Room, BlockError> {
        while self.evicting.get() {
            self.pipeline.anything().await?;
        }
        Ok(Room::Perhaps)
    }

    /// Evicts for an operation and for those that wait for it. Returns whether there is more room now.
    async fn evict_for(&self, mut need: Need) -> Result<bool, BlockError> {
        let mut has_scanned = false;
        if self.evictions_to_scan.get() == 0 {
            self.find_others().await?;
            has_scanned = true;
        }
        let mut left = self.recency.borrow().len();
        let (mut freed, mut has_removed) = (Need::default(), false);
        loop {
            need.add(self.waiting_need.take());
            if need.is_met_by(&freed) {
                return Ok(true);
            }
            let keys = self.recency.borrow_mut().take_oldest(LOOK_AT.min(left));
            left -= keys.len();
            if keys.is_empty() {
                if std::mem::replace(&mut has_scanned, true) {
                    break;
                }
                left = self.find_others().await?;
                continue;
            }
            let Some(evicted) = self.evict_some(keys, need.less(&freed)).await? else { break };
            freed.add(evicted.freed);
            has_removed |= evicted.removed > 0;
            left += evicted.put_back;
        }
        Ok(has_removed)
    }

    /// Evicts as many of these blocks, the first ones first, as are needed. `None`: the node grants no permission
    /// now, so no block can be evicted.
    async fn evict_some(&self, keys: Vec<Box<[u8]>>, need: Need) -> Result<Option<Evicted>, BlockError> {
        let (victims, put_back) = self.select_victims(keys, need).await?;
        let lifetime = Lifetime::seconds(1).min(self.write_lifetime);
        let ask = |entry: &Entry| Acquire::object(entry.object).lifetime(lifetime).wait(Lifetime(0));
        let granted = each(victims.iter().map(|(_, entry)| self.pipeline.acquire(ask(entry)))).await;
        end_of_session(granted.iter().filter_map(|it| it.as_ref().err()))?;
        let has_no_permissions =
            !granted.is_empty() && granted.iter().all(|it| it.as_ref().is_err_and(is_no_room));
        let (mut alone, mut gone) = (Vec::new(), Vec::new());
        for ((key, entry), granted) in victims.iter().zip(granted) {
            match granted {
                Ok(permission) => alone.push((&**key, *entry, permission)),
                Err(error) if is_gone(&error) => gone.push((&**key, *entry)),
                // A client uses the block, or the node cannot grant a permission now.
                Err(_) => self.recency.borrow_mut().used(key),
            }
        }
        if has_no_permissions {
            return Ok(None);
        }
        let (freed, mut removed) = self.free_unpinned(alone).await?;
        removed += gone.len();
        self.remove_entries(gone).await?;
        Ok(Some(Evicted { freed, removed, put_back }))
    }

    /// Frees blocks on which this handle alone has permissions, unless they were pinned before it had them. Returns
    /// the freed bytes and blocks, and the number of keys that it has removed.
    async fn free_unpinned(
        &self,
        alone: Vec<(&[u8], Entry, BarePermission)>,
    ) -> Result<(Need, usize), BlockError> {
        let keys: Vec<_> = alone.iter().map(|(key, _, _)| *key).collect();
        let now = self.entries(&keys).await?;
        let (mut requests, mut blocks) = (Vec::new(), Vec::new());
        for ((key, entry, permission), now) in alone.into_iter().zip(now) {
            // An object of another length is not the block: another program of the tenant has written the entry.
            let is_the_block = permission.length() == entry.length;
            let is_evicted = now == Some(entry) && is_the_block;
            blocks.push((key, entry, is_evicted || !is_the_block, if is_evicted { entry.length } else { 0 }));
            requests.push(self.pipeline.revoke(permission, is_evicted));
        }
        let ended = each(requests.into_iter()).await;
        let (mut freed, mut gone) = (Need::default(), Vec::new());
        for ((key, entry, goes, bytes), ended) in blocks.into_iter().zip(ended) {
            // If the permission has ended before, its object is not freed.
            if ended.is_err() || !goes {
                self.recency.borrow_mut().used(key);
                continue;
            }
            gone.push((key, entry));
            if bytes > 0 {
                freed.add(Need { bytes, blocks: 1 });
            }
        }
        self.count(|counters| {
            counters.evicted += freed.blocks;
            counters.evicted_bytes = counters.evicted_bytes.saturating_add(freed.bytes);
        });
        self.evictions_to_scan.set(self.evictions_to_scan.get().saturating_sub(freed.blocks));
        let removed = gone.len();
        self.remove_entries(gone).await?;
        Ok((freed, removed))
    }

    /// Selects the blocks that can be evicted, as many as are needed. Notes those that are pinned or held as used,
    /// and puts the rest back. Returns the number of the rest.
    async fn select_victims(
        &self,
        keys: Vec<Box<[u8]>>,
        need: Need,
    ) -> Result<(Vec<Victim>, usize), BlockError> {
        let names: Vec<_> = keys.iter().map(|key| &**key).collect();
        let entries = self.entries(&names).await?;
        let now = self.pipeline.now();
        let (mut victims, mut surplus, mut selected) = (Vec::new(), Vec::new(), Need::default());
        for (key, entry) in keys.into_iter().zip(entries) {
            let Some(entry) = entry else { continue };
            if entry.is_pinned || self.held.borrow().holds(&key, now) {
                self.recency.borrow_mut().used(&key);
            } else if need.is_met_by(&selected) {
                surplus.push(key);
            } else {
                selected.add(Need { bytes: entry.length, blocks: 1 });
                victims.push((key, entry));
            }
        }
        for key in surplus.iter().rev() {
            self.recency.borrow_mut().found(key);
        }
        Ok((victims, surplus.len()))
    }

    /// Finds the blocks of which the handle knows nothing. Returns their number.
    async fn find_others(&self) -> Result<usize, BlockError> {
        let mut others: Vec<(u64, Box<[u8]>)> = Vec::new();
        let look = |key: &[u8], entry: Entry| {
            if !self.recency.borrow().contains(key) {
                others.push((entry.object.birth, key.into()));
                if others.len() >= 2 * KEYS_MAX {
                    others.sort_unstable();
                    others.truncate(KEYS_MAX);
                }
            }
        };
        self.for_each_entry(look).await?;
        // The oldest one is noted last, and so goes first.
        others.sort_unstable_by(|one, other| other.cmp(one));
        let recency = &mut *self.recency.borrow_mut();
        let noted = others.iter().filter(|(_, key)| recency.found(key)).count();
        // Others store while this handle evicts: until it has evicted half of what it knows, what it has found is
        // enough.
        self.evictions_to_scan.set((recency.len() as u64 / 2).max(LOOK_AT as u64));
        Ok(noted)
    }
}

/// Guard of the operation that evicts: others of the handle wait for its end.
struct Evicting<'s, E: VerbsEndpoint, C: Clock> {
    store: &'s Store<E, C>,
}

impl<'s, E: VerbsEndpoint, C: Clock> Evicting<'s, E, C> {
    fn begin(store: &'s Store<E, C>) -> Self {
        store.evicting.set(true);
        Self { store }
    }
}

impl<E: VerbsEndpoint, C: Clock> Drop for Evicting<'_, E, C> {
    fn drop(&mut self) {
        self.store.evicting.set(false);
        self.store.pipeline.wake_waiting();
    }
}
