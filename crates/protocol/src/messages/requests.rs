//! The content of requests, by the part of the node that carries them out.

use super::{ObjectName, Part};
use crate::{
    DirectoryName, Holders, Keep, Lifetime, ObjectRef, PermissionId, RemoteAddress, Rights, Sharing,
    TenantName,
};

/// The content of a client's request to its node (Patronus §5.1, Table 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestBody {
    /// The node's books carry the request out.
    Grant(GrantRequest),
    /// The node's books look into the tenants' directories.
    Named(NamedRequest),
    /// The node changes the client's ends.
    QueuePair(QueuePairRequest),
    /// The node's CPU accesses the memory.
    Copy(CopyRequest),
}

impl From<GrantRequest> for RequestBody {
    fn from(request: GrantRequest) -> Self {
        Self::Grant(request)
    }
}

impl From<NamedRequest> for RequestBody {
    fn from(request: NamedRequest) -> Self {
        Self::Named(request)
    }
}

impl From<QueuePairRequest> for RequestBody {
    fn from(request: QueuePairRequest) -> Self {
        Self::QueuePair(request)
    }
}

impl From<CopyRequest> for RequestBody {
    fn from(request: CopyRequest) -> Self {
        Self::Copy(request)
    }
}

/// A request about an object or a permission over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantRequest {
    /// Allocates memory, and grants a permission over it.
    Allocate(Allocate),
    /// Allocates a chunk, if the node's CPU hands chunks out: grants an exclusive permission over zeros, without a
    /// deadline. It is freed by `Revoke`.
    AllocateChunk,
    /// Acquires a permission over an object that exists, or over a part of it.
    Acquire(Acquire),
    /// Extends a permission's lifetime by message: the naive way of Patronus §5.3.
    Extend {
        /// The permission.
        permission: PermissionId,
        /// The permission's new lifetime, from its start.
        lifetime: Lifetime,
    },
    /// Ends a permission.
    Revoke {
        /// The permission.
        permission: PermissionId,
        /// Whether the object is freed as well, as [`Free`](Self::Free) with [`Holders::Stay`] does. Has no effect on
        /// an object of another tenant.
        free: bool,
    },
    /// Ends an object and its members: from the answer on, no client is granted a permission over them. The memory is
    /// freed with the last permission.
    Free {
        /// The object. It may be named again if it was freed and still exists.
        object: ObjectName,
        /// The treatment of the permissions over the object.
        holders: Holders,
    },
    /// Makes an object a member of another one, its head. Each tenant that the head is shared with may have the same
    /// rights over the member.
    Include {
        /// The new member: one of the tenant's own objects, without a name, a head or members.
        member: ObjectRef,
        /// The head: one of the tenant's own objects, which is no member.
        head: ObjectRef,
    },
    /// Changes the time for which an object is kept. Without such a time, the object ends once its last permission has
    /// ended.
    Keep {
        /// The object.
        object: ObjectName,
        /// The time for which the object is kept from here on.
        keep: Keep,
    },
}

/// Parameters of [`GrantRequest::Allocate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocate {
    /// Size of the memory, in bytes.
    pub size: u64,
    /// The object's address is to be a multiple of this: a power of two. Zero and one request no alignment.
    pub alignment: u64,
    /// The permission's lifetime, from its grant.
    pub lifetime: Lifetime,
    /// The accesses that the permission allows.
    pub rights: Rights,
    /// Whether others may hold a permission at the same time.
    pub sharing: Sharing,
    /// The time for which the object is kept.
    pub keep: Keep,
}

/// Parameters of [`GrantRequest::Acquire`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// The object.
    pub object: ObjectName,
    /// The bytes of the object.
    pub part: Part,
    /// The permission's lifetime, from its grant.
    pub lifetime: Lifetime,
    /// The accesses that the permission allows.
    pub rights: Rights,
    /// Whether others may hold a permission at the same time.
    pub sharing: Sharing,
    /// The longest time that the request may wait for conflicting holders.
    pub wait: Lifetime,
}

/// A request about the names in a tenant's directory, and about the objects that are shared under them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamedRequest {
    /// Gives an object a name in the directory of its tenant.
    Publish {
        /// The name, which no other object of the tenant has.
        name: DirectoryName,
        /// The object: one of the tenant's own, without a name.
        object: ObjectRef,
    },
    /// Removes a name, and ends the permissions that other tenants hold over its object.
    Unpublish {
        /// The name.
        name: DirectoryName,
    },
    /// Looks up the object with a name.
    Lookup {
        /// The tenant that the object belongs to. `None`: the client's own.
        owner: Option<TenantName>,
        /// The name.
        name: DirectoryName,
    },
    /// Returns the next object in the order of names.
    List {
        /// The tenant whose names are listed. `None`: the client's own.
        owner: Option<TenantName>,
        /// The name before the requested one. `None`: the first name is requested.
        after: Option<DirectoryName>,
    },
    /// Lets another tenant acquire permissions over a named object of the client's tenant.
    Share {
        /// The object's name.
        name: DirectoryName,
        /// The other tenant. It need not be attached.
        tenant: TenantName,
        /// The most that the other tenant's permissions may allow.
        rights: Rights,
    },
    /// Ends the sharing of a named object with another tenant. The other tenant's permissions over the object end.
    Unshare {
        /// The object's name.
        name: DirectoryName,
        /// The other tenant.
        tenant: TenantName,
    },
}

