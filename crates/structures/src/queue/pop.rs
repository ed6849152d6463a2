//! Popping: one look at the next slots, then one COMPARE_AND_SWAP of the segment's head.

use super::pops::Ticket;
use super::words::{Entry, Indexes, Slot, Tail};
use super::{Queue, QueueError};
use crate::held::AtEnd;
use crate::pipeline::{all, word_of};
use portcullis::{BarePermission, Clock, Effect, Lifetime, Moment, VerbsEndpoint};
use portcullis_planted::planted;
use std::rc::Rc;

/// Number of slots that one look reads.
const LOOK_SLOTS: u64 = 16;
/// Largest number of bytes of cells that are read with the look, in case they have the next entries.
const READ_AHEAD_BYTES: u32 = 1024;
/// Time after which a consumer looks again at a slot that is taken and not filled.
const FILLED_WITHIN: Lifetime = Lifetime::micros(20);
/// First and longest pause of a consumer of an empty queue before it looks again.
const PAUSE_MIN: Lifetime = Lifetime::micros(10);
const PAUSE_MAX: Lifetime = Lifetime::millis(1);

/// Name of a pop in the error of one that was given up. Its entry may have been taken.
const POP: (&str, Effect) = ("a pop of a queue", Effect::Perhaps);

/// A slot that was empty although it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Empty {
    segment: u64,
    slot: u64,
    since: Moment,
}

/// The results of one look.
struct Look {
    indexes: Indexes,
    /// The slot that the look begins with.
    from: u64,
    words: Vec<u64>,
    /// The cells of the first slots of the look.
    cells: Vec<u8>,
}

impl Look {
    /// Returns the word of a slot, if the look has it.
    fn word_at(&self, slot: u64) -> Option<u64> {
        let place = usize::try_from(slot.checked_sub(self.from)?).ok()?;
        self.words.get(place).copied()
    }

    /// Whether the look shows that a slot was filled. It has been filled since, until a consumer takes it.
    fn is_filled_at(&self, slot: u64) -> bool {
        self.word_at(slot).is_some_and(|word| matches!(Slot::from_word(word), Some(Slot::Filled(_))))
    }
}

/// Entries that can be taken: the first slot after them, and where each of them begins.
struct Run {
    end: u64,
    entries: Vec<(u64, Entry)>,
}

/// An entry that this consumer has taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub segment: u64,
    pub slot: u64,
    pub bytes: Vec<u8>,
}

/// The outcome of one attempt to pop.
enum Popped {
    Entries(Vec<Taken>),
    Empty,
    Closed,
    /// Another consumer was quicker, or the look was in the wrong place.
    Again,
    /// The next slot is taken and not filled yet.
    Later,
    SegmentConsumed,
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Takes the first entry. `None`: the queue is empty. If this client dies before it has processed the entry, the
    /// entry is lost. It may also be lost if this future is dropped. Waits, for a lease at most, if a producer has
    /// taken the next slot and has not filled it.
    ///
    /// # Errors
    /// [`QueueError::Closed`]: the queue is closed, and all entries were taken. The node is gone or refuses; then an entry may
    /// have been taken.
    pub async fn pop(&self) -> Result<Option<Vec<u8>>, QueueError> {
        self.check_pops()?;
        self.pipeline.limited(POP, self.pop_now()).await
    }

    fn check_pops(&self) -> Result<(), QueueError> {
        if self.options.claims { Err(QueueError::OnlyClaims) } else { Ok(()) }
    }

    async fn pop_now(&self) -> Result<Option<Vec<u8>>, QueueError> {
        let mut ticket = Ticket::new(&self.state);
        loop {
            if let Some(handed) = ticket.take_handed() {
                return handed;
            }
            if !self.state.borrow().pops.under_way {
                self.pop_for_all().await;
            } else {
                self.pipeline.anything().await?;
            }
        }
    }

