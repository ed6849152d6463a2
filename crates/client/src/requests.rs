//! Requests on the control path: each becomes a message to the node, a compare and swap on a lifetime word, or a
//! message to a worker on the node's NIC.

use crate::calls::{Asked, Awaited};
use crate::carrier::Posting;
use crate::chunk_workers::Worker;
use crate::control::Purpose;
use crate::{Acquire, Allocate, Call, Client, ControlRequest, Error, Lease, NotBegun, Permission};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::{
    GrantRequest, Holders, Lifetime, Moment, NamedRequest, ObjectName, ObjectRef, QueuePairRequest,
    RemoteAddress, RequestBody,
};
use std::sync::Arc;

/// The time of a request about chunks: a chunk has no deadline, so it does not matter.
const ANY_TIME: Moment = Moment(0);

/// A revocation that was not begun, with its permission.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotRevoked {
    /// The permission that was handed in.
    pub permission: Box<Permission>,
    /// The reason.
    #[source]
    pub error: Error,
}

impl NotRevoked {
    fn new(permission: Permission, error: Error) -> Self {
        Self { permission: Box::new(permission), error }
    }
}

impl Coded for NotRevoked {
    fn code(&self) -> ErrorCode {
        self.error.code()
    }
}

impl<E: VerbsEndpoint> Client<E> {
    /// Begins a request. Its answer is that of the request's kind, see [`ControlRequest`].
    ///
    /// # Errors
    /// [`NotBegun`] with the request: [`Error::QueueFull`], an error of the request's kind, or the error that ended the
    /// session.
    pub fn call(
        &mut self,
        now: Moment,
        request: ControlRequest,
    ) -> Result<Call, NotBegun<Box<ControlRequest>>> {
        self.begin_call(Posting::AtOnce, now, request)
    }

    pub(crate) fn begin_call(
        &mut self,
        posting: Posting,
        now: Moment,
        request: ControlRequest,
    ) -> Result<Call, NotBegun<Box<ControlRequest>>> {
        self.try_to_call(posting, now, &request).map_err(|error| NotBegun { ask: Box::new(request), error })
    }

    fn try_to_call(
        &mut self,
        posting: Posting,
        now: Moment,
        request: &ControlRequest,
    ) -> Result<Call, Error> {
        let (awaited, body) = match request {
            &ControlRequest::Allocate(parameters) => {
                let Allocate { rights, sharing, .. } = parameters;
                let awaited = Awaited::Grant { requested_at: now, rights, sharing, is_new: true };
                (awaited, GrantRequest::Allocate(parameters).into())
            }
            &ControlRequest::Acquire(parameters) => {
                let Acquire { rights, sharing, .. } = parameters;
                let awaited = Awaited::Grant { requested_at: now, rights, sharing, is_new: false };
                (awaited, GrantRequest::Acquire(parameters).into())
            }
            ControlRequest::Extend { lease, until } => {
                return self.begin_extension(posting, now, lease, until.deadline(now));
            }
            ControlRequest::Revoke { permission, free } => {
                let (permission, free) = (permission.id(), *free);
                (Awaited::Done, GrantRequest::Revoke { permission, free }.into())
            }
            &ControlRequest::Free { object, holders } => {
                (Awaited::Done, GrantRequest::Free { object, holders }.into())
            }
            &ControlRequest::Include { member, head } => {
                (Awaited::Done, GrantRequest::Include { member, head }.into())
            }
            &ControlRequest::Keep { object, keep } => {
                (Awaited::Done, GrantRequest::Keep { object, keep }.into())
            }
            &ControlRequest::Named(request) => (awaited_of(&request), request.into()),
            ControlRequest::JoinChunks => {
                self.chunks.check_join()?;
                let call = self.send(posting, Awaited::Chunks, QueuePairRequest::JoinChunks.into())?;
                self.chunks.joining();
                return Ok(call);
            }
            ControlRequest::AllocateChunk if self.chunks.are_by_cpu() => {
                (Awaited::Chunk, GrantRequest::AllocateChunk.into())
            }
            ControlRequest::AllocateChunk => return self.ask_worker(posting, WorkerRequest::Allocate),
            ControlRequest::FreeChunk(permission) if self.chunks.are_by_cpu() => {
                let permission = permission.id();
                (Awaited::Done, GrantRequest::Revoke { permission, free: true }.into())
            }
            ControlRequest::FreeChunk(permission) => {
                return self.ask_worker(posting, WorkerRequest::Free(permission.address()));
            }
        };
        self.send(posting, awaited, body)
    }

