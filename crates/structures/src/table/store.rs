//! Changes of a key: insert, update, upsert, compare and set, remove.

use super::blocks::{Claimed, Named, Value, block};
use super::changes::{Change, Shared, Turn};
use super::find::{Attempt, Attempts, Found, Retry};
use super::index::{Bucket, KeyHash, SlotAt, View};
use super::shape::{KEY_BYTES_MAX, LONG_VALUE_BYTES_MAX, TableOptions};
use super::slot_cache::StoredIn;
use super::words::Slot;
use super::{Grain, Table, TableError};
use crate::pipeline::both;
use portcullis::{Clock, Effect, Lifetime, Moment, VerbsEndpoint};
use portcullis_planted::planted;
use std::pin::{Pin, pin};

/// Largest value whose change shares a turn with others. A longer one may lie in pieces, for which others would wait.
const SHARED_VALUE_BYTES_MAX: usize = 16 << 10;

/// The condition on which a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition<'a> {
    /// The value is stored in any case.
    Always,
    /// The key is not in the table: an insert.
    Absent,
    /// The key is in the table: an update.
    Present,
    /// The key is in the table with this value: compare and set.
    Equals(&'a [u8]),
}

/// The result of storing a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// The key was not in the table, and is now.
    Inserted,
    /// The key has a new value.
    Replaced,
    /// The condition did not hold, and nothing was changed.
    Unchanged,
}

/// The keys that are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted<'v> {
    Any,
    /// Keys that have expired.
    Expired,
    /// Keys whose slot names this block.
    At(Slot),
    /// Keys that have this value, which lies in one block.
    Value(&'v [u8]),
}

/// A key that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    /// The part of the value that is in the slot's block.
    value: Value,
    /// The whole value, if it is wanted.
    whole: Option<Vec<u8>>,
    /// Whether the key had expired, so that for its users it was not in the table.
    had_expired: bool,
}

/// The result of one attempt to insert a key.
enum Inserted {
    Done(SlotAt),
    /// Another client has inserted the key first, or has changed the slots.
    Again,
    /// There is no free slot.
    NoRoom {
        subtable: u32,
        depth: u32,
    },
    /// A split is about to move the key's buckets.
    Frozen(u32),
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// From now on this handle stores values of up to `bytes` bytes, and of no more than [`LONG_VALUE_BYTES_MAX`].
    /// Without this call it accepts [`VALUE_BYTES_MAX`](super::VALUE_BYTES_MAX). Any handle reads values of any length.
    pub fn store_values_up_to(&self, bytes: usize) {
        self.value_bytes_max.set(bytes.min(LONG_VALUE_BYTES_MAX));
    }

    /// From now on this handle claims up to `blocks` blocks at once if as many of its operations want one, and at least
    /// four (Patronus §7.3.1). It has as many in its stock for each size, if it uses them up within half a lease. Without
    /// this call it claims up to 64. Each block comes with a permission, of which a tenant has a limited number.
    pub fn claim_up_to(&self, blocks: usize) {
        self.blocks.extents().claim_up_to(blocks);
    }

    /// From now on this handle does not search for unused extents if there is no room for a value: it only waits for
    /// memory that was given back and is on its way. So a cache gets its result soon, and makes room with
    /// [`Table::vacate`].
    pub fn let_caller_make_room(&self) {
        self.blocks.extents().let_caller_make_room();
    }

