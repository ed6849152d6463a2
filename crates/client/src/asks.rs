//! Requests of a client: for memory, and for permissions over existing objects.

use crate::calls::Awaited;
use portcullis_protocol::{
    Keep, Lifetime, Moment, ObjectName, ObjectRef, Part, RemoteAddress, RequestBody, Rights, Sharing,
};

/// Parameters of [`Client::allocate`](crate::Client::allocate).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocate {
    /// Size in bytes.
    pub size: u64,
    /// Alignment of the first byte: a power of two. Zero and one mean no alignment.
    pub alignment: u64,
    /// Lifetime of the permission.
    pub lifetime: Lifetime,
    /// Rights of the permission.
    pub rights: Rights,
    /// Whether other clients may share the object.
    pub sharing: Sharing,
    /// For how long the node keeps the object.
    pub keep: Keep,
}

/// Parameters of [`Client::acquire`](crate::Client::acquire).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// The object.
    pub object: ObjectName,
    /// The bytes of the object that the permission covers.
    pub part: Part,
    /// Lifetime of the permission.
    pub lifetime: Lifetime,
    /// Rights of the permission.
    pub rights: Rights,
    /// Whether other clients may share the bytes.
    pub sharing: Sharing,
    /// For how long the node may let the request wait for conflicting holders.
    pub wait: Lifetime,
}

impl Allocate {
    pub(crate) fn body(self) -> RequestBody {
        let Self { size, alignment, lifetime, rights, sharing, keep } = self;
        RequestBody::Allocate { size, alignment, lifetime, rights, sharing, keep }
    }

    pub(crate) fn awaited(self, requested_at: Moment) -> Awaited {
        Awaited::Grant { requested_at, rights: self.rights, sharing: self.sharing, is_new: true }
    }
}

impl Acquire {
    pub(crate) fn body(self) -> RequestBody {
        let Self { object, part, lifetime, rights, sharing, wait } = self;
        RequestBody::Acquire { object, part, lifetime, rights, sharing, wait }
    }

    pub(crate) fn awaited(self, requested_at: Moment) -> Awaited {
        Awaited::Grant { requested_at, rights: self.rights, sharing: self.sharing, is_new: false }
    }
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
