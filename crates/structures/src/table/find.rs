//! The search for a key: its buckets, its slot, its block.

use super::blocks::{Named, Value};
use super::hashing::KeyHash;
use super::leases::{Leased, Part};
use super::shape::{BUCKET_BYTES, COMBINED_BYTES, SHARED_AT, SLOTS, TableOptions, bucket_at};
use super::words::{BucketHeader, Slot};
use super::{Table, TableError};
use crate::pipeline::Awaited;
use portcullis::{BarePermission, Buffer, Clock, Effect, Lifetime, Moment, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// Number of buckets in which a key can be: two combined ones, which may share their overflow bucket.
const BUCKETS_MAX: usize = 4;
/// Number of times that a bucket's links are followed before the table counts as damaged. Each time takes a round trip.
const FOLLOWED_MAX: u32 = 1_000;
/// Number of leases, and of looks, for which one slot may name a block that is invalid.
const DAMAGED_AFTER_LEASES: u64 = 4;
const DAMAGED_AFTER_TIMES: u32 = 16;
/// Number of attempts that follow each other without a pause.
const ATTEMPTS_AT_ONCE: u32 = 4;
/// Number of attempts after which an operation that has met a slot whose block is another one checks whether the
/// block's extent is another one as well. The check is repeated after as many attempts.
const LOOKED_ANEW_EVERY: u32 = 4;
/// The longest pause between two attempts. With longer pauses, an operation that has lost often got few attempts beside
/// new operations, which try without a pause: among sixteen changes of one key it waited for seconds while nothing else
/// happened.
const PAUSE_MAX: Lifetime = Lifetime::millis(2);

/// The place of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SlotAt {
    pub subtable: u32,
    pub bucket: u32,
    pub slot: u32,
}

impl SlotAt {
    /// Offset of the slot in the part of the subtable that clients share.
    pub fn offset(self) -> u64 {
        bucket_at(self.bucket) - SHARED_AT + u64::from(self.slot) * 8
    }
}

/// A bucket, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Bucket {
    pub subtable: u32,
    pub number: u32,
    pub slots: [Slot; SLOTS],
    pub header: BucketHeader,
}

impl Bucket {
    #[inline]
    pub fn parse(subtable: u32, number: u32, bytes: &[u8; BUCKET_BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let slots = std::array::from_fn(|slot| Slot(word(slot)));
        Self { subtable, number, slots, header: BucketHeader(word(SLOTS)) }
    }

    /// Parses buckets that lie one after another, from `first` on.
    #[inline]
    pub fn parse_all(subtable: u32, first: u32, bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let (buckets, _) = bytes.as_chunks();
        (first..).zip(buckets).map(move |(number, bytes)| Self::parse(subtable, number, bytes))
    }

    pub fn slots(&self) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        (0..).zip(self.slots).map(|(slot, word)| (self.at(slot), word))
    }

    fn at(&self, slot: u32) -> SlotAt {
        SlotAt { subtable: self.subtable, bucket: self.number, slot }
    }

    /// Returns the slots that are not empty and have this fingerprint.
    #[inline]
    fn candidates(&self, fingerprint: u8) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        // Most buckets have no such slot. So all slots are compared first, without a branch.
        let mut matching = 0_u32;
        for (bit, slot) in self.slots.iter().enumerate() {
            let matches = slot.fingerprint() == fingerprint && !slot.is_empty();
            matching |= u32::from(matches) << bit;
        }
        std::iter::from_fn(move || {
            let slot = matching.trailing_zeros();
            matching &= matching.wrapping_sub(1);
            let word = self.slots.get(slot as usize)?;
            Some((self.at(slot), *word))
        })
    }
}

/// All buckets in which a key can be.
#[derive(Default, Debug)]
pub(super) struct View {
    buckets: [Bucket; BUCKETS_MAX],
    count: usize,
}

impl View {
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets[..self.count].iter()
    }

    /// Adds buckets that lie one after another, from `first` on, unless they are here already.
    fn add(&mut self, subtable: u32, first: u32, bytes: &[u8]) {
        for bucket in Bucket::parse_all(subtable, first, bytes) {
            if self.buckets().all(|known| known.number != bucket.number) {
                self.buckets[self.count] = bucket;
                self.count += 1;
            }
        }
    }

    pub fn slots(&self) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        self.buckets().flat_map(Bucket::slots)
    }

    /// Returns the slots that may be this key's.
    #[inline]
    pub fn candidates(&self, hash: KeyHash) -> impl Iterator<Item = (SlotAt, Slot)> + '_ {
        self.buckets().flat_map(move |bucket| bucket.candidates(hash.fingerprint))
    }
}

