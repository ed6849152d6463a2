//! A client with calls that wait.

mod event_loop;
mod many;
mod transfers;
mod waiter;

use crate::clock::{Clock, ProcessClock};
use portcullis_client::{
    Access, Answer, Buffer, Call, Client, ControlRequest, Effect, Error, NotBegun, Operation, Outcome,
    Permission,
};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{Lifetime, Moment};
use std::time::Instant;
use waiter::{Waiter, look_for_node};

/// The name of a wait for room, in the error of a time-out.
const WAIT_FOR_ROOM: &str = "a wait for room in a queue";

/// The client library with calls that wait for their answer: the part of a [`Session`](crate::Session) that makes
/// accesses and waits. A session dereferences to it.
pub struct WaitingClient<E: VerbsEndpoint, C: Clock> {
    client: Client<E>,
    clock: C,
    waiter: Waiter,
}

impl<E: VerbsEndpoint, C: Clock> std::fmt::Debug for WaitingClient<E, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingClient").field("client", &self.client).finish_non_exhaustive()
    }
}

impl<E: VerbsEndpoint> WaitingClient<E, ProcessClock> {
    /// Converts an instant to the session's clock, for callers that have read a clock already.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Moment {
        self.clock.at(instant)
    }
}

impl<E: VerbsEndpoint, C: Clock> WaitingClient<E, C> {
    pub(crate) fn new(client: Client<E>, clock: C) -> Self {
        let waiter = Waiter::new(clock.now());
        Self { client, clock, waiter }
    }

    /// Sets the clock, before anything was measured on it.
    pub(crate) fn set_clock(&mut self, clock: C) {
        self.clock = clock;
    }

    /// Returns for how long an operation or a call may wait for the node. `None`: there is no limit.
    #[must_use]
    pub fn within(&self) -> Option<Lifetime> {
        self.client.limit()
    }

    /// Returns the time on the session's clock, on which its leases are measured.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the session's clock.
    #[must_use]
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// Returns the client library underneath, for operations that do not wait and for batches. [`WaitingClient::wait`]
    /// and [`WaitingClient::wait_call`] wait for the outcomes of its operations and calls.
    pub fn client(&mut self) -> &mut Client<E> {
        &mut self.client
    }

    /// Returns the arena: the memory of all buffers, and of the session's own messages and words. A device's driver
    /// that is to copy from and to buffers registers all of it.
    #[must_use]
    pub fn arena(&self) -> &E::Memory {
        self.client.arena()
    }

    /// Takes a buffer from the arena, for operations that do not wait.
    ///
    /// # Errors
    /// [`Error::ArenaFull`].
    pub fn buffer(&self, length: u32) -> Result<Buffer<E::Memory>, Error> {
        self.client.buffer(length)
    }

    /// Begins an access, and waits while the queue is full.
    pub(crate) fn begin<P: AsRef<Permission>>(
        &mut self,
        mut access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        self.waiter.begin();
        loop {
            // Each attempt reads the clock again: an attempt that had to wait may come too late.
            match self.client.access(self.clock.now(), access) {
                Err(NotBegun { ask, error: Error::QueueFull { .. } }) => access = ask,
                begun => return begun,
            }
            if let Err(error) = self.wait_a_round(WAIT_FOR_ROOM) {
                return Err(NotBegun { ask: access, error });
            }
        }
    }

    /// Begins a request, waits while the queue is full, and waits for its answer.
    pub(crate) fn call(&mut self, mut request: ControlRequest) -> Result<Answer, Error> {
        self.waiter.begin();
        loop {
            match self.client.call(self.clock.now(), request) {
                Ok(call) => return self.wait_call(call),
                Err(NotBegun { ask, error: Error::QueueFull { .. } }) => request = *ask,
                Err(refused) => return Err(refused.error),
            }
            self.check_for_room()?;
            self.wait_a_round(WAIT_FOR_ROOM)?;
        }
    }

    /// Does one round of a wait that ends if no operation or call has ended for longer than the session's limit.
    ///
    /// # Errors
    /// The session is over, or [`Error::TimedOut`] with the name of the wait.
    #[inline]
    fn wait_a_round(&mut self, what: &'static str) -> Result<(), Error> {
        let Self { client, clock, waiter, .. } = self;
        if let Some(error) = client.over() {
            return Err(error);
        }
        if waiter.is_quiet_for_too_long()
            && let Some(within) = client.limit()
        {
            return Err(Error::TimedOut { what, effect: Effect::Nothing, within });
        }
        waiter.round(client, clock, Moment(u64::MAX));
        Ok(())
    }

    /// Waits for an operation's outcome.
    ///
    /// # Errors
    /// The node is gone. An error of the operation itself is in the outcome, also [`Error::TimedOut`].
    #[inline]
    pub fn wait(&mut self, operation: Operation) -> Result<Outcome<E::Memory>, Error> {
        // No limit is needed here: the client ends the operation within the session's limit.
        self.wait_until_by(Moment(u64::MAX), |client| client.take(operation))
    }

    /// Waits for a call's answer.
    ///
    /// # Errors
    /// The node refuses, has not answered within the session's limit ([`Error::TimedOut`]), or is gone.
    pub fn wait_call(&mut self, call: Call) -> Result<Answer, Error> {
        // No limit is needed here: the client ends the call within the session's limit plus the time that the request
        // may wait at the node.
        self.wait_until_by(Moment(u64::MAX), |client| client.take_call(call))?
    }

    /// Polls until `done` returns a value: spins, then yields, then sleeps. Notices when the node is gone.
    ///
    /// # Errors
    /// `done` has returned nothing, and the node is gone, or no operation or call of the session has ended within its
    /// limit ([`Error::TimedOut`]; [`SessionOptions::within`](crate::SessionOptions::within)).
    #[inline]
    pub fn wait_until<T>(&mut self, mut done: impl FnMut(&mut Client<E>) -> Option<T>) -> Result<T, Error> {
        self.waiter.begin();
        loop {
            if let Some(result) = done(&mut self.client) {
                return Ok(result);
            }
            self.wait_a_round("a wait for the session")?;
        }
    }

    /// Polls until `done` returns a value, however long that takes. `done` is also called at `by`, on the session's
    /// clock, if nothing has happened until then; after `by` the times of its calls depend on the session's events.
    /// Otherwise like [`WaitingClient::wait_until`].
    ///
    /// # Errors
    /// The session is over.
    pub fn wait_until_by<T>(
        &mut self,
        by: Moment,
        mut done: impl FnMut(&mut Client<E>) -> Option<T>,
    ) -> Result<T, Error> {
        self.waiter.begin();
        loop {
            if let Some(result) = done(&mut self.client) {
                return Ok(result);
            }
            if let Some(error) = self.client.over() {
                return Err(error);
            }
            self.waiter.round(&mut self.client, &self.clock, by);
        }
    }

    /// Checks whether the node is gone, and ends the session if it is. A long wait checks this itself; a caller that
    /// polls must call this from time to time.
    pub fn look_for_node(&mut self) {
        look_for_node(&mut self.client);
    }

    /// Handles new completions, without waiting. Returns how many operations and calls have ended.
    pub fn poll(&mut self) -> usize {
        self.waiter.poll(&mut self.client, &self.clock)
    }
}
