//! What the programs of a run have in common: a structure, and all that each of them was told of it.
//!
//! Strands take turns, so a count of what was noted is a clock for all of them.

use crate::oracle::Promise;
use portcullis_histories::key;
use portcullis_protocol::ObjectRef;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all programs of a run share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commons(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    /// The structure's first object, once there is one.
    head: Option<ObjectRef>,
    ticks: u64,
    values: u64,
    /// Programs that may still begin operations.
    at_work: usize,
    /// What was asked of the table and told, by key.
    of_keys: Vec<(u64, key::Operation)>,
}

/// A program that may begin operations, as long as this lives.
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

    /// A value that nobody has had yet.
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

    /// Notes that an operation on a key begins. Returns its place.
    pub(super) fn begin_on_key(&self, key: u64, event: key::Event) -> usize {
        let mut shared = self.shared();
        let start = shared.tick();
        shared.of_keys.push((key, key::Operation { event, start, end: None }));
        shared.of_keys.len() - 1
    }

    /// Notes what the operation at a place was told.
    pub(super) fn end_on_key(&self, place: usize, told: key::Event) {
        let mut shared = self.shared();
        let end = shared.tick();
        let operation = &mut shared.of_keys[place].1;
        (operation.event, operation.end) = (told, Some(end));
    }

    /// The first thing that no order of the operations explains.
    pub fn first_wrong(&self) -> Option<(Promise, String)> {
        let mut of_keys = std::mem::take(&mut self.shared().of_keys);
        // Within a key they stay in the order of their beginnings.
        of_keys.sort_by_key(|(key, _)| *key);
        of_keys.chunk_by(|one, other| one.0 == other.0).find_map(|of_one| {
            let history: Vec<key::Operation> = of_one.iter().map(|it| it.1).collect();
            let what = || format!("no order explains what was told of key {}: {history:?}", of_one[0].0);
            (!key::is_linearizable(&history)).then(|| (Promise::Order, what()))
        })
    }
}
