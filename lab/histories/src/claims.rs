//! Histories of a queue whose entries are claimed and acknowledged, and in which each value is pushed at most once.
//!
//! An entry may be delivered more than once, so the checker requires no order of deliveries. It checks these rules:
//! - A consumer receives only values that a producer has begun to push.
//! - The deliveries of a value have different numbers.
//! - A value is acknowledged once, by the consumer of its last delivery, and is not delivered after that.
//! - Once the queue is drained, each pushed value is acknowledged. A consumer may have died during that
//!   acknowledgement.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The request of an operation and, if the operation has an end, its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// A push of this value. With an end, the push succeeded.
    Push(u64),
    /// A claim of an entry. It returned this value with this delivery number, or no value.
    Claim(Option<(u64, u32)>),
    /// An acknowledgement of the delivery with this number of a value. With an end, it succeeded.
    Acknowledge(u64, u32),
}

/// One operation on a queue of claims.
pub type Operation = crate::Operation<Event>;

/// A broken rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// This value was delivered before any push of it had begun.
    OutOfNowhere(u64),
    /// Two deliveries of this value have the same number.
    SameDelivery(u64),
    /// This value was acknowledged twice.
    Twice(u64),
    /// This value was acknowledged by a consumer after it had been delivered to another one.
    NotTheLast(u64),
    /// This value was delivered after it was acknowledged.
    AfterTheEnd(u64),
    /// This value was pushed, and the queue was drained without an acknowledgement of the value.
    Lost(u64),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfNowhere(value) => write!(f, "{value} was delivered before it was pushed"),
            Self::SameDelivery(value) => write!(f, "two deliveries of {value} have the same number"),
            Self::Twice(value) => write!(f, "{value} was acknowledged twice"),
            Self::NotTheLast(value) => {
                write!(f, "{value} was acknowledged after it had been delivered to another consumer")
            }
            Self::AfterTheEnd(value) => write!(f, "{value} was delivered after it was acknowledged"),
            Self::Lost(value) => write!(f, "{value} is lost"),
        }
    }
}

/// The operations on one value.
#[derive(Default)]
struct Value {
    pushed: Option<Operation>,
    /// Deliveries that returned to a consumer, by their number.
    deliveries: Vec<(u32, Operation)>,
    acknowledgements: Vec<(u32, Operation)>,
}

/// Returns the first value whose history breaks a rule. `is_drained`: at the end the queue was empty.
#[must_use]
pub fn first_wrong(history: &[Operation], is_drained: bool) -> Option<Wrong> {
    let mut values = BTreeMap::<u64, Value>::new();
    for &operation in history {
        match (operation.event, operation.end) {
            (Event::Push(value), _) => values.entry(value).or_default().pushed = Some(operation),
            (Event::Claim(Some((value, number))), Some(_)) => {
                values.entry(value).or_default().deliveries.push((number, operation));
            }
            (Event::Claim(_), _) => {}
            (Event::Acknowledge(value, number), _) => {
                values.entry(value).or_default().acknowledgements.push((number, operation));
            }
        }
    }
    values.into_iter().find_map(|(number, value)| value.wrong(number, is_drained))
}

impl Value {
    fn wrong(mut self, value: u64, is_drained: bool) -> Option<Wrong> {
        let pushed_from = self.pushed.map_or(u64::MAX, |push| push.start);
        if self.deliveries.iter().any(|(_, claim)| claim.end.is_some_and(|end| end < pushed_from)) {
            return Some(Wrong::OutOfNowhere(value));
        }
        self.deliveries.sort_by_key(|(number, _)| *number);
        if self.deliveries.windows(2).any(|two| two[0].0 == two[1].0) {
            return Some(Wrong::SameDelivery(value));
        }
        let told: Vec<_> = self.acknowledgements.iter().filter(|(_, it)| it.end.is_some()).collect();
        if let [(number, acknowledged), rest @ ..] = &told[..] {
            if !rest.is_empty() {
                return Some(Wrong::Twice(value));
            }
            let later = |claim: &Operation| claim.end.is_some_and(|end| end < acknowledged.start);
            if self.deliveries.iter().any(|(other, claim)| other > number && later(claim)) {
                return Some(Wrong::NotTheLast(value));
            }
            let end = acknowledged.end.unwrap_or(u64::MAX);
            if self.deliveries.iter().any(|(_, claim)| claim.start > end) {
                return Some(Wrong::AfterTheEnd(value));
            }
        }
        let was_pushed = self.pushed.is_some_and(|push| push.end.is_some());
        (is_drained && was_pushed && self.acknowledgements.is_empty()).then_some(Wrong::Lost(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(event: Event, start: u64, end: u64) -> Operation {
        Operation { event, start, end: Some(end) }
    }

    fn untold(event: Event, start: u64) -> Operation {
        Operation { event, start, end: None }
    }

    const PUSH: Event = Event::Push(7);

    fn claim(number: u32) -> Event {
        Event::Claim(Some((7, number)))
    }

    #[test]
    fn what_comes_again_until_it_is_acknowledged_is_right() {
        let history = [
            told(PUSH, 1, 2),
            told(claim(1), 3, 4),
            told(claim(2), 5, 6),
            untold(Event::Claim(None), 7),
            told(Event::Acknowledge(7, 2), 8, 9),
        ];
        assert_eq!(first_wrong(&history, true), None);
        // The consumer may have died during the acknowledgement, or the entry may have been delivered to others at
        // the same time.
        let history = [told(PUSH, 1, 2), told(claim(1), 3, 4), untold(Event::Acknowledge(7, 1), 5)];
        assert_eq!(first_wrong(&history, true), None);
        let history = [
            told(PUSH, 1, 9),
            told(claim(1), 3, 8),
            told(Event::Acknowledge(7, 1), 8, 9),
            told(claim(2), 8, 10),
        ];
        assert_eq!(first_wrong(&history, true), None);
    }

    #[test]
    fn each_rule_is_looked_at() {
        let begins = [told(PUSH, 1, 2), told(claim(1), 3, 4)];
        let with = |rest: &[Operation]| first_wrong(&[&begins[..], rest].concat(), true);
        assert_eq!(
            first_wrong(&[told(claim(1), 1, 2), told(PUSH, 3, 4)], true),
            Some(Wrong::OutOfNowhere(7))
        );
        assert_eq!(with(&[told(claim(1), 5, 6)]), Some(Wrong::SameDelivery(7)));
        assert_eq!(with(&[]), Some(Wrong::Lost(7)));
        let acknowledged = told(Event::Acknowledge(7, 1), 7, 8);
        assert_eq!(with(&[acknowledged, told(Event::Acknowledge(7, 1), 9, 10)]), Some(Wrong::Twice(7)));
        assert_eq!(with(&[told(claim(2), 5, 6), acknowledged]), Some(Wrong::NotTheLast(7)));
        assert_eq!(with(&[acknowledged, told(claim(2), 9, 10)]), Some(Wrong::AfterTheEnd(7)));
        assert_eq!(first_wrong(&begins, false), None, "it is still there");
    }
}
