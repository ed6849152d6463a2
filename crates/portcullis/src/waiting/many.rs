//! Many requests at once.

use super::WaitingClient;
use crate::Clock;
use portcullis_client::{Answer, ControlRequest, Error, NotBegun};
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
            let mut begun = Vec::new();
            let mut batch = self.client.batch();
            while let Some(request) = next.take() {
                match batch.call(self.clock.now(), request) {
                    Err(NotBegun { ask, error: Error::QueueFull { .. } }) => {
                        next = Some(*ask);
                        break;
                    }
                    call => {
                        begun.push(call);
                        next = requests.next();
                    }
                }
            }
            batch.post();
            if begun.is_empty() && next.is_some() {
                // Calls that the caller began before fill the queue. There is room when one of them ends.
                self.wait_until(|client| (client.room_for_calls() > 0).then_some(()))?;
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
