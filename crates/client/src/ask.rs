//! Accesses and requests as values.
//!
//! Each operation of a client is spelled here once. A [`Batch`](crate::Batch), a pipeline or a binding of another
//! language holds the values until it begins them.

use crate::access::Action;
use crate::{Buffer, Call, Error, Lease, Operation, Permission};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::Memory;
use portcullis_protocol::{
    Acquire, Allocate, Credential, Holders, Keep, Lifetime, Moment, NamedRequest, ObjectName, ObjectRef,
    RemoteAddress,
};
use std::fmt;
use std::sync::Arc;

/// An access or a request of a client, as a value. `P` names the permission of an access: a reference to a
/// [`Permission`], a shared pointer, or a [`PermissionView`](crate::PermissionView).
pub enum Ask<P, M: Memory> {
    /// A one-sided access to the bytes of a permission.
    Access(Access<P, M>),
    /// A request on the control path.
    Control(ControlRequest),
}

impl<P, M: Memory> From<Access<P, M>> for Ask<P, M> {
    fn from(access: Access<P, M>) -> Self {
        Self::Access(access)
    }
}

impl<P, M: Memory> From<ControlRequest> for Ask<P, M> {
    fn from(request: ControlRequest) -> Self {
        Self::Control(request)
    }
}

impl<P, M: Memory> From<Allocate> for Ask<P, M> {
    fn from(parameters: Allocate) -> Self {
        Self::Control(parameters.into())
    }
}

impl<P, M: Memory> From<Acquire> for Ask<P, M> {
    fn from(parameters: Acquire) -> Self {
        Self::Control(parameters.into())
    }
}

impl<P, M: Memory> fmt::Debug for Ask<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access(access) => access.fmt(f),
            Self::Control(request) => request.fmt(f),
        }
    }
}

/// A one-sided access to some bytes of a permission.
pub struct Access<P, M: Memory> {
    pub(crate) permission: P,
    pub(crate) offset: u64,
    pub(crate) action: Action,
    /// The bytes of a read or a write. `None` for atomics.
    pub(crate) buffer: Option<Buffer<M>>,
}

impl<P, M: Memory> Access<P, M> {
    /// Reads the permission's bytes from `offset` on into the whole of `buffer`.
    pub fn read(permission: P, offset: u64, buffer: Buffer<M>) -> Self {
        Self { permission, offset, action: Action::Read, buffer: Some(buffer) }
    }

    /// Writes the whole of `buffer` to the permission's bytes from `offset` on.
    pub fn write(permission: P, offset: u64, buffer: Buffer<M>) -> Self {
        Self { permission, offset, action: Action::Write, buffer: Some(buffer) }
    }

    /// Writes `swap` into the 8-byte word at `offset` if the word holds `compare`. The result is the word's old value.
    pub fn compare_and_swap(permission: P, offset: u64, compare: u64, swap: u64) -> Self {
        Self { permission, offset, action: Action::CompareAndSwap { compare, swap }, buffer: None }
    }

    /// Adds `add` to the 8-byte word at `offset`, wrapping. The result is the word's old value.
    pub fn fetch_and_add(permission: P, offset: u64, add: u64) -> Self {
        Self { permission, offset, action: Action::FetchAndAdd { add }, buffer: None }
    }

    /// Returns the access with its permission named in another way.
    #[inline]
    pub fn map_permission<Q>(self, map: impl FnOnce(P) -> Q) -> Access<Q, M> {
        let Self { permission, offset, action, buffer } = self;
        Access { permission: map(permission), offset, action, buffer }
    }

    /// Returns the permission that covers the access.
    pub fn permission(&self) -> &P {
        &self.permission
    }

    /// Takes the buffer out of a read or a write.
    pub fn into_buffer(self) -> Option<Buffer<M>> {
        self.buffer
    }
}

/// An address and a credential that no permission vouches for, for [`Client::dangerous_access`].
///
/// [`Client::dangerous_access`]: crate::Client::dangerous_access
#[derive(Clone, Copy, Debug)]
pub struct Unchecked {
    pub(crate) address: RemoteAddress,
    pub(crate) credential: Credential,
}

