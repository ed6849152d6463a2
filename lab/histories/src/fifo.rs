//! Histories of a queue, in which each value is pushed at most once.
//!
//! Such a history is linearizable unless it shows one of four patterns (Henzinger, Sezgin, Vafeiadis:
//! *Aspect-oriented linearizability proofs*, CONCUR 2013): a value that was never pushed, a value that is popped
//! twice, a value that overtakes another one, and an empty queue that cannot have been empty.
//!
//! A user that dies in a push may or may not have pushed. A user that dies in a pop may have taken a value that no
//! other user sees. So as many values may be missing as users died in pops.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// The request of an operation and, if the operation has an end, its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A push of this value. With an end, the push succeeded.
    Push(u64),
    /// A pop. It returned this value, or found the queue empty.
    Pop(Option<u64>),
}

/// One operation on a queue.
pub type Operation = crate::Operation<Event>;

/// A part of the history that no order of the operations explains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// This value was popped before any push of it had begun.
    OutOfNowhere(u64),
    /// This value was popped twice.
    Twice(u64),
    /// The second value was pushed after the first one and popped before it.
    Overtaken(u64, u64),
    /// The value was pushed before another one that was popped, and no user can have popped it.
    Lost(u64),
    /// A pop returned at this time that the queue is empty, although the queue was not empty at any moment of the
    /// pop.
    NotEmpty(u64),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfNowhere(value) => write!(f, "{value} was popped before it was pushed"),
            Self::Twice(value) => write!(f, "{value} was popped twice"),
            Self::Overtaken(first, second) => write!(f, "{second} has overtaken {first}"),
            Self::Lost(value) => write!(f, "{value} is lost"),
            Self::NotEmpty(time) => {
                write!(f, "the queue was not empty at {time}, but a pop reported it as empty")
            }
        }
    }
}

/// The known operations on one value.
#[derive(Clone, Copy, Debug)]
struct Life {
    value: u64,
    push_start: u64,
    /// `u64::MAX`: the push did not return.
    push_end: u64,
    /// Start and end of the pop that returned it.
    pop: Option<(u64, u64)>,
}

/// Looks for something that no order of the operations explains. The queue is empty at first. `None`: one order
/// explains all.
#[must_use]
pub fn first_wrong(history: &[Operation]) -> Option<Wrong> {
    let lives = match lives(history) {
        Ok(lives) => lives,
        Err(wrong) => return Some(wrong),
    };
    overtaken(&lives).or_else(|| lost(&lives, history)).or_else(|| not_empty(&lives, history))
}

fn lives(history: &[Operation]) -> Result<Vec<Life>, Wrong> {
    let mut lives: HashMap<u64, Life> = HashMap::new();
    for operation in history {
        if let Event::Push(value) = operation.event {
            let (push_start, push_end) = (operation.start, operation.end.unwrap_or(u64::MAX));
            let before = lives.insert(value, Life { value, push_start, push_end, pop: None });
            assert!(before.is_none(), "{value} is pushed twice: such a history cannot be judged");
        }
    }
    for operation in history {
        if let (Event::Pop(Some(value)), Some(end)) = (operation.event, operation.end) {
            let life = lives.get_mut(&value).ok_or(Wrong::OutOfNowhere(value))?;
            if end < life.push_start {
                return Err(Wrong::OutOfNowhere(value));
            }
            if life.pop.replace((operation.start, end)).is_some() {
                return Err(Wrong::Twice(value));
            }
        }
    }
    let mut lives: Vec<Life> = lives.into_values().collect();
    lives.sort_by_key(|life| (life.push_end, life.value));
    Ok(lives)
}

/// Finds a value that was popped although a value pushed before it was still in the queue.
fn overtaken(lives: &[Life]) -> Option<Wrong> {
    let popped: Vec<(&Life, (u64, u64))> = lives.iter().filter_map(|it| Some((it, it.pop?))).collect();
    // For each second value, `latest` is the one whose pop starts last, among those whose push ended before its push
    // began.
    let mut by_push_start = popped.clone();
    by_push_start.sort_by_key(|(life, _)| life.push_start);
    let mut latest: Option<(&Life, u64)> = None;
    let mut pushed = popped.iter().peekable();
    for (second, (_, second_end)) in by_push_start {
        while let Some((first, (start, _))) = pushed.next_if(|(first, _)| first.push_end < second.push_start)
        {
            if latest.is_none_or(|(_, known)| known < *start) {
                latest = Some((first, *start));
            }
        }
        if let Some((first, start)) = latest
            && second_end < start
        {
            return Some(Wrong::Overtaken(first.value, second.value));
        }
    }
    None
}

/// Finds a value that was never popped although a later value was popped or the queue was empty later, unless a user
/// that died in a pop can have taken it.
fn lost(lives: &[Life], history: &[Operation]) -> Option<Wrong> {
    let empty: Vec<(u64, u64)> = empty_pops(history).collect();
    let missing = lives.iter().filter(|life| life.pop.is_none() && life.push_end < u64::MAX);
    // Each must have been taken before the first later value was, and before the queue was empty.
    let mut due: Vec<(u64, u64)> = missing
        .filter_map(|first| {
            let later = lives.iter().filter(|second| second.push_start > first.push_end);
            let popped = later.filter_map(|second| second.pop).map(|(_, end)| end);
            let empty = empty.iter().filter(|(start, _)| *start > first.push_end).map(|(_, end)| *end);
            popped.chain(empty).min().map(|end| (end, first.value))
        })
        .collect();
    due.sort_unstable();
    let mut dead: Vec<u64> = history.iter().filter(is_dead_pop).map(|it| it.start).collect();
    dead.sort_unstable();
    let mut dead = dead.into_iter().peekable();
    let lost = due.into_iter().find(|(end, _)| dead.next_if(|start| start < end).is_none());
    lost.map(|(_, value)| Wrong::Lost(value))
}

