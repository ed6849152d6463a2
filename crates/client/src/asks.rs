//! What a client asks for: memory, and permissions over existing objects.

use crate::calls::Awaited;
use portcullis_protocol::{
    Keep, Lifetime, Moment, ObjectName, ObjectRef, Part, RemoteAddress, RequestBody, Rights, Sharing,
};

/// What [`Client::allocate`](crate::Client::allocate) asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocate {
    /// Size in bytes.
    pub size: u64,
    /// Alignment of the first byte: a power of two. Zero and one ask for none.
    pub alignment: u64,
    /// How long the permission is to live.
    pub lifetime: Lifetime,
    /// What the permission allows.
    pub rights: Rights,
    /// Whether others may share the object.
    pub sharing: Sharing,
    /// How long the object is kept.
    pub keep: Keep,
}

/// What [`Client::acquire`](crate::Client::acquire) asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// Which object.
    pub object: ObjectName,
    /// Which bytes of it.
    pub part: Part,
    /// How long the permission is to live.
    pub lifetime: Lifetime,
    /// What the permission allows.
    pub rights: Rights,
    /// Whether others may share the bytes.
    pub sharing: Sharing,
    /// How long the node may let the request wait for conflicting holders.
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

/// The lifetime of a permission by default: a second.
const LIFETIME: Lifetime = Lifetime::seconds(1);
/// How long a request may wait by default: a second.
const WAIT: Lifetime = Lifetime::seconds(1);

impl Allocate {
    /// Exclusive memory of `size` bytes with all rights, for a second. It goes with its permission.
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

    /// Lets others share the object.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { sharing: Sharing::Shared, ..self }
    }

    /// Aligns the object to a multiple of `alignment` bytes: a power of two, up to 2 MiB.
    #[must_use]
    pub fn aligned(self, alignment: u64) -> Self {
        Self { alignment, ..self }
    }

    /// Keeps the object when its permissions end, until it is freed or the tenant's last client goes.
    #[must_use]
    pub fn keep(self) -> Self {
        Self { keep: Keep::Attached, ..self }
    }

    /// Keeps the object when its permissions end, until it is freed or the tenant's last client has been gone for
    /// `time`: its producer may restart. The node has a limit for this (`serve --longest-keep`).
    #[must_use]
    pub fn keep_for(self, time: Lifetime) -> Self {
        Self { keep: Keep::For(time), ..self }
    }

    /// Keeps the object until it is freed or the node ends. The node has to allow it (`serve --longest-keep forever`).
    #[must_use]
    pub fn pinned(self) -> Self {
        Self { keep: Keep::Pinned, ..self }
    }
}

impl Acquire {
    /// This object, whole, exclusively and with all rights, for a second, with a wait of a second.
    #[must_use]
    pub fn object(object: ObjectRef) -> Self {
        Self::named(ObjectName::Reference(object))
    }

    /// The tenant's object that starts at `address` now. It need not be the object that the caller means: another may
    /// lie there after the meant one was freed or the node has started again.
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

    /// Lets others share the bytes.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { sharing: Sharing::Shared, ..self }
    }

    /// Only `length` bytes of the object from `offset` on. Offsets of the permission's accesses count from there.
    /// Permissions over parts that share no byte do not exclude each other. A length of zero: all the rest.
    #[must_use]
    pub fn part(self, offset: u64, length: u64) -> Self {
        Self { part: Part { offset, length }, ..self }
    }

    /// How long the request waits for conflicting holders.
    #[must_use]
    pub fn wait(self, wait: Lifetime) -> Self {
        Self { wait, ..self }
    }
}
