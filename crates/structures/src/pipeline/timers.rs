//! Timers: the tasks of a pipeline that sleep, and the times until which they sleep. A timer is dropped with its sleep.

use super::core::Ready;
use super::{Pipeline, Task};
use portcullis::{Clock, Error, Moment, VerbsEndpoint};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The sleeps under way, the one that ends first in front.
#[derive(Default)]
pub(super) struct Timers {
    tasks: BTreeMap<(Moment, u64), Task>,
    begun: u64,
}

impl Timers {
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns the time at which the next sleep ends.
    pub fn next(&self) -> Option<Moment> {
        self.tasks.keys().next().map(|(until, _)| *until)
    }

    /// Wakes the tasks whose sleep has ended.
    pub fn wake(&mut self, now: Moment, ready: &mut Ready) {
        while let Some(first) = self.tasks.first_entry()
            && first.key().0 <= now
        {
            ready.push(first.remove());
        }
    }

    /// Wakes all tasks.
    pub fn wake_all(&mut self, ready: &mut Ready) {
        std::mem::take(&mut self.tasks).into_values().for_each(|task| ready.push(task));
    }
}

/// Waits until a moment, or until the session is over.
pub(super) struct Sleep<'p, E: VerbsEndpoint, C: Clock> {
    pipeline: &'p Pipeline<E, C>,
    until: Moment,
    number: Option<u64>,
}

impl<'p, E: VerbsEndpoint, C: Clock> Sleep<'p, E, C> {
    pub fn new(pipeline: &'p Pipeline<E, C>, until: Moment) -> Self {
        Self { pipeline, until, number: None }
    }
}

impl<E: VerbsEndpoint, C: Clock> Future for Sleep<'_, E, C> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let core = &mut *self.pipeline.core.borrow_mut();
        if let Some(error) = core.session.client().over() {
            return Poll::Ready(Err(error));
        }
        if core.now >= self.until {
            return Poll::Ready(Ok(()));
        }
        let number = *self.number.get_or_insert_with(|| {
            core.timers.begun += 1;
            core.timers.begun
        });
        core.timers.tasks.insert((self.until, number), core.current);
        Poll::Pending
    }
}

impl<E: VerbsEndpoint, C: Clock> Drop for Sleep<'_, E, C> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.pipeline.core.borrow_mut().timers.tasks.remove(&(self.until, number));
        }
    }
}
