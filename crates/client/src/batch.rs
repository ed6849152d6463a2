//! Batches: several operations with one doorbell and one completion, and several requests to the node with another
//! doorbell.

use crate::carrier::Posting;
use crate::{Access, Ask, Begun, Call, Client, ControlRequest, NotBegun, Operation, Permission};
use portcullis_nic::{Endpoint, VerbsEndpoint};
use portcullis_protocol::Moment;
use std::fmt;
use std::mem::ManuallyDrop;

/// An access or a request that [`Batch::add`] returns.
pub type NotAdded<P, E> = NotBegun<Box<Ask<P, <E as Endpoint>::Memory>>>;

/// Operations that [`Batch::post`] posts together, in order. Each has its own outcome.
///
/// The operations take one doorbell and, while the queue has room, one completion. The requests to the node take one
/// more doorbell. The node handles the requests in one turn if it can, so that windows of ending permissions go to
/// starting ones (Patronus §5.4). A batch that is dropped without being posted has begun nothing: its buffers are given
/// back, its operations and calls never get an outcome, and permissions that it was to revoke end at their deadlines. A
/// caller that cannot keep the borrow sets the batch aside ([`Batch::set_aside`]) and resumes it
/// ([`Client::resume_batch`]).
pub struct Batch<'a, E: VerbsEndpoint> {
    client: &'a mut Client<E>,
    /// Operations and calls in the batch.
    count: usize,
}

impl<E: VerbsEndpoint> Client<E> {
    /// Begins an empty batch.
    pub fn batch(&mut self) -> Batch<'_, E> {
        // A batch that was leaked left its operations here.
        self.requests.cancel_staged(&mut self.data);
        self.data.link.control.hold();
        Batch { client: self, count: 0 }
    }

    /// Resumes the batch that was last set aside, with all that it holds. Begins an empty batch if none was set aside.
    ///
    /// A batch that waits to be resumed is dropped if another batch or a single call begins instead. While it waits,
    /// the client sends no message to the node, so the caller must post it before polling the client.
    #[inline]
    pub fn resume_batch(&mut self) -> Batch<'_, E> {
        match self.requests.resume() {
            Some(count) => Batch { client: self, count },
            None => self.batch(),
        }
    }
}

impl<E: VerbsEndpoint> Batch<'_, E> {
    /// Adds an access.
    ///
    /// # Errors
    /// As [`Client::access`]. The batch stays as it is.
    #[inline(always)]
    pub fn access<P: AsRef<Permission>>(
        &mut self,
        now: Moment,
        access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        let operation = self.client.begin_access(Posting::Staged, now, access)?;
        self.count += 1;
        Ok(operation)
    }

    /// Adds an access that is carried out only if `before` is, the access that was added directly before. Both take
    /// one round trip. If the node refuses that one, or its permission has expired, this one ends with the same error
    /// and has not been executed. If the end of that one is uncertain, so is the end of this one.
    ///
    /// Without this, an access behind one that the node refuses is carried out all the same: it is posted again on
    /// another queue pair (Patronus §5.5).
    ///
    /// # Errors
    /// As [`Client::access`], and [`Error::LocalFault`](crate::Error::LocalFault) if the credential of the permission
    /// is not one for data queue pairs, or if `before` was not added directly before. The batch stays as it is.
    #[inline]
    pub fn access_behind<P: AsRef<Permission>>(
        &mut self,
        now: Moment,
        before: Operation,
        access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        let operation = self.client.begin_access(Posting::Linked(before.id), now, access)?;
        self.count += 1;
        Ok(operation)
    }

    /// Adds a request on the control path.
    ///
    /// # Errors
    /// As [`Client::call`]. The batch stays as it is.
    pub fn call(
        &mut self,
        now: Moment,
        request: impl Into<ControlRequest>,
    ) -> Result<Call, NotBegun<Box<ControlRequest>>> {
        let call = self.client.begin_call(Posting::Staged, now, request.into())?;
        self.count += 1;
        Ok(call)
    }

    /// Adds an access or a request, whichever the value is.
    ///
    /// # Errors
    /// As [`Batch::access`] and [`Batch::call`].
    pub fn add<P: AsRef<Permission>>(
        &mut self,
        now: Moment,
        ask: Ask<P, E::Memory>,
    ) -> Result<Begun, NotAdded<P, E>> {
        match ask {
            Ask::Access(access) => self
                .access(now, access)
                .map(Begun::Operation)
                .map_err(|refused| refused.map(|access| Box::new(Ask::Access(access)))),
            Ask::Control(request) => self
                .call(now, request)
                .map(Begun::Call)
                .map_err(|refused| refused.map(|request| Box::new(Ask::Control(*request)))),
        }
    }

    /// Makes later operations wait until all operations before them have ended. See [`Client::fence`].
    pub fn fence(&mut self) {
        self.client.fence();
    }

    /// Returns the number of operations and calls in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Begins all operations and calls in the batch, and returns their number. It cannot fail: room was found when each
    /// was added.
    pub fn post(self) -> usize {
        let Client { requests, data, .. } = &mut *self.client;
        requests.send_staged(data);
        self.count
    }

    /// Releases the borrow of the client. The batch stays as it is until [`Client::resume_batch`].
    #[inline]
    pub fn set_aside(self) {
        let mut batch = ManuallyDrop::new(self);
        let count = batch.count;
        batch.client.requests.set_aside(count);
    }
}

impl<E: VerbsEndpoint> Drop for Batch<'_, E> {
    fn drop(&mut self) {
        let Client { requests, data, .. } = &mut *self.client;
        requests.cancel_staged(data);
    }
}

impl<E: VerbsEndpoint> fmt::Debug for Batch<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}
