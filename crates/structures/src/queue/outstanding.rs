//! The entries that are taken and not acknowledged, and the time since when a handle has seen them so.

use super::claim_word::{ClaimWord, Standing};
use super::pop::Taken;
use super::words::{Entry, Indexes, Slot};
use super::{Queue, QueueError, QueueOptions};
use crate::pipeline::word_of;
use portcullis::{Clock, Lifetime, Moment, VerbsEndpoint};
use portcullis_planted::planted;
use std::collections::BTreeMap;

/// Longest time between two looks of a handle for claims that have ended, whatever their leases.
const LOOKED_WITHIN: Lifetime = Lifetime::seconds(1);
/// Number of looks in the time of one lease.
const LOOKS_A_LEASE: u64 = 4;

/// An entry that is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Seen {
    entry: Entry,
    word: ClaimWord,
    /// The time at which the word was first seen.
    since: Moment,
}

/// The entries that a handle saw at its last look, by segment and slot.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    seen: BTreeMap<(u64, u64), Seen>,
    /// Number of the segment before which all entries are done.
    first: u64,
    looked_at: Option<Moment>,
}

/// The contents of one segment.
struct Contents {
    entries: Vec<(u64, Entry, ClaimWord)>,
    /// Whether all slots of the segment are taken and each entry is done.
    is_done: bool,
}

impl Outstanding {
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Forgets an entry until the next look.
    pub fn forget(&mut self, segment: u64, slot: u64) {
        self.seen.remove(&(segment, slot));
    }

    /// Makes the next claim look at all entries.
    pub fn look_soon(&mut self) {
        self.looked_at = None;
    }

    /// Begins at a segment: the segments before it are gone, and so are their entries.
    fn begin_at(&mut self, first: u64) {
        self.first = first;
        self.seen = self.seen.split_off(&(first, 0));
    }

    /// Records what a look has found in a segment.
    fn note(&mut self, segment: u64, contents: &Contents, now: Moment) {
        let since = |slot, word| {
            let known = self.seen.get(&(segment, slot)).filter(|seen| seen.word == word);
            known.map_or(now, |seen| seen.since)
        };
        let found: Vec<_> = contents
            .entries
            .iter()
            .map(|&(slot, entry, word)| ((segment, slot), Seen { entry, word, since: since(slot, word) }))
            .collect();
        self.seen.retain(|(of, _), _| *of != segment);
        self.seen.extend(found);
        if contents.is_done && self.first == segment {
            self.first = segment + 1;
        }
    }

    /// Returns the first entry whose claim has ended.
    fn lapsed(&self, options: &QueueOptions, now: Moment) -> Option<((u64, u64), Seen)> {
        let ended = |seen: &Seen| {
            let lease = match seen.word.standing() {
                Standing::Untold => options.lease,
                Standing::Held(lease) => lease,
                Standing::GivenBack => return true,
                Standing::Done => return false,
            };
            now.since(seen.since) >= lease || planted!(ClaimEndsEarly)
        };
        self.seen.iter().find(|(_, seen)| ended(seen)).map(|(place, seen)| (*place, *seen))
    }
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Whether it is time to look for claims that have ended.
    pub(super) fn is_look_due(&self, lease: Lifetime) -> bool {
        let every =
            Lifetime(lease.0 / LOOKS_A_LEASE).clamp(self.options.lease.min(LOOKED_WITHIN), LOOKED_WITHIN);
        let now = self.pipeline.now();
        self.state.borrow().outstanding.looked_at.is_none_or(|looked| now.since(looked) >= every)
    }

