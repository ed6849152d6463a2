//! Batches: several operations with one doorbell and one completion, and several requests to the node with another
//! doorbell.

use crate::access::{Access, Action};
use crate::calls::Awaited;
use crate::carrier::{Carrier, Posting};
use crate::data_path::{MaybeBuffer, Target};
use crate::{
    Acquire, Allocate, Buffer, Call, Client, Error, Lease, NotRevoked, Operation, Permission, Rejected,
};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{
    DirectoryName, Holders, Keep, Lifetime, Moment, ObjectRef, RequestBody, Rights, TenantName,
};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

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
        self.cancel_staged();
        self.control.hold();
        Batch { client: self, count: 0 }
    }

    /// Resumes the batch that was last set aside, with all that it holds. Begins an empty batch if none was set aside.
    ///
    /// A batch that waits to be resumed is dropped if another batch or a single call begins instead. While it waits,
    /// the client sends no message to the node, so the caller must post it before polling the client.
    #[inline]
    pub fn resume_batch(&mut self) -> Batch<'_, E> {
        match self.set_aside.take() {
            Some(count) => Batch { client: self, count },
            None => self.batch(),
        }
    }

    pub(crate) fn cancel_staged(&mut self) {
        self.set_aside = None;
        let (queue_pairs, messages, mut link) = self.carriers();
        queue_pairs.cancel_staged(&mut link);
        messages.cancel_staged(&mut link);
        let (chunk_queue_pairs, mut link) = self.chunk_carrier();
        chunk_queue_pairs.cancel_staged(&mut link);
        let (one_shots, mut link) = self.one_shot_carrier();
        one_shots.cancel_staged(&mut link);
        for call in self.staged_calls.drain(..) {
            self.calls.cancel(call);
        }
        self.control.drop_held();
    }

    /// Posts the staged operations and requests.
    fn send_staged(&mut self) {
        self.staged_calls.clear();
        let (queue_pairs, messages, mut link) = self.carriers();
        queue_pairs.send_staged(&mut link);
        link.control.release(link.endpoint);
        messages.send_staged(&mut link);
        let (chunk_queue_pairs, mut link) = self.chunk_carrier();
        chunk_queue_pairs.send_staged(&mut link);
        let (one_shots, mut link) = self.one_shot_carrier();
        one_shots.send_staged(&mut link);
    }
}

