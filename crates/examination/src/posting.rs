//! Posting to the bench's queue pairs, and waiting for the results.

use crate::bench::{Bench, End, Pair};
use crate::check::{Check, Stop};
use crate::ensure;
use portcullis_nic::{
    Completion, CompletionKind, CqId, Event, LocalSpan, Nic, Operation, QpState, ReceiveRequest,
    RefusedAccess, Rkey, Status, WorkRequest,
};
use std::time::Instant;

impl<N: Nic> Bench<N> {
    /// Makes a work request with a number of its own.
    pub fn request(&mut self, operation: Operation, signalled: bool) -> WorkRequest {
        self.requests_numbered += 1;
        WorkRequest { id: self.requests_numbered, signalled, operation }
    }

    /// Posts requests at an end. The queue must have room for all of them.
    pub fn post(&mut self, end: End, requests: &[WorkRequest]) -> Check {
        self.in_time()?;
        let accepted = self.nic.post_send(end.qp, requests)?;
        ensure!(
            accepted == requests.len(),
            "a queue with room took {accepted} of {} requests",
            requests.len()
        );
        Ok(())
    }

    /// Posts a receive and returns its number.
    pub fn receive(&mut self, end: End, local: LocalSpan) -> Result<u64, Stop> {
        self.requests_numbered += 1;
        let id = self.requests_numbered;
        let accepted = self.nic.post_receive(end.qp, &[ReceiveRequest { id, local }])?;
        ensure!(accepted == 1, "a receive queue with room took no receive");
        Ok(id)
    }

    /// Checks a condition repeatedly until it holds.
    pub fn until<T>(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut Self) -> Result<Option<T>, Stop>,
    ) -> Result<T, Stop> {
        let patience = self.limits.patience;
        let until = Instant::now() + patience;
        loop {
            if let Some(found) = holds(self)? {
                return Ok(found);
            }
            if Instant::now() >= until {
                self.limits.reached = true;
                return Err(Stop::Broken(format!("in {} ms there was no {what}", patience.as_millis())));
            }
            std::thread::yield_now();
        }
    }

    /// Ends a check that has reached its deadline, if there is one.
    pub fn in_time(&mut self) -> Check {
        if self.limits.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.limits.reached = true;
            return Err(Stop::Broken("this took longer than it may".to_owned()));
        }
        Ok(())
    }

    /// Waits for exactly this many completions.
    pub fn completions(&mut self, cq: CqId, count: usize) -> Result<Vec<Completion>, Stop> {
        let mut seen = Vec::new();
        while seen.len() < count {
            let what = format!("completion {} of {count}", seen.len() + 1);
            let (most, mut more) = (count - seen.len(), Vec::new());
            let said = self.until(&what, |bench| {
                let said = bench.nic.poll(cq, most, &mut more)?;
                Ok((said > 0).then_some(said))
            })?;
            ensure!(
                said == more.len() && said <= most,
                "a poll for {most} gave {}, returned {said}",
                more.len()
            );
            seen.append(&mut more);
        }
        self.no_completion(cq)?;
        Ok(seen)
    }

    /// Checks that a completion queue is empty now.
    pub fn no_completion(&mut self, cq: CqId) -> Check {
        let mut surplus = Vec::new();
        self.nic.poll(cq, 16, &mut surplus)?;
        ensure!(surplus.is_empty(), "there is a completion too many: {:?}", surplus[0]);
        Ok(())
    }

    /// Posts one request, waits for its one completion and returns its status.
    pub fn execute(&mut self, end: End, operation: Operation) -> Result<Status, Stop> {
        let request = self.request(operation, true);
        self.post(end, &[request])?;
        let completion = self.completions(end.send_cq, 1)?[0];
        let right = completion.request == request.id && completion.queue_pair == end.qp;
        ensure!(right, "{request:?} on {:?} was completed as {completion:?}", end.qp);
        ensure!(
            completion.kind == CompletionKind::Send,
            "a send queue's request completed as {completion:?}"
        );
        Ok(completion.status)
    }

    /// Posts one request and waits until it has succeeded.
    pub fn succeed(&mut self, end: End, operation: Operation) -> Check {
        let status = self.execute(end, operation)?;
        ensure!(status == Status::Success, "{operation:?} should work and gave {status}");
        Ok(())
    }

    /// Checks that a request ends with one of `statuses`, and that no byte changed anywhere.
    pub fn fails(&mut self, end: End, operation: Operation, statuses: &[Status]) -> Check {
        let before = self.bytes();
        let status = self.execute(end, operation)?;
        ensure!(
            statuses.contains(&status),
            "{operation:?} should give one of {statuses:?} and gave {status:?}"
        );
        self.expect_bytes(&before)
    }

    /// Checks that the peer's NIC refuses an access, and that no byte changed anywhere.
    pub fn refused(&mut self, pair: Pair, operation: Operation) -> Check {
        self.fails(pair.client, operation, &[Status::RemoteAccessError])
    }

    /// Waits for the next completion of a receive queue, and returns its length and the key that it invalidated.
    pub fn received(&mut self, end: End, id: u64) -> Result<(u32, Option<Rkey>), Stop> {
        let completion = self.completions(end.receive_cq, 1)?[0];
        let right = completion.request == id
            && completion.queue_pair == end.qp
            && completion.status == Status::Success;
        ensure!(right, "receive {id} should succeed and there is {completion:?}");
        match completion.kind {
            CompletionKind::Receive { length, invalidated } => Ok((length, invalidated)),
            CompletionKind::Send => Err(Stop::Broken("a receive completed as a send".to_owned())),
        }
    }

    /// Checks the state of an end's queue pair.
    pub fn expect_state(&mut self, end: End, expected: QpState) -> Check {
        let what = format!("{:?} in {expected}", end.qp);
        self.until(&what, |bench| {
            // This poll makes progress without taking the check's completions.
            bench.nic.poll(end.send_cq, 0, &mut Vec::new())?;
            Ok((bench.nic.qp_state(end.qp)? == expected).then_some(()))
        })
    }

    /// Waits for the event that a peer's access on `end` was refused, and returns the NIC's description of the access.
    pub fn expect_access_error(&mut self, end: End) -> Result<Option<RefusedAccess>, Stop> {
        let what = format!("access error of {:?}", end.qp);
        match self.until(&what, |bench| Ok(bench.nic.poll_event()))? {
            Event::AccessError(qp, refused) if qp == end.qp => Ok(refused),
            other => Err(Stop::Broken(format!("there should be an {what} and there is {other:?}"))),
        }
    }
}
