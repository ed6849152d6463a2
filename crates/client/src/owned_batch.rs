//! A batch as a value, for callers that cannot borrow their client while they collect, such as bindings of other
//! languages. The batch knows no client and no time: the caller passes both when it posts the batch.

use crate::access::{Access, Action};
use crate::carrier::Posting;
use crate::operations::{Owner, WORD_BYTES};
use crate::{
    Acquire, Allocate, Batch, Buffer, Call, Client, Error, Lease, NotRevoked, Operation, Permission, Rejected,
};
use portcullis_nic::{Memory, VerbsEndpoint};
use portcullis_protocol::{Lifetime, Moment};
use std::fmt;
use std::sync::Arc;

/// An operation or a request that is to be begun.
enum Step<M: Memory> {
    Access { access: Access, lease: Arc<Lease>, buffer: Option<Buffer<M>> },
    Allocate(Allocate),
    Acquire(Acquire),
    Revoke { permission: Permission, free: bool },
    Extend { lease: Arc<Lease>, time: Lifetime },
}

impl<M: Memory> Step<M> {
    /// Begins the step. Returns the step itself if there is no room for it.
    fn begin<E: VerbsEndpoint<Memory = M>>(
        self,
        batch: &mut Batch<'_, E>,
        now: Moment,
    ) -> Result<Started<M>, Box<Self>> {
        match self {
            Self::Access { access, lease, buffer } => match batch.add_checked(now, access, &lease, buffer) {
                Err(Rejected { buffer, error: Error::QueueFull { .. } }) => {
                    Err(Box::new(Self::Access { access, lease, buffer }))
                }
                begun => Ok(Started::Operation(begun)),
            },
            Self::Allocate(ask) => unless_full(batch.allocate(now, ask)).ok_or_else(|| Box::new(self)),
            Self::Acquire(ask) => unless_full(batch.acquire(now, ask)).ok_or_else(|| Box::new(self)),
            Self::Extend { ref lease, time } => {
                unless_full(batch.extend_lease(now, lease, now.after(time))).ok_or_else(|| Box::new(self))
            }
            Self::Revoke { permission, free } => match batch.revoke(permission, free) {
                Err(NotRevoked { permission, error: Error::QueueFull { .. } }) => {
                    Err(Box::new(Self::Revoke { permission: *permission, free }))
                }
                begun => Ok(Started::Revocation(begun)),
            },
        }
    }
}

fn unless_full<M: Memory>(begun: Result<Call, Error>) -> Option<Started<M>> {
    (!matches!(begun, Err(Error::QueueFull { .. }))).then_some(Started::Call(begun))
}

/// The result of posting one step of an [`OwnedBatch`].
#[derive(Debug)]
pub enum Started<M: Memory> {
    /// An operation, or its rejection.
    Operation(Result<Operation, Rejected<M>>),
    /// A request to the node.
    Call(Result<Call, Error>),
    /// A revocation, or the permission back.
    Revocation(Result<Call, NotRevoked>),
}

/// Operations and requests that [`Client::post`] posts together, in order. Before that the batch borrows nothing,
/// begins nothing and takes no room. A batch that is dropped gives its buffers back, and permissions that it was to
/// revoke end at their deadlines.
pub struct OwnedBatch<M: Memory> {
    steps: Vec<Step<M>>,
}

impl<M: Memory> Default for OwnedBatch<M> {
    fn default() -> Self {
        Self { steps: Vec::new() }
    }
}

impl<M: Memory> OwnedBatch<M> {
    /// Makes an empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a [`Client::read`].
    ///
    /// # Errors
    /// [`Rejected`] with the buffer: [`Error::OutsideRange`] or [`Error::WrongRight`]. The rest stays as it is.
    pub fn read(
        &mut self,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<M>,
    ) -> Result<(), Rejected<M>> {
        self.add(permission, offset, Some(buffer), Action::Read)
    }

    /// Adds a [`Client::write`].
    ///
    /// # Errors
    /// As [`OwnedBatch::read`].
    pub fn write(
        &mut self,
        permission: &Permission,
        offset: u64,
        buffer: Buffer<M>,
    ) -> Result<(), Rejected<M>> {
        self.add(permission, offset, Some(buffer), Action::Write)
    }

