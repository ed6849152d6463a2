//! Calls for many permissions at once, whose requests share doorbells.

use super::Session;
use crate::{Clock, Permission};
use portcullis_client::{Acquire, ControlRequest, Error};
use portcullis_nic::VerbsEndpoint;

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Acquires permissions over existing objects with common doorbells: one for as many requests as the control queue
    /// has room for. Each request has its own answer.
    ///
    /// No more than [`WAITING_CALLS_MAX`](crate::WAITING_CALLS_MAX) of the requests wait at the node at once.
    ///
    /// # Errors
    /// The node is gone, or the caller has to take the results of calls that it began before ([`Error::QueueFull`]).
    pub fn acquire_all(&mut self, asks: &[Acquire]) -> Result<Vec<Result<Permission, Error>>, Error> {
        self.revoke_dropped()?;
        let answers = self.call_all(asks.iter().map(|&ask| ask.into()))?;
        Ok(answers.into_iter().map(|answer| answer.map(|answer| self.granted(answer))).collect())
    }

    /// Ends permissions with common doorbells: one for as many requests as the control queue has room for. A permission
    /// that had ended already counts as ended.
    ///
    /// # Errors
    /// As [`Session::acquire_all`].
    pub fn revoke_all(&mut self, permissions: impl IntoIterator<Item = Permission>) -> Result<(), Error> {
        let held = permissions.into_iter().filter_map(Permission::into_bare);
        self.call_all(held.map(|permission| ControlRequest::Revoke { permission, free: false }))?;
        Ok(())
    }
}