impl Unchecked {
    /// Names the memory from `address` on, and the credential that accesses to it show.
    pub fn new(address: RemoteAddress, credential: impl Into<Credential>) -> Self {
        Self { address, credential: credential.into() }
    }
}

impl<P, M: Memory> fmt::Debug for Access<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, action, buffer, .. } = self;
        f.debug_struct("Access")
            .field("offset", offset)
            .field("action", action)
            .field("buffer", buffer)
            .finish()
    }
}

/// A request on the control path: to the node's CPU, or to a worker on its NIC.
#[derive(Debug)]
pub enum ControlRequest {
    /// Requests memory and a permission over it (Patronus §5.1). The answer is [`Answer::Granted`](crate::Answer).
    Allocate(Allocate),
    /// Requests a permission over an object that exists. The answer is [`Answer::Granted`](crate::Answer).
    ///
    /// The permission's deadline counts from the moment at which the request was sent, plus the time that it waited at
    /// the node.
    Acquire(Acquire),
    /// Extends a lease. The answer is [`Answer::Extended`](crate::Answer).
    ///
    /// The node's CPU has no part in the extension if this client can reach the lifetime word. If the node has given
    /// notice that it will not extend the permission, the call ends with
    /// [`Refusal::NotExtendable`](portcullis_protocol::Refusal). The request is refused at once with
    /// [`Error::Expired`], with [`Error::LivesLonger`] if the permission has more time left than requested, or with
    /// [`Refusal::LifetimeTooLong`](portcullis_protocol::Refusal) if it would live beyond [`Lease::longest`].
    Extend {
        /// The lease. It may belong to a permission that another session of the same tenant holds.
        lease: Arc<Lease>,
        /// The new end.
        until: Until,
    },
    /// Ends a permission. The answer is [`Answer::Done`](crate::Answer).
    ///
    /// Operations still under way race with the end of their permission: take their outcomes first.
    Revoke {
        /// The permission.
        permission: Permission,
        /// Whether the object is freed as well.
        free: bool,
    },
    /// Frees an object and its members. After the answer, [`Answer::Done`](crate::Answer), the node grants no more
    /// permissions over them.
    Free {
        /// The object.
        object: ObjectName,
        /// Whether the permissions over the object stay, and what the answer waits for.
        holders: Holders,
    },
    /// Makes an object of the tenant a member of another one, its head: tenants with which the head is shared, now or
    /// later, have the same rights over the member. The membership ends with either object. The answer is
    /// [`Answer::Done`](crate::Answer).
    Include {
        /// The new member.
        member: ObjectRef,
        /// The head.
        head: ObjectRef,
    },
    /// Changes for how long the node keeps an object. The answer is [`Answer::Done`](crate::Answer).
    Keep {
        /// The object.
        object: ObjectName,
        /// The time from now on. [`Keep::No`]: the object is freed once its last permission has ended.
        keep: Keep,
    },
    /// A request about names. The answer is [`Answer::Entry`](crate::Answer) or `EndOfList` for look-ups, and
    /// [`Answer::Done`](crate::Answer) for changes.
    Named(NamedRequest),
    /// Requests workers on the node's NIC, which allocate and free chunks for this client from then on (OneSidedMW).
    /// The answer is [`Answer::Chunks`](crate::Answer). A client that has workers already is refused
    /// ([`Refusal::Malformed`](portcullis_protocol::Refusal)).
    ///
    /// If a worker has broken, requests end with
    /// [`Refusal::NicFailed`](portcullis_protocol::Refusal), and the caller requests new workers by this request. The
    /// client keeps its chunks and their keys. An allocation that ended with this error has not happened. A chunk whose
    /// free ended with this error is freed at the latest when this request is answered and the next chunk is allocated.
    JoinChunks,
    /// Requests a chunk. The answer is [`Answer::Granted`](crate::Answer): the permission ends when the chunk is freed,
    /// and not before. If no chunk is free, the call ends with [`Error::NoFreeChunk`]. The request is refused with
    /// [`Error::Quota`], or with [`Refusal::NoChunks`](portcullis_protocol::Refusal) before
    /// [`ControlRequest::JoinChunks`] was answered: at once, or, in a batch and where the node's CPU serves chunks, by
    /// the end of the call.
    AllocateChunk,
    /// Frees a chunk. The NIC unbinds its windows and zeroes it before any client gets it again. The answer is
    /// [`Answer::Done`](crate::Answer). [`Error::ForeignChunk`]: the permission is over no chunk of this client.
    ///
    /// Operations still under way race with the end of their chunk: take their outcomes first.
    FreeChunk(Permission),
}