    /// Adds a key. Returns false if it was in the table before.
    ///
    /// # Errors
    /// The key or the value is too long, the table is full or damaged, or the node is gone or refuses.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, TableError> {
        Ok(self.store(key, value, Condition::Absent, None).await? == Stored::Inserted)
    }

    /// Gives a key that is in the table another value. Returns whether the key is in the table.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, TableError> {
        Ok(self.store(key, value, Condition::Present, None).await? == Stored::Replaced)
    }

    /// Gives a key a value, whether it was in the table or not.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Stored, TableError> {
        self.store(key, value, Condition::Always, None).await
    }

    /// Gives a key another value if it has the value `expected`. Returns whether it had that value.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn compare_and_set(
        &self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
    ) -> Result<bool, TableError> {
        Ok(self.store(key, value, Condition::Equals(expected), None).await? == Stored::Replaced)
    }

    /// Stores a value on a condition. `live`: the time after which the key expires.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn store(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        live: Option<Lifetime>,
    ) -> Result<Stored, TableError> {
        self.leases.check_writable()?;
        check_lengths(key, value, self.value_bytes_max.get())?;
        let operation = self.store_now(key, value, condition, live);
        self.pipeline.limited(("a change of a table", Effect::Perhaps), operation).await
    }

    async fn store_now(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        live: Option<Lifetime>,
    ) -> Result<Stored, TableError> {
        let hash = self.index.hash_of(key);
        let by_key = match condition {
            Condition::Always => Some(Shared::Always),
            Condition::Present => Some(Shared::Present),
            Condition::Absent | Condition::Equals(_) => None,
        };
        let expires_at_once = live == Some(Lifetime(0));
        let shared = by_key.filter(|_| value.len() <= SHARED_VALUE_BYTES_MAX && !expires_at_once);
        let mut change = self.changes.begin(key, hash, shared);
        let expires = match live {
            Some(time) => Some(self.head.node_time().await?.after(time)),
            None => None,
        };
        let content = block::Content { key, value, expires, pieces: &[], renewals: 0 };
        let mut left = match change.turn().await? {
            Turn::Own(left) => left,
            Turn::Shared(stored) => return Ok(stored),
        };
        if left.is_none() && by_key.is_some() {
            left = change.take_remembered();
        }
        let mut claimed = None;
        let mut attempts = Attempts::new(self.pipeline.now());
        loop {
            let attempt = match left.take() {
                Some(found) if by_key.is_some() && claimed.is_none() => {
                    self.try_at_once(&content, &mut change, found, condition, &mut claimed).await
                }
                left => self.try_store(&content, &mut change, left, condition, &mut claimed).await,
            };
            match attempt {
                Ok(Ok(stored)) => {
                    let stored = change.end(stored);
                    if let Some(unused) = claimed {
                        // If this fails, a sweep finds the block.
                        let _ = self.blocks.give_back(unused).await;
                    }
                    return Ok(stored);
                }
                Ok(Err(retry)) => self.again(&mut attempts, retry).await?,
                Err(error) => {
                    // A block whose permission has ended is useless. It may be in a pending slot, so only a sweep frees
                    // it.
                    if let Some(lost) = claimed.take() {
                        self.blocks.end_writing(lost);
                    }
                    self.leases.mend(error).await?;
                }
            }
        }
    }

    /// Makes one attempt. `Ok(Err(…))`: other clients have changed the slots meanwhile. `left` is the key as the change
    /// before has left it. `claimed` is the block that the attempt leaves unused.
    async fn try_store(
        &self,
        content: &block::Content<'_>,
        change: &mut Change<'_, E, C>,
        left: Option<Found>,
        condition: Condition<'_>,
        claimed: &mut Option<Claimed>,
    ) -> Attempt<Stored> {
        let (mut view, is_left) = (View::default(), left.is_some());
        let found = {
            // Pinned here, the future is not moved: it has some buckets.
            let finding = pin!(self.found_or_left(&mut view, content.key, change.hash(), left));
            match condition {
                // The block is needed whatever is found, so it is written meanwhile. With a permission for each block,
                // writes would keep the permissions for which the looks wait.
                Condition::Always if self.options.grain == Grain::Extent => {
                    self.found_and_written(finding, content, claimed).await
                }
                _ => finding.await,
            }
        };
        let found = match found? {
            Ok(found) => found,
            Err(retry) => return Ok(Err(retry)),
        };
        let expired = match &found {
            Some(found) => self.has_expired(found).await?,
            None => false,
        };
        let counts = found.as_ref().filter(|_| !expired);
        let holds = match (condition, counts) {
            (Condition::Always, _) => true,
            (Condition::Absent, found) => found.is_none(),
            (Condition::Present, found) => found.is_some(),
            (Condition::Equals(_), None) => false,
            (Condition::Equals(expected), Some(found)) if found.value.pieces.is_empty() => {
                found.value.rest == expected
            }
            (Condition::Equals(expected), Some(found)) => match Box::pin(self.whole_of(found)).await? {
                Ok(value) => value == expected,
                Err(retry) => return Ok(Err(retry)),
            },
        };
        if !holds {
            return Ok(if is_left { Err(Retry::Changed) } else { Ok(Stored::Unchanged) });
        }
        self.write_once(content, claimed).await?;
        match found {
            Some(found) => {
                let swapped = self.replace(&found, content, change, claimed).await?;
                let done = if expired { Stored::Inserted } else { Stored::Replaced };
                Ok(if swapped { Ok(done) } else { Err(Retry::Changed) })
            }
            None => self.try_insert(content, change, &view, claimed).await,
        }
    }

    /// Makes one attempt at a key that was left: writes a block of the stock and changes the slot in one round trip, if
    /// that can be done without a request before it.
    async fn try_at_once(
        &self,
        content: &block::Content<'_>,
        change: &mut Change<'_, E, C>,
        left: Found,
        condition: Condition<'_>,
        claimed: &mut Option<Claimed>,
    ) -> Attempt<Stored> {
        let can_be_replaced =
            !left.slot.is_frozen() && self.is_known_to_have_expired(left.expires) == Some(false);
        let encoded = if can_be_replaced { self.blocks.encode_new(content) } else { None };
        let Some((block, bytes)) = encoded else {
            return Box::pin(self.try_store(content, change, Some(left), condition, claimed)).await;
        };
        let slots = [left.slot, block.slot(change.hash().fingerprint)];
        let write = (&block.permission, block.at, &bytes[..]);
        let (written, swapped) = match self.index.ask_write_and_swap(write, left.at, slots, block.until) {
            Some(asked) => asked,
            None => (self.pipeline.write(&block.permission, block.at, &bytes), None),
        };
        let written = written.await.map_err(TableError::from);
        *claimed = Some(block);
        if let Err(error) = written {
            let is_in_no_slot = swapped.is_none() || error.wants_permission();
            if let Some(unused) = claimed.take_if(|_| is_in_no_slot) {
                // If this fails, a sweep finds the block.
                let _ = self.blocks.give_back(unused).await;
            }
            return Err(error);
        }
        match swapped {
            None => {}
            Some(swapped) => match swapped.await {
                Ok(before) if Slot(before) == left.slot || planted!(LostRaceCounts) => {
                    self.replaced(&left, content, change, claimed).await;
                    return Ok(Ok(Stored::Replaced));
                }
                Ok(_) => return Ok(Err(Retry::Changed)),
                // The swap was refused, so it has not happened.
                Err(error) => self.leases.mend(error.into()).await?,
            },
        }
        self.try_store(content, change, Some(left), condition, claimed).await
    }

    /// Finds the key. A key that the change before has left counts as found: then only a COMPARE_AND_SWAP may succeed, and
    /// no other result may rest on it, since another client may have changed the key before this change began.
    async fn found_or_left(
        &self,
        view: &mut View,
        key: &[u8],
        hash: KeyHash,
        left: Option<Found>,
    ) -> Attempt<Option<Found>> {
        if left.is_some() {
            return Ok(Ok(left));
        }
        self.index.view(view, hash).await?;
        self.find_in(view, key, hash).await
    }

    /// Finds the key, and writes the content to a claimed block at the same time.
    async fn found_and_written(
        &self,
        finding: Pin<&mut impl Future<Output = Attempt<Option<Found>>>>,
        content: &block::Content<'_>,
        claimed: &mut Option<Claimed>,
    ) -> Attempt<Option<Found>> {
        let (found, written) = both(finding, pin!(self.write_once(content, claimed))).await;
        if found.is_err()
            && let Some(unused) = claimed.take()
        {
            // The block is in no slot. If this fails, a sweep finds it.
            let _ = self.blocks.give_back(unused).await;
        }
        written.and(found)
    }

    /// Writes the content to a claimed block, unless that is done already.
    async fn write_once(
        &self,
        content: &block::Content<'_>,
        claimed: &mut Option<Claimed>,
    ) -> Result<(), TableError> {
        let is_old = |claimed: &Claimed| self.pipeline.now() >= claimed.until;
        if claimed.as_ref().is_some_and(is_old)
            && !planted!(LateClaimUsed)
            && let Some(old) = claimed.take()
        {
            self.blocks.give_back(old).await?;
        }
        if claimed.is_none() {
            *claimed = Some(Box::pin(self.blocks.write_new(content)).await?);
        }
        Ok(())
    }

    /// Puts the claimed block in the place of another one. Returns false if another client was quicker.
    async fn replace(
        &self,
        found: &Found,
        content: &block::Content<'_>,
        change: &mut Change<'_, E, C>,
        claimed: &mut Option<Claimed>,
    ) -> Result<bool, TableError> {
        if found.slot.is_frozen() {
            self.splits.wait_for(found.at.subtable).await?;
            return Ok(false);
        }
        let block = claimed.as_ref().expect("it was written just now");
        let new = block.slot(change.hash().fingerprint);
        let before = self.index.swap(found.at, found.slot, new, block.until).await?;
        if before != Some(found.slot) && !planted!(LostRaceCounts) {
            return Ok(false);
        }
        self.replaced(found, content, change, claimed).await;
        Ok(true)
    }

    /// Notes that the claimed block is in the place of another one, which it frees.
    async fn replaced(
        &self,
        found: &Found,
        content: &block::Content<'_>,
        change: &mut Change<'_, E, C>,
        claimed: &mut Option<Claimed>,
    ) {
        let block = claimed.take().expect("it was just used");
        leave(change, found.at, &block, content);
        self.blocks.end_writing(block);
        if !planted!(OldBlockNotFreed) {
            self.blocks.free_value(found.slot, &found.value).await;
        }
    }

    async fn try_insert(
        &self,
        content: &block::Content<'_>,
        change: &mut Change<'_, E, C>,
        view: &View,
        claimed: &mut Option<Claimed>,
    ) -> Attempt<Stored> {
        match self.insert_pending(content.key, change.hash(), view, claimed).await? {
            Inserted::Done(at) => {
                leave(change, at, claimed.as_ref().expect("it was just used"), content);
                self.blocks.end_writing(claimed.take().expect("it was just used"));
                return Ok(Ok(Stored::Inserted));
            }
            Inserted::Again => {}
            Inserted::NoRoom { subtable, depth } => {
                // The split takes longer than a claim may wait.
                if let Some(unused) = claimed.take() {
                    self.blocks.give_back(unused).await?;
                }
                self.splits.make_room(subtable, depth).await?;
            }
            Inserted::Frozen(subtable) => self.splits.wait_for(subtable).await?,
        }
        Ok(Err(Retry::Changed))
    }

    async fn insert_pending(
        &self,
        key: &[u8],
        hash: KeyHash,
        view: &View,
        claimed: &Option<Claimed>,
    ) -> Result<Inserted, TableError> {
        let block = claimed.as_ref().expect("it was written just now");
        let Some(at) = free_slot(view) else {
            let frozen = view.slots().find(|(_, slot)| slot.is_empty() && slot.is_frozen());
            let full = view.buckets().next().expect("a key has buckets");
            let full = Inserted::NoRoom { subtable: full.subtable, depth: full.header.depth() };
            return Ok(frozen.map_or(full, |(at, _)| Inserted::Frozen(at.subtable)));
        };
        let new = block.slot(hash.fingerprint);
        if self.index.swap(at, Slot::EMPTY, new.pending(), block.until).await? != Some(Slot::EMPTY) {
            return Ok(Inserted::Again);
        }
        let checked = !planted!(AloneNotChecked);
        if checked && !self.is_alone(key, hash, at, new).await? {
            // If the slot is empty already, a rival or a split has removed it.
            self.index.swap(at, new.pending(), Slot::EMPTY, Moment(u64::MAX)).await?;
            return Ok(Inserted::Again);
        }
        let counts = self.index.swap(at, new.pending(), new, block.until).await?;
        if counts == Some(new.pending()) {
            return Ok(Inserted::Done(at));
        }
        if counts.is_none() {
            self.index.swap(at, new.pending(), Slot::EMPTY, Moment(u64::MAX)).await?;
        }
        Ok(Inserted::Again)
    }

    /// Whether the pending slot is where a reader looks for the key, and no other slot has the key. Pending slots of
    /// other clients with the same key are removed.
    async fn is_alone(&self, key: &[u8], hash: KeyHash, at: SlotAt, new: Slot) -> Result<bool, TableError> {
        let mut view = View::default();
        self.index.view(&mut view, hash).await?;
        if !view.slots().any(|(other, slot)| other == at && slot == new.pending()) {
            return Ok(false);
        }
        for (other, slot) in view.candidates(hash).filter(|(other, _)| *other != at) {
            let is_rival = match self.blocks.named(slot, key).await? {
                Named::Same { .. } => true,
                Named::Other => false,
                Named::Stale => return Ok(false),
            };
            if !is_rival {
                continue;
            }
            if !slot.is_pending() || slot.is_frozen() {
                return Ok(false);
            }
            if self.index.swap(other, slot, Slot::EMPTY, Moment(u64::MAX)).await? != Some(slot) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes a key. Returns whether it was in the table.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn remove(&self, key: &[u8]) -> Result<bool, TableError> {
        let operation = self.take_wanted(key, Wanted::Any, false);
        let taken = self.pipeline.limited(("a change of a table", Effect::Perhaps), operation).await?;
        Ok(taken.is_some_and(|taken| !taken.had_expired))
    }

    /// Removes a key if it has the value `expected`, of at most 32 KiB. Returns whether it had that value.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<bool, TableError> {
        let operation = self.take_wanted(key, Wanted::Value(expected), false);
        let taken = self.pipeline.limited(("a change of a table", Effect::Perhaps), operation).await?;
        Ok(taken.is_some_and(|taken| !taken.had_expired))
    }

    /// Removes a key, and returns the value that it had then. If several clients take one key, one of them gets the
    /// value.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub async fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableError> {
        let operation = self.take_wanted(key, Wanted::Any, true);
        let taken = self.pipeline.limited(("a change of a table", Effect::Perhaps), operation).await?;
        let taken = taken.filter(|taken| !taken.had_expired);
        Ok(taken.map(|taken| taken.whole.unwrap_or(taken.value.rest)))
    }

    /// Removes a key if it matches `wanted`. `whole`: its whole value is wanted as well.
    pub(super) async fn take_wanted(
        &self,
        key: &[u8],
        wanted: Wanted<'_>,
        whole: bool,
    ) -> Result<Option<Taken>, TableError> {
        self.leases.check_writable()?;
        let hash = self.index.hash_of(key);
        let change = self.changes.begin(key, hash, None);
        let mut left = match change.turn().await? {
            Turn::Own(left) => left,
            Turn::Shared(_) => unreachable!("a removal shares no turn"),
        };
        let mut attempts = Attempts::new(self.pipeline.now());
        loop {
            match self.try_take(key, (hash, left.take()), wanted, whole).await {
                Ok(Ok(taken)) => {
                    // The key may be gone from the slot.
                    let _ = change.take_remembered();
                    change.end(Stored::Unchanged);
                    return Ok(taken);
                }
                Ok(Err(retry)) => self.again(&mut attempts, retry).await?,
                Err(error) => self.leases.mend(error).await?,
            }
        }
    }

    async fn try_take(
        &self,
        key: &[u8],
        (hash, left): (KeyHash, Option<Found>),
        wanted: Wanted<'_>,
        whole: bool,
    ) -> Attempt<Option<Taken>> {
        let unchanged = if left.is_some() { Err(Retry::Changed) } else { Ok(None) };
        let found = match self.found_or_left(&mut View::default(), key, hash, left).await? {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Ok(None)),
            Err(retry) => return Ok(Err(retry)),
        };
        let at = found.at;
        if found.slot.is_frozen() {
            self.splits.wait_for(at.subtable).await?;
            return Ok(Err(Retry::Changed));
        }
        let had_expired = self.has_expired(&found).await?;
        if wanted == Wanted::Expired && !had_expired && !planted!(ExpiryNotCompared) {
            return Ok(unchanged);
        }
        if let Wanted::At(block) = wanted
            && found.slot.name() != block.name()
        {
            return Ok(unchanged);
        }
        if let Wanted::Value(expected) = wanted
            && (found.value.rest != expected || !found.value.pieces.is_empty())
        {
            return Ok(unchanged);
        }
        let whole = match whole && !found.value.pieces.is_empty() {
            true => match Box::pin(self.whole_of(&found)).await? {
                Ok(value) => Some(value),
                Err(retry) => return Ok(Err(retry)),
            },
            false => None,
        };
        if self.index.swap(at, found.slot, Slot::EMPTY, Moment(u64::MAX)).await? != Some(found.slot) {
            return Ok(Err(Retry::Changed));
        }
        self.blocks.free_value(found.slot, &found.value).await;
        Ok(Ok(Some(Taken { value: found.value, whole, had_expired })))
    }
}

