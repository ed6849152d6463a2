//! Many requests at once.

use super::WaitingClient;
use crate::Clock;
use portcullis_client::{Answer, CALLS_MAX, Call, ControlRequest, Error, NotBegun, WAITING_CALLS_MAX};
use portcullis_nic::VerbsEndpoint;
use std::collections::VecDeque;

impl<E: VerbsEndpoint, C: Clock> WaitingClient<E, C> {
    /// Begins requests in batches, and waits for all answers.
    pub(crate) fn call_all(
        &mut self,
        mut requests: impl Iterator<Item = ControlRequest>,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let (mut answers, mut next) = (Vec::new(), requests.next());
        loop {
            let begun = self.begin_batch(&mut next, &mut requests);
            if begun.is_empty() && next.is_some() {
                self.wait_for_room()?;
            }
            for call in begun {
                answers.push(match call {
                    Ok(call) => self.wait_call(call),
                    Err(refused) => Err(refused.error),
                });
            }
            if let Some(error) = self.client.over() {
                return Err(error);
            }
            if next.is_none() {
                return Ok(answers);
            }
        }
    }

    /// Begins a batch of requests: `next` and those after it, for as long as there is room. Requests that may wait at the
    /// node take only some of its places. When this returns, `next` is the first request that has not begun.
    fn begin_batch(
        &mut self,
        next: &mut Option<ControlRequest>,
        requests: &mut impl Iterator<Item = ControlRequest>,
    ) -> Vec<Result<Call, NotBegun<Box<ControlRequest>>>> {
        let (mut begun, mut waiting) = (Vec::new(), 0);
        let mut batch = self.client.batch();
        while let Some(request) = next.take() {
            waiting += usize::from(request.may_wait());
            if waiting > WAITING_CALLS_MAX {
                *next = Some(request);
                break;
            }
            match batch.call(self.clock.now(), request) {
                Err(NotBegun { ask, error: Error::QueueFull { .. } }) => {
                    *next = Some(*ask);
                    break;
                }
                call => {
                    begun.push(call);
                    *next = requests.next();
                }
            }
        }
        batch.post();
        begun
    }

    /// Waits for room for a call. Calls that the caller began before fill the queue, and there is room when one ends.
    ///
    /// # Errors
    /// As [`WaitingClient::wait_until`], or [`Error::QueueFull`]: the caller has to take results.
    fn wait_for_room(&mut self) -> Result<(), Error> {
        self.check_for_room()?;
        self.wait_until(|client| (client.room_for_calls() > 0).then_some(()))
    }

    /// Checks that there is room for a call, or will be when others end.
    ///
    /// # Errors
    /// [`Error::QueueFull`]: the caller has to take results.
    pub(super) fn check_for_room(&self) -> Result<(), Error> {
        let full = Error::QueueFull { limit: CALLS_MAX.into() };
        if self.client.must_take_calls() { Err(full) } else { Ok(()) }
    }

    /// Begins requests to workers for as long as there is room, and hands each answer to `take`. When this returns, no
    /// request is under way. After the first error it begins no other request, and returns the next one with the error.
    pub(crate) fn call_all_workers(
        &mut self,
        requests: &mut impl Iterator<Item = ControlRequest>,
        mut take: impl FnMut(Answer),
    ) -> Result<(), (Option<Box<ControlRequest>>, Error)> {
        let (mut under_way, mut done) = (VecDeque::new(), Ok(()));
        let mut next = requests.next().map(Box::new);
        self.waiter.begin();
        loop {
            // A worker answers in the order of the requests.
            while let Some(answer) = under_way.front().and_then(|&call| self.client.take_call(call)) {
                under_way.pop_front();
                done = done.and(answer.map(&mut take));
            }
            while done.is_ok()
                && let Some(request) = next.take()
            {
                match self.client.call(self.clock.now(), *request) {
                    Ok(call) => {
                        under_way.push_back(call);
                        next = requests.next().map(Box::new);
                    }
                    Err(NotBegun { ask, error }) => {
                        next = Some(ask);
                        if !matches!(error, Error::QueueFull { .. }) {
                            done = Err(error);
                        }
                        break;
                    }
                }
            }
            if under_way.is_empty() && (next.is_none() || done.is_err()) {
                return done.map_err(|error| (next, error));
            }
            if let Err(error) = self.wait_a_round("a wait for the session") {
                return Err((next, done.err().unwrap_or(error)));
            }
        }
    }
}
