//! Work beside the operations of a pipeline: futures that no operation waits for, such as the refill of a stock.
//!
//! The pipeline polls such a future while it carries operations on, and never waits for its end. Between two calls of
//! the pipeline nothing polls it, for any time.

use super::{Pipeline, Task};
use portcullis::{Clock, VerbsEndpoint};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

/// Number of futures that a pipeline carries on beside its operations. Their tasks have the first numbers.
pub(super) const BESIDE_MAX: Task = 16;

type Work = Pin<Box<dyn Future<Output = ()>>>;

/// A future that was begun.
struct Begun {
    number: u64,
    /// `None` while the pipeline polls the future.
    work: Option<Work>,
}

/// The futures that a pipeline carries on beside its operations, by their tasks.
#[derive(Default)]
pub(super) struct WorkBeside {
    places: RefCell<[Option<Begun>; BESIDE_MAX]>,
    begun: Cell<u64>,
}

impl WorkBeside {
    /// Gives a future a place. Returns its task and its number. `None`: there is no place.
    fn begin(&self, work: Work) -> Option<(Task, u64)> {
        let mut places = self.places.borrow_mut();
        let task = places.iter().position(Option::is_none)?;
        let number = self.begun.get();
        self.begun.set(number + 1);
        places[task] = Some(Begun { number, work: Some(work) });
        Some((task, number))
    }

    /// Polls the future of a task, if there is one.
    fn go_on(&self, task: Task) {
        let taken = self.places.borrow_mut()[task].as_mut().and_then(|it| Some((it.number, it.work.take()?)));
        let Some((number, mut work)) = taken else { return };
        let is_done = work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let mut places = self.places.borrow_mut();
        // Otherwise the future was given up while it was polled, and is dropped here.
        if let Some(begun) = places[task].as_mut().filter(|begun| begun.number == number) {
            begun.work = Some(work);
            let ended = if is_done { places[task].take() } else { None };
            // The end of a future may use the pipeline.
            drop(places);
            drop(ended);
        }
    }

    fn is_under_way(&self, (task, number): (Task, u64)) -> bool {
        self.places.borrow()[task].as_ref().is_some_and(|begun| begun.number == number)
    }

    /// Takes out a future that has not ended.
    fn take(&self, (task, number): (Task, u64)) -> Option<Begun> {
        self.places.borrow_mut()[task].take_if(|begun| begun.number == number)
    }
}

/// The work beside the operations that one part of a structure has under way: one future at a time. A future that has
/// not ended is dropped with this value, so it may own parts of the structure, and so the pipeline.
pub(crate) struct Beside<E: VerbsEndpoint, C: Clock> {
    pipeline: Rc<Pipeline<E, C>>,
    begun: Cell<Option<(Task, u64)>>,
}

impl<E: VerbsEndpoint, C: Clock> Beside<E, C> {
    pub fn new(pipeline: &Rc<Pipeline<E, C>>) -> Self {
        Self { pipeline: Rc::clone(pipeline), begun: Cell::default() }
    }

    /// Whether no work is under way.
    pub fn is_idle(&self) -> bool {
        !self.begun.get().is_some_and(|begun| self.pipeline.beside.is_under_way(begun))
    }

    /// Begins work, unless earlier work is under way, or the pipeline has too much of it. In this case the future is
    /// dropped.
    pub fn begin(&self, work: impl Future<Output = ()> + 'static) {
        if self.is_idle()
            && let Some(begun) = self.pipeline.beside.begin(Box::pin(work))
        {
            self.begun.set(Some(begun));
            self.pipeline.wake(begun.0);
        }
    }
}

impl<E: VerbsEndpoint, C: Clock> Drop for Beside<E, C> {
    fn drop(&mut self) {
        drop(self.begun.get().and_then(|begun| self.pipeline.beside.take(begun)));
    }
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Returns the next operation to go on with. Carries the work beside the operations on before.
    pub(super) fn next_ready(&self) -> Option<Task> {
        loop {
            let task = self.next_task()?;
            if task >= BESIDE_MAX {
                return Some(task);
            }
            self.beside.go_on(task);
        }
    }
}
