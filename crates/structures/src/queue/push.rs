//! Pushing: slots by one FETCH_AND_ADD, then the bytes and the slot's word in one doorbell.

use super::words::{Entry, Indexes, Slot, Tail};
use super::{Queue, QueueError};
use crate::Awaited;
use crate::pipeline::all;
use portcullis::{BarePermission, Clock, Effect, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// The outcome of one attempt to push.
enum Pushed {
    Done,
    /// Consumers took the client for dead, and abandoned its slot.
    TooLate,
    SegmentFull,
    Closed,
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Adds an entry at the end of the queue. If the session fails, the entry may or may not have been added, and never
    /// twice.
    ///
    /// # Errors
    /// The entry is too long, the queue is closed or full, or the node is gone or refuses.
    pub async fn push(&self, entry: &[u8]) -> Result<(), QueueError> {
        let (bytes, most) = (entry.len() as u64, self.options.entry_bytes_max() as u64);
        if bytes > most {
            return Err(QueueError::EntryTooLong { bytes, most });
        }
        self.pipeline.limited(("a push to a queue", Effect::Perhaps), self.push_now(entry)).await
    }

    async fn push_now(&self, entry: &[u8]) -> Result<(), QueueError> {
        loop {
            if self.state.borrow().is_closed {
                return Err(QueueError::Closed);
            }
            let number = self.state.borrow().last;
            match self.try_to_push(number, entry).await {
                Ok(Pushed::Done) => return Ok(()),
                Ok(Pushed::TooLate) => {}
                Ok(Pushed::SegmentFull) => self.go_on_after(number).await?,
                Ok(Pushed::Closed) => self.state.borrow_mut().is_closed = true,
                Err(error) if error.is_gone() => self.find_again(number, error).await?,
                Err(error) => self.mend(error).await?,
            }
        }
    }

    /// Reads the segments again after one was gone.
    ///
    /// # Errors
    /// The segment still belongs to the queue: the queue's memory is gone.
    pub(super) async fn find_again(&self, number: u64, gone: QueueError) -> Result<(), QueueError> {
        let head = self.ask_the_head().await?;
        if (head.first..=head.last).contains(&number) { Err(gone) } else { Ok(()) }
    }

    async fn try_to_push(&self, number: u64, entry: &[u8]) -> Result<Pushed, QueueError> {
        let permission = self.segment(number).await?;
        let slots = self.options.slots_of(entry.len() as u64);
        let tail = Tail(self.pipeline.fetch_and_add(&permission, Indexes::TAIL_AT, slots).await?);
        if tail.is_closed() && !planted!(ClosedNotCompared) {
            return Ok(Pushed::Closed);
        }
        let slot = tail.asked_for();
        if slot + slots > self.options.slots() {
            // Consumers must not wait for slots that no producer fills.
            let left = slot..self.options.slots();
            all(left.map(|slot| self.abandon(&permission, slot))).await?;
            return Ok(Pushed::SegmentFull);
        }
        self.fill(&permission, slot, entry).await
    }

    async fn fill(
        &self,
        permission: &Rc<BarePermission>,
        slot: u64,
        entry: &[u8],
    ) -> Result<Pushed, QueueError> {
        let word = Entry::of(entry).word();
        let bytes = || self.pipeline.write(permission, self.options.cell_at(slot), entry);
        let swap = || self.pipeline.compare_and_swap(permission, Self::word_at(slot), Slot::EMPTY, word);
        // The bytes are written before the word, so that a filled slot has its bytes.
        let before = if planted!(SlotFilledBeforeBytes) {
            let before = swap().await?;
            bytes().await?;
            before
        } else if self.pipeline.keeps_order() {
            let (bytes, swap) = (bytes(), swap());
            bytes.await?;
            swap.await?
        } else {
            bytes().await?;
            swap().await?
        };
        match Slot::from_word(before) {
            Some(Slot::Empty) => Ok(Pushed::Done),
            Some(Slot::Abandoned) => Ok(Pushed::TooLate),
            _ => Err(QueueError::Damaged { segment: self.state.borrow().last, slot }),
        }
    }

    /// Marks a slot as one that no producer fills.
    pub(super) fn abandon(&self, permission: &Rc<BarePermission>, slot: u64) -> Awaited<'_, E, C, u64> {
        let at = Self::word_at(slot);
        self.pipeline.compare_and_swap(permission, at, Slot::EMPTY, Slot::ABANDONED)
    }
}