/// The end that an extension requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// This long after the moment at which the extension begins.
    After(Lifetime),
    /// This moment on the client's clock.
    Deadline(Moment),
}

impl Until {
    pub(crate) fn deadline(self, now: Moment) -> Moment {
        match self {
            Self::After(time) => now.after(time),
            Self::Deadline(deadline) => deadline,
        }
    }
}

impl From<Allocate> for ControlRequest {
    fn from(parameters: Allocate) -> Self {
        Self::Allocate(parameters)
    }
}

impl From<Acquire> for ControlRequest {
    fn from(parameters: Acquire) -> Self {
        Self::Acquire(parameters)
    }
}

impl From<NamedRequest> for ControlRequest {
    fn from(request: NamedRequest) -> Self {
        Self::Named(request)
    }
}

impl ControlRequest {
    /// Ends a permission. Its object stays if it is kept, or if other permissions cover it.
    #[must_use]
    pub fn revoke(permission: Permission) -> Self {
        Self::Revoke { permission, free: false }
    }

    /// Extends a permission to `time` from the moment at which the extension begins.
    #[must_use]
    pub fn extend(permission: &Permission, time: Lifetime) -> Self {
        Self::Extend { lease: Arc::clone(permission.lease()), until: Until::After(time) }
    }

    /// Extends a lease to `deadline` on the client's clock.
    #[must_use]
    pub fn extend_to(lease: &Arc<Lease>, deadline: Moment) -> Self {
        Self::Extend { lease: Arc::clone(lease), until: Until::Deadline(deadline) }
    }

    /// Frees an object and its members. Existing permissions stay, and the memory is freed when the last of them ends.
    #[must_use]
    pub fn free(object: ObjectRef) -> Self {
        Self::Free { object: object.into(), holders: Holders::Stay }
    }

    /// Returns whether the request may wait at the node for what others hold.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        matches!(self, Self::Acquire(acquire) if acquire.wait > Lifetime(0))
    }

    /// Gives a permission back that no caller needs. `free`: also its object, if it is no chunk.
    pub(crate) fn give_back(permission: Permission, free: bool) -> Self {
        match permission.credential() {
            Credential::Chunk(_) => Self::FreeChunk(permission),
            _ => Self::Revoke { permission, free },
        }
    }
}

/// An access or a request that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// An access.
    Operation(Operation),
    /// A request on the control path.
    Call(Call),
}

/// An access or a request that has not begun, with the reason. [`Error::QueueFull`]: the same value may be begun when
/// another operation or call has ended.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct NotBegun<T> {
    /// The value that the caller handed in.
    pub ask: T,
    /// The reason.
    #[source]
    pub error: Error,
}

impl<T> NotBegun<T> {
    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> NotBegun<U> {
        NotBegun { ask: map(self.ask), error: self.error }
    }
}

/// Returns the reason, and drops the value: a permission or a chunk that was to end lives on until the node ends it.
impl<T> From<NotBegun<T>> for Error {
    fn from(refused: NotBegun<T>) -> Self {
        refused.error
    }
}

impl<T> Coded for NotBegun<T> {
    fn code(&self) -> ErrorCode {
        self.error.code()
    }
}

impl<T> fmt::Debug for NotBegun<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotBegun").field("error", &self.error).finish_non_exhaustive()
    }
}