    /// Pops once for all operations of this handle that wait for an entry now: otherwise each of them would be in the
    /// way of the others. The result counts only for operations that had begun before.
    async fn pop_for_all(&self) {
        let waiting = self.state.borrow_mut().pops.begin();
        let _at_end = AtEnd::new(&self.pipeline, || self.state.borrow_mut().pops.under_way = false);
        let popped = self.pop_many_now(waiting.len()).await;
        self.state.borrow_mut().pops.hand_out(&waiting, popped);
    }

    /// Takes the first entries, at most `most` of them, in their order, at one moment. Returns no entries if the queue
    /// is empty.
    ///
    /// # Errors
    /// As [`Queue::pop`].
    pub async fn pop_many(&self, most: usize) -> Result<Vec<Vec<u8>>, QueueError> {
        self.check_pops()?;
        self.pipeline.limited(POP, self.pop_many_now(most)).await
    }

    async fn pop_many_now(&self, most: usize) -> Result<Vec<Vec<u8>>, QueueError> {
        Ok(self.take_many(most).await?.into_iter().map(|taken| taken.bytes).collect())
    }

    /// Takes the first entries, at most `most` of them. No other consumer pops them, or claims them as entries that
    /// were not taken.
    pub(super) async fn take_many(&self, most: usize) -> Result<Vec<Taken>, QueueError> {
        loop {
            let number = self.state.borrow().first;
            match self.try_to_pop(number, most.max(1)).await {
                Ok(Popped::Entries(entries)) => return Ok(entries),
                Ok(Popped::Empty) => return Ok(Vec::new()),
                Ok(Popped::Closed) => return Err(QueueError::Closed),
                Ok(Popped::Again) => {}
                Ok(Popped::Later) => self.pipeline.sleep(FILLED_WITHIN).await?,
                Ok(Popped::SegmentConsumed) => {
                    if !self.next_segment(number).await? {
                        return Ok(Vec::new());
                    }
                }
                Err(error) if error.is_gone() => self.find_again(number, error).await?,
                Err(error) => self.mend(error).await?,
            }
        }
    }

    /// Takes the first entry, and waits for one for at most `time`.
    ///
    /// # Errors
    /// As [`Queue::pop`].
    pub async fn pop_within(&self, time: Lifetime) -> Result<Option<Vec<u8>>, QueueError> {
        self.try_within(time, async || self.pop().await).await
    }

    /// Repeats `attempt` until it finds something, for at most `time`.
    pub(super) async fn try_within<T>(
        &self,
        time: Lifetime,
        attempt: impl AsyncFn() -> Result<Option<T>, QueueError>,
    ) -> Result<Option<T>, QueueError> {
        let until = self.pipeline.now().after(time);
        let mut pause = PAUSE_MIN;
        loop {
            let found = attempt().await?;
            let left = until.since(self.pipeline.now());
            if found.is_some() || left == Lifetime(0) {
                return Ok(found);
            }
            self.pipeline.sleep(pause.min(left)).await?;
            pause = Lifetime(pause.0 * 2).min(PAUSE_MAX);
        }
    }

    /// Goes on to the segment after `number`. Returns whether that segment exists.
    async fn next_segment(&self, number: u64) -> Result<bool, QueueError> {
        if self.state.borrow().first > number {
            return Ok(true);
        }
        let there_is = self.state.borrow().last > number || self.ask_the_head().await?.last > number;
        let mut state = self.state.borrow_mut();
        if there_is && state.first == number {
            (state.first, state.next) = (number + 1, 0);
        }
        Ok(there_is)
    }

