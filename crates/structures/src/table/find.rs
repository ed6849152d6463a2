//! The search for a key: its slot in the index, and its block.

use super::blocks::{Named, Value};
use super::index::{KeyHash, SlotAt, View};
use super::words::Slot;
use super::{Table, TableError};
use portcullis::{Clock, Lifetime, Moment, VerbsEndpoint};

/// Number of leases, and of looks, for which one slot may name a block that is invalid.
const DAMAGED_AFTER_LEASES: u64 = 4;
const DAMAGED_AFTER_TIMES: u32 = 16;
/// Number of attempts that follow each other without a pause.
const ATTEMPTS_AT_ONCE: u32 = 4;
/// Number of attempts after which an operation that has met a slot whose block is another one checks whether the
/// block's extent is another one as well. The check is repeated after as many attempts.
const LOOKED_ANEW_EVERY: u32 = 4;
/// The longest pause between two attempts.
const PAUSE_MAX: Lifetime = Lifetime::millis(2);

/// A key that was found, with its slot and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub at: SlotAt,
    pub slot: Slot,
    pub value: Value,
    pub expires: Option<Moment>,
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
pub(super) struct Attempts {
    count: u32,
    /// The time at which the present attempt began.
    began: Moment,
    /// The slot that was stale at the last attempt, the time since when, and the number of such attempts in a row.
    stale: Option<(SlotAt, Slot, Moment, u32)>,
}

impl Attempts {
    /// `now`: the time at which the first attempt begins.
    pub fn new(now: Moment) -> Self {
        Self { count: 0, began: now, stale: None }
    }

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
    /// Finds the slot and the value of a key, if it is in the table. A key that has expired may still be found.
    pub(super) async fn find(&self, key: &[u8], hash: KeyHash) -> Result<Option<Found>, TableError> {
        let (mut attempts, mut view) = (Attempts::new(self.pipeline.now()), View::default());
        loop {
            let attempt = match self.index.view(&mut view, hash).await {
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
        for (at, slot) in view.candidates(hash).filter(|(_, slot)| slot.may_be_found()) {
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
            // This happens only while an extent goes: the future is boxed, so that a get stays small.
            Box::pin(self.blocks.look_anew(slot.block_id())).await?;
        }
        if attempts.count > ATTEMPTS_AT_ONCE {
            // A pause as long as the attempt that was lost: with longer ones, an operation that has lost often gets few
            // attempts beside new operations, and among sixteen changes of one key it waited for seconds.
            let lost = self.pipeline.now().since(attempts.began);
            let longest = lost.0.min(PAUSE_MAX.0).min(self.options.lease.0 / 16);
            self.pipeline.sleep(Lifetime((1 << attempts.count.min(20)).min(longest))).await?;
        }
        attempts.began = self.pipeline.now();
        Ok(())
    }
}
