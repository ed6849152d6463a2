//! The head: the list of segments. Segments are added, retired and closed under the right: an exclusive permission over
//! the records, with a lease.
//!
//! Each change ends with the write of one word, before which it has not happened. A client that dies before or after
//! that word leaves an object in the record before the first segment or in the one after the last. The next holder of
//! the right tidies both up.

use super::options::{STATE_AT, STATE_BYTES};
use super::words::{Indexes, Tail};
use super::{Queue, QueueError};
use crate::held::AtEnd;
use crate::pipeline::word_of;
use crate::record::{RECORD_BYTES, Record};
use portcullis::{Acquire, BarePermission, Clock, Effect, Lifetime, Rights, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// Offsets in the state: number of the first segment, number of the last one, and whether the queue is closed.
const FIRST_AT: u64 = 0;
const LAST_AT: u64 = 8;
const CLOSED_AT: u64 = 16;

/// The range of segments that exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Head {
    pub first: u64,
    pub last: u64,
    /// Whether the last segment is closed, or is about to be.
    is_closing: bool,
}

impl Head {
    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: u64| word_of(bytes, usize::try_from(at).expect("it is small"));
        Self { first: word(FIRST_AT), last: word(LAST_AT), is_closing: word(CLOSED_AT) != 0 }
    }

    fn segments(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The right to change the records, with the segments as they were when it was acquired.
struct Right {
    permission: Rc<BarePermission>,
    head: Head,
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Reads from the head which segments exist.
    pub(super) async fn ask_the_head(&self) -> Result<Head, QueueError> {
        loop {
            match self.try_to_ask(None).await {
                Err(error) if error.is_conflict() => {}
                Err(error) => self.mend(error).await?,
                asked => return asked,
            }
        }
    }

    /// Reads the object of a segment from the head.
    ///
    /// # Errors
    /// The segment is consumed and gone, among others.
    pub(super) async fn look_up(&self, number: u64) -> Result<(), QueueError> {
        loop {
            match self.try_to_ask(Some(number)).await {
                Err(error) if error.is_conflict() => {}
                Err(error) => self.mend(error).await?,
                Ok(head) if (head.first..=head.last).contains(&number) => return Ok(()),
                Ok(_) => return Err(QueueError::SEGMENT_GONE),
            }
        }
    }

    async fn try_to_ask(&self, wanted: Option<u64>) -> Result<Head, QueueError> {
        let ask = Acquire::object(self.head).part(STATE_AT, 0).rights(Rights::READ).shared();
        let ask = ask.lifetime(self.options.lease).wait(self.longest_wait());
        let permission = Rc::new(self.pipeline.acquire(ask).await?);
        let asked = self.read_state(&permission, wanted).await;
        // The permission ends at once: a client that wants the right waits for that.
        self.pipeline.end(permission);
        asked
    }

    /// Reads which segments exist, and learns the objects of some of them.
    async fn read_state(
        &self,
        permission: &Rc<BarePermission>,
        wanted: Option<u64>,
    ) -> Result<Head, QueueError> {
        let head = Head::from_bytes(&self.pipeline.read_bytes(permission, 0, STATE_BYTES).await?);
        let damaged = QueueError::Damaged { segment: head.first, slot: 0 };
        if head.first > head.last || head.segments() > self.options.segments_max.into() {
            return Err(damaged);
        }
        let mut numbers = vec![head.first, head.last];
        numbers.extend(wanted.map(|wanted| wanted.clamp(head.first, head.last)));
        numbers.dedup();
        let mut found = Vec::new();
        for number in numbers {
            found.push((number, self.record(permission, number).await?.ok_or(damaged)?));
        }
        self.learn(&head, &found);
        Ok(head)
    }

    async fn record(
        &self,
        permission: &Rc<BarePermission>,
        number: u64,
    ) -> Result<Option<Record>, QueueError> {
        let at = self.options.record_at(number) - STATE_AT;
        let bytes = self.pipeline.read_bytes(permission, at, RECORD_BYTES).await?;
        Ok(Record::from_bytes(bytes.try_into().expect("as many as were read"), self.head.incarnation))
    }

    pub(super) fn learn(&self, head: &Head, found: &[(u64, Record)]) {
        let mut state = self.state.borrow_mut();
        for (number, record) in found {
            state.segments.know(*number, record.object);
        }
        state.last = state.last.max(head.last);
        if state.first < head.first {
            (state.first, state.next) = (head.first, 0);
        }
        state.segments.forget_before(head.first);
    }

    /// Goes on to the segment after `number`, for pushing, and makes that segment if it does not exist yet. One
    /// operation of the pipeline does this, and the others wait for it.
    pub(super) async fn go_on_after(&self, number: u64) -> Result<(), QueueError> {
        let goes_on = || {
            let state = self.state.borrow();
            state.last > number || state.is_closed
        };
        // An operation that tried to push meanwhile would be in the way of the one that adds the segment.
        while !goes_on() && std::mem::replace(&mut self.state.borrow_mut().at_the_head, true) {
            self.pipeline.anything().await?;
        }
        if goes_on() {
            return Ok(());
        }
        let _at_end = AtEnd::new(&self.pipeline, || self.state.borrow_mut().at_the_head = false);
        if self.ask_the_head().await?.last > number {
            return Ok(());
        }
        loop {
            match self.try_to_grow(number).await {
                Err(error) if error.is_conflict() => {}
                Err(error) => self.mend(error).await?,
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Acquires the right, and reads which segments exist.
    async fn right(&self) -> Result<Right, QueueError> {
        let ask = Acquire::object(self.head).part(STATE_AT, 0).rights(Rights::READ | Rights::WRITE);
        let ask = ask.lifetime(self.options.lease).wait(self.longest_wait());
        let permission = Rc::new(self.pipeline.acquire(ask).await?);
        match self.read_state(&permission, None).await {
            Ok(head) => Ok(Right { permission, head }),
            Err(error) => {
                self.pipeline.end(permission);
                Err(error)
            }
        }
    }

    async fn under_the_right<T>(
        &self,
        act: impl AsyncFnOnce(&Right) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        let right = self.right().await?;
        let done = match self.tidy(&right).await {
            Ok(()) => act(&right).await,
            Err(error) => Err(error),
        };
        self.pipeline.end(right.permission);
        done
    }

    /// Frees the segment of a client that died before it had added a segment, or after it had retired one.
    async fn tidy(&self, right: &Right) -> Result<(), QueueError> {
        let Head { first, last, .. } = right.head;
        let room = u64::from(self.options.segments_max) - right.head.segments();
        if room == 0 || planted!(SegmentLeftBehind) {
            return Ok(());
        }
        self.free_unused(right, last + 1).await?;
        match first.checked_sub(1) {
            Some(before) if room > 1 => self.free_unused(right, before).await,
            _ => Ok(()),
        }
    }

    async fn free_unused(&self, right: &Right, number: u64) -> Result<(), QueueError> {
        let Some(record) = self.record(&right.permission, number).await? else { return Ok(()) };
        // The permission is exclusive, so that a late client cannot keep the segment any more.
        let ask = Acquire::object(record.object).rights(Rights::READ);
        let alone = self.pipeline.acquire(ask.lifetime(self.options.lease).wait(self.longest_wait())).await;
        match alone.map_err(QueueError::from) {
            Ok(permission) => self.pipeline.revoke(permission, true).await?,
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
        self.clear_record(right, number).await
    }

    async fn clear_record(&self, right: &Right, number: u64) -> Result<(), QueueError> {
        let at = self.options.record_at(number) - STATE_AT;
        Ok(self.pipeline.write(&right.permission, at, &[0; RECORD_BYTES]).await?)
    }

    async fn write_state(&self, right: &Right, at: u64, word: u64) -> Result<(), QueueError> {
        Ok(self.pipeline.write(&right.permission, at, &word.to_le_bytes()).await?)
    }

    async fn try_to_grow(&self, number: u64) -> Result<(), QueueError> {
        self.under_the_right(async |right| {
            let mut head = right.head;
            if head.last > number {
                return Ok(());
            }
            if head.is_closing {
                return self.close_last(head.last).await;
            }
            while head.segments() == u64::from(self.options.segments_max) {
                if !self.retire_first(right, &mut head).await? {
                    return Err(QueueError::Full);
                }
            }
            // The permission is shorter than the right, so that the next holder of the right has time left when it has
            // ended.
            let (record, made) = self.make_segment(Lifetime(self.options.lease.0 / 2)).await?;
            let new = head.last + 1;
            let at = self.options.record_at(new) - STATE_AT;
            self.pipeline.write(&right.permission, at, &record.to_bytes()).await?;
            self.keep_part(record.object).await?;
            self.pipeline.end(made);
            self.write_state(right, LAST_AT, new).await?;
            head.last = new;
            self.learn(&head, &[(new, record)]);
            Ok(())
        })
        .await
    }

    /// Gives back segments that are consumed, from the first one on.
    ///
    /// # Errors
    /// The node is gone or refuses.
    pub(super) async fn retire_up_to(&self, number: u64) -> Result<(), QueueError> {
        self.under_the_right(async |right| {
            let mut head = right.head;
            while head.first <= number && self.retire_first(right, &mut head).await? {}
            Ok(())
        })
        .await
    }

    /// Gives the first segment back, if it is consumed. The last segment stays.
    async fn retire_first(&self, right: &Right, head: &mut Head) -> Result<bool, QueueError> {
        let number = head.first;
        if number == head.last {
            return Ok(false);
        }
        let record = self.record(&right.permission, number).await?;
        if let Some(record) = &record {
            // If the segment were unknown, the look at it would read the head, and would wait until this right has
            // ended.
            self.state.borrow_mut().segments.know(number, record.object);
        }
        let consumed = if self.options.claims && !planted!(SegmentGoesWithClaims) {
            self.is_done(number).await?
        } else {
            self.indexes(number).await?.is_none_or(|it| it.head >= self.options.slots())
        };
        if !consumed {
            return Ok(false);
        }
        self.write_state(right, FIRST_AT, number + 1).await?;
        head.first = number + 1;
        if let Some(record) = record {
            match self.pipeline.free(record.object).await.map_err(QueueError::from) {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        self.clear_record(right, number).await?;
        Ok(true)
    }

    /// Closes the queue: no client pushes any more, and consumers drain it. A closed queue stays closed.
    ///
    /// # Errors
    /// The node is gone or refuses. The queue may be closed or not.
    pub async fn close(&self) -> Result<(), QueueError> {
        let operation = async {
            loop {
                let closed = self
                    .under_the_right(async |right| {
                        self.write_state(right, CLOSED_AT, 1).await?;
                        self.close_last(right.head.last).await
                    })
                    .await;
                match closed {
                    Err(error) if error.is_conflict() => {}
                    Err(error) => self.mend(error).await?,
                    Ok(()) => return Ok(()),
                }
            }
        };
        self.pipeline.limited(("closing a queue", Effect::Perhaps), operation).await
    }

    async fn close_last(&self, number: u64) -> Result<(), QueueError> {
        let permission = self.segment(number).await?;
        self.pipeline.fetch_and_add(&permission, Indexes::TAIL_AT, Tail::CLOSING).await?;
        self.state.borrow_mut().is_closed = true;
        Ok(())
    }

    /// Frees all memory of the queue, with the entries that no consumer has popped, and removes its name. Other handles
    /// get errors from here on, at the latest when the permissions that they hold end, which live for a lease. An entry
    /// that one of them still pushes is lost with the memory. To let consumers drain the queue, use [`Queue::close`]
    /// instead.
    ///
    /// # Errors
    /// The node is gone or refuses.
    pub async fn destroy(self) -> Result<(), QueueError> {
        let operation = async { Ok(self.pipeline.free(self.head).await?) };
        self.pipeline.limited(("the end of a queue's memory", Effect::Perhaps), operation).await
    }

    /// Gives consumed segments back, and frees what dead clients have left. Other clients do the same in the course of
    /// their operations.
    ///
    /// # Errors
    /// The node is gone or refuses.
    pub async fn sweep(&self) -> Result<(), QueueError> {
        let operation = async {
            loop {
                match self.retire_up_to(u64::MAX).await {
                    Err(error) if error.is_conflict() => self.pipeline.sleep(Lifetime::micros(100)).await?,
                    Err(error) => self.mend(error).await?,
                    Ok(()) => return Ok(()),
                }
            }
        };
        self.pipeline.limited(("freeing what dead clients have left", Effect::Perhaps), operation).await
    }
}
