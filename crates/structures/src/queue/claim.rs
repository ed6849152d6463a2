//! Claims: an entry that its consumer does not acknowledge within a lease is delivered again, at least once.
//!
//! # What each step rests on
//! - An entry is taken as by a pop: its segment's head moves over it. Then its consumer writes a claim beside the
//!   entry.
//! - Each change of a claim is one COMPARE_AND_SWAP of its word, and no two claims of an entry have the same word. So an entry
//!   is acknowledged by the consumer of its last delivery, or not at all.
//! - Clients share no clock. A consumer measures a claim's lease from when it first sees the claim's word, and takes
//!   the entry over if the word is still the same after the lease. So a claim lasts at least for its lease, and longer
//!   by the time until the next consumer looks.
//! - A consumer that dies between taking an entry and writing its claim leaves an entry that is taken and has no claim.
//!   It counts as an entry with a claim for the queue's own lease.
//! - A segment goes back to the node when each entry of it is acknowledged.

use super::claim_word::{ClaimWord, Standing};
use super::pop::Taken;
use super::{Queue, QueueError};
use crate::held::AtEnd;
use portcullis::{Clock, Effect, Lifetime, PermissionId, VerbsEndpoint};
use portcullis_planted::planted;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// The entries that one claim of a handle takes for the others.
#[derive(Debug, Default)]
pub(super) struct Takes {
    /// Number of claims of the handle that want an entry now.
    wanted: usize,
    /// Entries that are taken and not claimed yet.
    ready: VecDeque<Taken>,
    under_way: bool,
}

/// The identifier of a claim. It has no meaning outside its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimId {
    segment: u64,
    slot: u64,
    word: ClaimWord,
}

impl ClaimId {
    /// Allowed numbers of deliveries after which an entry becomes a dead letter: more deliveries are not counted.
    pub const DELIVERIES_MAX: RangeInclusive<u32> = 1..=ClaimWord::DELIVERIES_MAX - 1;

    /// Number of times that the entry was delivered, including this delivery: 1 if this is the first. Beyond 1,023 it
    /// is not counted any more.
    #[must_use]
    pub fn deliveries(self) -> u32 {
        self.word.deliveries()
    }

    /// Returns the identifier as words, for bindings.
    #[must_use]
    pub fn to_words(self) -> [u64; 3] {
        [self.segment, self.slot, self.word.0]
    }

    /// Makes the identifier from the words of [`ClaimId::to_words`]. Other words name no claim.
    #[must_use]
    pub fn from_words([segment, slot, word]: [u64; 3]) -> Self {
        Self { segment, slot, word: ClaimWord(word) }
    }
}

