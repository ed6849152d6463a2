//! Several operations with one doorbell, of which only the last tells of its end; and several requests to the node with
//! another.

use crate::calls::Awaited;
use crate::data_path::{MaybeBuffer, Ready, Shape, Target};
use crate::{Acquire, Allocate, Buffer, Call, Client, Error, NotRevoked, Operation, Permission, Rejected};
use portcullis_nic::{Endpoint, WorkRequest};
use portcullis_protocol::{Lifetime, Moment, RequestBody};
use std::fmt;

/// Operations that are posted together, in order, once [`Batch::post`] is called. Each has its own outcome.
///
/// One doorbell and, while the queue has room, one completion for all of them; one more doorbell for the requests to
/// the node among them, which the node takes in at one turn where it can: then windows of permissions that end go over
/// to those that start (Patronus §5.4). Dropped without being posted, the batch has begun nothing: its buffers are given
/// back, its operations and calls never get an outcome, and permissions that it was to revoke end by themselves.
pub struct Batch<'a, E: Endpoint> {
    client: &'a mut Client<E>,
}

impl<E: Endpoint> Client<E> {
    /// An empty batch.
    pub fn batch(&mut self) -> Batch<'_, E> {
        // A batch that was leaked left its operations here.
        self.cancel_staged();
        self.control.hold();
        Batch { client: self }
    }

    pub(crate) fn cancel_staged(&mut self) {
        for request in self.staged.drain(..) {
            self.operations.cancel(request.id);
        }
        for job in self.staged_jobs.drain(..) {
            self.operations.cancel(job.operation);
        }
        for call in self.staged_calls.drain(..) {
            self.calls.cancel(call);
        }
        self.control.drop_held();
    }
}

impl<E: Endpoint> Batch<'_, E> {
    /// Adds a [`Client::read`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn read(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.add(now, Target::Permission(permission, offset), Some(buffer), Shape::Read)
    }

    /// Adds a [`Client::write`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn write(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.add(now, Target::Permission(permission, offset), Some(buffer), Shape::Write)
    }

    /// Adds a [`Client::compare_and_swap`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn compare_and_swap(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let shape = Shape::CompareAndSwap { compare, swap };
        self.add(now, Target::Permission(permission, offset), None, shape)
    }

    /// Adds a [`Client::fetch_and_add`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn fetch_and_add(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        add: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.add(now, Target::Permission(permission, offset), None, Shape::FetchAndAdd { add })
    }

    /// Adds a [`Client::allocate`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn allocate(&mut self, now: Moment, ask: Allocate) -> Result<Call, Error> {
        self.stage_call(ask.awaited(now), ask.body())
    }

    /// Adds a [`Client::acquire`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn acquire(&mut self, now: Moment, ask: Acquire) -> Result<Call, Error> {
        self.stage_call(ask.awaited(now), ask.body())
    }

    /// Adds a [`Client::revoke`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn revoke(&mut self, permission: Permission, free: bool) -> Result<Call, NotRevoked> {
        let body = RequestBody::Revoke { permission: permission.id(), free };
        self.stage_call(Awaited::Done, body).map_err(|error| NotRevoked { permission, error })
    }

    fn stage_call(&mut self, awaited: Awaited, body: RequestBody) -> Result<Call, Error> {
        let call = self.client.ask(awaited, body)?;
        self.client.staged_calls.push(call.id);
        Ok(call)
    }

    /// Adds a [`Client::extend`].
    ///
    /// # Errors
    /// As there; the rest of the batch stays as it is.
    pub fn extend(&mut self, now: Moment, permission: &Permission, time: Lifetime) -> Result<Call, Error> {
        let (client, deadline) = (&mut *self.client, now.after(time));
        if client.staged.len() >= client.queue_pairs.room() {
            return Err(client.queue_pairs.full());
        }
        let (call, request) = match client.stage_extension(now, permission.lease(), deadline)? {
            Some(staged) => staged,
            None => {
                let (awaited, body) = client.extension_message(now, permission.lease(), deadline)?;
                return self.stage_call(awaited, body);
            }
        };
        client.staged_calls.push(call.id);
        client.staged.push(WorkRequest { signalled: false, ..request });
        Ok(call)
    }

    /// How many operations and calls it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        let client = &*self.client;
        let extensions = client.staged.iter().filter(|it| client.operations.is_extension(it.id)).count();
        client.staged.len() - extensions + client.staged_calls.len() + client.staged_jobs.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins everything in it. Returns how many operations and calls that were. Cannot fail: room was found when
    /// each was added.
    pub fn post(self) -> usize {
        let count = self.len();
        let client = &mut *self.client;
        if let Some(last) = client.staged.last_mut() {
            last.signalled = true;
            client.queue_pairs.submit_all(&mut client.endpoint, &mut client.staged);
            client.staged.clear();
        }
        client.staged_calls.clear();
        client.control.release(&mut client.endpoint);
        for job in client.staged_jobs.drain(..) {
            client.messages.push(job);
        }
        client.send_pieces();
        count
    }

    fn add(
        &mut self,
        now: Moment,
        target: Target<'_>,
        buffer: MaybeBuffer<E>,
        shape: Shape,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let client = &mut *self.client;
        let (operation, ready) = client.prepare(now, target, buffer, shape)?;
        let error = match ready {
            Ready::Request(_) if client.staged.len() >= client.queue_pairs.room() => {
                client.queue_pairs.full()
            }
            Ready::Job(_) if client.staged_jobs.len() >= client.messages.room() => {
                client.queue_pairs.backlog_full()
            }
            Ready::Request(mut request) => {
                request.signalled = false;
                client.staged.push(request);
                return Ok(operation);
            }
            Ready::Job(job) => {
                client.staged_jobs.push(job);
                return Ok(operation);
            }
        };
        Err(Rejected { buffer: client.operations.cancel(operation.id), error })
    }
}

impl<E: Endpoint> Drop for Batch<'_, E> {
    fn drop(&mut self) {
        self.client.cancel_staged();
    }
}

impl<E: Endpoint> fmt::Debug for Batch<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}
