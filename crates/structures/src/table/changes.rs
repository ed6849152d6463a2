//! The order of the changes of one key.
//!
//! Two operations of one handle that change one key at the same time would race with each other: one of them loses, and
//! has to begin again. So they take turns, in the order in which they began. An operation that has stored a value leaves
//! the slot and the value to the next one, which so needs one COMPARE_AND_SWAP, and no look at the table. If there is no
//! next one yet, the handle remembers the slot for a lease ([`SlotCache`]).
//!
//! Changes that follow each other and store under the same condition share a turn: the last of them stores its value, and
//! the others end with it. All of them are under way at that moment, so they may as well have happened right before it.
//!
//! Turns are a matter of speed and never of safety: other handles change the same key at any time, and only the
//! COMPARE_AND_SWAP decides.

use super::find::Found;
use super::index::KeyHash;
use super::slot_cache::{SlotCache, StoredIn};
use super::store::Stored;
use crate::Pipeline;
use crate::pipeline::Task;
use portcullis::{Clock, Error, Lifetime, VerbsEndpoint};
use portcullis_planted::planted;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::Poll;

/// The condition of a change that can share a turn: it compares no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shared {
    /// The value is stored in any case.
    Always,
    /// The value is stored if the key is in the table.
    Present,
}

/// The turn of a change.
pub(super) enum Turn {
    /// The change is to be made now. The key is as the change before has left it, if that has stored a value.
    Own(Option<Found>),
    /// The change was made, right before another one that has shared its turn.
    Shared(Stored),
}

/// A change that has begun and not ended.
struct Place {
    number: u64,
    shared: Option<Shared>,
    /// The task that carries the change on.
    task: Task,
}

/// The changes of one key that have begun and not ended.
#[derive(Default)]
struct Line {
    /// The first in front.
    places: VecDeque<Place>,
    /// The number of the change that is made now, for itself and for all in front of it.
    made: Option<u64>,
    /// Results of changes that have shared the turn of another one, by their numbers.
    results: Vec<(u64, Stored)>,
    /// The key as the last change has left it.
    left: Option<Found>,
    /// Number of turns that have ended with a result.
    done: u64,
}

impl Line {
    /// Begins the next turn, if there is none: that of the last of the changes in front that can share one. Returns the
    /// task of that change.
    fn begin_turn(&mut self) -> Option<Task> {
        let first = self.places.front().filter(|_| self.made.is_none())?;
        let is_like_first = |place: &&Place| place.shared.is_some() && place.shared == first.shared;
        let last = self.places.iter().take_while(is_like_first).last().unwrap_or(first);
        self.made = Some(last.number);
        Some(last.task)
    }

    /// Ends the turn of a change. If it has a result, those that share the turn have theirs. Returns their tasks.
    fn end_turn(&mut self, number: u64, stored: Option<Stored>) -> Vec<Task> {
        let place = self.places.iter().position(|place| place.number == number);
        let place = place.expect("a change stays in its line until its turn ends");
        self.made = None;
        let Some(stored) = stored else {
            self.places.remove(place);
            return Vec::new();
        };
        let mut of_next = Some(stored);
        let sharing = self.places.drain(..=place).filter(|place| place.number != number);
        let sharing: Vec<_> = sharing.map(|place| (place.number, place.task)).collect();
        for (number, _) in &sharing {
            // The first has stored or found what the last reports, and the others have replaced a value.
            self.results.push((*number, of_next.take().unwrap_or(followed(stored))));
        }
        sharing.into_iter().map(|(_, task)| task).collect()
    }
}

/// Returns the result of a change right after one that has this result and the same condition.
fn followed(before: Stored) -> Stored {
    if before == Stored::Inserted { Stored::Replaced } else { before }
}

/// The changes that the operations of a handle have under way.
pub(super) struct Changes<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    lease: Lifetime,
    lines: RefCell<HashMap<Rc<[u8]>, Line>>,
    slots: RefCell<SlotCache>,
    begun: Cell<u64>,
}

impl<E: VerbsEndpoint, C: Clock> Changes<E, C> {
    /// `lease`: the lease of the table.
    pub fn new(pipeline: &Rc<Pipeline<E, C>>, lease: Lifetime) -> Self {
        Self {
            pipeline: Rc::clone(pipeline),
            lease,
            lines: RefCell::default(),
            slots: RefCell::default(),
            begun: Cell::default(),
        }
    }

    /// Begins a change of a key, behind all that have begun before. `shared`: its condition, if it can share a turn.
    pub fn begin(&self, key: &[u8], hash: KeyHash, shared: Option<Shared>) -> Change<'_, E, C> {
        let (key, number) = (Rc::from(key), self.begun.get());
        self.begun.set(number + 1);
        let place = Place { number, shared, task: self.pipeline.present_task() };
        let mut lines = self.lines.borrow_mut();
        let line = lines.entry(Rc::clone(&key)).or_default();
        line.places.push_back(place);
        line.begin_turn();
        drop(lines);
        Change { changes: self, key, hash, number, result: None, leaves: None }
    }
}

/// A change of a key. Its turn ends when it is dropped.
pub(super) struct Change<'c, E: VerbsEndpoint, C: Clock> {
    changes: &'c Changes<E, C>,
    key: Rc<[u8]>,
    hash: KeyHash,
    number: u64,
    result: Option<Stored>,
    leaves: Option<Found>,
}