/// An entry that a consumer has claimed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The entry.
    pub entry: Vec<u8>,
    /// The identifier by which the claim is acknowledged.
    pub id: ClaimId,
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Claims an entry for `lease`: one whose last claim has ended, or the first that no consumer has taken. `None`:
    /// there is no such entry now. Until the claim is [acknowledged](Queue::acknowledge), the entry is delivered again
    /// after the lease, to the next consumer that claims. The queue has to be one
    /// [of claims](super::QueueOptions::claims).
    ///
    /// # Errors
    /// [`QueueError::Closed`]: the queue is closed, and each entry was acknowledged. The lease is out of its range, or the node is
    /// gone or refuses; then an entry may have been claimed, and is delivered again.
    pub async fn claim(&self, lease: Lifetime) -> Result<Option<Claim>, QueueError> {
        self.check_claims(Some(lease))?;
        self.pipeline.limited(("a claim of a queue's entry", Effect::Perhaps), self.claim_now(lease)).await
    }

    /// Claims an entry as [`Queue::claim`] does, and waits for one for `time` at most.
    ///
    /// # Errors
    /// As [`Queue::claim`].
    pub async fn claim_within(&self, lease: Lifetime, time: Lifetime) -> Result<Option<Claim>, QueueError> {
        self.try_within(time, async || self.claim(lease).await).await
    }

    /// Claims an entry as [`Queue::claim`] does. An entry that was delivered `deliveries_max` times already is pushed
    /// to the queue `dead_letters` instead, and acknowledged: its consumers have died, or have given it back. It may be
    /// pushed there twice. One pipeline drives both queues.
    ///
    /// # Errors
    /// As [`Queue::claim`], and as [`Queue::push`] to `dead_letters`. `deliveries_max` is not in
    /// [`ClaimId::DELIVERIES_MAX`].
    pub async fn claim_or_bury(
        &self,
        lease: Lifetime,
        deliveries_max: u32,
        dead_letters: &Self,
    ) -> Result<Option<Claim>, QueueError> {
        if !ClaimId::DELIVERIES_MAX.contains(&deliveries_max) {
            let (least, most) = (*ClaimId::DELIVERIES_MAX.start(), *ClaimId::DELIVERIES_MAX.end());
            let what = "the most deliveries of an entry";
            let [value, least, most] = [deliveries_max, least, most].map(u64::from);
            return Err(QueueError::Option { what, value, least, most });
        }
        loop {
            let Some(claim) = self.claim(lease).await? else { return Ok(None) };
            if claim.id.deliveries() <= deliveries_max {
                return Ok(Some(claim));
            }
            dead_letters.push(&claim.entry).await?;
            match self.acknowledge(claim.id).await {
                // Another consumer has the entry, and pushes it to the dead letters once more.
                Err(QueueError::ClaimEnded) => {}
                done => done?,
            }
        }
    }

    /// Claims an entry as [`Queue::claim_or_bury`] does, and waits for one for `time` at most.
    ///
    /// # Errors
    /// As [`Queue::claim_or_bury`].
    pub async fn claim_or_bury_within(
        &self,
        lease: Lifetime,
        time: Lifetime,
        (deliveries_max, dead_letters): (u32, &Self),
    ) -> Result<Option<Claim>, QueueError> {
        self.try_within(time, async || self.claim_or_bury(lease, deliveries_max, dead_letters).await).await
    }

    /// Ends a claim: the entry is done, and is not delivered again.
    ///
    /// # Errors
    /// [`QueueError::ClaimEnded`]: the lease was over, and another consumer has the entry or has acknowledged it. The node is gone
    /// or refuses; then the entry may be delivered again.
    pub async fn acknowledge(&self, claim: ClaimId) -> Result<(), QueueError> {
        self.change_claim("an acknowledgement", claim, claim.word.done()).await
    }

    /// Ends a claim although the entry is not done: the entry is delivered again as soon as a consumer claims.
    ///
    /// # Errors
    /// As [`Queue::acknowledge`].
    pub async fn give_back(&self, claim: ClaimId) -> Result<(), QueueError> {
        self.change_claim("the return of a claim", claim, claim.word.given_back()).await?;
        // This follows the change: a look that another operation begins meanwhile may still find the claim.
        self.state.borrow_mut().outstanding.look_soon();
        Ok(())
    }

    /// Makes a claim last for `lease` from now on. Returns the claim's new identifier.
    ///
    /// # Errors
    /// As [`Queue::acknowledge`], or the lease is out of its range.
    pub async fn extend_claim(&self, claim: ClaimId, lease: Lifetime) -> Result<ClaimId, QueueError> {
        self.check_claims(Some(lease))?;
        let word = claim.word.extended(lease);
        self.change_claim("the extension of a claim", claim, word).await?;
        Ok(ClaimId { word, ..claim })
    }

    fn check_claims(&self, lease: Option<Lifetime>) -> Result<(), QueueError> {
        if !self.options.claims {
            return Err(QueueError::NoClaims);
        }
        let (least, most) = ClaimWord::LEASES;
        match lease.filter(|lease| !(least..=most).contains(lease)) {
            Some(Lifetime(value)) => {
                let what = "the lease of a claim (in µs)";
                Err(QueueError::Option { what, value, least: least.0, most: most.0 })
            }
            None => Ok(()),
        }
    }

    async fn claim_now(&self, lease: Lifetime) -> Result<Option<Claim>, QueueError> {
        loop {
            if self.is_look_due(lease) {
                self.look_at_claims().await?;
            }
            if let Some((taken, word)) = self.take_lapsed().await? {
                if let Some(claim) = self.write_claim(taken, word, lease).await? {
                    return Ok(Some(claim));
                }
                continue;
            }
            match self.take_in_turn().await {
                Ok(taken) => {
                    let Some(taken) = taken else { return Ok(None) };
                    if let Some(claim) = self.write_claim(taken, ClaimWord::UNTOLD, lease).await? {
                        return Ok(Some(claim));
                    }
                }
                Err(QueueError::Closed) => return self.closed_with_claims().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes an entry that no consumer had taken. One claim of a handle takes entries for all that wait: otherwise each
    /// of them would be in the way of the others. If the claim for which an entry was taken is given up, the entry has
    /// no claim, and so it is delivered again.
    async fn take_in_turn(&self) -> Result<Option<Taken>, QueueError> {
        self.state.borrow_mut().takes.wanted += 1;
        let _wanted = AtEnd::new(&self.pipeline, || self.state.borrow_mut().takes.wanted -= 1);
        loop {
            if let Some(taken) = self.state.borrow_mut().takes.ready.pop_front() {
                return Ok(Some(taken));
            }
            if !std::mem::replace(&mut self.state.borrow_mut().takes.under_way, true) {
                let _under_way =
                    AtEnd::new(&self.pipeline, || self.state.borrow_mut().takes.under_way = false);
                let most = self.state.borrow().takes.wanted;
                let mut taken = self.take_many(most).await?.into_iter();
                let own = taken.next();
                self.state.borrow_mut().takes.ready.extend(taken);
                return Ok(own);
            }
            self.pipeline.anything().await?;
        }
    }

    /// Decides the result of a claim when no client pushes any more. The consumers that have claims may still die.
    async fn closed_with_claims(&self) -> Result<Option<Claim>, QueueError> {
        let is_empty = self.state.borrow().outstanding.is_empty();
        // Other consumers may have claimed an entry since the last look. Only the result of this look counts: other
        // operations of the handle change the known entries meanwhile.
        if is_empty && !self.look_at_claims().await? { Err(QueueError::Closed) } else { Ok(None) }
    }

    /// Writes a claim on an entry whose word was `before`. `None`: another consumer was quicker.
    async fn write_claim(
        &self,
        taken: Taken,
        before: ClaimWord,
        lease: Lifetime,
    ) -> Result<Option<Claim>, QueueError> {
        let Taken { segment, slot, bytes: entry } = taken;
        let word = before.claimed(lease, self.nonce());
        let claim = Claim { entry, id: ClaimId { segment, slot, word } };
        let found = self.swap_claim(segment, slot, (before, word)).await?;
        Ok((found == Some(before)).then_some(claim))
    }

    /// Returns a number that as a rule no other claim has, least of all a claim of another handle with the same count,
    /// in this program or in another one.
    fn nonce(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.claims_begun += 1;
        let PermissionId { header, start } = self.opened_with;
        let parts = [header.0, start.0, state.claims_begun];
        twox_hash::XxHash3_64::oneshot(&parts.map(u64::to_le_bytes).concat())
    }

    async fn change_claim(
        &self,
        what: &'static str,
        claim: ClaimId,
        to: ClaimWord,
    ) -> Result<(), QueueError> {
        self.check_claims(None)?;
        // No consumer has a claim with another word: a slot without an entry would be acknowledged before its entry is
        // pushed.
        if claim.slot >= self.options.slots() || !matches!(claim.word.standing(), Standing::Held(_)) {
            return Err(QueueError::ClaimEnded);
        }
        let operation = async {
            let found = self.swap_claim(claim.segment, claim.slot, (claim.word, to)).await?;
            // The same change twice is no mistake.
            let is_changed = found == Some(claim.word) || found == Some(to);
            // The entry as the last look saw it is older than what this handle knows now.
            self.state.borrow_mut().outstanding.forget(claim.segment, claim.slot);
            if is_changed { Ok(()) } else { Err(QueueError::ClaimEnded) }
        };
        self.pipeline.limited((what, Effect::Perhaps), operation).await
    }

    /// Changes the word of a claim, if it is as expected. Returns the word before. `None`: all of the segment is done.
    pub(super) async fn swap_claim(
        &self,
        segment: u64,
        slot: u64,
        (from, to): (ClaimWord, ClaimWord),
    ) -> Result<Option<ClaimWord>, QueueError> {
        let at = self.options.claim_at(slot);
        let swap = self.on_segment(segment, async |permission| {
            if planted!(ClaimNotCompared) {
                self.pipeline.write(permission, at, &to.0.to_le_bytes()).await?;
                return Ok(from.0);
            }
            Ok(self.pipeline.compare_and_swap(permission, at, from.0, to.0).await?)
        });
        match swap.await {
            Err(error) if error.is_gone() => {
                self.find_again(segment, error).await?;
                Ok(None)
            }
            swapped => swapped.map(|before| Some(ClaimWord(before))),
        }
    }
}
