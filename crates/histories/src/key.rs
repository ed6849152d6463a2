//! Histories of one key of a map: the algorithm of Wing and Gong, with Lowe's memory of the states that it has been in.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// What an operation asked for, and what it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A read, and the value that it found.
    Get(Option<u64>),
    /// An insert of a value, and whether it inserted.
    Insert(u64, bool),
    /// An update to a value, and whether the key was there.
    Update(u64, bool),
    /// A value that was stored in any case.
    Upsert(u64),
    /// A removal, and whether the key was there.
    Remove(bool),
    /// The value that was expected, the one to be set, and whether it was set.
    Exchange(u64, u64, bool),
}

/// One operation on a key, with its times on one clock. An operation without an end may have happened at any time after
/// its start, or not at all, and nobody knows what it would have returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// What was asked for and, where there is an end, what was told.
    pub event: Event,
    /// When it was asked for.
    pub start: u64,
    /// When its user was told.
    pub end: Option<u64>,
}

impl Operation {
    /// The key's value after this operation. `None`: it cannot have returned what it returned.
    fn apply(&self, value: Option<u64>) -> Option<Option<u64>> {
        let known = self.end.is_some();
        let (after, as_told) = match self.event {
            Event::Get(found) => (value, found == value),
            Event::Insert(new, inserted) => (Some(value.unwrap_or(new)), inserted == value.is_none()),
            Event::Update(new, updated) => (value.map(|_| new), updated == value.is_some()),
            Event::Upsert(new) => (Some(new), true),
            Event::Remove(removed) => (None, removed == value.is_some()),
            Event::Exchange(expected, new, done) => {
                let equal = value == Some(expected);
                (if equal { Some(new) } else { value }, done == equal)
            }
        };
        (as_told || !known).then_some(after)
    }
}

/// Whether there is an order of the operations that fits their times and their results. The key is absent at first.
#[must_use]
pub fn is_linearizable(history: &[Operation]) -> bool {
    // A read that nobody was told of says nothing.
    let says = |operation: &&Operation| operation.end.is_some() || !matches!(operation.event, Event::Get(_));
    let mut operations: Vec<Operation> = history.iter().filter(says).copied().collect();
    operations.sort_by_key(|operation| operation.start);
    let mut seen = HashSet::new();
    let done = vec![false; operations.len()];
    let mut stack = vec![(done, None)];
    while let Some((done, value)) = stack.pop() {
        let left =
            || operations.iter().zip(&done).filter(|(_, done)| !**done).map(|(operation, _)| operation);
        if left().all(|operation| operation.end.is_none()) {
            return true;
        }
        // What begins after another has ended comes after it.
        let first_end = left().filter_map(|operation| operation.end).min().unwrap_or(u64::MAX);
        for (index, operation) in operations.iter().enumerate() {
            if done[index] || operation.start > first_end {
                continue;
            }
            if let Some(after) = operation.apply(value) {
                let mut next = done.clone();
                next[index] = true;
                if seen.insert((next.clone(), after)) {
                    stack.push((next, after));
                }
            }
        }
    }
    false
}

#[test]
fn a_history_is_linearizable_where_an_order_explains_it() {
    let at = |event, start, end| Operation { event, start, end: Some(end) };
    use Event::{Get, Insert, Remove, Update, Upsert};
    assert!(is_linearizable(&[at(Insert(1, true), 0, 10), at(Get(None), 2, 3), at(Get(Some(1)), 4, 5)]));
    assert!(!is_linearizable(&[at(Insert(1, true), 0, 10), at(Get(Some(1)), 2, 3), at(Get(None), 4, 5)]));
    assert!(!is_linearizable(&[at(Insert(1, true), 0, 10), at(Insert(2, true), 0, 10)]));
    assert!(is_linearizable(&[at(Insert(1, true), 0, 4), at(Remove(true), 3, 9), at(Insert(2, true), 5, 9)]));
    assert!(!is_linearizable(&[at(Upsert(1), 0, 1), at(Update(2, true), 2, 3), at(Get(Some(1)), 4, 5)]));
    // A read may not go back to an older value.
    let reads = [at(Get(Some(2)), 3, 4), at(Get(Some(1)), 5, 6)];
    assert!(!is_linearizable(&[&[at(Upsert(1), 0, 1), at(Upsert(2), 2, 9)], &reads[..]].concat()));
}

#[test]
fn an_operation_without_an_end_may_happen_late_or_never() {
    let dead = Operation { event: Event::Upsert(7), start: 0, end: None };
    let get = |found, start, end| Operation { event: Event::Get(found), start, end: Some(end) };
    assert!(is_linearizable(&[dead, get(None, 1, 2), get(Some(7), 5, 6)]));
    assert!(is_linearizable(&[dead, get(None, 1, 2), get(None, 5, 6)]));
    assert!(!is_linearizable(&[dead, get(Some(7), 1, 2), get(None, 5, 6)]));
}