    async fn try_to_pop(&self, number: u64, most: usize) -> Result<Popped, QueueError> {
        let permission = self.segment(number).await?;
        let mut look = self.look(&permission, number, most).await?;
        loop {
            let Indexes { head, tail } = look.indexes;
            if head >= self.options.slots() {
                return Ok(if tail.is_closed() { Popped::Closed } else { Popped::SegmentConsumed });
            }
            if head >= look.indexes.taken(&self.options) {
                return self.is_really_empty(&permission, head).await;
            }
            self.expect_next(number, head);
            let run = self.run(number, &look, most)?;
            if run.end == head {
                let in_look = (look.from..look.from + look.words.len() as u64).contains(&head);
                return if in_look {
                    self.later(&permission, number, &look).await
                } else {
                    Ok(Popped::Again)
                };
            }
            let entries = self.read_entries(&permission, number, &look, &run).await?;
            let before = self.take(&permission, head, run.end).await?;
            if before == head {
                return Ok(self.taken(number, run.end, entries).await);
            }
            // Another consumer was quicker. The look still shows the slots behind that consumer's entries, but it may be
            // too old to show that one of them is empty.
            look.indexes.head = before;
            if !look.is_filled_at(before) {
                return Ok(Popped::Again);
            }
        }
    }

    /// Notes that the entries of a segment up to `end` were taken.
    async fn taken(&self, number: u64, end: u64, entries: Vec<Taken>) -> Popped {
        self.expect_next(number, end);
        if end >= self.options.slots() {
            // If this fails, the next client that adds a segment retires it.
            let _ = self.retire_up_to(number).await;
        }
        if entries.is_empty() { Popped::Again } else { Popped::Entries(entries) }
    }

    fn expect_next(&self, number: u64, slot: u64) {
        let mut state = self.state.borrow_mut();
        if state.first == number {
            state.next = state.next.max(slot);
        }
    }

    /// Reads the indexes, the next words and the next cells, in this order. A cell that is read before its word may not
    /// have the bytes that the word describes. `most`: number of entries that are wanted.
    async fn look(
        &self,
        permission: &Rc<BarePermission>,
        number: u64,
        most: usize,
    ) -> Result<Look, QueueError> {
        let from = {
            let state = self.state.borrow();
            let next = if state.first == number { state.next } else { 0 };
            next.min(self.options.slots() - 1)
        };
        let slots = LOOK_SLOTS.min(self.options.slots() - from);
        let pipeline = &self.pipeline;
        let indexes = pipeline.read_few(permission, Indexes::HEAD_AT, Indexes::BYTES);
        let length = usize::try_from(slots * 8).expect("it is small");
        let words = pipeline.read_few(permission, Self::word_at(from), length);
        let ahead = if pipeline.keeps_order() { READ_AHEAD_BYTES / self.options.cell_bytes } else { 0 };
        let ahead = u64::from(ahead).min(most as u64).min(slots) * u64::from(self.options.cell_bytes);
        let ahead = u32::try_from(ahead).expect("it is small");
        let cells = (ahead > 0).then(|| pipeline.read(permission, self.options.cell_at(from), ahead));
        let indexes = pipeline.copied(indexes.await?);
        let words = pipeline.copied(words.await?);
        let cells = match cells {
            Some(cells) => pipeline.copied(cells.await?),
            None => Vec::new(),
        };
        Ok(Look {
            indexes: Indexes { head: word_of(&indexes, 0), tail: Tail(word_of(&indexes, 8)) },
            from,
            words: words.chunks_exact(8).map(|word| word_of(word, 0)).collect(),
            cells,
        })
    }

    /// Reads the tail again: an entry may have been pushed between the two reads of a look.
    async fn is_really_empty(
        &self,
        permission: &Rc<BarePermission>,
        head: u64,
    ) -> Result<Popped, QueueError> {
        let bytes = self.pipeline.read_bytes(permission, Indexes::TAIL_AT, 8).await?;
        let tail = Tail(word_of(&bytes, 0));
        Ok(match tail.asked_for() > head {
            true => Popped::Again,
            false if tail.is_closed() => Popped::Closed,
            false => Popped::Empty,
        })
    }

