//! The requests of a structure's operation to its session, and their results.

use portcullis::{
    Acquire, Allocate, BarePermission, Batch, Buffer, Call, ChunkTerms, Client, DirectoryName, Entry, Error,
    Keep, Lifetime, Memory, Moment, NotRevoked, ObjectRef, Operation, Rejected, Rights, TenantName,
    VerbsEndpoint,
};
use std::rc::Rc;

/// A request that is still to be posted.
pub(super) enum Request<M: Memory> {
    Access {
        permission: Rc<BarePermission>,
        offset: u64,
        action: Action,
        buffer: Option<Buffer<M>>,
        /// Whether the access begins only when all before it have ended.
        is_fenced: bool,
    },
    Allocate(Allocate),
    Acquire(Acquire),
    /// An acquisition that may take the client's last room for calls.
    AcquireInAnyCase(Acquire),
    Extend {
        permission: Rc<BarePermission>,
        time: Lifetime,
    },
    Revoke {
        permission: BarePermission,
        free: bool,
    },
    Free(ObjectRef),
    Keep {
        object: ObjectRef,
        keep: Keep,
    },
    Publish {
        name: DirectoryName,
        object: ObjectRef,
    },
    Unpublish {
        name: DirectoryName,
    },
    Share {
        name: DirectoryName,
        tenant: TenantName,
        rights: Rights,
    },
    Unshare {
        name: DirectoryName,
        tenant: TenantName,
    },
    Include {
        member: ObjectRef,
        head: ObjectRef,
    },
    Lookup {
        owner: Option<TenantName>,
        name: DirectoryName,
    },
    JoinChunks,
}

/// A request to a worker on the node's NIC that is still to be posted. It is posted by itself, not in the batch of the
/// other requests.
pub(super) enum WorkerRequest {
    AllocateChunk,
    FreeChunk(BarePermission),
}

/// The action of an access.
#[derive(Clone, Copy)]
pub(super) enum Action {
    Read,
    Write,
    CompareAndSwap { compare: u64, swap: u64 },
    FetchAndAdd { add: u64 },
}

/// The result of a request that the node or its NIC carried out.
#[derive(Debug)]
pub enum Done<M: Memory> {
    Buffer(Buffer<M>),
    Word(u64),
    Granted(BarePermission),
    Entry(Entry),
    Chunks(ChunkTerms),
    Ended,
}

/// A request under way.
pub(super) enum Begun {
    Operation(Operation),
    Call(Call),
}

/// The result of posting a request.
pub(super) enum Posted<M: Memory> {
    Begun(Begun),
    /// The queue has no room now. The request is returned.
    Full(Request<M>),
    Failed(Error),
}

/// The result of posting a request to a worker.
pub(super) enum PostedToWorker {
    Begun(Call),
    /// The worker has no room now. The request is returned.
    Full(WorkerRequest),
    Failed(Error),
}

impl<M: Memory> Request<M> {
    /// Adds the request to a batch.
    pub fn post<E: VerbsEndpoint<Memory = M>>(self, batch: &mut Batch<'_, E>, now: Moment) -> Posted<M> {
        match self {
            Self::Access { permission, offset, action, buffer, is_fenced } => {
                if is_fenced {
                    batch.fence();
                }
                match begin(batch, now, &permission, offset, action, buffer) {
                    Ok(operation) => Posted::Begun(Begun::Operation(operation)),
                    Err(Rejected { buffer, error: Error::QueueFull { .. } }) => {
                        Posted::Full(Self::Access { permission, offset, action, buffer, is_fenced })
                    }
                    Err(Rejected { error, .. }) => Posted::Failed(error),
                }
            }
            Self::Allocate(ask) => called(batch.allocate(now, ask), || Self::Allocate(ask)),
            Self::Acquire(ask) => called(batch.acquire(now, ask), || Self::Acquire(ask)),
            Self::AcquireInAnyCase(ask) => called(batch.acquire(now, ask), || Self::AcquireInAnyCase(ask)),
            Self::Extend { permission, time } => {
                let call = batch.extend(now, &permission, time);
                called(call, || Self::Extend { permission, time })
            }
            Self::Revoke { permission, free } => match batch.revoke(permission, free) {
                Ok(call) => Posted::Begun(Begun::Call(call)),
                Err(NotRevoked { permission, error: Error::QueueFull { .. } }) => {
                    Posted::Full(Self::Revoke { permission: *permission, free })
                }
                Err(NotRevoked { error, .. }) => Posted::Failed(error),
            },
            Self::Free(object) => called(batch.free(object), || Self::Free(object)),
            Self::Keep { object, keep } => {
                called(batch.keep_object(object, keep), || Self::Keep { object, keep })
            }
            Self::Publish { name, object } => {
                called(batch.publish(name, object), || Self::Publish { name, object })
            }
            Self::Unpublish { name } => called(batch.unpublish(name), || Self::Unpublish { name }),
            Self::Share { name, tenant, rights } => {
                called(batch.share(name, tenant, rights), || Self::Share { name, tenant, rights })
            }
            Self::Unshare { name, tenant } => {
                called(batch.unshare(name, tenant), || Self::Unshare { name, tenant })
            }
            Self::Include { member, head } => {
                called(batch.include(member, head), || Self::Include { member, head })
            }
            Self::Lookup { owner, name } => {
                called(batch.lookup(owner, name), || Self::Lookup { owner, name })
            }
            Self::JoinChunks => called(batch.join_chunks(), || Self::JoinChunks),
        }
    }
}

impl WorkerRequest {
    /// Posts the request.
    pub fn post<E: VerbsEndpoint>(self, client: &mut Client<E>) -> PostedToWorker {
        let (begun, again) = match self {
            Self::AllocateChunk => (client.allocate_chunk(), Some(Self::AllocateChunk)),
            Self::FreeChunk(chunk) => match client.free_chunk(chunk) {
                Ok(call) => (Ok(call), None),
                Err(NotRevoked { permission, error }) => (Err(error), Some(Self::FreeChunk(*permission))),
            },
        };
        match (begun, again) {
            (Ok(call), _) => PostedToWorker::Begun(call),
            (Err(Error::QueueFull { .. }), Some(again)) => PostedToWorker::Full(again),
            (Err(error), _) => PostedToWorker::Failed(error),
        }
    }
}

fn called<M: Memory>(call: Result<Call, Error>, again: impl FnOnce() -> Request<M>) -> Posted<M> {
    match call {
        Ok(call) => Posted::Begun(Begun::Call(call)),
        Err(Error::QueueFull { .. }) => Posted::Full(again()),
        Err(error) => Posted::Failed(error),
    }
}

/// Adds an access to a batch.
#[inline(always)]
pub(super) fn begin<E: VerbsEndpoint>(
    batch: &mut Batch<'_, E>,
    now: Moment,
    permission: &BarePermission,
    offset: u64,
    action: Action,
    buffer: Option<Buffer<E::Memory>>,
) -> Result<Operation, Rejected<E::Memory>> {
    match (action, buffer) {
        (Action::Read, Some(buffer)) => batch.read(now, permission, offset, buffer),
        (Action::Write, Some(buffer)) => batch.write(now, permission, offset, buffer),
        (Action::CompareAndSwap { compare, swap }, None) => {
            batch.compare_and_swap(now, permission, offset, compare, swap)
        }
        (Action::FetchAndAdd { add }, None) => batch.fetch_and_add(now, permission, offset, add),
        _ => unreachable!("reads and writes have a buffer, and atomics have none"),
    }
}