impl<E: VerbsEndpoint> Batch<'_, E> {
    /// Adds a [`Client::read`].
    ///
    /// # Errors
    /// As [`Client::read`]. The batch stays as it is.
    pub fn read(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.add(now, Target::Permission(permission, offset), Some(buffer), Action::Read)
    }

    /// Adds a [`Client::write`].
    ///
    /// # Errors
    /// As [`Client::write`]. The batch stays as it is.
    pub fn write(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<E::Memory>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.add(now, Target::Permission(permission, offset), Some(buffer), Action::Write)
    }

    /// Adds a [`Client::compare_and_swap`].
    ///
    /// # Errors
    /// As [`Client::compare_and_swap`]. The batch stays as it is.
    pub fn compare_and_swap(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let action = Action::CompareAndSwap { compare, swap };
        self.add(now, Target::Permission(permission, offset), None, action)
    }

    /// Adds a [`Client::fetch_and_add`].
    ///
    /// # Errors
    /// As [`Client::fetch_and_add`]. The batch stays as it is.
    pub fn fetch_and_add(
        &mut self,
        now: Moment,
        permission: &Permission,
        offset: u64,
        add: u64,
    ) -> Result<Operation, Rejected<E::Memory>> {
        self.add(now, Target::Permission(permission, offset), None, Action::FetchAndAdd { add })
    }

    /// Adds a [`Client::allocate`].
    ///
    /// # Errors
    /// As [`Client::allocate`]. The batch stays as it is.
    pub fn allocate(&mut self, now: Moment, ask: Allocate) -> Result<Call, Error> {
        self.stage_call(ask.awaited(now), ask.body())
    }

    /// Adds a [`Client::acquire`].
    ///
    /// # Errors
    /// As [`Client::acquire`]. The batch stays as it is.
    pub fn acquire(&mut self, now: Moment, ask: Acquire) -> Result<Call, Error> {
        self.stage_call(ask.awaited(now), ask.body())
    }

    /// Adds a [`Client::revoke`].
    ///
    /// # Errors
    /// As [`Client::revoke`]. The batch stays as it is.
    pub fn revoke(&mut self, permission: Permission, free: bool) -> Result<Call, NotRevoked> {
        let body = RequestBody::Revoke { permission: permission.id(), free };
        self.stage_call(Awaited::Done, body)
            .map_err(|error| NotRevoked { permission: Box::new(permission), error })
    }

    /// Adds a [`Client::free`].
    ///
    /// # Errors
    /// As [`Client::free`]. The batch stays as it is.
    pub fn free(&mut self, object: ObjectRef) -> Result<Call, Error> {
        self.stage_call(Awaited::Done, RequestBody::Free { object: object.into(), holders: Holders::Stay })
    }

    /// Adds a [`Client::keep_object`].
    ///
    /// # Errors
    /// As [`Client::keep_object`]. The batch stays as it is.
    pub fn keep_object(&mut self, object: ObjectRef, keep: Keep) -> Result<Call, Error> {
        self.stage_call(Awaited::Done, RequestBody::Keep { object: object.into(), keep })
    }

    /// Adds a [`Client::join_chunks`].
    ///
    /// # Errors
    /// As [`Client::join_chunks`]. The batch stays as it is.
    pub fn join_chunks(&mut self) -> Result<Call, Error> {
        self.stage_call(Awaited::Chunks, RequestBody::JoinChunks)
    }

    /// Adds a [`Client::publish`].
    ///
    /// # Errors
    /// As [`Client::publish`]. The batch stays as it is.
    pub fn publish(&mut self, name: DirectoryName, object: ObjectRef) -> Result<Call, Error> {
        self.stage_call(Awaited::Done, RequestBody::Publish { name, object })
    }

    /// Adds a [`Client::unpublish`].
    ///
    /// # Errors
    /// As [`Client::unpublish`]. The batch stays as it is.
    pub fn unpublish(&mut self, name: DirectoryName) -> Result<Call, Error> {
        self.stage_call(Awaited::Done, RequestBody::Unpublish { name })
    }

    /// Adds a [`Client::share`].
    ///
    /// # Errors
    /// As [`Client::share`]. The batch stays as it is.
    pub fn share(&mut self, name: DirectoryName, tenant: TenantName, rights: Rights) -> Result<Call, Error> {
        self.stage_call(Awaited::Done, RequestBody::Share { name, tenant, rights })
    }

    /// Adds a [`Client::unshare`].
    ///
    /// # Errors
    /// As [`Client::unshare`]. The batch stays as it is.
    pub fn unshare(&mut self, name: DirectoryName, tenant: TenantName) -> Result<Call, Error> {
        self.stage_call(Awaited::Done, RequestBody::Unshare { name, tenant })
    }

    /// Adds a [`Client::include`].
    ///
    /// # Errors
    /// As [`Client::include`]. The batch stays as it is.
    pub fn include(&mut self, member: ObjectRef, head: ObjectRef) -> Result<Call, Error> {
        self.stage_call(Awaited::Done, RequestBody::Include { member, head })
    }

    /// Adds a [`Client::lookup`].
    ///
    /// # Errors
    /// As [`Client::lookup`]. The batch stays as it is.
    pub fn lookup(&mut self, owner: Option<TenantName>, name: DirectoryName) -> Result<Call, Error> {
        self.stage_call(Awaited::Entry, RequestBody::Lookup { owner, name })
    }

    fn stage_call(&mut self, awaited: Awaited, body: RequestBody) -> Result<Call, Error> {
        let call = self.client.ask(awaited, body)?;
        self.client.staged_calls.push(call.id);
        self.count += 1;
        Ok(call)
    }

    /// Adds a [`Client::extend`].
    ///
    /// # Errors
    /// As [`Client::extend`]. The batch stays as it is.
    pub fn extend(&mut self, now: Moment, permission: &Permission, time: Lifetime) -> Result<Call, Error> {
        self.extend_lease(now, permission.lease(), now.after(time))
    }

    pub(crate) fn extend_lease(
        &mut self,
        now: Moment,
        lease: &Arc<Lease>,
        deadline: Moment,
    ) -> Result<Call, Error> {
        if lease.has_word_for(&self.client.mark) {
            let call = self.client.swap_lifetime(Posting::Staged, now, lease, deadline)?;
            self.client.staged_calls.push(call.id);
            self.count += 1;
            return Ok(call);
        }
        let (awaited, body) = self.client.extension_message(now, lease, deadline)?;
        self.stage_call(awaited, body)
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
        self.client.send_staged();
        self.count
    }

    /// Releases the borrow of the client. The batch stays as it is until [`Client::resume_batch`].
    #[inline]
    pub fn set_aside(self) {
        let mut batch = ManuallyDrop::new(self);
        batch.client.set_aside = Some(batch.count);
    }

    /// Adds an access of which all but the time was checked.
    pub(crate) fn add_checked(
        &mut self,
        now: Moment,
        access: Access,
        lease: &Lease,
        buffer: MaybeBuffer<E>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let operation = self.client.begin_in_time(Posting::Staged, now, (access, lease), buffer)?;
        self.count += 1;
        Ok(operation)
    }

    #[inline(always)]
    fn add(
        &mut self,
        now: Moment,
        target: Target<'_>,
        buffer: MaybeBuffer<E>,
        action: Action,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let operation = self.client.begin(Posting::Staged, now, target, buffer, action)?;
        self.count += 1;
        Ok(operation)
    }
}

impl<E: VerbsEndpoint> Drop for Batch<'_, E> {
    fn drop(&mut self) {
        self.client.cancel_staged();
    }
}

impl<E: VerbsEndpoint> fmt::Debug for Batch<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}