impl<E: VerbsEndpoint, C: Clock> Change<'_, E, C> {
    /// Returns the hash of the key.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// Waits for the change's turn. Another handle may have changed the key since the change before has left it, and may
    /// have done so before this change began: only a COMPARE_AND_SWAP shows that it has not.
    ///
    /// # Errors
    /// The session is over.
    pub async fn turn(&self) -> Result<Turn, Error> {
        let pipeline = &self.changes.pipeline;
        let mut before = None;
        std::future::poll_fn(|_| {
            let task = pipeline.present_task();
            let mut lines = self.changes.lines.borrow_mut();
            let line = lines.get_mut(&self.key).expect("a line has its changes");
            // A turn without a result is no progress of those that wait: if the node stands still, all of them end when
            // their own time is over.
            if before.replace(line.done).is_some_and(|before| line.done > before) {
                pipeline.note_step();
            }
            if let Some(at) = line.results.iter().position(|(number, _)| *number == self.number) {
                return Poll::Ready(Ok(Turn::Shared(line.results.swap_remove(at).1)));
            }
            if line.made == Some(self.number) || planted!(TurnNotAwaited) {
                return Poll::Ready(Ok(Turn::Own(line.left.take())));
            }
            let made = line.made;
            let place = line.places.iter_mut().find(|place| place.number == self.number);
            let place = place.expect("a change without a result is in its line");
            place.task = task;
            let is_in_front = made.is_some_and(|made| self.number < made);
            if planted!(TurnSharedTooEarly) && place.shared.is_some() && is_in_front {
                return Poll::Ready(Ok(Turn::Shared(Stored::Replaced)));
            }
            pipeline.over().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
        })
        .await
    }

    /// Takes the slot in which this handle has last stored the key, if that is not long ago. The bytes of the value are
    /// left out. As after [`Change::turn`], only a COMPARE_AND_SWAP shows that the slot has not changed since.
    pub fn take_remembered(&self) -> Option<Found> {
        let now = self.changes.pipeline.now();
        self.changes.slots.borrow_mut().take(&self.key, now, self.changes.lease)
    }

    /// Remembers the slot in which this change has stored the key.
    pub fn remember(&self, stored: StoredIn) {
        let now = self.changes.pipeline.now();
        self.changes.slots.borrow_mut().remember(&self.key, stored, now);
    }

    /// Leaves the key to the next change as this one has stored it, if there is a next one.
    pub fn leave(&mut self, stored: impl FnOnce() -> Found) {
        let lines = self.changes.lines.borrow();
        let is_last = |line: &Line| line.places.back().is_none_or(|place| place.number == self.number);
        self.leaves = lines.get(&self.key).is_some_and(|line| !is_last(line)).then(stored);
    }

    /// Ends the change with a result. Returns its own part of it: if it has stored a new key for changes that share its
    /// turn, the first of them has inserted the key, and this one has replaced its value.
    pub fn end(mut self, result: Stored) -> Stored {
        self.result = Some(result);
        let lines = self.changes.lines.borrow();
        let first = lines.get(&self.key).and_then(|line| line.places.front());
        if first.is_none_or(|first| first.number == self.number) { result } else { followed(result) }
    }
}

impl<E: VerbsEndpoint, C: Clock> Drop for Change<'_, E, C> {
    fn drop(&mut self) {
        let mut lines = self.changes.lines.borrow_mut();
        let line = lines.get_mut(&self.key).expect("a line has its changes");
        let mut woken = Vec::new();
        if line.made == Some(self.number) {
            woken = line.end_turn(self.number, self.result);
            line.left = self.leaves.take();
            line.done += u64::from(self.result.is_some());
        }
        line.places.retain(|place| place.number != self.number);
        line.results.retain(|(number, _)| *number != self.number);
        woken.extend(line.begin_turn());
        if planted!(TurnSharedTooEarly) {
            woken.splice(..0, line.places.iter().map(|place| place.task));
        }
        if line.places.is_empty() && line.results.is_empty() {
            lines.remove(&self.key);
        }
        drop(lines);
        woken.into_iter().for_each(|task| self.changes.pipeline.wake(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(conditions: &[Option<Shared>]) -> Line {
        let place = |(number, shared): (u64, &Option<Shared>)| Place {
            number,
            shared: *shared,
            task: 100 + usize::try_from(number).expect("small"),
        };
        Line { places: (0..).zip(conditions).map(place).collect(), ..Line::default() }
    }

    const ALWAYS: Option<Shared> = Some(Shared::Always);
    const PRESENT: Option<Shared> = Some(Shared::Present);

    #[test]
    fn changes_with_one_condition_share_a_turn_until_another_one() {
        let mut line = line(&[ALWAYS, ALWAYS, ALWAYS, PRESENT, None, None, PRESENT]);
        assert_eq!((line.begin_turn(), line.begin_turn()), (Some(102), None));
        assert_eq!(line.end_turn(2, Some(Stored::Inserted)), [100, 101]);
        assert_eq!(line.results, [(0, Stored::Inserted), (1, Stored::Replaced)]);
        for (number, task) in [(3, 103), (4, 104), (5, 105), (6, 106)] {
            assert_eq!(line.begin_turn(), Some(task));
            assert!(line.end_turn(number, Some(Stored::Unchanged)).is_empty());
        }
        assert_eq!(line.begin_turn(), None);
    }

    #[test]
    fn a_turn_without_a_result_leaves_those_that_share_it_in_the_line() {
        let mut line = line(&[PRESENT, PRESENT, PRESENT]);
        assert_eq!(line.begin_turn(), Some(102));
        assert!(line.end_turn(2, None).is_empty());
        assert_eq!(line.begin_turn(), Some(101));
        assert_eq!(line.end_turn(1, Some(Stored::Unchanged)), [100]);
        assert_eq!(line.results, [(0, Stored::Unchanged)]);
    }
}