fn is_dead_pop(operation: &&Operation) -> bool {
    operation.end.is_none() && matches!(operation.event, Event::Pop(_))
}

/// Start and end of each pop that found the queue empty.
fn empty_pops(history: &[Operation]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let empty = history.iter().filter(|it| it.event == Event::Pop(None));
    empty.filter_map(|it| Some((it.start, it.end?)))
}

/// Finds a pop that returned that the queue is empty, while at every moment of the pop some value was certainly in
/// it.
fn not_empty(lives: &[Life], history: &[Operation]) -> Option<Wrong> {
    let may_be_taken = history.iter().any(|it| is_dead_pop(&it));
    // From the end of its push to the start of its pop a value is certainly in the queue.
    let mut there: Vec<(u64, u64)> = lives
        .iter()
        .filter(|life| life.pop.is_some() || !may_be_taken)
        .map(|life| (life.push_end, life.pop.map_or(u64::MAX, |(start, _)| start)))
        .filter(|(from, to)| from < to)
        .collect();
    there.sort_unstable();
    let is_covered = |(start, end): &(u64, u64)| {
        let mut covered_to = *start;
        for &(from, to) in there.iter().take_while(|(from, _)| from < end) {
            if from >= covered_to {
                return false;
            }
            covered_to = covered_to.max(to);
        }
        covered_to > *end
    };
    empty_pops(history).find(is_covered).map(|(_, end)| Wrong::NotEmpty(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Tries all orders of the operations.
    fn is_linearizable(left: &[Operation], queue: &VecDeque<u64>) -> bool {
        let first_end = left.iter().filter_map(|it| it.end).min();
        left.iter().enumerate().any(|(index, operation)| {
            if first_end.is_some_and(|end| end < operation.start) {
                return false;
            }
            let mut queue = queue.clone();
            let fits = match operation.event {
                Event::Push(value) => {
                    queue.push_back(value);
                    true
                }
                Event::Pop(told) => queue.pop_front() == told,
            };
            let rest = [&left[..index], &left[index + 1..]].concat();
            fits && (rest.is_empty() || is_linearizable(&rest, &queue))
        })
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let pop = prop_oneof![Just(None), (0u64..4).prop_map(Some)];
        let one = (any::<bool>(), pop, 0u64..12, 1u64..7);
        proptest::collection::vec(one, 1..7).prop_map(|drawn| {
            let mut pushed = 0..4;
            let mut history = Vec::new();
            for (number, (is_push, popped, start, length)) in (0u64..).zip(drawn) {
                let next = is_push.then(|| pushed.next()).flatten();
                let event = next.map_or(Event::Pop(popped), Event::Push);
                // No two times are equal.
                let (start, end) = (start * 16 + number, Some((start + length) * 16 + number));
                history.push(Operation { event, start, end });
            }
            history
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

        #[test]
        fn the_patterns_say_what_a_search_says(history in operations()) {
            let searched = is_linearizable(&history, &VecDeque::new());
            prop_assert_eq!(first_wrong(&history).is_none(), searched, "{:?}", first_wrong(&history));
        }
    }

    fn at(event: Event, start: u64, end: u64) -> Operation {
        Operation { event, start, end: Some(end) }
    }

    #[test]
    fn a_dead_pop_may_have_taken_one_value_and_no_more() {
        let dead = Operation { event: Event::Pop(None), start: 5, end: None };
        let pushed = [1, 2, 3].map(|value| at(Event::Push(value), value * 10, value * 10 + 1));
        let popped = |value| at(Event::Pop(Some(value)), 40 + value, 41 + value);
        assert_eq!(first_wrong(&[&pushed[..], &[dead, popped(2), popped(3)]].concat()), None);
        let two = first_wrong(&[&pushed[..], &[dead, popped(3)]].concat());
        assert!(matches!(two, Some(Wrong::Lost(_))), "{two:?}");
        let late = Operation { start: 50, ..dead };
        let early = first_wrong(&[&pushed[..], &[late, popped(2), popped(3)]].concat());
        assert_eq!(early, Some(Wrong::Lost(1)));
        let empty = at(Event::Pop(None), 45, 49);
        let all_taken = first_wrong(&[&pushed[..], &[late, popped(1), popped(2), empty]].concat());
        assert_eq!(all_taken, Some(Wrong::Lost(3)));
    }

    #[test]
    fn a_push_without_an_end_may_have_happened_or_not() {
        let dead = Operation { event: Event::Push(1), start: 0, end: None };
        assert_eq!(first_wrong(&[dead, at(Event::Pop(None), 5, 6)]), None);
        assert_eq!(first_wrong(&[dead, at(Event::Pop(Some(1)), 5, 6)]), None);
        let twice = [dead, at(Event::Pop(Some(1)), 5, 6), at(Event::Pop(Some(1)), 7, 8)];
        assert_eq!(first_wrong(&twice), Some(Wrong::Twice(1)));
    }
}