    /// Takes an entry whose claim has ended, with its word, as the last look found it. The caller then claims the
    /// entry, which succeeds if the word is still the same.
    pub(super) async fn take_lapsed(&self) -> Result<Option<(Taken, ClaimWord)>, QueueError> {
        if planted!(LapsedNotDelivered) {
            return Ok(None);
        }
        loop {
            let now = self.pipeline.now();
            let lapsed = self.state.borrow().outstanding.lapsed(&self.options, now);
            let Some((place, Seen { entry, word, .. })) = lapsed else { return Ok(None) };
            // Whichever consumer claims the entry, the next look finds it again if it is not done.
            self.state.borrow_mut().outstanding.seen.remove(&place);
            let (segment, slot) = place;
            match self.read_entry(segment, slot, entry).await {
                Ok(Some(bytes)) => return Ok(Some((Taken { segment, slot, bytes }, word))),
                // The cell has other bytes: the write of the entry's bytes was lost, and its client got an error.
                Ok(None) => {
                    self.swap_claim(segment, slot, (word, word.done())).await?;
                }
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn read_entry(&self, segment: u64, slot: u64, entry: Entry) -> Result<Option<Vec<u8>>, QueueError> {
        let length = usize::try_from(entry.length()).expect("an entry is far shorter");
        let read = self.on_segment(segment, async |permission| {
            Ok(self.pipeline.read_bytes(permission, self.options.cell_at(slot), length).await?)
        });
        let bytes = read.await?;
        Ok((Entry::of(&bytes) == entry).then_some(bytes))
    }

    /// Looks at all segments from which entries were taken, and gives back the segments that are done. Returns whether
    /// an entry is taken and not done.
    pub(super) async fn look_at_claims(&self) -> Result<bool, QueueError> {
        let (begun_at, last) = {
            let mut state = self.state.borrow_mut();
            let oldest = state.segments.first().unwrap_or(0);
            state.outstanding.looked_at = Some(self.pipeline.now());
            let first = state.outstanding.first.max(oldest);
            state.outstanding.begin_at(first);
            (first, state.first)
        };
        let mut is_any_left = false;
        for number in begun_at..=last {
            self.pipeline.note_step();
            let contents = self.contents(number).await?;
            is_any_left |= !contents.entries.is_empty();
            let now = self.pipeline.now();
            self.state.borrow_mut().outstanding.note(number, &contents, now);
        }
        // Segments behind one that is not done stay. An earlier look has already tried to retire those that it found
        // done.
        let first = self.state.borrow().outstanding.first;
        if first > begun_at {
            // If this fails, the next client that adds a segment retires them.
            let _ = self.retire_up_to(first - 1).await;
        }
        Ok(is_any_left)
    }

    /// Whether each entry of a segment is acknowledged, and all of its slots were taken.
    pub(super) async fn is_done(&self, number: u64) -> Result<bool, QueueError> {
        Ok(self.contents(number).await?.is_done)
    }

    /// Number of entries of a segment that are taken and not acknowledged.
    pub(super) async fn claimed_in(&self, number: u64) -> Result<u64, QueueError> {
        Ok(self.contents(number).await?.entries.len() as u64)
    }

    /// Reads which entries of a segment were taken and are not done.
    async fn contents(&self, number: u64) -> Result<Contents, QueueError> {
        let length = usize::try_from(self.options.cell_at(0)).expect("it is small");
        let read = self.on_segment(number, async |permission| {
            Ok(self.pipeline.read_bytes(permission, 0, length).await?)
        });
        match read.await {
            // The segment is done, and has been given back.
            Err(error) if error.is_gone() => Ok(Contents { entries: Vec::new(), is_done: true }),
            read => self.contents_in(number, &read?),
        }
    }

    fn contents_in(&self, number: u64, bytes: &[u8]) -> Result<Contents, QueueError> {
        let word = |at: u64| word_of(bytes, usize::try_from(at).expect("it is small"));
        let head = word(Indexes::HEAD_AT).min(self.options.slots());
        let mut entries = Vec::new();
        let mut slot = 0;
        while slot < head {
            let damaged = QueueError::Damaged { segment: number, slot };
            match Slot::from_word(word(Self::word_at(slot))).ok_or(damaged)? {
                // The word is older than the head, which was moved meanwhile: the next look finds the entry.
                Slot::Empty => return Ok(Contents { entries, is_done: false }),
                Slot::Abandoned => slot += 1,
                Slot::Filled(entry) => {
                    let claim = ClaimWord(word(self.options.claim_at(slot)));
                    if claim.standing() != Standing::Done {
                        entries.push((slot, entry, claim));
                    }
                    slot += self.options.slots_of(entry.length());
                }
            }
        }
        let is_done = head == self.options.slots() && entries.is_empty();
        Ok(Contents { entries, is_done })
    }
}
