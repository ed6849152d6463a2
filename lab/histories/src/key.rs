//! Histories of one key of a map. They are decided by the search of Wing and Gong with Lowe's memory of visited
//! states. Extra rules bound the work for operations without an end, of which the search would otherwise try every
//! subset.

use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// The request of an operation and its result.
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
    /// A compare and exchange: the expected value, the new value, and whether the new value was set.
    Exchange(u64, u64, bool),
}

/// One operation on a key. The result of an operation without an end is unknown.
pub type Operation = crate::Operation<Event>;

impl Operation {
    /// Returns the key's value after this operation. `None`: the operation cannot have returned its recorded result.
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

    /// Whether the operation left the key unchanged, according to its result.
    fn changes_nothing(&self) -> bool {
        match self.event {
            Event::Get(_) => true,
            Event::Insert(_, done)
            | Event::Update(_, done)
            | Event::Remove(done)
            | Event::Exchange(_, _, done) => !done,
            Event::Upsert(_) => false,
        }
    }

    /// Whether two operations without an end leave the same value behind, whatever the value before them.
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

/// Returns the value that an operation stores.
fn stored(event: &mut Event) -> Option<&mut u64> {
    match event {
        Event::Insert(new, _) | Event::Update(new, _) | Event::Upsert(new) | Event::Exchange(_, new, _) => {
            Some(new)
        }
        Event::Get(_) | Event::Remove(_) => None,
    }
}

/// Replaces all values that no operation reads or expects by one number, since no operation can distinguish them.
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
    // A read without a result constrains nothing.
    let says = |operation: &&Operation| operation.end.is_some() || !matches!(operation.event, Event::Get(_));
    let mut operations: Vec<Operation> = history.iter().filter(says).copied().collect();
    forget_unasked(&mut operations);
    let (ended, open) = operations.into_iter().partition(|operation| operation.end.is_some());
    Search::new(ended, open).finds_an_order()
}

/// A set of operations, by their indexes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Set(Box<[u64]>);

impl Set {
    fn of(operations: usize) -> Self {
        Self(vec![0; operations.div_ceil(64)].into())
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] & 1 << (index % 64) != 0
    }

    fn with(mut self, index: usize) -> Self {
        self.0[index / 64] |= 1 << (index % 64);
        self
    }

    fn is_within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(these, those)| these & !those == 0)
    }
}

/// The beginning of an order: the operations in it, and the value that they leave.
#[derive(Clone, Debug)]
struct State {
    ended: Set,
    open: Set,
    value: Option<u64>,
}

/// The search for an order. Three rules keep it small. No rule loses an order:
///
/// - An operation with an end that changes nothing is placed as soon as its times allow it and its result is right.
///   If it is moved there from a later place, it changes nothing for any other operation.
/// - An operation without an end is placed only where the next operation with an end would otherwise have a wrong
///   result. It may be moved behind an operation that changes nothing, and it may be left out before one that leaves
///   the same value in both cases. There are no other cases.
/// - Of two beginnings with the same value and the same operations that have an end, the search keeps the one with
///   fewer operations without an end: it can continue in every way in which the other one can.
struct Search {
    /// Operations with an end, in the order of their ends.
    ended: Vec<Operation>,
    /// Operations without an end, in the order of their starts.
    open: Vec<Operation>,
    /// Visited states: for each, the sets of operations without an end that were in those beginnings.
    seen: HashMap<(Set, Option<u64>), Vec<Set>>,
    /// Beginnings that the search has not continued yet. The last one is next.
    left: Vec<State>,
}

impl Search {
    fn new(mut ended: Vec<Operation>, mut open: Vec<Operation>) -> Self {
        ended.sort_by_key(|operation| (operation.end, operation.start));
        open.sort_by_key(|operation| operation.start);
        let first = State { ended: Set::of(ended.len()), open: Set::of(open.len()), value: None };
        Self { ended, open, seen: HashMap::new(), left: vec![first] }
    }

    fn finds_an_order(mut self) -> bool {
        while let Some(state) = self.left.pop() {
            let Some(first) = (0..self.ended.len()).find(|&index| !state.ended.has(index)) else {
                return true;
            };
            // An operation that begins after another has ended is placed after it.
            let first_end = self.ended[first].end.unwrap_or(u64::MAX);
            let may_come = |&index: &usize| !state.ended.has(index) && self.ended[index].start <= first_end;
            let next: Vec<usize> = (first..self.ended.len()).filter(may_come).collect();
            let is_due = |&&index: &&usize| {
                let operation = &self.ended[index];
                operation.changes_nothing() && operation.apply(state.value).is_some()
            };
            if let Some(&index) = next.iter().find(is_due) {
                self.go_on_with(index, state);
                continue;
            }
            // In most orders that explain a history, operations follow their ends, and operations without an end did
            // not happen.
            let (as_told, otherwise): (Vec<usize>, Vec<usize>) =
                next.into_iter().partition(|&index| self.ended[index].apply(state.value).is_some());
            for index in otherwise.into_iter().rev() {
                self.come_after_open_ones(index, first_end, &state, None);
            }
            for index in as_told.into_iter().rev() {
                self.go_on_with(index, state.clone());
            }
        }
        false
    }