    /// Sends a message to the node, or adds it to the batch that is being collected.
    pub(crate) fn send(
        &mut self,
        posting: Posting,
        awaited: Awaited,
        body: RequestBody,
    ) -> Result<Call, Error> {
        if posting == Posting::AtOnce {
            // A batch that was leaked left its requests here.
            self.cancel_staged();
        }
        if let Some(error) = self.over {
            return Err(error);
        }
        let asked = Asked::of(&body);
        let id = self.calls.begin(awaited, asked, self.limit.last_step(asked.wait))?;
        if !self.control.ask(&mut self.endpoint, body, &[], Purpose::Call(id)) {
            self.calls.cancel(id);
            return Err(self.control.full());
        }
        if posting == Posting::Staged {
            self.staged_calls.push(id);
        }
        Ok(Call { id })
    }

    /// Sends a request to a worker on the node's NIC, or adds it to the batch that is being collected.
    fn ask_worker(&mut self, posting: Posting, request: WorkerRequest) -> Result<Call, Error> {
        if let Some(error) = self.over {
            return Err(error);
        }
        let last_step = self.limit.last_step(Lifetime(0));
        if posting == Posting::Staged {
            let worker = request.worker();
            let staged = self.staged_for_workers.iter().filter(|(_, staged)| staged.worker() == worker);
            self.chunks.check_room(worker, staged.count())?;
            let id = self.calls.begin(Awaited::Worker, Asked::OF_A_WORKER, last_step)?;
            self.staged_calls.push(id);
            self.staged_for_workers.push((id, request));
            return Ok(Call { id });
        }
        let id = self.calls.begin(Awaited::Worker, Asked::OF_A_WORKER, last_step)?;
        self.send_to_worker(id, request).inspect_err(|_| self.calls.cancel(id))?;
        Ok(Call { id })
    }

    fn send_to_worker(&mut self, call: u64, request: WorkerRequest) -> Result<(), Error> {
        match request {
            WorkerRequest::Allocate => self.chunks.allocate(&mut self.endpoint, call),
            WorkerRequest::Free(address) => self.chunks.free(&mut self.endpoint, address, call),
        }
    }

    /// Sends the staged requests to workers. A request that cannot be sent any more ends with the reason.
    pub(crate) fn send_staged_to_workers(&mut self) {
        for (call, request) in std::mem::take(&mut self.staged_for_workers) {
            if let Err(error) = self.send_to_worker(call, request) {
                self.calls.finish(call, Err(error));
            }
        }
    }
}

/// A request to a worker on the node's NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkerRequest {
    Allocate,
    Free(RemoteAddress),
}

impl WorkerRequest {
    fn worker(self) -> Worker {
        match self {
            Self::Allocate => Worker::Alloc,
            Self::Free(_) => Worker::Free,
        }
    }
}

/// The kind of answer that a request about names awaits.
fn awaited_of(request: &NamedRequest) -> Awaited {
    match request {
        NamedRequest::Lookup { .. } => Awaited::Entry,
        NamedRequest::List { .. } => Awaited::NextEntry,
        NamedRequest::Publish { .. }
        | NamedRequest::Unpublish { .. }
        | NamedRequest::Share { .. }
        | NamedRequest::Unshare { .. } => Awaited::Done,
    }
}

/// The most frequent requests, with plain errors.
impl<E: VerbsEndpoint> Client<E> {
    /// Begins a [`ControlRequest::Allocate`].
    ///
    /// # Errors
    /// [`Error::QueueFull`], or the error that ended the session. Nothing was begun.
    pub fn allocate(&mut self, now: Moment, parameters: Allocate) -> Result<Call, Error> {
        self.try_to_call(Posting::AtOnce, now, &parameters.into())
    }

    /// Begins a [`ControlRequest::Acquire`].
    ///
    /// # Errors
    /// As [`Client::allocate`].
    pub fn acquire(&mut self, now: Moment, parameters: Acquire) -> Result<Call, Error> {
        self.try_to_call(Posting::AtOnce, now, &parameters.into())
    }

    /// Ends a permission; `free` also frees a kept object. The answer is [`Answer::Done`](crate::Answer).
    ///
    /// Operations still under way race with the end of their permission: take their outcomes first.
    ///
    /// # Errors
    /// [`NotRevoked`] with the permission back: [`Error::QueueFull`], or the error that ended the session.
    pub fn revoke(&mut self, now: Moment, permission: Permission, free: bool) -> Result<Call, NotRevoked> {
        self.end_permission(now, ControlRequest::Revoke { permission, free })
    }