    /// Adds a [`Client::compare_and_swap`].
    ///
    /// # Errors
    /// As [`OwnedBatch::read`], and [`Error::Misaligned`].
    pub fn compare_and_swap(
        &mut self,
        permission: &Permission,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<(), Rejected<M>> {
        self.add(permission, offset, None, Action::CompareAndSwap { compare, swap })
    }

    /// Adds a [`Client::fetch_and_add`].
    ///
    /// # Errors
    /// As [`OwnedBatch::compare_and_swap`].
    pub fn fetch_and_add(
        &mut self,
        permission: &Permission,
        offset: u64,
        add: u64,
    ) -> Result<(), Rejected<M>> {
        self.add(permission, offset, None, Action::FetchAndAdd { add })
    }

    /// Adds a [`Client::allocate`].
    pub fn allocate(&mut self, ask: Allocate) {
        self.steps.push(Step::Allocate(ask));
    }

    /// Adds a [`Client::acquire`].
    pub fn acquire(&mut self, ask: Acquire) {
        self.steps.push(Step::Acquire(ask));
    }

    /// Adds a [`Client::revoke`].
    pub fn revoke(&mut self, permission: Permission, free: bool) {
        self.steps.push(Step::Revoke { permission, free });
    }

    /// Adds a [`Client::extend`]. The time counts from the moment at which the batch is posted.
    pub fn extend(&mut self, permission: &Permission, time: Lifetime) {
        self.steps.push(Step::Extend { lease: Arc::clone(permission.lease()), time });
    }

    /// Returns the number of operations and calls in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn add(
        &mut self,
        permission: &Permission,
        offset: u64,
        buffer: Option<Buffer<M>>,
        action: Action,
    ) -> Result<(), Rejected<M>> {
        let length = buffer.as_ref().map_or(WORD_BYTES, Buffer::len);
        match Access::under(permission, offset, length.into(), action) {
            Ok(access) => {
                self.steps.push(Step::Access { access, lease: Arc::clone(permission.lease()), buffer });
                Ok(())
            }
            Err(error) => Err(Rejected { buffer, error }),
        }
    }
}

impl<M: Memory> fmt::Debug for OwnedBatch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBatch").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<E: VerbsEndpoint> Client<E> {
    /// Begins the steps of a batch, in order, with a doorbell for the operations and another for the requests. Returns
    /// the result of each step that began or failed. A step fails if its permission has ended meanwhile or its buffer
    /// belongs to another session; later steps begin all the same. The first step that a queue has no room for stays in
    /// the batch, with all later steps: post the batch again when an operation or a call has ended.
    pub fn post(&mut self, now: Moment, owned: &mut OwnedBatch<E::Memory>) -> Vec<Started<E::Memory>> {
        let mut batch = self.batch();
        let mut begun = Vec::with_capacity(owned.steps.len());
        let mut left = std::mem::take(&mut owned.steps).into_iter();
        for step in left.by_ref() {
            match step.begin(&mut batch, now) {
                Ok(started) => begun.push(started),
                Err(full) => {
                    owned.steps.push(*full);
                    break;
                }
            }
        }
        owned.steps.extend(left);
        batch.post();
        begun
    }

    /// Begins an access of which all but the time was checked.
    pub(crate) fn begin_in_time(
        &mut self,
        posting: Posting,
        now: Moment,
        (access, lease): (Access, &Lease),
        buffer: Option<Buffer<E::Memory>>,
    ) -> Result<Operation, Rejected<E::Memory>> {
        let deadline = lease.deadline();
        let foreign = lease.is_of_another(&self.mark).then_some(Error::ForeignPermission);
        let error = self.over.or(foreign).or((now >= deadline).then_some(Error::Expired));
        match error {
            Some(error) => Err(Rejected { buffer, error }),
            None => self.begin_checked(posting, (Owner::Checked { deadline }, access), buffer),
        }
    }
}