/// A request about the client's queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuePairRequest {
    /// Requests that the node make workers that allocate and free chunks for the client (OneSidedMW). If the node makes
    /// none, the reply reports that its CPU hands chunks out.
    JoinChunks,
    /// Rebuilds a queue pair that went to ERR. The client has polled all its completions before.
    Recover {
        /// The queue pair's number among the client's data queue pairs.
        queue_pair: u32,
    },
}

/// An access that the node's CPU carries out: the mechanism `node-copy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyRequest {
    /// Returns bytes to the client.
    Read {
        /// The permission that covers them.
        permission: PermissionId,
        /// The offset of the bytes in the permission's buffer.
        offset: u64,
        /// The number of bytes, at most [`DATA_BYTES_MAX`](super::DATA_BYTES_MAX).
        length: u64,
    },
    /// Writes the bytes behind this message to the node's memory.
    Write {
        /// The permission that covers them.
        permission: PermissionId,
        /// The offset of the bytes in the permission's buffer.
        offset: u64,
        /// The number of bytes, at most [`DATA_BYTES_MAX`](super::DATA_BYTES_MAX).
        length: u64,
    },
    /// Does a compare and swap of an aligned 8-byte word.
    CompareAndSwap {
        /// The permission that covers the word.
        permission: PermissionId,
        /// The offset of the word in the permission's buffer.
        offset: u64,
        /// The value that the word must have.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Does a fetch and add on an aligned 8-byte word.
    FetchAndAdd {
        /// The permission that covers the word.
        permission: PermissionId,
        /// The offset of the word in the permission's buffer.
        offset: u64,
        /// The number to add, wrapping.
        add: u64,
    },
}

/// Default lifetime of a permission: a second.
const LIFETIME: Lifetime = Lifetime::seconds(1);
/// Default time that a request may wait: a second.
const WAIT: Lifetime = Lifetime::seconds(1);

impl Allocate {
    /// Requests exclusive memory of `size` bytes with all rights, for a second. The memory is freed when its permission
    /// ends.
    #[must_use]
    pub fn bytes(size: u64) -> Self {
        Self {
            size,
            alignment: 1,
            lifetime: LIFETIME,
            rights: Rights::all(),
            sharing: Sharing::Exclusive,
            keep: Keep::No,
        }
    }

    /// Sets the lifetime.
    #[must_use]
    pub fn lifetime(self, lifetime: Lifetime) -> Self {
        Self { lifetime, ..self }
    }

    /// Allows these rights only.
    #[must_use]
    pub fn rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    /// Lets other clients share the object.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { sharing: Sharing::Shared, ..self }
    }

    /// Aligns the object to a multiple of `alignment` bytes: a power of two, up to 2 MiB.
    #[must_use]
    pub fn aligned(self, alignment: u64) -> Self {
        Self { alignment, ..self }
    }

    /// Keeps the object when its permissions end, until it is freed or the tenant's last client leaves.
    #[must_use]
    pub fn keep(self) -> Self {
        Self { keep: Keep::Attached, ..self }
    }

    /// Keeps the object when its permissions end, until it is freed or the tenant's last client has been gone for
    /// `time`, so that its producer may restart. The node limits this time (`serve --longest-keep`).
    #[must_use]
    pub fn keep_for(self, time: Lifetime) -> Self {
        Self { keep: Keep::For(time), ..self }
    }

    /// Keeps the object until it is freed or the node ends. The node must allow pinned objects (`serve --longest-keep
    /// forever`).
    #[must_use]
    pub fn pinned(self) -> Self {
        Self { keep: Keep::Pinned, ..self }
    }
}

impl Acquire {
    /// Requests the whole of this object, exclusively and with all rights, for a second. The request may wait for a
    /// second.
    #[must_use]
    pub fn object(object: ObjectRef) -> Self {
        Self::named(ObjectName::Reference(object))
    }

    /// Requests the tenant's object that starts at `address` now. This may be another object than the caller means: the
    /// meant one may have been freed, or the node may have restarted.
    #[must_use]
    pub fn dangerous_at(address: RemoteAddress) -> Self {
        Self::named(ObjectName::Address(address))
    }

    fn named(object: ObjectName) -> Self {
        Self {
            object,
            part: Part::WHOLE,
            lifetime: LIFETIME,
            rights: Rights::all(),
            sharing: Sharing::Exclusive,
            wait: WAIT,
        }
    }

    /// Sets the lifetime.
    #[must_use]
    pub fn lifetime(self, lifetime: Lifetime) -> Self {
        Self { lifetime, ..self }
    }

    /// Allows these rights only.
    #[must_use]
    pub fn rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    /// Allows reading only.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.rights(Rights::READ)
    }

    /// Lets other clients share the bytes.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { sharing: Sharing::Shared, ..self }
    }

    /// Requests only `length` bytes of the object from `offset` on. Offsets of the permission's accesses count from
    /// there. Permissions over parts that share no byte do not exclude each other. A length of zero means all bytes
    /// from `offset` on.
    #[must_use]
    pub fn part(self, offset: u64, length: u64) -> Self {
        Self { part: Part { offset, length }, ..self }
    }

    /// Sets for how long the request waits for conflicting holders.
    #[must_use]
    pub fn wait(self, wait: Lifetime) -> Self {
        Self { wait, ..self }
    }
}
