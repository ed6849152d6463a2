//! Carries many operations out at once, including operations that arrive while others are under way.

use super::beside::BESIDE_MAX;
use super::{Pipeline, Task};
use portcullis::{Clock, VerbsEndpoint};
use std::iter::Fuse;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The source of jobs, and the receiver of their results. One operation carries out each job.
pub trait Work {
    /// A job that is to be carried out.
    type Job;
    /// The result of a job.
    type Outcome;

    /// Returns the next job. `None`: there is no job now.
    fn next(&mut self) -> Option<Self::Job>;

    /// Takes the result of a job.
    fn done(&mut self, outcome: Self::Outcome);

    /// Called when no operation can go on before a request ends, and before the pipeline waits for that. So work that
    /// is not an operation of the pipeline is done in the time that the node takes. Returns `false` if no more jobs
    /// will arrive.
    ///
    /// `under_way`: number of operations under way. If there are none, the work may itself wait for more jobs.
    fn rest(&mut self, under_way: usize) -> bool;
}

/// Operations that are all known at the beginning.
struct Listed<I, R> {
    operations: Fuse<I>,
    each: R,
}

impl<F: Future, I: Iterator<Item = F>, R: FnMut(F::Output)> Work for Listed<I, R> {
    type Job = F;
    type Outcome = F::Output;

    #[inline]
    fn next(&mut self) -> Option<F> {
        self.operations.next()
    }

    #[inline]
    fn done(&mut self, outcome: F::Output) {
        (self.each)(outcome);
    }

    #[inline]
    fn rest(&mut self, _: usize) -> bool {
        false
    }
}

/// Operations under way, each in a place of its own. Their tasks follow those of the work beside them.
struct Places<F> {
    places: Vec<Pin<Box<F>>>,
    busy: Vec<bool>,
    /// Places without an operation.
    free: Vec<usize>,
    depth: usize,
}

impl<F: Future> Places<F> {
    fn new(depth: usize) -> Self {
        Self { places: Vec::new(), busy: Vec::new(), free: Vec::new(), depth: depth.max(1) }
    }

    fn under_way(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn has_room(&self) -> bool {
        self.under_way() < self.depth
    }

    /// Gives an operation a place. There must be room.
    fn add(&mut self, operation: F) -> Task {
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place].set(operation);
                self.busy[place] = true;
                place
            }
            None => {
                self.places.push(Box::pin(operation));
                self.busy.push(true);
                self.places.len() - 1
            }
        };
        BESIDE_MAX + place
    }

    /// Polls an operation, and then the operations that follow it in its place: a place keeps its memory, so an
    /// operation costs no allocation of its own.
    #[inline]
    fn go_on<W: Work<Outcome = F::Output>>(
        &mut self,
        task: Task,
        work: &mut W,
        carry_out: &impl Fn(W::Job) -> F,
        context: &mut Context<'_>,
    ) {
        let place = task - BESIDE_MAX;
        // An earlier run may have left tasks that waited for any request to end.
        if !self.busy.get(place).is_some_and(|busy| *busy) {
            return;
        }
        while let Poll::Ready(outcome) = self.places[place].as_mut().poll(context) {
            work.done(outcome);
            let Some(job) = work.next() else {
                self.busy[place] = false;
                self.free.push(place);
                return;
            };
            self.places[place].set(carry_out(job));
        }
    }
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Carries operations out, up to `depth` of them at once, and hands each result to `each`. Stops early if the
    /// pipeline was halted.
    pub fn run<F: Future>(
        &self,
        depth: usize,
        operations: impl IntoIterator<Item = F>,
        each: impl FnMut(F::Output),
    ) {
        let mut listed = Listed { operations: operations.into_iter().fuse(), each };
        self.serve(depth, &mut listed, |operation| operation);
    }

    /// Carries jobs out, up to `depth` of them at once, each by the operation that `carry_out` makes of it. Returns
    /// when no job is under way and no more jobs will arrive, or if the pipeline was halted.
    pub fn serve<W: Work, F: Future<Output = W::Outcome>>(
        &self,
        depth: usize,
        work: &mut W,
        carry_out: impl Fn(W::Job) -> F,
    ) {
        let mut context = Context::from_waker(Waker::noop());
        let mut places = Places::new(depth);
        let mut comes_more = true;
        self.begin_jobs(&mut places, work, &carry_out);
        loop {
            while let Some(task) = self.next_ready() {
                places.go_on(task, work, &carry_out, &mut context);
            }
            self.core.borrow_mut().flush();
            if comes_more {
                comes_more = work.rest(places.under_way());
                if self.begin_jobs(&mut places, work, &carry_out) {
                    continue;
                }
            }
            if places.under_way() > 0 {
                if !self.core.borrow_mut().wait() {
                    return;
                }
            } else if !comes_more {
                return;
            }
        }
    }

    /// Gives new jobs places. Returns whether there were any.
    fn begin_jobs<W: Work, F: Future>(
        &self,
        places: &mut Places<F>,
        work: &mut W,
        carry_out: &impl Fn(W::Job) -> F,
    ) -> bool {
        let mut any = false;
        while places.has_room()
            && let Some(job) = work.next()
        {
            let task = places.add(carry_out(job));
            self.core.borrow_mut().ready.push(task);
            any = true;
        }
        if any {
            // The work may have waited for a long time.
            self.core.borrow_mut().begin_round();
        }
        any
    }
}
