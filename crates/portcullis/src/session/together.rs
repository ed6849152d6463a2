//! Many permissions at once: requests that share a doorbell.

use super::Session;
use crate::{Clock, Permission};
use portcullis_client::{Acquire, Answer, Batch, Call, Error};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::Moment;

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Permissions over objects that exist, asked for together: with one doorbell as far as the control queue has room,
    /// and each with an answer of its own.
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

    /// Ends permissions, together: with one doorbell as far as the control queue has room. What has ended by itself
    /// counts as ended.
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
                next = Some(refused.permission);
                Some(Err(refused.error))
            }
        })?;
        Ok(())
    }

    /// Begins calls in batches until `next` has none, and waits for all of them. A call that a full queue keeps waiting is
    /// asked for again.
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
                // Others' calls fill the queue: as soon as one of them ends, there is room.
                self.wait_until(|client| client.has_room_for_calls().then_some(()))?;
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
