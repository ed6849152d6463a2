//! Calls for many permissions at once, whose requests share doorbells.

use super::Session;
use crate::{Clock, Permission};
use portcullis_client::{Acquire, Answer, Batch, Call, Error};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::Moment;

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Acquires permissions over existing objects with common doorbells: one for as many requests as the control queue
    /// has room for. Each request has its own answer.
    ///
    /// # Errors
    /// The node is gone.
    pub fn acquire_all(&mut self, asks: &[Acquire]) -> Result<Vec<Result<Permission, Error>>, Error> {
        self.revoke_dropped()?;
        let mut left = asks.iter().copied();
        let mut next = left.next();
        let answers = self.call_all(|batch, now| {
            let ask = next?;
            let begun = batch.acquire(now, ask);
            if !matches!(begun, Err(Error::QueueFull { .. })) {
                next = left.next();
            }
            Some(begun)
        })?;
        Ok(answers.into_iter().map(|answer| self.permission(answer?)).collect())
    }

    /// Ends permissions with common doorbells: one for as many requests as the control queue has room for. A permission
    /// that had ended already counts as ended.
    ///
    /// # Errors
    /// The node is gone.
    pub fn revoke_all(&mut self, permissions: impl IntoIterator<Item = Permission>) -> Result<(), Error> {
        let mut left = permissions.into_iter().filter_map(Permission::into_bare);
        let mut next = left.next();
        self.call_all(|batch, _| match batch.revoke(next.take()?, false) {
            Ok(call) => {
                next = left.next();
                Some(Ok(call))
            }
            Err(refused) => {
                next = Some(*refused.permission);
                Some(Err(refused.error))
            }
        })?;
        Ok(())
    }

    /// Begins calls in batches until `next` returns `None`, and waits for all of them. If a call did not fit into the
    /// queue, `next` must begin it again.
    fn call_all(
        &mut self,
        mut next: impl FnMut(&mut Batch<'_, E>, Moment) -> Option<Result<Call, Error>>,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let mut answers = Vec::new();
        loop {
            let (clock, mut begun) = (self.clock.clone(), Vec::new());
            let mut batch = self.client.batch();
            let done = loop {
                match next(&mut batch, clock.now()) {
                    None => break true,
                    Some(Err(Error::QueueFull { .. })) => break false,
                    Some(call) => begun.push(call),
                }
            };
            batch.post();
            if begun.is_empty() && !done {
                // Calls that the caller began before fill the queue. There is room when one of them ends.
                self.wait_until(|client| (client.room_for_calls() > 0).then_some(()))?;
            }
            for call in begun {
                answers.push(match call {
                    Ok(call) => self.wait_call(call),
                    Err(error) => Err(error),
                });
            }
            if let Some(error) = self.client.over() {
                return Err(error);
            }
            if done {
                return Ok(answers);
            }
        }
    }
}
