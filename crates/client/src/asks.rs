//! What is asked for: memory, and permissions over what is there.

use crate::calls::Awaited;
use portcullis_protocol::{
    Keep, Lifetime, Moment, ObjectName, ObjectRef, Part, RemoteAddress, RequestBody, Rights, Sharing,
};

/// What is asked of [`Client::allocate`](crate::Client::allocate).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocate {
    /// Bytes.
    pub size: u64,
    /// What the address of the first byte is a multiple of: a power of two. Zero and one ask for nothing.
    pub alignment: u64,
    /// How long the permission is to live.
    pub lifetime: Lifetime,
    /// What it is to allow.
    pub rights: Rights,
    /// Beside whom it may be held.
    pub sharing: Sharing,
    /// What the object outlives.
    pub keep: Keep,
}

/// What is asked of [`Client::acquire`](crate::Client::acquire).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// Which object.
    pub object: ObjectName,
    /// Which bytes of it.
    pub part: Part,
    /// How long the permission is to live.
    pub lifetime: Lifetime,
    /// What it is to allow.
    pub rights: Rights,
    /// Beside whom it may be held.
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
        Awaited::Grant { requested_at, rights: self.rights, sharing: self.sharing }
    }
}

impl Acquire {
    pub(crate) fn body(self) -> RequestBody {
        let Self { object, part, lifetime, rights, sharing, wait } = self;
        RequestBody::Acquire { object, part, lifetime, rights, sharing, wait }
    }

    pub(crate) fn awaited(self, requested_at: Moment) -> Awaited {
        Awaited::Grant { requested_at, rights: self.rights, sharing: self.sharing }
    }
}

/// How long a permission is asked for when nothing is said: a second.
const LIFETIME: Lifetime = Lifetime::seconds(1);
/// How long a request may wait when nothing is said: a second.
const WAIT: Lifetime = Lifetime::seconds(1);

impl Allocate {
    /// Exclusive memory of `size` bytes with all rights, for a second, that goes with its permission.
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

    /// For so long.
    #[must_use]
    pub fn lifetime(self, lifetime: Lifetime) -> Self {
        Self { lifetime, ..self }
    }

    /// With these rights only.
    #[must_use]
    pub fn rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    /// Beside others who share it.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { sharing: Sharing::Shared, ..self }
    }

    /// At an address that is a multiple of `alignment` bytes: a power of two, up to 2 MiB.
    #[must_use]
    pub fn aligned(self, alignment: u64) -> Self {
        Self { alignment, ..self }
    }

    /// The object stays when its permissions end, until it is freed or the tenant's last client goes.
    #[must_use]
    pub fn keep(self) -> Self {
        Self { keep: Keep::Attached, ..self }
    }

    /// The object stays when its permissions end, until it is freed or the tenant's last client has been gone for `time`:
    /// whoever produces it may restart. The node has a limit for it (`serve --longest-keep`).
    #[must_use]
    pub fn keep_for(self, time: Lifetime) -> Self {
        Self { keep: Keep::For(time), ..self }
    }

    /// The object stays until it is freed or the node ends. The node has to allow it (`serve --longest-keep forever`).
    #[must_use]
    pub fn pinned(self) -> Self {
        Self { keep: Keep::Pinned, ..self }
    }
}

impl Acquire {
    /// This object, whole, exclusively and with all rights, for a second, waiting for a second.
    #[must_use]
    pub fn object(object: ObjectRef) -> Self {
        Self::named(ObjectName::Reference(object))
    }

    /// Whatever object of the tenant starts at `address` now. It need not be the one that the caller means: after that
    /// one was freed, or the node has started again, another may lie there.
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

    /// For so long.
    #[must_use]
    pub fn lifetime(self, lifetime: Lifetime) -> Self {
        Self { lifetime, ..self }
    }

    /// With these rights only.
    #[must_use]
    pub fn rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    /// To read only.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.rights(Rights::READ)
    }

    /// Beside others who share it.
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

    /// Waiting for so long for those who hold it otherwise.
    #[must_use]
    pub fn wait(self, wait: Lifetime) -> Self {
        Self { wait, ..self }
    }
}
