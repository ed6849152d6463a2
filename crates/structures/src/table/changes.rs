//! The order of the changes of one key.
//!
//! Two operations of one handle that change one key at the same time would race with each other: one of them loses, and
//! has to begin again. So they take turns, in the order in which they began. An operation that has stored a value leaves
//! the slot and the value to the next one, which so needs one COMPARE_AND_SWAP, and no look at the table. If there is no
//! next one yet, the handle remembers the slot for a lease ([`SlotCache`]).
//!
//! Turns are a matter of speed and never of safety: other handles change the same key at any time, and only the
//! COMPARE_AND_SWAP decides.

use super::find::Found;
use super::index::KeyHash;
use super::slot_cache::{SlotCache, StoredIn};
use crate::Pipeline;
use crate::pipeline::Task;
use portcullis::{Clock, Error, Lifetime, VerbsEndpoint};
use portcullis_planted::planted;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::Poll;

/// Number of changes that may have their blocks before their turn. More would keep blocks and permissions for longer than
/// others can wait for them.
const WRITTEN_AHEAD_MAX: usize = 8;

/// A change that has begun and not ended.
struct Place {
    number: u64,
    /// The task that carries the change on.
    task: Task,
    /// Whether the change has written its block.
    is_written: bool,
}

/// The changes of one key that have begun and not ended, the first in front.
#[derive(Default)]
struct Line {
    places: VecDeque<Place>,
    /// The key as the last change has left it.
    left: Option<Found>,
    /// Number of changes that have ended with a result.
    done: u64,
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

    /// Begins a change of a key, behind all that have begun before.
    pub fn begin(&self, key: &[u8], hash: KeyHash) -> Change<'_, E, C> {
        let (key, number) = (Rc::from(key), self.begun.get());
        self.begun.set(number + 1);
        let place = Place { number, task: self.pipeline.present_task(), is_written: false };
        self.lines.borrow_mut().entry(Rc::clone(&key)).or_default().places.push_back(place);
        Change { changes: self, key, hash, number, leaves: None }
    }
}

/// A change of a key. Its turn ends when it is dropped.
pub(super) struct Change<'c, E: VerbsEndpoint, C: Clock> {
    changes: &'c Changes<E, C>,
    key: Rc<[u8]>,
    hash: KeyHash,
    number: u64,
    leaves: Option<Found>,
}

impl<E: VerbsEndpoint, C: Clock> Change<'_, E, C> {
    /// Returns the hash of the key.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// Waits until the change may write its block, which is before its turn if the change whose turn it is has its own
    /// block. Returns whether that is so.
    ///
    /// # Errors
    /// The session is over.
    pub async fn may_write_ahead(&self) -> Result<bool, Error> {
        self.wait_until(|line, place| {
            let is_next = place <= WRITTEN_AHEAD_MAX && line.places[0].is_written;
            is_next.then_some(true)
        })
        .await
        .map(|is_ahead| is_ahead.unwrap_or(false))
    }

    /// Notes that the change has written its block.
    pub fn note_written(&self) {
        let next: Vec<Task> = self.with_line(|line, place| {
            let is_news = !std::mem::replace(&mut line.places[place].is_written, true) && place == 0;
            let ahead = if is_news { WRITTEN_AHEAD_MAX } else { 0 };
            line.places.iter().skip(1).take(ahead).map(|next| next.task).collect()
        });
        self.wake(next);
    }

    /// Waits for the change's turn. Returns the key as the change before has left it. Another handle may have changed the
    /// key since, and may have done so before this change began: only a COMPARE_AND_SWAP shows that it has not.
    ///
    /// # Errors
    /// The session is over.
    pub async fn turn(&self) -> Result<Option<Found>, Error> {
        self.wait_until(|_, _| None::<()>).await?;
        Ok(self.with_line(|line, _| line.left.take()))
    }

    /// Waits until `ready` returns a value, or for the change's turn: then this returns `None`.
    async fn wait_until<T>(&self, ready: impl Fn(&Line, usize) -> Option<T>) -> Result<Option<T>, Error> {
        let pipeline = &self.changes.pipeline;
        let mut before = None;
        std::future::poll_fn(|_| {
            let task = pipeline.present_task();
            let (done, waited) = self.with_line(|line, place| {
                line.places[place].task = task;
                let is_its_turn = place == 0 || planted!(TurnNotAwaited);
                (line.done, if is_its_turn { Some(None) } else { ready(line, place).map(Some) })
            });
            // A change that has failed is no progress of those behind it: if the node stands still, all of them end when
            // their own time is over.
            if before.replace(done).is_some_and(|before| done > before) {
                pipeline.note_step();
            }
            match (waited, pipeline.over()) {
                (Some(waited), _) => Poll::Ready(Ok(waited)),
                (None, Some(error)) => Poll::Ready(Err(error)),
                (None, None) => Poll::Pending,
            }
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
        self.leaves = self.with_line(|line, _| line.places.len() > 1).then(stored);
    }

    /// Notes that the change has a result.
    pub fn note_done(&self) {
        self.with_line(|line, _| line.done += 1);
    }

    /// Calls `act` with the change's line, and its place there.
    fn with_line<T>(&self, act: impl FnOnce(&mut Line, usize) -> T) -> T {
        let mut lines = self.changes.lines.borrow_mut();
        let line = lines.get_mut(&self.key).expect("a line has its changes");
        let place = line.places.iter().position(|place| place.number == self.number);
        act(line, place.expect("a change is in its line"))
    }

    fn wake(&self, tasks: impl IntoIterator<Item = Task>) {
        tasks.into_iter().for_each(|task| self.changes.pipeline.wake(task));
    }
}

impl<E: VerbsEndpoint, C: Clock> Drop for Change<'_, E, C> {
    fn drop(&mut self) {
        let leaves = self.leaves.take();
        let next: Vec<Task> = self.with_line(|line, place| {
            line.places.remove(place);
            if place == 0 {
                line.left = leaves;
            }
            // The places of all behind this one have changed.
            line.places.iter().skip(place).take(WRITTEN_AHEAD_MAX + 1).map(|place| place.task).collect()
        });
        self.wake(next);
        let mut lines = self.changes.lines.borrow_mut();
        if lines.get(&self.key).is_some_and(|line| line.places.is_empty()) {
            lines.remove(&self.key);
        }
    }
}
