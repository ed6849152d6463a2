//! The pops of one handle: one of them takes entries for all that wait.

use super::{QueueError, State};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The outcome of a pop.
type Popped = Result<Option<Vec<u8>>, QueueError>;

/// The pops of a handle that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Pops {
    /// The outcomes by number, in the order in which the pops began. `None`: the pop still waits.
    waiting: BTreeMap<u64, Option<Popped>>,
    begun: u64,
    /// Whether one of the pops takes entries for those that wait.
    pub under_way: bool,
}

impl Pops {
    /// Begins a pop for all pops that wait now. Returns their numbers.
    pub fn begin(&mut self) -> Vec<u64> {
        self.under_way = true;
        self.waiting.iter().filter(|(_, popped)| popped.is_none()).map(|(number, _)| *number).collect()
    }

    /// Hands out the result of a pop to the waiting pops `to`. If it has entries, the pops that get none continue to
    /// wait: more entries may have been pushed.
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

/// The place of a pop among those that wait, for as long as the pop lives.
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

    /// Takes the outcome that was handed out to this pop, once.
    pub fn take_handed(&mut self) -> Option<Popped> {
        self.state.borrow_mut().pops.waiting.get_mut(&self.number)?.take()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.state.borrow_mut().pops.waiting.remove(&self.number);
    }
}
