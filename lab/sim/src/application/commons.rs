//! Shared state of the programs of a run: a structure, and the results that each program got from it.
//!
//! Fibers take turns, so the number of recorded events is a clock for all of them.

use crate::oracle::Promise;
use portcullis_histories::{Operation, claims, fifo, key};
use portcullis_protocol::ObjectRef;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State that all programs of a run share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commons(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    /// The structure's first object, once it exists.
    head: Option<ObjectRef>,
    ticks: u64,
    values: u64,
    /// Programs that may still begin operations.
    at_work: usize,
    /// Operations on the table, with their keys.
    of_keys: Vec<(u64, key::Operation)>,
    /// Operations on the queue.
    of_queue: History<fifo::Event>,
    /// Time at which a user found the queue closed.
    closed: Option<u64>,
    /// Operations on the queue of claims.
    of_claims: History<claims::Event>,
    /// Whether nothing is left in the queue of claims.
    is_drained: bool,
    /// Operations on blocks, with their keys.
    of_blocks: Vec<(u64, BlockOperation)>,
}

/// An operation on a block, with its result.
type BlockOperation = Operation<BlockEvent>;

/// A program's act on a block, or its finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockEvent {
    /// The program has stored the block.
    Stored,
    /// The program has removed the block, or may have.
    Removed,
    /// The program has found no block.
    Absent,
}

/// Operations on a structure, with their results. `None`: the operation turned out to do nothing.
#[derive(Debug)]
struct History<E>(Vec<Option<Operation<E>>>);

impl<E> Default for History<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E: Copy> History<E> {
    /// Records that an operation begins. Returns its place.
    fn begin(&mut self, event: E, start: u64) -> usize {
        self.0.push(Some(Operation { event, start, end: None }));
        self.0.len() - 1
    }

    /// Records the result of the operation at a place.
    fn end(&mut self, place: usize, told: Option<E>, end: u64) {
        let operation = &mut self.0[place];
        *operation = operation.zip(told).map(|(begun, event)| Operation { event, end: Some(end), ..begun });
    }

    fn take(&mut self) -> Vec<Operation<E>> {
        std::mem::take(&mut self.0).into_iter().flatten().collect()
    }
}

/// Marks a program that may begin operations, as long as this value lives.
pub(super) struct AtWork(Commons);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.shared().at_work -= 1;
    }
}

impl Shared {
    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }
}

impl Commons {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn head(&self) -> Option<ObjectRef> {
        self.shared().head
    }

    pub(super) fn found(&self, head: ObjectRef) {
        self.shared().head = Some(head);
    }

    /// Returns a value that no operation has used yet.
    pub(super) fn new_value(&self) -> u64 {
        let mut shared = self.shared();
        shared.values += 1;
        shared.values
    }

    pub(super) fn go_to_work(&self) -> AtWork {
        self.shared().at_work += 1;
        AtWork(self.clone())
    }

    pub(super) fn is_anybody_at_work(&self) -> bool {
        self.shared().at_work > 0
    }

    /// Records that an operation on a key begins. Returns its place.
    pub(super) fn begin_on_key(&self, key: u64, event: key::Event) -> usize {
        let mut shared = self.shared();
        let start = shared.tick();
        shared.of_keys.push((key, key::Operation { event, start, end: None }));
        shared.of_keys.len() - 1
    }

    /// Records the result of the operation at a place.
    pub(super) fn end_on_key(&self, place: usize, told: key::Event) {
        let mut shared = self.shared();
        let end = shared.tick();
        let operation = &mut shared.of_keys[place].1;
        (operation.event, operation.end) = (told, Some(end));
    }

    /// Records that operations on the queue begin. Returns their places.
    pub(super) fn begin_on_queue(&self, events: &[fifo::Event]) -> Range<usize> {
        let mut shared = self.shared();
        let (start, first) = (shared.tick(), shared.of_queue.0.len());
        events.iter().for_each(|&event| {
            shared.of_queue.begin(event, start);
        });
        first..shared.of_queue.0.len()
    }

    /// Records the results of the operations at these places. Operations without a result did nothing.
    pub(super) fn end_on_queue(&self, places: Range<usize>, told: &[fifo::Event]) {
        let mut shared = self.shared();
        let end = shared.tick();
        let told = told.iter().map(|&event| Some(event)).chain(std::iter::repeat(None));
        places.zip(told).for_each(|(place, told)| shared.of_queue.end(place, told, end));
    }

    /// Records that an operation on the queue of claims begins. Returns its place.
    pub(super) fn begin_on_claims(&self, event: claims::Event) -> usize {
        let mut shared = self.shared();
        let start = shared.tick();
        shared.of_claims.begin(event, start)
    }

