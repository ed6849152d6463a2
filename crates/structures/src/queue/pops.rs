//! The pops of one handle: one of them pops for all that wait.

use super::{QueueError, State};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What came of a pop.
type Popped = Result<Option<Vec<u8>>, QueueError>;

/// The pops of a handle that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Pops {
    /// By number, in the order of their beginnings. `None`: the pop still waits.
    waiting: BTreeMap<u64, Option<Popped>>,
    begun: u64,
    /// One of them pops for those that wait.
    pub under_way: bool,
}

impl Pops {
    /// Begins to pop for all that wait now. Returns their numbers.
    pub fn begin(&mut self) -> Vec<u64> {
        self.under_way = true;
        self.waiting.iter().filter(|(_, popped)| popped.is_none()).map(|(number, _)| *number).collect()
    }

    /// Hands out what was popped for them. Where there was something, those who got nothing go on waiting: more may have
    /// come.
    pub fn hand_out(&mut self, to: &[u64], popped: Result<Vec<Vec<u8>>, QueueError>) {
        let mut hand = |number: &u64, what: Popped| {
            if let Some(place) = self.waiting.get_mut(number) {
                *place = Some(what);
            }
        };
        match popped {
            Err(error) => to.iter().for_each(|number| hand(number, Err(error))),
            Ok(entries) if entries.is_empty() => to.iter().for_each(|number| hand(number, Ok(None))),
            Ok(entries) => to.iter().zip(entries).for_each(|(number, entry)| hand(number, Ok(Some(entry)))),
        }
    }
}

/// A pop's place among those that wait, as long as it lives.
pub(super) struct Ticket<'s> {
    state: &'s RefCell<State>,
    number: u64,
}

impl<'s> Ticket<'s> {
    pub fn new(state: &'s RefCell<State>) -> Self {
        let mut known = state.borrow_mut();
        let number = known.pops.begun;
        known.pops.begun += 1;
        known.pops.waiting.insert(number, None);
        drop(known);
        Self { state, number }
    }

    /// What was popped for this one, once.
    pub fn take_handed(&mut self) -> Option<Popped> {
        self.state.borrow_mut().pops.waiting.get_mut(&self.number)?.take()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.state.borrow_mut().pops.waiting.remove(&self.number);
    }
}
