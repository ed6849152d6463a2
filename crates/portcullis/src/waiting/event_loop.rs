//! A session in a program with its own event loop: the program waits on the session's descriptor.

use super::WaitingClient;
use super::waiter::look_for_node;
use crate::Clock;
use portcullis_nic::{Pollable, VerbsEndpoint};
use std::os::fd::BorrowedFd;
use std::time::Duration;

impl<E: VerbsEndpoint + Pollable, C: Clock> WaitingClient<E, C> {
    /// Prepares the session's descriptor: from now on it becomes readable when a completion arrives or the node ends.
    /// Returns how long the event loop may wait for the descriptor before it calls [`poll`](Self::poll).
    /// [`Duration::ZERO`]: a completion has already arrived, or the node is gone. [`Duration::MAX`]: no work falls due
    /// by time alone.
    ///
    /// An event loop takes the results, calls `arm`, waits, and polls. Any call on the session between `arm` and the
    /// wait undoes `arm`, so `arm` must come last. Only the session may read from the descriptor.
    ///
    /// ```no_run
    /// # fn wait_readable(_: std::os::fd::BorrowedFd<'_>, _: std::time::Duration) {}
    /// # fn take(_: &mut portcullis::Session) {}
    /// # fn turn(session: &mut portcullis::Session) {
    /// while session.poll() > 0 {
    ///     take(session);
    /// }
    /// let at_most = session.arm();
    /// wait_readable(session.descriptor(), at_most);
    /// # }
    /// ```
    pub fn arm(&mut self) -> Duration {
        if self.client.over().is_some() {
            return Duration::ZERO;
        }
        if !self.client.endpoint().arm() {
            // The check must not follow a successful `arm`: it would consume the event that makes the descriptor
            // readable.
            look_for_node(&mut self.client);
            return Duration::ZERO;
        }
        let now = self.clock.now();
        self.client.next_wake().map_or(Duration::MAX, |wake| wake.since(now).into())
    }

    /// Returns the descriptor that [`arm`](Self::arm) prepares. It stays the same for the life of the session.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.client.descriptor()
    }
}