    /// Continues with each way in which operations without an end make the result of the operation at `index` right.
    /// `before`: the value before the last of those operations.
    fn come_after_open_ones(
        &mut self,
        index: usize,
        first_end: u64,
        state: &State,
        before: Option<Option<u64>>,
    ) {
        for open in 0..self.open.len() {
            let operation = self.open[open];
            if operation.start > first_end {
                break;
            }
            if state.open.has(open) || !self.is_first_of_its_like(open, &state.open) {
                continue;
            }
            let Some(value) = operation.apply(state.value) else { continue };
            // If it leaves the same value without the open operation before it, that one is not needed.
            let same_without = before.is_some_and(|before| operation.apply(before) == Some(value));
            if value == state.value || same_without {
                continue;
            }
            let next = State { ended: state.ended.clone(), open: state.open.clone().with(open), value };
            if self.ended[index].apply(value).is_some() {
                self.go_on_with(index, next);
            } else {
                self.come_after_open_ones(index, first_end, &next, Some(state.value));
            }
        }
    }

    /// Whether no earlier unused operation without an end does the same. The earlier one could always take the place
    /// of this one, so one order of them is enough.
    fn is_first_of_its_like(&self, open: usize, used: &Set) -> bool {
        let mut earlier = self.open[..open].iter().enumerate().filter(|(index, _)| !used.has(*index));
        !earlier.any(|(_, other)| other.does_the_same(&self.open[open]))
    }

    /// Records that the beginning continues with the operation at `index`, whose result is right.
    fn go_on_with(&mut self, index: usize, before: State) {
        let value = self.ended[index].apply(before.value).expect("it was told the truth");
        let state = State { ended: before.ended.with(index), value, ..before };
        let seen = self.seen.entry((state.ended.clone(), state.value)).or_default();
        if seen.iter().any(|fewer| fewer.is_within(&state.open)) {
            return;
        }
        seen.retain(|more| !state.open.is_within(more));
        seen.push(state.open.clone());
        self.left.push(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decides the same by the definition: tries all orders of all operations with an end and of any of the others.
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

    /// Returns the history that users of a key see if these events change it one after another. Each operation starts
    /// up to `early` before its moment, and ends up to `late` after it, or never.
    fn told_of(order: &[(Event, u64, Option<u64>)]) -> Vec<Operation> {
        let mut value = None;
        let moments = (0..).map(|place| 100 + 10 * place);
        let told = order.iter().zip(moments).map(|(&(event, early, late), moment)| {
            let [no, yes] = [false, true].map(|done| match event {
                Event::Get(_) => Event::Get(value),
                Event::Insert(new, _) => Event::Insert(new, done),
                Event::Update(new, _) => Event::Update(new, done),
                Event::Upsert(_) => event,
                Event::Remove(_) => Event::Remove(done),
                Event::Exchange(old, new, _) => Event::Exchange(old, new, done),
            });
            let told = [no, yes].map(|event| Operation { event, start: moment - early, end: Some(moment) });
            let honest = told.into_iter().find_map(|told| Some((told.event, told.apply(value)?)));
            let (event, after) = honest.expect("one of the two is true");
            value = after;
            Operation { event, start: moment - early, end: late.map(|late| moment + late) }
        });
        told.collect()
    }

    /// A long order in which one operation in four has no end.
    fn long_order() -> impl Strategy<Value = Vec<(Event, u64, Option<u64>)>> {
        let late = prop::option::weighted(0.75, 0u64..100);
        prop::collection::vec((event(), 0u64..100, late), 300)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_long_order_that_there_was_is_found(order in long_order()) {
            prop_assert!(is_linearizable(&told_of(&order)));
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
        // The history contains two upserts, so the key can be removed twice, and not three times.
        let upserts = [dead(Event::Upsert(7), 0), dead(Event::Upsert(8), 5)];
        let removes =
            [at(Event::Remove(true), 1, 2), at(Event::Remove(true), 6, 7), at(Event::Remove(true), 8, 9)];
        assert!(is_linearizable(&[&upserts[..], &removes[..2]].concat()));
        assert!(!is_linearizable(&[&upserts[..], &removes[..]].concat()));
        // The second upsert had not begun when the key was removed for the second time.
        let early = [removes[0], at(Event::Remove(true), 3, 4)];
        assert!(!is_linearizable(&[&upserts[..], &early[..]].concat()));
        // A value that a read returns cannot be replaced by any other.
        let got = [at(Event::Get(Some(8)), 6, 7), at(Event::Get(Some(7)), 8, 9)];
        assert!(is_linearizable(&[&upserts[..], &got[..]].concat()));
        assert!(!is_linearizable(
            &[&upserts[..], &[got[0], got[1], at(Event::Get(Some(8)), 10, 11)]].concat()
        ));
    }
}
