//! Calls for many permissions at once, whose requests share doorbells.

use super::Session;
use crate::{Clock, Permission};
use portcullis_client::{Acquire, Answer, ControlRequest, Error, NotBegun};
use portcullis_nic::VerbsEndpoint;

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Acquires permissions over existing objects with common doorbells: one for as many requests as the control queue
    /// has room for. Each request has its own answer.
    ///
    /// # Errors
    /// The node is gone.
    pub fn acquire_all(&mut self, asks: &[Acquire]) -> Result<Vec<Result<Permission, Error>>, Error> {
        self.revoke_dropped()?;
        let answers = self.call_all(asks.iter().map(|&ask| ask.into()))?;
        Ok(answers.into_iter().map(|answer| answer.map(|answer| self.granted(answer))).collect())
    }

    /// Ends permissions with common doorbells: one for as many requests as the control queue has room for. A permission
    /// that had ended already counts as ended.
    ///
    /// # Errors
    /// The node is gone.
    pub fn revoke_all(&mut self, permissions: impl IntoIterator<Item = Permission>) -> Result<(), Error> {
        let held = permissions.into_iter().filter_map(Permission::into_bare);
        self.call_all(held.map(|permission| ControlRequest::Revoke { permission, free: false }))?;
        Ok(())
    }

    /// Begins requests in batches, and waits for all answers.
    fn call_all(
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
}