    /// Begins a [`ControlRequest::free`].
    ///
    /// # Errors
    /// As [`Client::allocate`].
    pub fn free(&mut self, now: Moment, object: ObjectRef) -> Result<Call, Error> {
        self.try_to_call(Posting::AtOnce, now, &ControlRequest::free(object))
    }

    /// Frees the tenant's object that starts at `address` now: see [`Acquire::dangerous_at`].
    ///
    /// # Errors
    /// As [`Client::allocate`].
    pub fn dangerous_free(&mut self, now: Moment, address: RemoteAddress) -> Result<Call, Error> {
        let object = ObjectName::Address(address);
        self.try_to_call(Posting::AtOnce, now, &ControlRequest::Free { object, holders: Holders::Stay })
    }

    /// Extends a permission to `time` from now. The answer is [`Answer::Extended`](crate::Answer).
    ///
    /// The node's CPU has no part in the extension. If the node has given notice that it will not extend the
    /// permission, the call ends with [`Refusal::NotExtendable`](portcullis_protocol::Refusal).
    ///
    /// # Errors
    /// [`Error::Expired`], [`Error::QueueFull`], [`Error::LivesLonger`] if the permission has more than `time` left,
    /// [`Refusal::LifetimeTooLong`](portcullis_protocol::Refusal) if it would live beyond
    /// [`Lease::longest`](crate::Lease::longest), counted from its start, or the error that ended the session. Nothing
    /// was begun.
    pub fn extend(&mut self, now: Moment, permission: &Permission, time: Lifetime) -> Result<Call, Error> {
        self.extend_to(now, permission.lease(), now.after(time))
    }

    /// Extends a lease to `deadline` on the client's clock. The lease may belong to a permission that another session
    /// of the same tenant holds. The answer is [`Answer::Extended`](crate::Answer).
    ///
    /// # Errors
    /// As [`Client::extend`].
    pub fn extend_to(&mut self, now: Moment, lease: &Arc<Lease>, deadline: Moment) -> Result<Call, Error> {
        self.begin_extension(Posting::AtOnce, now, lease, deadline)
    }

    /// Begins a [`ControlRequest::AllocateChunk`].
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::Quota`], [`Refusal::NoChunks`](portcullis_protocol::Refusal) before
    /// [`ControlRequest::JoinChunks`] was answered, or the error that ended the session. Nothing was begun.
    pub fn allocate_chunk(&mut self) -> Result<Call, Error> {
        self.try_to_call(Posting::AtOnce, ANY_TIME, &ControlRequest::AllocateChunk)
    }

    /// Frees a chunk. The NIC unbinds its windows and zeroes it before any client gets it again. The answer is
    /// [`Answer::Done`](crate::Answer).
    ///
    /// Operations still under way race with the end of their chunk: take their outcomes first.
    ///
    /// # Errors
    /// [`NotRevoked`] with the permission back: [`Error::ForeignChunk`] if the permission is over no chunk,
    /// [`Error::QueueFull`], or the error that ended the session.
    pub fn free_chunk(&mut self, permission: Permission) -> Result<Call, NotRevoked> {
        self.end_permission(ANY_TIME, ControlRequest::FreeChunk(permission))
    }

    fn end_permission(&mut self, now: Moment, request: ControlRequest) -> Result<Call, NotRevoked> {
        match (self.try_to_call(Posting::AtOnce, now, &request), request) {
            (Ok(call), _) => Ok(call),
            (
                Err(error),
                ControlRequest::Revoke { permission, .. } | ControlRequest::FreeChunk(permission),
            ) => Err(NotRevoked::new(permission, error)),
            (Err(_), request) => unreachable!("{request:?} ends no permission"),
        }
    }

    /// Requests that a worker free the chunk at an address, even if another client holds it: for hostile tests. The
    /// worker frees it only if this client holds it; otherwise the call ends with [`Error::ForeignChunk`].
    ///
    /// # Errors
    /// As [`Client::free_chunk`].
    pub fn dangerous_free_chunk(&mut self, address: RemoteAddress) -> Result<Call, Error> {
        if self.chunks.are_by_cpu() {
            return Err(Error::ForeignChunk);
        }
        self.ask_worker(Posting::AtOnce, WorkerRequest::Free(address))
    }
}