/// A view whose buckets were requested.
pub(super) struct AskedView<'p, E: VerbsEndpoint, C: Clock> {
    subtable: u32,
    /// The bucket with which each read begins.
    firsts: [u32; 2],
    reads: [Awaited<'p, E, C, Buffer<E::Memory>>; 2],
}

/// A key that was found, with its slot and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub at: SlotAt,
    pub slot: Slot,
    pub value: Value,
    pub expires: Option<Moment>,
}

/// The next place to search for a key that a bucket does not have.
#[derive(Clone, Copy, Debug)]
enum Next {
    Child(u32),
    Parent(u32),
}

/// The reason why an operation has to begin again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Retry {
    /// Other clients have changed the slots, or are about to.
    Changed,
    /// This slot names a block that has been used again, so it must have changed since.
    Stale(SlotAt, Slot),
}

/// The result of one attempt at an operation.
pub(super) type Attempt<T> = Result<Result<T, Retry>, TableError>;

/// The attempts at an operation so far.
#[derive(Default)]
pub(super) struct Attempts {
    count: u32,
    /// The slot that was stale at the last attempt, the time since when, and the number of such attempts in a row.
    stale: Option<(SlotAt, Slot, Moment, u32)>,
}

impl Attempts {
    /// Notes one more attempt. Returns a slot that stays stale for longer than any change takes.
    fn note(&mut self, retry: Retry, now: Moment, lease: Lifetime) -> Option<SlotAt> {
        self.count += 1;
        let Retry::Stale(at, slot) = retry else {
            self.stale = None;
            return None;
        };
        let same = self.stale.filter(|stale| (stale.0, stale.1) == (at, slot));
        let (since, times) = same.map_or((now, 1), |(_, _, since, times)| (since, times + 1));
        self.stale = Some((at, slot, since, times));
        let for_long = now.since(since).0 > lease.0 * DAMAGED_AFTER_LEASES && times > DAMAGED_AFTER_TIMES;
        for_long.then_some(at)
    }
}

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// The node is gone or refuses, or the table is damaged.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableError> {
        self.pipeline.limited(("a get of a table", Effect::Nothing), self.get_now(key)).await
    }

    pub(super) async fn get_now(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableError> {
        let hash = self.hash_of(key);
        let mut attempts = Attempts::default();
        loop {
            let Some(found) = self.find(key, hash).await? else { return Ok(None) };
            if self.has_expired(&found).await? {
                return Ok(None);
            }
            if found.value.pieces.is_empty() {
                return Ok(Some(found.value.rest));
            }
            match Box::pin(self.whole_of(&found)).await? {
                Ok(value) => return Ok(Some(value)),
                Err(retry) => self.again(&mut attempts, retry).await?,
            }
        }
    }

    /// Finds the slot and the value of a key, if it is in the table. A key that has expired may still be found.
    pub(super) async fn find(&self, key: &[u8], hash: KeyHash) -> Result<Option<Found>, TableError> {
        let (mut attempts, mut view) = (Attempts::default(), View::default());
        loop {
            let attempt = match self.view(&mut view, hash).await {
                Ok(()) => self.find_in(&view, key, hash).await,
                Err(error) => Err(error),
            };
            match attempt {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(retry)) => self.again(&mut attempts, retry).await?,
                Err(error) => self.leases.mend(error).await?,
            }
        }
    }

    /// Searches buckets that were read for a key that counts.
    #[inline]
    pub(super) async fn find_in(&self, view: &View, key: &[u8], hash: KeyHash) -> Attempt<Option<Found>> {
        let counts = |slot: Slot| !slot.is_pending() || planted!(PendingSeen);
        for (at, slot) in view.candidates(hash).filter(|(_, slot)| counts(*slot)) {
            match self.blocks.named(slot, key).await? {
                Named::Same { value, expires } => return Ok(Ok(Some(Found { at, slot, value, expires }))),
                Named::Other => {}
                Named::Stale => return Ok(Err(Retry::Stale(at, slot))),
            }
        }
        Ok(Ok(None))
    }

    /// Reads all bytes of a value that was found.
    pub(super) async fn whole_of(&self, found: &Found) -> Attempt<Vec<u8>> {
        let whole = self.blocks.whole(&found.value, found.slot).await?;
        Ok(whole.ok_or(Retry::Stale(found.at, found.slot)))
    }

    /// Waits before an operation begins again, for longer each time.
    ///
    /// # Errors
    /// The table is damaged.
    pub(super) async fn again(&self, attempts: &mut Attempts, retry: Retry) -> Result<(), TableError> {
        if let Some(at) = attempts.note(retry, self.pipeline.now(), self.options.lease) {
            return Err(TableError::Damaged { subtable: at.subtable, bucket: at.bucket });
        }
        if let Retry::Stale(_, slot) = retry
            && attempts.count.is_multiple_of(LOOKED_ANEW_EVERY)
        {
            self.blocks.look_anew(slot.block_id()).await?;
        }
        if attempts.count > ATTEMPTS_AT_ONCE {
            let longest = PAUSE_MAX.0.min(self.options.lease.0 / 16);
            self.pipeline.sleep(Lifetime((1 << attempts.count.min(20)).min(longest))).await?;
        }
        Ok(())
    }

    /// Reads all buckets in which a key can be: two reads in one doorbell, and more only during a split.
    #[inline]
    pub(super) async fn view(&self, view: &mut View, hash: KeyHash) -> Result<(), TableError> {
        let asked = match self.ask_view(hash) {
            Some(asked) => asked,
            None => {
                let subtable = self.state.borrow().routes.of(hash.suffix);
                let permission = Box::pin(self.subtable(subtable).permission()).await?;
                self.ask_view_under(&permission, subtable, hash)
            }
        };
        self.take_view(view, asked, hash).await
    }

    /// Requests all buckets in which a key can be, if the handle has the permission for that.
    #[inline]
    pub(super) fn ask_view(&self, hash: KeyHash) -> Option<AskedView<'_, E, C>> {
        let subtable = self.state.borrow().routes.of(hash.suffix);
        let permission = self.leases.fresh(Part::Subtable(subtable))?;
        Some(self.ask_view_under(&permission, subtable, hash))
    }

    #[inline]
    fn ask_view_under(
        &self,
        permission: &Rc<BarePermission>,
        subtable: u32,
        hash: KeyHash,
    ) -> AskedView<'_, E, C> {
        let [one, other] = hash.choices.map(TableOptions::combined);
        let read = |first| self.pipeline.read(permission, bucket_at(first) - SHARED_AT, COMBINED_BYTES);
        AskedView { subtable, firsts: [one, other], reads: [read(one), read(other)] }
    }

    /// Takes the buckets that were requested.
    #[inline]
    pub(super) async fn take_view(
        &self,
        view: &mut View,
        AskedView { subtable, firsts, reads }: AskedView<'_, E, C>,
        hash: KeyHash,
    ) -> Result<(), TableError> {
        view.count = 0;
        for (first, read) in firsts.into_iter().zip(reads) {
            let read = read.await?;
            self.pipeline.look(read, |bytes| view.add(subtable, first, bytes));
        }
        for place in 0..view.count {
            let bucket = &mut view.buckets[place];
            if !bucket.header.has(hash.suffix) {
                // This happens only during a split: the future is boxed, so that a get stays small.
                *bucket = Box::pin(self.follow(*bucket, hash.suffix)).await?;
            }
        }
        Ok(())
    }

    /// Follows links from a bucket that does not have the keys with this hash to the bucket that has them.
    async fn follow(&self, mut bucket: Bucket, suffix: u32) -> Result<Bucket, TableError> {
        // The parent's header was changed after the child's bucket was filled. So a child's bucket that was read after
        // the parent's header had changed is in use, whatever its own header contains.
        let mut is_in_use = bucket.header.is_published();
        for _ in 0..FOLLOWED_MAX {
            if is_in_use && bucket.header.covers(suffix) {
                let depth = bucket.header.depth();
                self.state.borrow_mut().routes.learn(suffix, depth, bucket.subtable);
                return Ok(bucket);
            }
            let next = self.next_subtable(&bucket, is_in_use, suffix).await?;
            let (Next::Child(subtable) | Next::Parent(subtable)) = next;
            bucket = self.read_bucket(subtable, bucket.number).await?;
            is_in_use = bucket.header.is_published() || matches!(next, Next::Child(_));
        }
        Err(TableError::Damaged { subtable: bucket.subtable, bucket: bucket.number })
    }

    async fn next_subtable(&self, bucket: &Bucket, is_in_use: bool, suffix: u32) -> Result<Next, TableError> {
        let links = self.links(bucket.subtable).await?;
        let up = Next::Parent(links.parent.unwrap_or(0));
        let differs = (bucket.header.suffix() ^ suffix).trailing_zeros();
        if !is_in_use || differs < links.birth_depth {
            return Ok(up);
        }
        let child = links.child(differs).map(Next::Child);
        child.ok_or(TableError::Damaged { subtable: bucket.subtable, bucket: bucket.number })
    }

    /// Reads one bucket.
    pub(super) async fn read_bucket(&self, subtable: u32, number: u32) -> Result<Bucket, TableError> {
        let at = bucket_at(number) - SHARED_AT;
        let bytes = self.subtable(subtable).read(at, BUCKET_BYTES).await?;
        Ok(Bucket::parse(subtable, number, &bytes.try_into().expect("as many as were read")))
    }
}