    /// Records the result of the operation at a place. `None`: it did nothing.
    pub(super) fn end_on_claims(&self, place: usize, told: Option<claims::Event>) {
        let mut shared = self.shared();
        let end = shared.tick();
        shared.of_claims.end(place, told, end);
    }

    /// Returns a time on the clock of all histories.
    pub(super) fn now(&self) -> u64 {
        self.shared().tick()
    }

    /// Records an operation on a block whose end is not known yet. Returns its place.
    pub(super) fn begin_on_block(&self, key: u64, event: BlockEvent) -> usize {
        let mut shared = self.shared();
        let start = shared.tick();
        shared.of_blocks.push((key, BlockOperation { event, start, end: None }));
        shared.of_blocks.len() - 1
    }

    /// Records the end of the operation at a place.
    pub(super) fn end_on_block(&self, place: usize) {
        let mut shared = self.shared();
        let end = shared.tick();
        shared.of_blocks[place].1.end = Some(end);
    }

    /// Records an operation on a block that has ended.
    pub(super) fn note_on_block(&self, key: u64, event: BlockEvent, start: u64) {
        let mut shared = self.shared();
        let end = Some(shared.tick());
        shared.of_blocks.push((key, BlockOperation { event, start, end }));
    }

    /// Records that nothing is left in the queue of claims.
    pub(super) fn note_drained(&self) {
        self.shared().is_drained = true;
    }

    /// Records that a user found the queue closed.
    pub(super) fn note_closed(&self) {
        let mut shared = self.shared();
        let now = shared.tick();
        shared.closed.get_or_insert(now);
    }

    /// Returns the first part of the histories that no order of the operations explains.
    pub fn first_wrong(&self) -> Option<(Promise, String)> {
        let of_queues = self.first_wrong_of_queue().or_else(|| self.first_wrong_of_claims());
        of_queues.or_else(|| self.first_wrong_of_keys()).or_else(|| self.first_wrong_of_blocks())
    }

    fn first_wrong_of_claims(&self) -> Option<(Promise, String)> {
        let mut shared = self.shared();
        let history = shared.of_claims.take();
        let wrong = claims::first_wrong(&history, shared.is_drained)?;
        Some((Promise::Order, format!("{wrong}: {history:?}")))
    }

    fn first_wrong_of_queue(&self) -> Option<(Promise, String)> {
        let mut shared = self.shared();
        let history = shared.of_queue.take();
        let is_push = |it: &&fifo::Operation| matches!(it.event, fifo::Event::Push(_)) && it.end.is_some();
        let late =
            history.iter().filter(is_push).find(|it| shared.closed.is_some_and(|closed| it.start > closed));
        if let Some(late) = late {
            return Some((Promise::Order, format!("the queue took an entry after its end: {late:?}")));
        }
        fifo::first_wrong(&history).map(|wrong| (Promise::Order, format!("{wrong}: {history:?}")))
    }

    /// Returns a block that was stored, that no program can have removed, and that a program has not found.
    fn first_wrong_of_blocks(&self) -> Option<(Promise, String)> {
        let of_blocks = std::mem::take(&mut self.shared().of_blocks);
        let of = |key: u64, event: BlockEvent| {
            of_blocks.iter().filter(move |it| it.0 == key && it.1.event == event).map(|it| it.1)
        };
        let is_wrong = |key: u64, stored: &BlockOperation, absent: &BlockOperation| {
            let is_before = stored.end.is_some_and(|end| end < absent.start);
            let may_explain = |removed: &BlockOperation| {
                removed.end.is_none_or(|end| end > stored.start) && Some(removed.start) < absent.end
            };
            is_before && !of(key, BlockEvent::Removed).any(|removed| may_explain(&removed))
        };
        of_blocks.iter().filter(|(_, it)| it.event == BlockEvent::Absent).find_map(|(key, absent)| {
            let stored = of(*key, BlockEvent::Stored).find(|stored| is_wrong(*key, stored, absent))?;
            Some((Promise::Order, format!("block {key} is lost: {stored:?}, then {absent:?}")))
        })
    }

    fn first_wrong_of_keys(&self) -> Option<(Promise, String)> {
        let mut of_keys = std::mem::take(&mut self.shared().of_keys);
        // Within a key the operations stay in the order of their starts.
        of_keys.sort_by_key(|(key, _)| *key);
        of_keys.chunk_by(|one, other| one.0 == other.0).find_map(|of_one| {
            let history: Vec<key::Operation> = of_one.iter().map(|it| it.1).collect();
            let what = || format!("no order explains what was told of key {}: {history:?}", of_one[0].0);
            (!key::is_linearizable(&history)).then(|| (Promise::Order, what()))
        })
    }
}
