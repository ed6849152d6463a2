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

    /// Whether two operations without an end leave the same behind, whatever is there before.
    fn does_the_same(&self, other: &Self) -> bool {
        match (self.event, other.event) {
            (Event::Insert(one, _), Event::Insert(other, _))
            | (Event::Update(one, _), Event::Update(other, _))
            | (Event::Upsert(one), Event::Upsert(other)) => one == other,
            (Event::Remove(_), Event::Remove(_)) => true,
            (Event::Exchange(old, new, _), Event::Exchange(other, another, _)) => {
                (old, new) == (other, another)
            }
            _ => false,
        }
    }
}

/// The value that an operation stores.
fn stored(event: &mut Event) -> Option<&mut u64> {
    match event {
        Event::Insert(new, _) | Event::Update(new, _) | Event::Upsert(new) | Event::Exchange(_, new, _) => {
            Some(new)
        }
        Event::Get(_) | Event::Remove(_) => None,
    }
}

/// Gives all values that no operation asks about the same number: nobody can tell one from another.
fn forget_unasked(operations: &mut [Operation]) {
    let asked: HashSet<u64> = operations
        .iter()
        .filter_map(|operation| match operation.event {
            Event::Get(found) => found,
            Event::Exchange(expected, ..) => Some(expected),
            _ => None,
        })
        .collect();
    let Some(unasked) = (0..=u64::MAX).find(|number| !asked.contains(number)) else { return };
    for value in operations.iter_mut().filter_map(|operation| stored(&mut operation.event)) {
        if !asked.contains(value) {
            *value = unasked;
        }
    }
}

/// Whether there is an order of the operations that fits their times and their results. The key is absent at first.
#[must_use]
pub fn is_linearizable(history: &[Operation]) -> bool {
    // A read that nobody was told of says nothing.
    let says = |operation: &&Operation| operation.end.is_some() || !matches!(operation.event, Event::Get(_));
    let mut operations: Vec<Operation> = history.iter().filter(says).copied().collect();
    forget_unasked(&mut operations);
    // What is tried first is what stands last: in most orders that explain a history operations follow their ends, and those
    // without an end did not happen.
    operations.sort_by_key(|it| std::cmp::Reverse((it.end.unwrap_or(u64::MAX), it.start)));
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
            let Some(after) = operation.apply(value) else { continue };
            if operation.end.is_none() && (after == value || !is_first_of_its_like(&operations, &done, index))
            {
                continue;
            }
            let mut next = done.clone();
            next[index] = true;
            if seen.insert((next.clone(), after)) {
                stack.push((next, after));
            }
        }
    }
    false
}

/// Whether no other operation without an end does the same and began earlier. That one could always take its place, so it is
/// enough to try them in one order.
fn is_first_of_its_like(operations: &[Operation], done: &[bool], index: usize) -> bool {
    // The one that began first stands last.
    let later = operations.iter().zip(done).skip(index + 1);
    let mut like = later.filter(|(other, done)| !**done && other.end.is_none());
    !like.any(|(other, _)| other.does_the_same(&operations[index]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by the definition: all orders of all operations with an end and of any of the others.
    fn has_an_order(left: &[Operation], value: Option<u64>) -> bool {
        left.iter().all(|operation| operation.end.is_none())
            || left.iter().enumerate().any(|(index, operation)| {
                let may_come = left.iter().all(|other| other.end.is_none_or(|end| operation.start <= end));
                let rest = || left.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, it)| *it);
                let after = operation.apply(value).filter(|_| may_come);
                after.is_some_and(|after| has_an_order(&rest().collect::<Vec<_>>(), after))
            })
    }

    fn event() -> impl Strategy<Value = Event> {
        let value = || 0u64..4;
        prop_oneof![
            prop::option::of(value()).prop_map(Event::Get),
            (value(), any::<bool>()).prop_map(|(new, done)| Event::Insert(new, done)),
            (value(), any::<bool>()).prop_map(|(new, done)| Event::Update(new, done)),
            value().prop_map(Event::Upsert),
            any::<bool>().prop_map(Event::Remove),
            (value(), value(), any::<bool>()).prop_map(|(old, new, done)| Event::Exchange(old, new, done)),
        ]
    }

    fn operation() -> impl Strategy<Value = Operation> {
        (event(), 0u64..12, prop::option::weighted(0.6, 0u64..6)).prop_map(|(event, start, takes)| {
            Operation { event, start, end: takes.map(|takes| start + takes) }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_shortcuts_lose_no_order(history in prop::collection::vec(operation(), 0..7)) {
            prop_assert_eq!(is_linearizable(&history), has_an_order(&history, None));
        }
    }

    #[test]
    fn a_history_is_linearizable_where_an_order_explains_it() {
        let at = |event, start, end| Operation { event, start, end: Some(end) };
        use Event::{Get, Insert, Remove, Update, Upsert};
        assert!(is_linearizable(&[at(Insert(1, true), 0, 10), at(Get(None), 2, 3), at(Get(Some(1)), 4, 5)]));
        assert!(!is_linearizable(&[at(Insert(1, true), 0, 10), at(Get(Some(1)), 2, 3), at(Get(None), 4, 5)]));
        assert!(!is_linearizable(&[at(Insert(1, true), 0, 10), at(Insert(2, true), 0, 10)]));
        assert!(is_linearizable(&[
            at(Insert(1, true), 0, 4),
            at(Remove(true), 3, 9),
            at(Insert(2, true), 5, 9)
        ]));
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

    #[test]
    fn operations_without_an_end_that_do_the_same_stand_in_for_each_other() {
        let dead = |event, start| Operation { event, start, end: None };
        let at = |event, start, end| Operation { event, start, end: Some(end) };
        // Two were asked for, so the key can be removed twice, and not three times.
        let upserts = [dead(Event::Upsert(7), 0), dead(Event::Upsert(8), 5)];
        let removes =
            [at(Event::Remove(true), 1, 2), at(Event::Remove(true), 6, 7), at(Event::Remove(true), 8, 9)];
        assert!(is_linearizable(&[&upserts[..], &removes[..2]].concat()));
        assert!(!is_linearizable(&[&upserts[..], &removes[..]].concat()));
        // The second one had not begun when the key was removed for the second time.
        let early = [removes[0], at(Event::Remove(true), 3, 4)];
        assert!(!is_linearizable(&[&upserts[..], &early[..]].concat()));
        // A value that is asked for is not just any.
        let got = [at(Event::Get(Some(8)), 6, 7), at(Event::Get(Some(7)), 8, 9)];
        assert!(is_linearizable(&[&upserts[..], &got[..]].concat()));
        assert!(!is_linearizable(
            &[&upserts[..], &[got[0], got[1], at(Event::Get(Some(8)), 10, 11)]].concat()
        ));
    }
}
