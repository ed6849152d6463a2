//! Operations that an event loop of the program carries on, a turn at a time. No call here waits.

use super::beside::BESIDE_MAX;
use super::{Pipeline, Task};
use portcullis::{Clock, Pollable, VerbsEndpoint};
use std::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The task of the operation that a call waits for. The tasks of [`Turns`] follow it.
pub(super) const WAITED_FOR: Task = BESIDE_MAX;

/// Operations of one pipeline that were begun and that no call waits for: [`Pipeline::turn`] carries them on.
/// Operations that are dropped with this value are given up at the steps that they have reached, as if their client had
/// died there.
pub struct Turns<T> {
    operations: Vec<Option<Pin<Box<dyn Future<Output = T>>>>>,
    /// Places without an operation.
    free: Vec<usize>,
}

impl<T> fmt::Debug for Turns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { operations: Vec::new(), free: Vec::new() }
    }
}

impl<T> Turns<T> {
    /// Number of operations that have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    /// Gives an operation a place. Returns its task.
    fn add(&mut self, operation: Pin<Box<dyn Future<Output = T>>>) -> Task {
        let place = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        self.operations[place] = Some(operation);
        WAITED_FOR + 1 + place
    }

    /// Polls the operation of a task. Returns its result if it has ended.
    fn go_on(&mut self, task: Task) -> Option<T> {
        let place = task.checked_sub(WAITED_FOR + 1)?;
        let operation = self.operations.get_mut(place)?;
        match operation.as_mut()?.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => {
                *operation = None;
                self.free.push(place);
                Some(result)
            }
            Poll::Pending => None,
        }
    }
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Begins an operation on this pipeline, which the next [`Pipeline::turn`] carries on. [`Pipeline::run`] and
    /// [`Pipeline::serve`] are not for a pipeline with such operations.
    pub fn begin<T>(&self, turns: &mut Turns<T>, operation: Pin<Box<dyn Future<Output = T>>>) {
        let task = turns.add(operation);
        self.core.borrow_mut().ready.push(task);
    }

    /// Carries operations on as far as they can go without waiting, and hands the results of those that have ended to
    /// `each`. Posts their requests with one doorbell.
    pub fn turn<T>(&self, turns: &mut Turns<T>, mut each: impl FnMut(T)) {
        self.core.borrow_mut().look();
        while let Some(task) = self.next_ready() {
            turns.go_on(task).into_iter().for_each(&mut each);
        }
        self.core.borrow_mut().flush();
    }

    /// Carries one operation out, and meanwhile carries on those of `turns`: the operation may wait for one of them.
    /// Their results go to `each`.
    ///
    /// # Panics
    /// As [`Pipeline::block_on`].
    pub fn block_on_beside<T, U>(
        &self,
        operation: Pin<&mut impl Future<Output = T>>,
        turns: &mut Turns<U>,
        mut each: impl FnMut(U),
    ) -> T {
        let others = |task| {
            turns.go_on(task).into_iter().for_each(&mut each);
            task == WAITED_FOR
        };
        self.drive_among(operation, others).expect("nobody has halted the pipeline")
    }
}

impl<E: VerbsEndpoint + Pollable, C: Clock> Pipeline<E, C> {
    /// Prepares the descriptor, as [`portcullis::WaitingClient::arm`] does. Returns how long the event loop may wait for
    /// it before the next [`Pipeline::turn`].
    pub fn arm(&self) -> Duration {
        self.core.borrow_mut().arm()
    }

    /// Returns the descriptor that becomes readable when something arrives for an operation. It stays the same for the
    /// life of the pipeline.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.core.borrow().session.descriptor().as_raw_fd()
    }
}
