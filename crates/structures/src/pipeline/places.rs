//! Accesses under way, by their places among the client's operations.
//!
//! An outcome stays in the client until its future takes it: nothing is copied in between. Only if the client has no
//! room for further accesses, outcomes that no future has taken yet are set aside here.

use super::Task;
use portcullis::{Buffer, Client, Memory, Operation, Outcome, VerbsEndpoint};

/// The receiver that goes on when an access has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiter {
    /// The task that awaits it.
    Task(Task),
    /// The entry of a request that had to wait for room.
    Entry(u64),
    /// The future of the access was dropped, so nothing goes on.
    Nobody,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    UnderWay(Waiter),
    /// The outcome waits in the client.
    Ended,
}

/// The accesses under way, and the outcomes that are set aside.
pub(super) struct Places<M: Memory> {
    places: Vec<Option<(Operation, State)>>,
    set_aside: Vec<(Operation, Outcome<M>)>,
}

impl<M: Memory> Default for Places<M> {
    fn default() -> Self {
        Self { places: Vec::new(), set_aside: Vec::new() }
    }
}

impl<M: Memory> Places<M> {
    /// Notes that an access has begun.
    #[inline]
    pub fn begin(&mut self, operation: Operation, waiter: Waiter) {
        let place = operation.place();
        if place >= self.places.len() {
            self.places.resize(place + 1, None);
        }
        self.places[place] = Some((operation, State::UnderWay(waiter)));
    }

    #[inline]
    fn state(&mut self, operation: Operation) -> Option<&mut State> {
        let (there, state) = self.places[operation.place()].as_mut()?;
        (*there == operation).then_some(state)
    }

    /// Notes that an access has ended. Returns its waiter. If that is a task, the outcome waits for [`Places::take`].
    #[inline]
    pub fn end(&mut self, operation: Operation) -> Waiter {
        let state = self.state(operation).expect("the pipeline has begun each operation of its session");
        let State::UnderWay(waiter) = *state else { unreachable!("an operation ends once") };
        match waiter {
            Waiter::Task(_) => *state = State::Ended,
            Waiter::Entry(_) | Waiter::Nobody => self.places[operation.place()] = None,
        }
        waiter
    }

    /// Takes the result of a successful access, in most cases. `None`: the caller uses [`Places::take`] instead.
    #[inline]
    pub fn take_success<E: VerbsEndpoint<Memory = M>>(
        &mut self,
        client: &mut Client<E>,
        operation: Operation,
    ) -> Option<(Option<Buffer<M>>, u64)> {
        let place = &mut self.places[operation.place()];
        if *place != Some((operation, State::Ended)) {
            return None;
        }
        let taken = client.take_success(operation)?;
        *place = None;
        Some(taken)
    }

    /// Takes the outcome of an access. `None`: the access is under way, and this task waits for it.
    pub fn take<E: VerbsEndpoint<Memory = M>>(
        &mut self,
        client: &mut Client<E>,
        operation: Operation,
        task: Task,
    ) -> Option<Outcome<M>> {
        match self.state(operation) {
            Some(State::Ended) => {
                self.places[operation.place()] = None;
                Some(client.take(operation).expect("an outcome waits until it is taken"))
            }
            Some(state) => {
                *state = State::UnderWay(Waiter::Task(task));
                None
            }
            None => Some(self.take_aside(operation)),
        }
    }

    #[cold]
    fn take_aside(&mut self, operation: Operation) -> Outcome<M> {
        let at = self.set_aside.iter().position(|(aside, _)| *aside == operation);
        self.set_aside.swap_remove(at.expect("an outcome waits until it is taken")).1
    }

    /// Notes that no task awaits an access any more.
    #[cold]
    pub fn forget<E: VerbsEndpoint<Memory = M>>(&mut self, client: &mut Client<E>, operation: Operation) {
        match self.state(operation) {
            Some(state @ State::UnderWay(_)) => *state = State::UnderWay(Waiter::Nobody),
            Some(State::Ended) => {
                self.places[operation.place()] = None;
                drop(client.take(operation));
            }
            None => drop(self.take_aside(operation)),
        }
    }

    /// Makes room in the client: takes out the outcomes that no future has taken yet.
    #[cold]
    pub fn make_room<E: VerbsEndpoint<Memory = M>>(&mut self, client: &mut Client<E>) {
        for place in &mut self.places {
            if let Some((operation, State::Ended)) = *place {
                let outcome = client.take(operation).expect("an outcome waits until it is taken");
                self.set_aside.push((operation, outcome));
                *place = None;
            }
        }
    }
}