    /// Returns the entries from the head on that are in a look, and filled.
    fn run(&self, number: u64, look: &Look, most: usize) -> Result<Run, QueueError> {
        let Indexes { head, .. } = look.indexes;
        let taken = look.indexes.taken(&self.options);
        let mut run = Run { end: head, entries: Vec::new() };
        while run.end < taken && run.entries.len() < most {
            let Some(word) = look.word_at(run.end) else { break };
            let damaged = QueueError::Damaged { segment: number, slot: run.end };
            match Slot::from_word(word).ok_or(damaged)? {
                Slot::Empty => break,
                Slot::Abandoned => run.end += 1,
                Slot::Filled(entry) => {
                    run.entries.push((run.end, entry));
                    run.end += self.options.slots_of(entry.length());
                    if run.end > self.options.slots() {
                        return Err(damaged);
                    }
                }
            }
        }
        Ok(run)
    }

    /// Reads entries before they are taken: once they are taken, their segment may be freed.
    async fn read_entries(
        &self,
        permission: &Rc<BarePermission>,
        segment: u64,
        look: &Look,
        run: &Run,
    ) -> Result<Vec<Taken>, QueueError> {
        let length = |entry: &Entry| usize::try_from(entry.length()).expect("an entry is far shorter");
        let is_here = |slot: u64, entry: &Entry| {
            let at = slot.checked_sub(look.from)? * u64::from(self.options.cell_bytes);
            let at = usize::try_from(at).ok()?;
            look.cells.get(at..at + length(entry))
        };
        let reads = run.entries.iter().filter(|(slot, entry)| is_here(*slot, entry).is_none());
        let reads = reads.map(|(slot, entry)| {
            self.pipeline.read_few(permission, self.options.cell_at(*slot), length(entry))
        });
        let mut read = all(reads).await?.into_iter();
        let mut entries = Vec::with_capacity(run.entries.len());
        for (slot, entry) in &run.entries {
            let bytes = match is_here(*slot, entry) {
                Some(bytes) => bytes.to_vec(),
                None => self.pipeline.copied(read.next().expect("one for each that was not here")),
            };
            // The cell has other bytes: the write of the entry's bytes was lost, and its client got an error.
            if Entry::of(&bytes) == *entry {
                entries.push(Taken { segment, slot: *slot, bytes });
            }
        }
        Ok(entries)
    }

    /// Moves the segment's head. Returns the head before: another one if another consumer was quicker.
    async fn take(&self, permission: &Rc<BarePermission>, head: u64, end: u64) -> Result<u64, QueueError> {
        if planted!(HeadNotCompared) {
            self.pipeline.write(permission, Indexes::HEAD_AT, &end.to_le_bytes()).await?;
            return Ok(head);
        }
        Ok(self.pipeline.compare_and_swap(permission, Indexes::HEAD_AT, head, end).await?)
    }

    /// Waits for a slot that is taken and not filled and, after a lease, abandons it and the empty slots behind it:
    /// their producers have died, or are late.
    async fn later(
        &self,
        permission: &Rc<BarePermission>,
        number: u64,
        look: &Look,
    ) -> Result<Popped, QueueError> {
        let now = self.pipeline.now();
        let head = look.indexes.head;
        let since = {
            let mut state = self.state.borrow_mut();
            let same = state.empty.filter(|empty| (empty.segment, empty.slot) == (number, head));
            let since = same.map_or(now, |empty| empty.since);
            state.empty = Some(Empty { segment: number, slot: head, since });
            since
        };
        if now.since(since) < self.options.lease || planted!(DeadSlotNotAbandoned) {
            return Ok(Popped::Later);
        }
        let seen = look.from + look.words.len() as u64;
        let dead = (head..look.indexes.taken(&self.options).min(seen)).filter(|slot| {
            let place = usize::try_from(slot - look.from).expect("a look is short");
            look.words[place] == Slot::EMPTY
        });
        all(dead.map(|slot| self.abandon(permission, slot))).await?;
        Ok(Popped::Again)
    }
}