/// Leaves a key to the next change of this handle as it was just stored, and remembers its slot. A value in pieces is not left: the next change
/// reads the names of the pieces.
fn leave<E: VerbsEndpoint, C: Clock>(
    change: &mut Change<'_, E, C>,
    at: SlotAt,
    block: &Claimed,
    content: &block::Content<'_>,
) {
    if block.pieces.is_empty() {
        let (slot, renewals, expires) =
            (block.slot(change.hash().fingerprint), block.renewals, content.expires);
        change.remember(StoredIn { at, slot, renewals, expires });
        change.leave(|| {
            let value = Value { pieces: Vec::new(), rest: content.value.to_vec(), renewals };
            Found { at, slot, value, expires }
        });
    }
}

/// Finds a free slot for a new key: in the emptier of its main buckets, or in an overflow bucket.
fn free_slot(view: &View) -> Option<SlotAt> {
    let free = |bucket: &&Bucket| bucket.slots.iter().filter(|slot| **slot == Slot::EMPTY).count();
    let is_main = |bucket: &&Bucket| TableOptions::is_main(bucket.number);
    let main = view.buckets().filter(is_main).max_by_key(free).filter(|bucket| free(bucket) > 0);
    let bucket = main.or_else(|| view.buckets().max_by_key(free))?;
    bucket.slots().find(|(_, slot)| *slot == Slot::EMPTY).map(|(at, _)| at)
}

fn check_lengths(key: &[u8], value: &[u8], value_bytes_max: usize) -> Result<(), TableError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(TableError::KeyTooLong { bytes: key.len() as u64 });
    }
    if value.len() > value_bytes_max {
        return Err(TableError::ValueTooLong { bytes: value.len() as u64, most: value_bytes_max as u64 });
    }
    Ok(())
}
