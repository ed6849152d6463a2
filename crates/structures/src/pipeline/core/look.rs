//! The work of a pipeline between two waits of an event loop outside the pipeline.

use super::{Core, ROOM_WITHIN, take_answers, take_ended};
use portcullis::{Clock, Pollable, VerbsEndpoint};
use std::time::Duration;

impl<E: VerbsEndpoint, C: Clock> Core<E, C> {
    /// Takes in the requests that have ended and the timers that are due, without waiting, and begins a new round.
    pub fn look(&mut self) {
        self.flush();
        self.session.poll();
        let Self { session, entries, places, calls, to_take, ready, timers, watchers, .. } = self;
        let now = session.now();
        let client = session.client();
        let ended =
            take_ended(client, to_take, places, entries, ready) + take_answers(client, calls, entries, ready);
        if client.over().is_some() {
            timers.wake_all(ready);
        } else {
            timers.wake(now, ready);
        }
        if ended > 0 || !ready.tasks.is_empty() || client.over().is_some() {
            watchers.drain(..).for_each(|task| ready.push(task));
        }
        self.begin_round();
    }

    /// Posts the requests, and prepares the session's descriptor. Returns the time for which nothing is due.
    pub fn arm(&mut self) -> Duration
    where
        E: Pollable,
    {
        self.flush();
        if !self.ready.tasks.is_empty() {
            return Duration::ZERO;
        }
        let now = self.session.now();
        let again = (!self.outbox.is_empty()).then(|| now.after(ROOM_WITHIN));
        let limits = self.session.within().map(|_| self.limits_at);
        let due = self.timers.next().into_iter().chain(again).chain(limits).min();
        let due =
            due.map_or(Duration::MAX, |at| if at > now { at.since(now).into() } else { Duration::ZERO });
        // This call is the last: any other call on the session undoes it.
        self.session.arm().min(due)
    }
}
